"""The fault injector: what every fault needs, and the check whether it stays within the promise.

Owns: which brokers are impaired or weakened, the list of what was done, and the promise itself: of each acknowledged
record one in-sync replica keeps its (synced) copy. Leaves to others: which fault comes next (`fault_schedule`).
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator

from minibroker.broker.replicas.partition import Partition
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.cluster import HELD_SECONDS, SimulatedCluster
from minibroker.simulation.swarm.loads.load_options import REMADE
from minibroker.simulation.swarm.options import ADDRESS_GONE, RunOptions
from minibroker.simulation.swarm.workload import Workload
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.storage import SimulatedStorage

LOOK_SECONDS = 0.01
SETTLED_SECONDS = 2.0
"""A sole in-sync replica has had its fsync by then."""
FAULT_SECONDS_MIN = 0.1
RECREATED = TopicPartition("reborn", 0)
"""A topic that is deleted and made again; records of the topic that exists now are under promise
(`recreated_topic`)."""
REFUSES_SECONDS = (0.0, 0.002, 0.01, 0.05)
"""For this long the address of a dead container refuses connections, then it is silent; 50 to 80 ms were measured."""


class FaultInjector:
    """Shared by all faults of a run."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        options: RunOptions,
        reference: ReferenceState,
        workload: Workload,
        rng: random.Random,
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.network = cluster.world.network
        self.zookeeper = cluster.world.zookeeper
        self.options = options
        self.reference = reference
        self.workload = workload
        self.random = rng
        self._refuses = cluster.world.random("containers")
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        """How often each thing was done, by its name in the history."""
        self.injected: Counter[str] = Counter()
        """How often each fault and sequence of the options came; not counted where it fitted nothing."""
        self.listeners: list[Callable[[str], None]] = []
        """Called with each line of the history."""
        self.broken_disks: set[int] = set()
        self.disks_with_faults: set[int] = set()
        """Brokers whose disk has ever had a fault that its broker may end by."""
        self.faulty_disks: set[int] = set()
        """At most one broker, whose disk lied, rots or was replaced and is not repaired yet (`faulty_disk`)."""
        self.lying_disks: set[int] = set()
        """Brokers on whose disks syncs do nothing."""
        self.kept_down: set[int] = set()
        """Brokers that no fault or sequence may start yet."""
        self.stopping: list[Process] = []
        self._impaired: dict[int, int] = {}
        """Brokers that are paused, cut off or without a working disk, and by how many faults."""
        self._uninformed: Counter[int] = Counter()
        """Brokers whose orders or batches are held, and by how many sequences: they may leave any ISR."""
        self._weakened: set[int] = set()
        """Brokers that lost bytes and have not caught up since: no other broker may fail meanwhile."""

    def note(self, what: str, *facts: object) -> None:
        self.counts[what] += 1
        line = f"{self.world.loop.elapsed:8.3f} {what} {' '.join(map(str, facts))}".rstrip()
        self.history.append(line)
        for listener in self.listeners:
            listener(line)

    # -------------------------------------------------------------------------------------------------- the promise
    def has_weakened_broker(self) -> bool:
        """A broker lost bytes that it counts for: until it has left the ISR or caught up, the others must live."""
        self._weakened = {b for b in self._weakened if self.reference.counts_for_what_it_lost(b)}
        return bool(self._weakened)

    def may_lose(self, victims: set[int], synced_too: bool = False) -> bool:
        """Whether each partition keeps a good copy if these brokers lose what is not synced (or all of it)."""
        if self.has_weakened_broker() or not self.may_fail(*victims):
            return False
        synced_too = synced_too or bool(victims & self.lying_disks)
        if self.options.flushes and not synced_too:
            return True
        sound = self.sound_brokers() - victims
        for state in self.guarded_states():
            members = set(state.members)
            if not members & victims or self.reference.has_sound_member(state, sound):
                continue
            alone_for = self.world.loop.elapsed - state.since
            alone = len(members) == 1 and state.min_isr > 1 and alone_for > SETTLED_SECONDS and not synced_too
            if not (alone and self.reference.leads(state.members[0], state)):
                return False
        return True

    def sound_brokers(self) -> set[int]:
        """Alive, not about to stop, unimpaired, and on a disk that is not faulty. A broker that stops leaves every ISR
        first: a member that loses power meanwhile would be the only one in sync, without its tail (seed 17152117)."""
        stopping = {process.name for process in self.stopping if process.alive}
        alive = {b for b in self.cluster.alive() if name_of(b) not in stopping}
        return {b for b in alive if not self._impaired.get(b)} - self.faulty_disks

    def steady_brokers(self) -> set[int]:
        """Sound, and with no message to it held."""
        return {b for b in self.sound_brokers() if not self._uninformed[b]}

    @contextlib.contextmanager
    def uninformed(self, broker_id: int) -> Iterator[None]:
        """Messages to this broker are held: its copy does not count meanwhile (seed 17002581)."""
        self._uninformed[broker_id] += 1
        try:
            yield
        finally:
            self._uninformed[broker_id] -= 1

    def guarded_states(self) -> list[ReferencePartition]:
        """Of all topics whose records are under promise, those that are made again included."""
        made_again = (self.reference.state(RECREATED), self.reference.state(REMADE))
        return [*self.reference.states(), *(state for state in made_again if state is not None)]

    def may_fail(self, *victims: int) -> bool:
        """Whether all of these may fail at once. While one disk is faulty, each partition of its broker keeps another
        in-sync replica that is up: damage may be found at any moment, and a damaged replica alone in its ISR can
        neither lead nor be repaired. To lose its session counts, too: it leaves the ISR (seed 17301877).
        """
        if self.kept_down:
            return False  # a broker is down on purpose, and maybe all will be
        if not self.faulty_disks:
            return True
        sound = self.steady_brokers() - set(victims)
        return all(
            not self.faulty_disks & set(state.members) or self.reference.has_sound_member(state, sound)
            for state in self.guarded_states()
        )

    def may_lose_zookeeper(self) -> bool:
        """Then all sessions may end, and the member with a faulty disk may be the last one of its ISR (seed
        17406701)."""
        return not self.faulty_disks or self.may_fail(*self.cluster.broker_ids)

    def has_no_spare_broker(self) -> bool:
        """One disk is faulty, and another broker already has a fault."""
        return bool(self.faulty_disks) and len(self.steady_brokers()) < len(self.cluster.broker_ids) - len(
            self.faulty_disks
        )

    def is_calm(self, state: ReferencePartition) -> bool:
        """Nothing but disks is broken, and a member other than the leader could lead."""
        zookeeper, others = self.zookeeper, set(self.cluster.broker_ids) - {state.leader}
        is_whole = others <= self.steady_brokers() and zookeeper.is_running and zookeeper.options.extra_delay == 0
        is_fast = not self.network.slow_links and not self.network.bandwidth
        is_fast &= self.cluster.held_seconds() < HELD_SECONDS
        return is_whole and is_fast and self.reference.has_sound_member(state, others)

    def is_in_every_isr(self, broker_id: int) -> bool:
        """Under its current incarnation."""
        replicas = {name: count for name, (_, count, _) in self.options.topics.items()}
        everywhere = min(3, len(self.cluster.broker_ids))  # the topics that are made again
        return self.is_alive(broker_id) and all(
            state.incarnations.get(str(broker_id)) == self.reference.incarnation(broker_id)
            if broker_id in state.members
            else len(state.members) == replicas.get(state.partition.topic, everywhere) < len(self.cluster.broker_ids)
            for state in self.guarded_states()
        )

    def weaken(self, victim: int) -> None:
        """This broker is about to lose bytes."""
        self.reference.lost_bytes(victim)
        self._weakened.add(victim)

    # ------------------------------------------------------------------------------------------------------- choice
    def broker(self) -> int:
        return self.random.choice(self.cluster.broker_ids)

    def others(self, broker_id: int) -> list[int]:
        return [b for b in self.cluster.broker_ids if b != broker_id]

    def storage(self, broker_id: int) -> SimulatedStorage:
        return self.world.machine(name_of(broker_id)).storage

    def is_alive(self, broker_id: int) -> bool:
        return self.world.is_alive(name_of(broker_id))

    def partition(self) -> TopicPartition:
        """A partition under promise, with followers; mostly a busy one."""
        states = [state for state in self.reference.states() if state.replication_factor > 1]
        busy = [state.partition for state in states if state.partition.partition == 0]
        quiet = [state.partition for state in states if state.partition.partition != 0]
        return self.random.choice(quiet if quiet and self.random.random() < 0.4 else busy)

    def state(self, partition: TopicPartition) -> ReferencePartition | None:
        """As ZooKeeper holds it."""
        return next((state for state in self.reference.states() if state.partition == partition), None)

    def leader(self, partition: TopicPartition) -> int | None:
        """The leader in ZooKeeper, if it is alive."""
        state = self.state(partition)
        return state.leader if state is not None and self.is_alive(max(state.leader, 0)) else None

    def replica(self, broker_id: int, partition: TopicPartition) -> Partition | None:
        return self.cluster.replica(broker_id, partition.topic, partition.partition)

    def log_end(self, broker_id: int, partition: TopicPartition) -> int:
        replica = self.replica(broker_id, partition)
        return 0 if replica is None else replica.state.log_end_offset

    # --------------------------------------------------------------------------------------------------------- time
    def seconds(self, high: float | None = None) -> float:
        """How long a fault lasts."""
        return self.random.uniform(FAULT_SECONDS_MIN, high or self.options.fault_seconds_max)

    async def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time."""
        end = self.world.loop.time() + seconds
        while not condition():
            if self.world.loop.time() >= end:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def later(self, undo: Callable[[], object], seconds: float | None = None) -> None:
        self.world.loop.call_later(self.seconds() if seconds is None else seconds, undo)

    def impair(self, broker_id: int, undo: Callable[[], object], seconds: float | None = None) -> None:
        """As `later`; until then this broker's copy does not count."""
        self._impaired[broker_id] = self._impaired.get(broker_id, 0) + 1

        def repaired() -> None:
            self._impaired[broker_id] -= 1
            undo()

        self.later(repaired, seconds)

    def slow_zookeeper(self, delay_seconds: float, seconds: float) -> None:
        options = self.zookeeper.options
        options.extra_delay = delay_seconds
        self.note("zookeeper slow", delay_seconds)

        def heal() -> None:
            options.extra_delay = 0.0

        for broker_id in self.cluster.broker_ids:
            self.impair(broker_id, heal, seconds)

    # ------------------------------------------------------------------------------------------- life of a process
    def start(self, broker_id: int) -> None:
        if self.is_alive(broker_id) or broker_id in self.kept_down:
            return
        self.note("start", broker_id)
        if not self.storage(broker_id).faults:
            self.broken_disks.discard(broker_id)
        if self.options.containers:
            self.network.restore_name(name_of(broker_id))
            self.network.join(name_of(broker_id))
        self.cluster.start(broker_id)

    def kill(self, broker_id: int) -> bool:
        """SIGKILL; False if the broker was not alive or may not fail."""
        if not self.is_alive(broker_id) or self.has_weakened_broker() or not self.may_fail(broker_id):
            return False
        self.note("kill", broker_id)
        self.end_by_kill(broker_id)
        return True

    def end_by_kill(self, broker_id: int) -> None:
        """Without a check of the promise: the caller has made it."""
        self.cluster.kill(broker_id)
        if self.options.containers:
            self.network.forget_name(name_of(broker_id))
            self.later(lambda: self._take_address(broker_id), self._refuses.choice(REFUSES_SECONDS))

    def end_by_stop(self, broker_id: int) -> Process:
        """SIGTERM, without a check of the promise: the caller has made it. Returns the process, which ends later."""
        process = self.world.process(name_of(broker_id))
        self.stopping.append(process)
        self.cluster.stop(broker_id)
        return process

    def _take_address(self, broker_id: int) -> None:
        """The address no longer answers, not even with a refusal; `start` restores it."""
        if not self.is_alive(broker_id):
            self.note("address gone", broker_id)
            self.injected[f"fault {ADDRESS_GONE}"] += 1
            self.network.isolate(name_of(broker_id))

    def bounce(self, broker_id: int) -> bool:
        """Killed and started again within its session."""
        if not self.kill(broker_id):
            return False
        self.start(broker_id)
        return True

    def cut_power(self, victims: set[int], blank: bool = False) -> bool:
        """False if the promise does not allow it."""
        if not victims or not all(map(self.is_alive, victims)) or not self.may_lose(victims, synced_too=blank):
            return False
        for victim in sorted(victims):
            self.note("blank disk" if blank else "power loss", victim)
            if blank or not self.options.flushes:
                self.weaken(victim)
            self.cluster.power_loss(victim)
            if blank:
                self.disks_with_faults.add(victim)
                self.storage(victim).wipe()
                self.storage(victim).provision("/data")
        return True

    def pause(self, broker_id: int, seconds: float) -> bool:
        """SIGSTOP, and SIGCONT later."""
        world, name = self.world, name_of(broker_id)
        if (
            not world.is_alive(name)
            or world.process(name).paused
            or self.has_weakened_broker()
            or not self.may_fail(broker_id)
        ):
            return False
        self.note("pause", broker_id, f"{seconds:.2f}")
        world.pause(name)
        process = world.process(name)

        def resume() -> None:
            if process.alive and process.paused:
                self.note("resume", broker_id)
                world.resume(name)

        self.impair(broker_id, resume, seconds)
        return True

    # -------------------------------------------------------------------------------------------------------- links
    def cut_off(
        self, broker_id: int, others: list[int], seconds: float, both_ways: bool = True
    ) -> list[tuple[str, str]]:
        """No byte passes between this broker and the others (one way: from it to them); all are impaired meanwhile.
        Returns the pairs for `heal`, for a caller that ends it earlier."""
        pairs = [(name_of(broker_id), name_of(other)) for other in others]
        pairs += [(other, one) for one, other in pairs] if both_ways else []
        self.note("cut" if both_ways else "cut one way", broker_id, *others, f"{seconds:.2f}")
        for source, target in pairs:
            self.network.cut(source, target)
        self.impair(broker_id, lambda: self.heal(pairs), seconds)
        for other in others:
            self.impair(other, lambda: None, seconds)
        return pairs

    def heal(self, pairs: list[tuple[str, str]]) -> None:
        for source, target in pairs:
            self.network.heal(source, target)

    def reject(self, victim: int, others: list[int] | None, seconds: float) -> None:
        """A firewall refuses connections of those brokers (None: of all, clients included) to this one, which lives: a
        false suspicion. All are impaired meanwhile: a broker that is taken for dead cannot be elected."""
        sources = [None] if others is None else [name_of(other) for other in others]
        self.note("rejects", victim, "all" if others is None else " ".join(map(str, others)), f"{seconds:.2f}")

        def admit() -> None:
            for source in sources:
                self.network.reject_no_more(source, name_of(victim))

        for source in sources:
            self.network.reject(source, name_of(victim))
        self.impair(victim, admit, seconds)
        for other in self.others(victim):
            self.impair(other, lambda: None, seconds)

    def slow(self, source: str, target: str, delay: float, seconds: float) -> None:
        """Each TCP segment from one machine to another takes longer."""
        links = self.network.slow_links
        links[source, target] = delay
        self.note("slow link", source, target, delay, f"{seconds:.2f}")
        self.later(lambda: links.pop((source, target), None), seconds)


def name_of(broker_id: int) -> str:
    return f"broker-{broker_id}"
