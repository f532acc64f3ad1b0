"""Crashes of a broker between two calls to its disk, where no other event of the loop can intervene.

Owns: the trap for one broker at a time, and the faults that set it: during a start, a close, or normal work. Whether
the broker may fail is checked when the trap fires. Leaves to others: the time (`disk_fault_schedule`), whole clusters.
"""

import asyncio
import contextvars
import random

from minibroker.simulation.swarm.faults.fault_injector import FaultInjector, name_of
from minibroker.simulation.world.node import PROCESS, ProcessDead

CALLS_OF_A_START = (1, 45)
CALLS_OF_A_CLOSE = (1, 40)
CALLS_AT_WORK = (1, 120)
"""Calls that change something: from the first one to one that few runs reach."""
SPRUNG_SECONDS = 3.0
"""A broker without load has made its calls by then."""
DOWN_SECONDS = (0.0, 0.0, 0.1, 0.5)
POWER_SHARE = 0.4


class CrashPoints:
    """Each public method except `set_trap` and `await_trap` is one fault."""

    def __init__(self, injector: FaultInjector, rng: random.Random) -> None:
        self.injector = injector
        self.random = rng

    async def dies_in_a_start(self) -> None:
        """A broker is killed, and crashes during its next start."""
        injector, victim = self.injector, self.random.choice(self.injector.cluster.broker_ids)
        if not injector.kill(victim):
            return
        self.set_trap("dies_in_a_start", victim, CALLS_OF_A_START)
        await asyncio.sleep(self.random.choice(DOWN_SECONDS))
        injector.start(victim)
        await self.await_trap(victim)

    async def dies_in_a_close(self) -> None:
        """A broker is asked to stop, and crashes while it closes."""
        injector, victim = self.injector, self.random.choice(self.injector.cluster.broker_ids)
        if not injector.is_alive(victim) or injector.has_weakened_broker() or not injector.may_fail(victim):
            return
        injector.note("term", victim)
        self.set_trap("dies_in_a_close", victim, CALLS_OF_A_CLOSE)
        injector.end_by_stop(victim)
        await self.await_trap(victim)

    async def dies_at_work(self) -> None:
        """A broker crashes in an append, a truncation, a repair, a deletion: whatever it does next."""
        victim = self.random.choice(self.injector.cluster.broker_ids)
        if not self.injector.is_alive(victim):
            return
        self.set_trap("dies_at_work", victim, CALLS_AT_WORK)
        await self.await_trap(victim)

    def set_trap(self, kind: str, victim: int, calls: tuple[int, int]) -> None:
        """The number of calls is drawn on a logarithmic scale."""
        first, last = calls
        number = round(first * (last / first) ** self.random.random())
        way = "power" if self.random.random() < POWER_SHARE else "kill"

        def fire() -> None:
            process = PROCESS.get()
            if process is None or process.name != name_of(victim):
                return
            if contextvars.Context().run(self._end, kind, victim, way, number):  # outside of the process's context
                raise ProcessDead(process.name)

        self.injector.storage(victim).trap(number, fire)

    def _end(self, kind: str, victim: int, way: str, number: int) -> bool:
        injector = self.injector
        counts_for_less = injector.has_weakened_broker() and injector.reference.counts_for_what_it_lost(victim)
        if way == "power" and not injector.may_lose({victim}) and not counts_for_less:
            way = "kill"
        if way == "kill" and not counts_for_less and (injector.has_weakened_broker() or not injector.may_fail(victim)):
            return False
        injector.note(f"disk {kind}", victim, way, f"at call {number}")
        if way == "kill":
            injector.end_by_kill(victim)
        else:
            if not injector.options.flushes:
                injector.weaken(victim)
            injector.cluster.power_loss(victim)
        injector.later(lambda: injector.start(victim), self.random.choice(DOWN_SECONDS))
        return True

    async def await_trap(self, victim: int) -> None:
        """Wait until the trap has fired, or the time is over; then remove it."""
        before = self.injector.world.process(name_of(victim)) if self.injector.is_alive(victim) else None
        await self.injector.wait(lambda: before is None or not before.alive, SPRUNG_SECONDS)
        self.injector.storage(victim).clear_trap()
