"""The only in-sync copy is damaged so that its disk shows it: no broker may lead until an operator accepts the loss.

Owns: the sequence, within the promise's rows for an only copy that "stops safely", and the check that no broker leads
before the operator's request. Another replica, in sync until shortly before, also has all records of the only copy: so
the operator's election loses nothing, which every other checker verifies. Damage that a disk does not show is left out:
the promise does not cover it.
"""

import asyncio
import random
from collections.abc import Iterable

from minibroker.protocol.files.checkpoints import (
    CLEAN_SHUTDOWN,
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START,
    CorruptCheckpoint,
    parse_log_start,
    parse_offset_checkpoint,
    parse_segment_file_name,
)
from minibroker.protocol.ids import NONE, TopicPartition
from minibroker.protocol.record_batch import read_header
from minibroker.protocol.wire.messages import ElectionPreview
from minibroker.runtime.ports import FileMissing
from minibroker.simulation.swarm.accepting import accept_loss
from minibroker.simulation.swarm.faults.disk_faults import DiskFaults
from minibroker.simulation.swarm.faults.disk_options import SHORTENED
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.file_changes import copied, logs_of, restore
from minibroker.simulation.swarm.faults.rot_places import HEADER_BYTES, LOG_DIRECTORY, batches_of
from minibroker.simulation.world.storage import SimulatedStorage

BLANK, ROTTEN = "blank", "rotten"
QUIET_SECONDS = 25.0
"""Producers pause for this long, so that the others get all records of the only copy."""
SENT_SECONDS = 0.1
"""What the producers had begun to send before their pause has arrived by then: they linger for 20 ms at most."""
EQUAL_SECONDS = 2.0
ALONE_SECONDS = 8.0
END_SECONDS = 15.0
CHECKPOINT_SECONDS = (0.0, 0.8, 6.0)
BETWEEN_STARTS = (0.0, 0.5, 2.0)
JUDGED_SECONDS = 2.5
"""A controller that wrongly trusts such a disk has elected its broker by then."""
LEADERLESS_SECONDS = 20.0
"""A new controller has checked by then, even with a slow ZooKeeper."""
SETTLED_SECONDS = 10.0


