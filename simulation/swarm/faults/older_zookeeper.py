"""All brokers end, an older copy of ZooKeeper's data is put in, and they are started on it; then the youngest copy is
back.

Owns: the sequence, within the promise's row for such a copy, and the check that each broker that has noted a change
which the copy lacks refuses to start, that no broker leads on the copy, and that every broker that saw a change has
noted one. Leaves to others: what holds before and after (all other checkers).

What decision 0032 does not promise is not drawn: that two brokers start on the copy, or one that is the only member of
an ISR. No client reaches a broker that does start: what it would give them (settings, topics, ids of producers) is gone
with the older copy.
"""

import asyncio
import random

from minibroker.broker.membership.registration import OlderCopy
from minibroker.protocol.files.checkpoints import NOTED_CHANGES, CorruptCheckpoint
from minibroker.protocol.files.noted_changes import parse_noted_changes
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import (
    BROKER_TOPICS,
    NotedChangesNode,
    PartitionState,
    TopicAssignment,
    broker_path,
    noted_changes_path,
    partition_state_path,
)
from minibroker.runtime.ports import CreateOp, FileMissing
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector, name_of
from minibroker.simulation.swarm.faults.rot_places import LOG_DIRECTORY
from minibroker.simulation.swarm.options import ALL_HAVE_NOTED, ONE_WAS_DOWN
from minibroker.simulation.swarm.promise import Circumstance, allows
from minibroker.simulation.world.observations import NodesWritten
from minibroker.simulation.world.zookeeper import DataCopy
from minibroker.simulation.world.zookeeper_links import ZooKeeperRequest

CLIENT = "client"
MESSAGE = "it was restored from an older copy"
ONE_WAS_DOWN_SHARE = 0.5
WHILE_NOTING_SHARE = 0.4
LOST_SHARE = 0.5
READY_SECONDS = 6.0
LEFT_SECONDS = 10.0
"""By then a dead broker is outside of every ISR that has another member."""
AFTER_THE_COPY = (0.0, 0.3, 1.5)
ALONE_SECONDS = (0.0, 0.5, 2.5)
BEFORE_THE_END = (0.0, 4.0, 4.0, 4.0)
"""Mostly so long that each broker must have noted what the copy lacks."""
NOTED_SECONDS = 3.0
"""In a whole cluster, a change that is older has been noted: the controller has told it, and brokers note each
second."""
BETWEEN_ENDS = (0.0, 0.0, 0.05, 0.3, 1.5)
BETWEEN_STARTS = (0.0, 0.0, 0.05, 0.5)
END_SECONDS = 15.0
IN_FLIGHT_SECONDS = 0.5
"""By then the last requests of a killed broker have reached ZooKeeper."""
STARTS = (1, 1, 2, 3)
"""A service manager starts brokers again."""
REFUSED_SECONDS = 8.0
SESSIONS = 1.5
"""For so many sessions, and `JUDGED_SECONDS`, a broker stands alone: the sessions of the copy's time are over then."""
JUDGED_SECONDS = 3.0
SETTLED_SECONDS = 10.0


