"""What breaks in a simulated run: the hand that breaks and mends.

Owns: every fault, and the judgement whether it stays within the promise: of each acknowledged record one in-sync
replica keeps its (synced) copy. Refuses to judge the outcome (`verdict`).
"""

import asyncio
import random
from collections.abc import Callable

from minibroker.protocol.znodes import CONTROLLER, ControllerNode
from minibroker.simulation.checks.truth import Truth
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.node import Process
from minibroker.simulation.swarm.options import Options

BENIGN = frozenset({"reset", "slow_link", "client_cut", "zk_lost_reply", "zk_reset", "clock"})
"""Faults that keep every broker in office; only these may come while the promise hangs on a single copy."""
RESTART_WEIGHT = 3
STOP_SECONDS = 40
SETTLED_SECONDS = 2.0
"""A sole in-sync replica has had its fsync by then."""


class Injector:
    """Breaks for a while, then mends everything."""

    def __init__(self, cluster: SimulatedCluster, options: Options, truth: Truth, rng: random.Random) -> None:
        self.history: list[str] = []
        self._cluster = cluster
        self._world = cluster.world
        self._options = options
        self._truth = truth
        self._random = rng
        self._broken_disks: set[int] = set()
        self._impaired: dict[int, int] = {}
        """Brokers that are paused, cut off or short of a disk, and by how many faults."""
        self._stopping: list[Process] = []
        self._weakened: set[int] = set()
        """Brokers that lost bytes and have not caught up since: nobody else may fall meanwhile."""

    # -------------------------------------------------------------------------------------------------------- plot
    async def run(self) -> None:
        end = self._world.loop.time() + self._options.seconds
        choices = [*self._options.faults, *["restart"] * RESTART_WEIGHT]
        while self._world.loop.time() < end:
            await asyncio.sleep(min(8.0, self._random.expovariate(1 / self._options.pause_mean)))
            self._forgive_crashes()
            kind = self._random.choice(choices)
            if kind != "restart" and kind not in BENIGN and self._hangs_by_a_thread():
                continue
            getattr(self, f"_{kind}")()

    async def mend(self) -> None:
        """Faults stop: everything works, everybody runs."""
        world = self._world
        world.network.heal_all()
        world.network.slow_links.clear()
        world.zookeeper.start()
        world.zookeeper.heal()
        world.zookeeper.options.extra_delay = 0.0
        for broker_id in self._cluster.broker_ids:
            machine = world.machine(_name(broker_id))
            machine.storage.heal()
            machine.storage.cost.append = 0.0
            if machine.process is not None and machine.process.alive and machine.process.paused:
                world.resume(machine.name)
        await asyncio.sleep(3)  # who hears of a failed disk comes to his end
        await self._cluster.until(
            lambda: not any(p.alive for p in self._stopping), STOP_SECONDS, "the end of a SIGTERM"
        )
        self._forgive_crashes()
        for broker_id in sorted(self._broken_disks & set(self._cluster.alive())):
            self._note("restart after a disk error", broker_id)
            self._cluster.kill(broker_id)
        for broker_id in self._cluster.broker_ids:
            if broker_id not in self._cluster.alive():
                self._start(broker_id)
        self._note("mended")

    def _note(self, what: str, *facts: object) -> None:
        self.history.append(f"{self._world.loop.elapsed:8.3f} {what} {' '.join(map(str, facts))}".rstrip())

    def _forgive_crashes(self) -> None:
        """A broker may refuse to start on a broken disk or without ZooKeeper; anything else is a bug."""
        allowed = ["DiskError", "DiskFull", "StorageOffline", "LogDirectoryError", "FileMissing"]
        allowed += ["RegistrationError", "ZooKeeperUnreachable"]
        if any("blank disk" in line for line in self.history):
            allowed.append("BrokerIdTaken")  # with another directory it looks like a stranger, and gives up in time
        for crash in list(self._world.crashes):
            if type(crash[1]).__name__ in allowed:
                self._world.crashes.remove(crash)
                self._note("ended", crash[0], type(crash[1]).__name__)

    # -------------------------------------------------------------------------------------------------- the promise
    def _hangs_by_a_thread(self) -> bool:
        """Somebody lost bytes that he counts for: until he is out of the ISR or has caught up, others must live."""
        self._weakened = {b for b in self._weakened if self._truth.counts_for_what_it_lost(b)}
        return bool(self._weakened)

    def _may_lose(self, victims: set[int], synced_too: bool = False) -> bool:
        """Whether each partition keeps a good copy if these brokers lose what is not synced (or all of it)."""
        if self._options.flushes and not synced_too:
            return True
        sound = {b for b in self._cluster.alive() if not self._impaired.get(b)} - victims
        for state in self._truth.states():
            members = set(state.members)
            if not members & victims or self._truth.has_sound_member(state, sound):
                continue
            alone_for = self._world.loop.elapsed - state.since
            alone = len(members) == 1 and state.min_isr > 1 and alone_for > SETTLED_SECONDS and not synced_too
            if not (alone and self._truth.leads(state.members[0], state)):
                return False
        return True

    # ------------------------------------------------------------------------------------------------------ helpers
    def _broker(self) -> int:
        return self._random.choice(self._cluster.broker_ids)

    def _later(self, undo: Callable[[], None], low: float = 0.3, high: float = 8.0) -> None:
        self._world.loop.call_later(self._random.uniform(low, high), undo)

    def _impair(self, broker_id: int, undo: Callable[[], None], low: float = 0.3, high: float = 8.0) -> None:
        self._impaired[broker_id] = self._impaired.get(broker_id, 0) + 1

        def mended() -> None:
            self._impaired[broker_id] -= 1
            undo()

        self._later(mended, low, high)

    def _start(self, broker_id: int) -> None:
        self._note("start", broker_id)
        if not self._world.machine(_name(broker_id)).storage.faults:
            self._broken_disks.discard(broker_id)
        self._cluster.start(broker_id)

    # ------------------------------------------------------------------------------------------------------- deaths
    def _restart(self) -> None:
        dead = [b for b in self._cluster.broker_ids if b not in self._cluster.alive()]
        if dead:
            self._start(self._random.choice(dead))

    def _kill(self, broker_id: int | None = None) -> None:
        victim = self._broker() if broker_id is None else broker_id
        if victim in self._cluster.alive():
            self._note("kill", victim)
            self._cluster.kill(victim)
            if self._random.random() < 0.3:
                self._start(victim)  # within its session

    def _kill_leader(self) -> None:
        topic, (partitions, _, _) = self._random.choice(sorted(self._options.topics.items()))
        leader = self._cluster.leader(topic, self._random.randrange(partitions))
        if leader is not None:
            self._kill(leader)

    def _kill_controller(self) -> None:
        node = self._world.zookeeper.tree.nodes.get(CONTROLLER)
        if node is not None:
            self._kill(ControllerNode.decode(node.data).brokerid)

    def _term(self) -> None:
        victim = self._broker()
        if victim in self._cluster.alive():
            self._note("term", victim)
            self._stopping.append(self._world.process(_name(victim)))
            self._cluster.stop(victim)
            self._impair(victim, lambda: None, low=12, high=13)  # it stands for no election meanwhile

    def _power(self) -> None:
        self._cut_power({self._broker()})

    def _power_many(self) -> None:
        self._cut_power(set(self._random.sample(self._cluster.broker_ids, self._random.choice((2, 3)))))

    def _cut_power(self, victims: set[int], blank: bool = False) -> None:
        if not victims <= set(self._cluster.alive()) or not self._may_lose(victims, synced_too=blank):
            return
        for victim in sorted(victims):
            self._note("blank disk" if blank else "power loss", victim)
            if blank or not self._options.flushes:
                self._truth.lost_bytes(victim)
                self._weakened.add(victim)
            self._cluster.power_loss(victim)
            if blank:
                storage = self._world.machine(_name(victim)).storage
                storage.wipe()
                storage.provision("/data")
            if self._random.random() < 0.3:
                self._start(victim)

    def _blank_disk(self) -> None:
        self._cut_power({self._broker()}, blank=True)

    def _pause(self) -> None:
        name = _name(victim := self._broker())
        world = self._world
        if world.is_alive(name) and not world.process(name).paused:
            self._note("pause", victim)
            world.pause(name)
            process = world.process(name)
            self._impair(victim, lambda: world.resume(name) if process.alive and process.paused else None, high=9)

    def _slow_disk(self) -> None:
        victim = self._broker()
        cost = self._world.machine(_name(victim)).storage.cost
        cost.append = self._random.choice((0.01, 0.1, 0.4))
        self._note("slow disk", victim, cost.append)
        self._impair(victim, lambda: setattr(cost, "append", 0.0))

    # -------------------------------------------------------------------------------------------------------- links
    def _isolate(self) -> None:
        victim = self._broker()
        self._note("isolate", victim)
        self._world.network.isolate(_name(victim))
        self._impair(victim, self._world.network.heal_all)

    def _cut_pair(self) -> None:
        one, other = self._random.sample(self._cluster.broker_ids, 2)
        self._note("cut", one, other)
        self._world.network.partition(_name(one), _name(other))
        self._impair(one, self._world.network.heal_all)
        self._impair(other, lambda: None)

    def _cut_one_way(self) -> None:
        one, other = self._random.sample(self._cluster.broker_ids, 2)
        self._note("cut one way", one, other)
        self._world.network.cut(_name(one), _name(other))
        self._impair(one, self._world.network.heal_all)
        self._impair(other, lambda: None)

    def _client_cut(self) -> None:
        victim = self._broker()
        self._note("cut from clients", victim)
        self._world.network.partition(_name(victim), "client")
        self._later(self._world.network.heal_all)

    def _reset(self) -> None:
        hosts = [*map(_name, self._cluster.broker_ids), "client"]
        one, other = self._random.sample(hosts, 2)
        self._note("reset", one, other)
        self._world.network.reset_connections(one, other)

    def _slow_link(self) -> None:
        hosts = [*map(_name, self._cluster.broker_ids), "client"]
        one, other = self._random.sample(hosts, 2)
        links = self._world.network.slow_links
        links[one, other] = self._random.choice((0.01, 0.1, 0.5))
        self._note("slow link", one, other, links[one, other])
        self._later(lambda: _ignore(links.pop((one, other), None)))

    # ---------------------------------------------------------------------------------------------------- ZooKeeper
    def _zk_cut(self) -> None:
        victim = self._broker()
        self._note("zookeeper cut from", victim)
        self._world.zookeeper.cut(_name(victim))
        self._impair(victim, lambda: self._world.zookeeper.heal(_name(victim)))

    def _zk_down(self) -> None:
        self._note("zookeeper cut from all")
        self._world.zookeeper.cut()
        for broker_id in self._cluster.broker_ids:
            self._impair(broker_id, self._world.zookeeper.heal)

    def _zk_restart(self) -> None:
        if self._world.zookeeper.is_running:
            self._note("zookeeper stops")
            self._world.zookeeper.stop()
            for broker_id in self._cluster.broker_ids:
                self._impair(broker_id, self._world.zookeeper.start)

    def _zk_slow(self) -> None:
        options = self._world.zookeeper.options
        options.extra_delay = self._random.choice((0.05, 0.3, 1.0))
        self._note("zookeeper slow", options.extra_delay)
        for broker_id in self._cluster.broker_ids:
            self._impair(broker_id, lambda: setattr(options, "extra_delay", 0.0))

    def _zk_lost_reply(self) -> None:
        victim = self._broker()
        self._note("zookeeper loses the next reply to", victim)
        self._world.zookeeper.lose_next_reply(_name(victim))

    def _zk_reset(self) -> None:
        victim = self._broker()
        self._note("zookeeper connection reset", victim)
        self._world.zookeeper.drop_connection(_name(victim))

    def _zk_expire(self) -> None:
        victim = self._broker()
        self._note("zookeeper session expired", victim)
        for session in self._world.zookeeper.sessions_of(_name(victim)):
            self._world.zookeeper.expire_session(session)
        self._impair(victim, lambda: None, low=3, high=4)

    # --------------------------------------------------------------------------------------------------------- disk
    def _disk_full(self) -> None:
        victim = self._broker()
        storage = self._world.machine(_name(victim)).storage
        if storage.faults:
            return
        self._note("disk full", victim)
        storage.fail("append", is_full=True)
        self._impair(victim, storage.heal)

    def _disk_error(self) -> None:
        victim = self._broker()
        storage = self._world.machine(_name(victim)).storage
        call = self._random.choice(("append", "read", "truncate", "sync", "open", "replace_file", "rename", "remove"))
        if storage.faults:
            return
        times = self._random.choice((1, 3, 1000))
        self._note("disk error", victim, call, times)
        self._broken_disks.add(victim)
        storage.fail(call, times=times)
        self._impair(victim, storage.heal)

    def _clock(self) -> None:
        machine = self._world.machine(_name(self._broker()))
        machine.clock_skew_ms = self._random.choice((-3_600_000, -5_000, 0, 5_000, 3_600_000))
        self._note("clock", machine.name, machine.clock_skew_ms)


def _ignore(value: object) -> None:
    """For callbacks that have nothing to say."""


def _name(broker_id: int) -> str:
    return f"broker-{broker_id}"