class OnlyCopy:
    """`play` is the sequence."""

    def __init__(self, injector: FaultInjector, faults: DiskFaults, rng: random.Random) -> None:
        self.injector = injector
        self.random = rng
        self._faults = faults
        self._guarded: dict[TopicPartition, int] = {}
        """The czxid of the state of each partition that may have no leader yet. A topic that is deleted and made again
        has another, and may have a leader (seed 17353396)."""
        self._copied: dict[TopicPartition, int] = {}
        """Where the log of the last broker ended, of each partition whose other replicas have all of it."""
        injector.reference.listeners.append(self._on_state)

    async def play(self) -> bool:
        """Starts from a healthy cluster. False if the only copy could not be damaged."""
        injector, last = self.injector, self.random.choice(self.injector.cluster.broker_ids)
        for partition in injector.workload.partitions:
            injector.workload.quiet_until[partition] = injector.world.loop.elapsed + QUIET_SECONDS
        is_hurt = False
        try:
            await asyncio.sleep(SENT_SECONDS)
            await injector.wait(self._are_equal, EQUAL_SECONDS)
            is_hurt = await self._end_all(last)
            await self._start_all(last)
            if is_hurt:
                await self._stand_still(last)
                await self._elect(last)
        finally:
            self._guarded.clear()
            for partition in injector.workload.partitions:
                injector.workload.quiet_until.pop(partition, None)
        await injector.wait(lambda: all(map(injector.is_in_every_isr, injector.cluster.broker_ids)), SETTLED_SECONDS)
        return is_hurt

    def _are_equal(self) -> bool:
        injector = self.injector
        return all(len({injector.log_end(b, s.partition) for b in s.members}) == 1 for s in injector.reference.states())

    # ------------------------------------------------------------------------------------------------------- the end
    async def _end_all(self, last: int) -> bool:
        """Whether the disk of the last broker was damaged."""
        injector = self.injector
        injector.kept_down.update(injector.cluster.broker_ids)
        injector.note("all end", f"{last} last")
        try:
            for broker_id in self.random.sample(injector.others(last), len(injector.others(last))):
                await self._end(broker_id, self.random.choice(("term", "kill")))
            await injector.wait(
                lambda: all(self._is_alone(last, s.members) for s in injector.reference.states()), ALONE_SECONDS
            )
            await asyncio.sleep(self.random.choice(CHECKPOINT_SECONDS))
            way = self.random.choice(("term", "kill"))
            await self._end(last, way)
            return not injector.cluster.alive() and self._hurt(last, way)
        finally:
            injector.kept_down.clear()

    @staticmethod
    def _is_alone(last: int, members: tuple[int, ...]) -> bool:
        return last not in members or members == (last,)

    async def _end(self, broker_id: int, way: str) -> None:
        injector = self.injector
        if not injector.is_alive(broker_id):
            return
        injector.note(way, broker_id)
        if way == "kill":
            injector.end_by_kill(broker_id)
            return
        injector.end_by_stop(broker_id)
        if not await injector.wait(lambda: not injector.is_alive(broker_id), END_SECONDS):
            injector.end_by_kill(broker_id)

    # ---------------------------------------------------------------------------------------------------- the damage
    def _hurt(self, last: int, way: str) -> bool:
        """Do the first kind of damage that fits and that the disk shows."""
        injector, storage = self.injector, self.injector.storage(last)
        states = [state for state in injector.guarded_states() if last in state.members]
        alone = {state.partition: state.czxid for state in states if state.members == (last,)}
        elsewhere = [injector.storage(each) for each in injector.others(last)]
        self._copied = {
            partition: end_of(storage, partition)
            for partition in [state.partition for state in states]
            if (tail := last_batch(storage, partition)) is not None
            and tail in [last_batch(each, partition) for each in elsewhere]
        }
        safe = {partition: end for partition, end in self._copied.items() if partition in alone}
        kinds = [BLANK, ROTTEN, *SHORTENED]
        for kind in self.random.sample(kinds, len(kinds)) if safe else ():
            if kind == BLANK:
                hurt = self._replace(last, safe) if len(safe) == len(alone) else []
            elif kind == ROTTEN:
                hurt = self._rot(last, safe) if way == "kill" else []
            else:
                hurt = self._shorten(last, kind, safe)
            if hurt:
                self._guarded = {each: alone[each] for each in hurt}
                injector.note("the only copy is hurt", last, kind, *sorted(map(str, hurt)))
                return True
        return False

    def _replace(self, last: int, safe: dict[TopicPartition, int]) -> list[TopicPartition]:
        self._faults.disk.mark_faulty(last)
        self._faults.disk.replace()
        return list(safe)

    def _rot(self, last: int, safe: dict[TopicPartition, int]) -> list[TopicPartition]:
        """A batch of the last segment that is followed by others, so that it cannot be a torn write."""
        partition = self.random.choice(sorted(safe))
        path, file = logs_of(self.injector.storage(last))[directory_of(partition)][-1]
        batches = batches_of(file.content)[:-1]
        if not batches:
            return []
        position, size = self.random.choice(batches)
        at = position + self.random.randrange(HEADER_BYTES, size)
        self._faults.disk.mark_faulty(last)
        self._faults.disk.rot_byte(path, at, file.content[at] ^ 1)
        return [partition]

    def _shorten(self, last: int, kind: str, safe: dict[TopicPartition, int]) -> list[TopicPartition]:
        """One log ends early. If nothing on the disk contradicts that, the change is undone."""
        storage, changes = self.injector.storage(last), self._faults.changes
        before = copied(storage.root)
        partition = self.random.choice(sorted(safe))
        changes.only = frozenset({directory_of(partition)})
        is_changed = self._faults.changes.act(kind)(storage) is not None
        changes.only = None
        end = end_of(storage, partition)
        if is_changed and end < reached(storage, partition, safe[partition]):
            self._faults.disk.mark_faulty(last)
            storage.trace.record("files-changed", storage.host, kind, str(partition))
            return [partition]
        restore(storage, before)
        return []

    # -------------------------------------------------------------------------------------------- what comes after it
    async def _start_all(self, last: int) -> None:
        injector, pause = self.injector, self.random.choice(BETWEEN_STARTS)
        order = self.random.sample(injector.cluster.broker_ids, len(injector.cluster.broker_ids))
        if self.random.random() < 0.5:
            order.sort(key=lambda each: each != last)
        for broker_id in order:
            injector.start(broker_id)
            await asyncio.sleep(pause)

    async def _stand_still(self, last: int) -> None:
        """Meanwhile an operator restarts the damaged broker twice, once, or not at all."""
        injector = self.injector
        for _ in range(self.random.choice((0, 1, 1, 2))):
            await asyncio.sleep(JUDGED_SECONDS)
            await self._end(last, self.random.choice(("term", "kill")))
            injector.start(last)
        await asyncio.sleep(JUDGED_SECONDS)
        await injector.wait(self._is_leaderless, LEADERLESS_SECONDS)

    def _is_leaderless(self) -> bool:
        """Of the guarded partitions. Until there is a controller, ZooKeeper still names the leader that has ended."""
        return all(s.leader == NONE for s in self.injector.guarded_states() if s.partition in self._guarded)

    async def _elect(self, last: int) -> None:
        injector, guarded = self.injector, list(self._guarded)

        def accepts(preview: ElectionPreview) -> bool:
            chosen = next(each for each in preview.candidates if each.broker_id == preview.chosen)
            partition = TopicPartition(preview.topic_name, preview.partition_index)
            has_all = partition in self._copied and chosen.log_end_offset >= self._copied[partition]
            return has_all and preview.chosen != last

        injector.note("an operator accepts the loss")
        self._guarded.clear()
        injector.reference.allows_unclean_election = True
        try:
            await accept_loss(injector, lambda: self._are_led(guarded), accepts)
        finally:
            injector.reference.allows_unclean_election = False

    def _are_led(self, partitions: Iterable[TopicPartition]) -> bool:
        """As seen by a live broker. One whose topic has been deleted needs no leader."""
        cluster, reference = self.injector.cluster, self.injector.reference
        there = [each for each in partitions if reference.state(each) is not None]
        return all(cluster.leader(each.topic, each.partition) is not None for each in there)

    def _on_state(self, partition: TopicPartition) -> None:
        czxid, true = self._guarded.get(partition), self.injector.reference.state(partition)
        if czxid is None or true is None or (true.czxid == czxid and true.leader == NONE):
            return
        del self._guarded[partition]
        if true.czxid == czxid:
            facts = (f"the only copy ended at {self._copied[partition]}", f"ZooKeeper holds {true}")
            text = f"broker {true.leader} leads, though the only in-sync copy is damaged and no operator asked for it"
            self.injector.reference.find("I28", text, partition, *facts)