class OlderZooKeeper:
    """Of one run. `copy_sometime` runs beside the faults, `play` after them, in a whole cluster."""

    def __init__(self, injector: FaultInjector, rng: random.Random) -> None:
        self.injector = injector
        self.random = rng
        self._older: DataCopy | None = None
        self._clean: set[int] = set()
        """Brokers whose stop went to its end."""
        self._ends: dict[int, tuple[float, float]] = {}
        """When each broker ended, or was asked to stop, and since when it was registered then."""
        self._repaired_at = 0.0
        """Since then nothing is broken, and no call to a slow disk holds a broker: each has ZooKeeper again
        `NOTED_SECONDS` later."""
        self._whole = (0.0, 0.0)
        """From when to when nothing was broken, and no broker ended."""
        self._lacking: list[float] = []
        """When the states were written that the copy lacks, as it was before all ended."""
        self._registered: set[str] = set()
        """The registrations that were made since the older copy was put in."""
        injector.world.world_observers.subscribe(NodesWritten, self._on_nodes_written)

    async def copy_sometime(self) -> None:
        await asyncio.sleep(self.random.uniform(0.0, self.injector.options.seconds))
        self._copy()

    def _copy(self) -> None:
        self._older = self.injector.zookeeper.copied_data()
        self.injector.note("ZooKeeper's data is copied", self._older.zxid)

    async def play(self) -> None:
        injector, brokers = self.injector, list(self.injector.cluster.broker_ids)
        self._repaired_at = injector.world.loop.elapsed + injector.cluster.held_seconds()
        if injector.faulty_disks or not await injector.wait(
            lambda: all(map(injector.is_alive, brokers)), READY_SECONDS
        ):
            return
        whole_since = injector.world.loop.elapsed
        if self.random.random() < ONE_WAS_DOWN_SHARE:
            await self._leave_one_behind()
            whole_since = injector.world.loop.elapsed
        assert self._older is not None, "the faults have ended, and so has `copy_sometime`"
        await asyncio.sleep(self.random.choice(BEFORE_THE_END))
        whole_since = max(whole_since, self._repaired_at)
        self._whole, self._lacking = (whole_since, injector.world.loop.elapsed), self._written_since(self._older)
        await self._end_all()
        youngest = injector.zookeeper.copied_data()
        unaware = self._judge_notes(self._older)
        if self._is_promised(self._older, unaware):
            kind = ONE_WAS_DOWN if unaware else ALL_HAVE_NOTED
            assert allows(kind, Circumstance.ANOTHER_COPY)
            injector.injected[f"cluster {kind}"] += 1
            await self._stand(self._older, unaware)
            injector.zookeeper.put_in(youngest)
            injector.note("the youngest copy of ZooKeeper's data is back", youngest.zxid)
            self._accept(youngest, unaware)
        await self._start_all(self.random.choice(BETWEEN_STARTS))
        await injector.wait(lambda: all(map(injector.is_in_every_isr, brokers)), SETTLED_SECONDS)

    # ------------------------------------------------------------------------------------------------------- the end
    async def _leave_one_behind(self) -> None:
        """The copy is made, one broker is killed, and the others acknowledge without it."""
        injector = self.injector
        self._copy()
        await asyncio.sleep(self.random.choice(AFTER_THE_COPY))
        victim = self.random.choice(injector.cluster.broker_ids)
        self._note_end(victim)
        if injector.kill(victim):
            await injector.wait(
                lambda: all(victim not in state.members for state in injector.guarded_states()), LEFT_SECONDS
            )
            await asyncio.sleep(self.random.choice(ALONE_SECONDS))

    async def _end_all(self) -> None:
        """Stopped or killed, in any order; one of them maybe while it notes a change."""
        injector, brokers = self.injector, list(self.injector.cluster.broker_ids)
        injector.kept_down.update(brokers)
        order, pause = self.random.sample(brokers, len(brokers)), self.random.choice(BETWEEN_ENDS)
        aimed = order[-1] if self.random.random() < WHILE_NOTING_SHARE else None
        injector.note("all end", *order)
        try:
            aiming = None if aimed is None else asyncio.create_task(self._kill_while_it_notes(aimed))
            for broker_id in order:
                if broker_id != aimed:
                    self._end(broker_id, self.random.choice(("term", "kill")))
                await asyncio.sleep(pause)
            if aiming is not None:
                await aiming
            await self._all_ended()
            await asyncio.sleep(IN_FLIGHT_SECONDS)
        finally:
            injector.kept_down.clear()

    def _end(self, broker_id: int, way: str) -> None:
        injector = self.injector
        if not injector.is_alive(broker_id):
            return
        injector.note(way, broker_id)
        self._note_end(broker_id)
        if way == "term":
            self._clean.add(broker_id)
            injector.end_by_stop(broker_id)
        else:
            injector.end_by_kill(broker_id)

    async def _all_ended(self) -> None:
        """Wait for it, and kill what does not end by itself."""
        injector = self.injector
        await injector.wait(lambda: not injector.cluster.alive(), END_SECONDS)
        self._clean -= set(injector.cluster.alive())
        for broker_id in injector.cluster.alive():
            self._end(broker_id, "kill")

    def _note_end(self, broker_id: int) -> None:
        now, reference = self.injector.world.loop.elapsed, self.injector.reference
        self._ends[broker_id] = now, now - reference.seconds_since_registration(broker_id)

    async def _kill_while_it_notes(self, broker_id: int) -> None:
        """Its count is on the way to ZooKeeper, and arrives or is lost; what it has on its disk by then stays."""
        injector, path = self.injector, noted_changes_path(broker_id)

        def notes(request: ZooKeeperRequest) -> bool:
            return any(operation.path == path for operation in request.operations)

        hold = injector.zookeeper.hold(name_of(broker_id), notes, times=1)
        await injector.wait(lambda: bool(hold.seen) or not injector.is_alive(broker_id), NOTED_SECONDS)
        injector.note("while it notes a change" if hold.seen else "before it notes a change", broker_id)
        self._end(broker_id, "kill")
        if self.random.random() < LOST_SHARE:
            hold.drop()
        else:
            hold.release()

    # ----------------------------------------------------------------------------------------- what brokers have noted
    def _judge_notes(self, older: DataCopy) -> set[int]:
        """Brokers that have noted no change that the copy lacks."""
        injector = self.injector
        unaware = {b for b in injector.cluster.broker_ids if self._on_disk(b) <= counted_in(older, b)}
        for broker_id in sorted(unaware):
            if self._saw_a_change(broker_id):
                text = f"broker {broker_id} has seen a change that the copy lacks, and has not noted it"
                facts = (f"it has noted {self._on_disk(broker_id)}", f"the copy knows {counted_in(older, broker_id)}")
                injector.reference.find("I3", text, None, *facts)
        return unaware

    def _saw_a_change(self, broker_id: int) -> bool:
        """Its own stop, unless it had just come back to ZooKeeper, or a state that was written long enough before the
        end of a whole cluster in which it was registered. Judged from outside: by ZooKeeper, and by how the broker
        ended."""
        ended_at, registered_at = self._ends[broker_id]
        if broker_id in self._clean and max(self._repaired_at, registered_at) + NOTED_SECONDS <= ended_at:
            return True
        whole_since, whole_until = self._whole
        known_until = min(ended_at, whole_until) - NOTED_SECONDS
        return any(max(at, registered_at, whole_since) <= known_until for at in self._lacking)

    def _written_since(self, older: DataCopy) -> list[float]:
        reference, nodes = self.injector.reference, self.injector.zookeeper.tree.nodes
        paths = [partition_state_path(state.partition) for state in reference.states()]
        return [reference.written_at(path) for path in paths if nodes[path].mzxid > older.zxid]

    def _on_disk(self, broker_id: int) -> int:
        try:
            file = self.injector.storage(broker_id).find_file(f"{LOG_DIRECTORY}/{NOTED_CHANGES}")
            return parse_noted_changes(bytes(file.content))
        except (FileMissing, CorruptCheckpoint):
            return 0

    def _is_promised(self, older: DataCopy, unaware: set[int]) -> bool:
        """At most one broker starts on the copy, it is alone in no ISR, and each partition has an ISR."""
        if len(unaware) > 1:
            return False
        topics = {
            path.rpartition("/")[2]: node
            for path, node in older.nodes.items()
            if path.rpartition("/")[0] == BROKER_TOPICS
        }
        partitions = [
            TopicPartition(name, number)
            for name, node in topics.items()
            for number in TopicAssignment.decode(node.data).replicas()
        ]
        found = [older.nodes.get(partition_state_path(partition)) for partition in partitions]
        states = [PartitionState.decode(node.data) for node in found if node is not None]
        return not unaware or (len(states) == len(found) and not any(set(state.isr) <= unaware for state in states))

    # ----------------------------------------------------------------------------------------------- on the older copy
    async def _stand(self, older: DataCopy, unaware: set[int]) -> None:
        injector, knowing = self.injector, set(self.injector.cluster.broker_ids) - unaware
        injector.zookeeper.put_in(older)
        self._registered.clear()
        injector.note("an older copy of ZooKeeper's data is put in", older.zxid, f"unaware: {sorted(unaware)}")
        for _ in range(self.random.choice(STARTS)):
            await self._start_all(self.random.choice(BETWEEN_STARTS), unaware)
            await injector.wait(lambda: not any(map(injector.is_alive, knowing)), REFUSED_SECONDS)
            self._judge_starts(knowing)
        if unaware:
            seconds = SESSIONS * injector.options.session_seconds + JUDGED_SECONDS
            await injector.wait(lambda: bool(self._led()), seconds)
        else:
            self._judge_writes(older)
        for partition in self._led():
            text = "a broker leads on an older copy of ZooKeeper's data, which names an ISR that may lack records"
            injector.reference.find("I3", text, partition)
        for broker_id in injector.cluster.alive():
            self._end(broker_id, self.random.choice(("term", "kill")))
        await self._all_ended()
        for broker_id in sorted(unaware):
            injector.network.heal(CLIENT, name_of(broker_id))
            injector.network.heal(name_of(broker_id), CLIENT)
        await asyncio.sleep(IN_FLIGHT_SECONDS)

    def _on_nodes_written(self, event: NodesWritten) -> None:
        self._registered.update(operation.path for operation in event.operations if isinstance(operation, CreateOp))

    def _judge_starts(self, knowing: set[int]) -> None:
        """Each has ended by the refusal that docs/OPERATIONS.md names, before it registered. Another error is a crash,
        too."""
        injector, world, refused = self.injector, self.injector.world, set[int]()
        for broker_id in sorted(knowing):
            for crash in [crash for crash in world.crashes if crash[0] == name_of(broker_id)]:
                if isinstance(crash[1], OlderCopy) and MESSAGE in str(crash[1]):
                    world.crashes.remove(crash)
                    if broker_path(broker_id) not in self._registered:
                        refused.add(broker_id)
                        injector.note("refuses the older copy", broker_id)
        for broker_id in sorted(knowing - refused):
            starts = injector.is_alive(broker_id) or broker_path(broker_id) in self._registered
            does = "starts on" if starts else "ends without refusing"
            text = f"broker {broker_id} {does} a copy of ZooKeeper's data that lacks changes which it has noted"
            injector.reference.find("I3", text, None, f"it has noted {self._on_disk(broker_id)} by now")
            self._end(broker_id, "kill")

    def _judge_writes(self, older: DataCopy) -> None:
        """A refused broker writes nothing: what it wrote would make the copy look younger."""
        nodes = self.injector.zookeeper.tree.nodes
        before = {path: node.mzxid for path, node in older.nodes.items() if not node.ephemeral_owner}
        after = {path: node.mzxid for path, node in nodes.items() if not node.ephemeral_owner}
        if before != after:
            paths = sorted(path for path, _ in before.items() ^ after.items())
            self.injector.reference.find("I3", "a broker that was refused has written to ZooKeeper", None, *paths[:5])

    def _led(self) -> list[TopicPartition]:
        """Partitions under promise that a broker leads."""
        cluster = self.injector.cluster
        partitions = [state.partition for state in self.injector.guarded_states()]
        return [each for each in partitions if cluster.leader(each.topic, each.partition) is not None]

    def _accept(self, youngest: DataCopy, unaware: set[int]) -> None:
        """As docs/OPERATIONS.md says: a broker that ran on the older copy has counted there."""
        for broker_id in sorted(unaware):
            if self._on_disk(broker_id) > counted_in(youngest, broker_id):
                directory, name = self.injector.storage(broker_id).parent_of(f"{LOG_DIRECTORY}/{NOTED_CHANGES}")
                directory.entries.pop(name)
                self.injector.note(f"an operator removes {NOTED_CHANGES}", broker_id)

    async def _start_all(self, pause: float, without_clients: set[int] | frozenset[int] = frozenset()) -> None:
        injector, brokers = self.injector, list(self.injector.cluster.broker_ids)
        for broker_id in self.random.sample(brokers, len(brokers)):
            injector.start(broker_id)
            if broker_id in without_clients:
                injector.network.partition(CLIENT, name_of(broker_id))
            await asyncio.sleep(pause)


def counted_in(copy: DataCopy, broker_id: int) -> int:
    """How many changes the copy knows of what this broker has noted."""
    node = copy.nodes.get(noted_changes_path(broker_id))
    return 0 if node is None else NotedChangesNode.decode(node.data).changes
