"""One run, from a healthy cluster to the facts that a verdict is made of.

Owns: the phases (load alone, faults, recovery, a read of everything) and their limits. Leaves to others: the cluster
itself (`opening`), what a fault does (`fault_actions`), and the verdict (`verdict`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from minibroker.chaos.history.promise import LAST_READER
from minibroker.chaos.plan.drawing import PARTITIONS, PlannedFault
from minibroker.chaos.plan.fault_kinds import BY_NAME
from minibroker.chaos.run.chaos_load import CONSUMERS, PRODUCERS, TOPIC, ChaosLoad
from minibroker.chaos.run.client_lines import ClientLines
from minibroker.chaos.run.client_program import LOG_FILE, ClientProgram, ProgramFailed
from minibroker.chaos.run.fault_actions import FaultActions, NoTarget
from minibroker.chaos.run.options import ChaosOptions
from minibroker.chaos.run.recorder import Recorder, in_short
from minibroker.harness.cluster import ClusterHarness, Misuse

WRITE_EVERY_S = 1.0
SETTLE_S = 2.0
"""The load goes on for so long after the last fault, so that the recovery is seen under load."""
RECOVERY_S = 60.0
"""For every replica to be in sync again; a run, a failover and a catch-up take some seconds each."""
SENDS_END_S = 30.0
READ_S = 120.0
ALONE_S = 20.0
"""A fault that comes alone waits so long for a cluster that is whole."""
POLL_S = 0.2


class DoneFault(Struct, kw_only=True):
    """A fault as it happened."""

    planned: PlannedFault
    brokers: list[int] = []
    """The brokers that had the role at that moment."""
    began_s: float | None = None
    undone_from_s: float | None = None
    """When it had lasted as long as planned, and its end began."""
    ended_s: float | None = None
    left_out: str | None = None
    """Why it did not happen."""


class ChaosRun:
    """Of one run, on a cluster that is open."""

    def __init__(self, cluster: ClusterHarness, options: ChaosOptions, recorder: Recorder) -> None:
        self.faults: list[DoneFault] = []
        self.troubles: list[str] = []
        """What the run itself found wrong: it did not recover, not all could be read, a broker did not start."""
        self.why_no_load: str | None = None
        """What the user's program did wrong, if that was the load."""
        self.phases: dict[str, float] = {}
        """When each began, in seconds since the start."""
        self.was_interrupted = False
        self.load = ChaosLoad(
            cluster, recorder, PARTITIONS, rate=options.rate, acks=options.acks, seed=options.plan.seed
        )
        self._program = (
            None if options.client is None else self._client_program(options.client, cluster, options, recorder)
        )
        self._cluster = cluster
        self._options = options
        self._recorder = recorder
        self._actions = FaultActions(cluster, options.plan.seed)
        self._lasting = 0
        self._is_alone = False

    async def run(self, tell: Callable[[str], None]) -> None:
        """All phases. Ctrl-C ends the faults; the rest is done all the same."""
        await self._cluster.create_topic(TOPIC, partitions=PARTITIONS)
        self._phase("load")
        producers, consumers = self._start_clients()
        writing = asyncio.create_task(self._write_regularly(tell))
        try:
            await self._until_interrupted(self._break_under_load(tell, producers))
            self._phase("recovery")
            tell("recovering")
            await self._recover()
            await asyncio.sleep(SETTLE_S)
            await self._end_sending(producers)
            self._recorder.end_sends()
            self._phase("reading")
            tell("reading everything")
            await self._read_all()
        finally:
            for task in (*producers, *consumers, writing):
                task.cancel()
            for outcome in await asyncio.gather(*producers, *consumers, writing, return_exceptions=True):
                if isinstance(outcome, ProgramFailed):
                    self.why_no_load = str(outcome)
                elif isinstance(outcome, Exception):
                    self.troubles.append(f"a client ended with {in_short(outcome)}")
            self.troubles += self.load.wrong
            self._recorder.write()
            self._phase("end")

    def _client_program(
        self, command: str, cluster: ClusterHarness, options: ChaosOptions, recorder: Recorder
    ) -> ClientProgram:
        environment = {
            "CHAOS_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "CHAOS_TOPIC": TOPIC,
            "CHAOS_PARTITIONS": str(PARTITIONS),
            "CHAOS_ACKS": options.acks,
            "CHAOS_RATE": f"{options.rate:g}",
            "CHAOS_SEED": str(options.plan.seed),
        }
        self.load.in_order.update(options.idempotent)
        lines = ClientLines(recorder, frozenset(map(str, self.load.partitions)))
        return ClientProgram(command, environment, lines, options.out / LOG_FILE)

    def _start_clients(self) -> tuple[list[asyncio.Task[None]], list[asyncio.Task[None]]]:
        """Those that send, and those that only read."""
        if self._program is not None:
            return [asyncio.create_task(self._program.run())], []
        producers = [asyncio.create_task(self.load.produce(number)) for number in range(PRODUCERS)]
        return producers, [asyncio.create_task(self.load.consume(number)) for number in range(CONSUMERS)]

    async def _end_sending(self, producers: list[asyncio.Task[None]]) -> None:
        if self._program is not None:
            self._program.stop()
        self.load.stop()
        _, late = await asyncio.wait(producers, timeout=SENDS_END_S)
        if late and self._program is not None:
            self.why_no_load = f"the client program did not end within {SENDS_END_S:g} s after SIGTERM: it was killed"

    def _phase(self, name: str) -> None:
        self.phases[name] = self._recorder.now()

    async def _write_regularly(self, tell: Callable[[str], None]) -> None:
        while True:
            await asyncio.sleep(WRITE_EVERY_S)
            self._recorder.write()

    async def _until_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Ctrl-C cancels this task: the work ends, and the run goes on to its end."""
        this = asyncio.current_task()
        assert this is not None
        try:
            await work
        except asyncio.CancelledError:
            this.uncancel()
            self.was_interrupted = True

    # ------------------------------------------------------------------------------------------------------- faults
    async def _break_under_load(self, tell: Callable[[str], None], producers: list[asyncio.Task[None]]) -> None:
        """Faults without a load test nothing: they end with the program, if that is the load and ends."""
        breaking = asyncio.create_task(self._break(tell))
        try:
            await asyncio.wait([breaking, *([] if self._program is None else producers)], return_when="FIRST_COMPLETED")
        finally:
            if not breaking.done():
                breaking.cancel()
                await asyncio.wait([breaking])
        if not breaking.cancelled():
            breaking.result()

    async def _break(self, tell: Callable[[str], None]) -> None:
        plan = self._options.plan
        async with asyncio.TaskGroup() as lasting:
            for planned in plan.faults:
                await self._sleep_until(planned.at_s)
                done = DoneFault(planned=planned)
                self.faults.append(done)
                while self._lasting >= plan.overlap_max or self._is_alone:
                    await asyncio.sleep(POLL_S)
                if self._recorder.now() - self.phases["load"] > plan.duration_s:
                    done.left_out = "the faults before it took longer than planned"
                    continue
                tell(f"{planned.kind} of {planned.target}")
                lasting.create_task(self._one(done))
                await asyncio.sleep(0)
            await self._sleep_until(plan.duration_s)

    async def _sleep_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - (self._recorder.now() - self.phases["load"])))

    async def _one(self, done: DoneFault) -> None:
        is_alone = BY_NAME[done.planned.kind].is_alone
        self._lasting += 1
        self._is_alone = is_alone
        try:
            if is_alone:
                await self._wait_until_whole(lasting=1)
            await self._last(done)
        except NoTarget as error:
            done.left_out = str(error)
            done.began_s = None
        except Exception as error:
            step = "begin" if done.undone_from_s is None else "be undone"
            self.troubles.append(f"{_name(done)} could not {step}: {in_short(error)}")
        finally:
            if done.began_s is not None:
                done.ended_s = self._recorder.now()
                self._recorder.nemesis(f"end {_name(done)}")
            self._lasting -= 1
        if is_alone:
            with contextlib.suppress(NoTarget):
                await self._wait_until_whole(lasting=0)
            self._is_alone = False

    async def _last(self, done: DoneFault) -> None:
        """From its beginning to its end. A beginning is never cut short, so that its end undoes all of it."""
        done.brokers = await self._actions.targets(done.planned)
        done.began_s = self._recorder.now()
        async with contextlib.AsyncExitStack() as stack:
            fault = self._actions.during(done.planned, done.brokers)
            beginning = asyncio.create_task(stack.enter_async_context(fault))
            try:
                await asyncio.shield(beginning)
            except asyncio.CancelledError:
                await asyncio.gather(beginning, return_exceptions=True)
                raise
            self._recorder.nemesis(f"begin {_name(done)}")
            await asyncio.sleep(done.planned.for_s)
            done.undone_from_s = self._recorder.now()

    async def _wait_until_whole(self, lasting: int) -> None:
        """Every replica in sync, and no other fault lasts. Raises NoTarget."""
        try:
            async with asyncio.timeout(ALONE_S):
                while self._lasting > lasting or await self._cluster.under_replicated(TOPIC):
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise NoTarget(f"not every replica was in sync within {ALONE_S:g} s") from None

    # ----------------------------------------------------------------------------------------------------- recovery
    async def _recover(self) -> None:
        """Everything is repaired, and the cluster must be whole in time."""
        await self._cluster.heal()
        await self._cluster.resume_zookeeper()
        with contextlib.suppress(Misuse):  # it runs
            await self._cluster.start_zookeeper()
        await asyncio.gather(*map(self._revive, tuple(self._cluster.broker_ids)))
        try:
            await self._cluster.wait_in_sync(TOPIC, RECOVERY_S)
        except AssertionError as error:
            self.troubles.append(f"the cluster did not recover: {error}")

    async def _revive(self, broker: int) -> None:
        """By now no fault keeps it down."""
        try:
            await self._cluster.resume(broker)
        except Misuse:
            self.troubles.append(
                f"broker {broker} ended by itself, or was not started again: its log in disks/ says why"
            )
            try:
                await self._cluster.start(broker)
            except Exception as error:
                self.troubles.append(f"broker {broker} does not start: {in_short(error)}")

    async def _read_all(self) -> None:
        left = {"all": -1}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                left = dict(await self.load.read_all(LAST_READER))
        if left:
            self.troubles.append(f"not everything could be read within {READ_S:g} s: {left} records are left")


def _name(done: DoneFault) -> str:
    return f"{done.planned.kind} of {done.planned.target} {done.brokers}"