def directory_of(partition: TopicPartition) -> str:
    """Where the partition's files are."""
    return f"{LOG_DIRECTORY}/{partition}"


def last_batch(storage: SimulatedStorage, partition: TopicPartition) -> bytes | None:
    """Two logs with the same last batch are the same, if no bytes are wrong."""
    for _, file in reversed(logs_of(storage).get(directory_of(partition), [])):
        for position, size in reversed(batches_of(file.content)):
            return bytes(file.content[position : position + size])
    return None


def end_of(storage: SimulatedStorage, partition: TopicPartition) -> int:
    """The end of the batches that follow each other without a gap, but for one below the recorded log start: what is
    in front of that is the leftover of a deletion (seed 17250724)."""
    start = recorded_start(storage, partition)
    end: int | None = None
    for path, file in logs_of(storage).get(directory_of(partition), []):
        parsed = parse_segment_file_name(path.rpartition("/")[2])
        assert parsed is not None
        end = parsed[0] if end is None or parsed[0] <= start else end
        for position, _ in batches_of(file.content):
            header = read_header(bytes(file.content), position)
            if header.base_offset != end:
                break
            end = header.end_offset
    return end or 0


def recorded_start(storage: SimulatedStorage, partition: TopicPartition) -> int:
    try:
        return parse_log_start(bytes(storage.find_file(f"{directory_of(partition)}/{LOG_START}").content))[0].offset
    except (FileMissing, CorruptCheckpoint):
        return 0


def reached(storage: SimulatedStorage, partition: TopicPartition, end: int) -> int:
    """How far the log reached according to the disk: to `end` after a clean stop, else to its last high watermark."""
    clean, high_watermarks = (f"{LOG_DIRECTORY}/{name}" for name in (CLEAN_SHUTDOWN, HIGH_WATERMARK_CHECKPOINT))
    files = dict(storage.files(f"{LOG_DIRECTORY}/"))
    if clean in files:
        return end
    try:
        return parse_offset_checkpoint(bytes(storage.find_file(high_watermarks).content)).get(partition, 0)
    except (FileMissing, CorruptCheckpoint):
        return 0
