"""The one disk of a run that may be faulty: which broker's it is, what is wrong on it, and when it is repaired.

Owns: the promise about disks (`promise`): at any time at most one broker's disk lies, rots or was replaced, until that
broker is back in every ISR with none of the damage left; and of each acknowledged record another in-sync replica keeps
a good copy. Leaves to others: to choose and to do a fault (`disk_faults`, `whole_cluster`).
"""

import msgspec

from minibroker.protocol.files.checkpoints import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_partition_directory_name,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import FileMissing
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector, name_of
from minibroker.simulation.swarm.faults.file_changes import copied
from minibroker.simulation.world.storage import FileNode, SimulatedStorage

UNSEEN_SECONDS = 3.0
"""Rot in files that are not scrubbed, some of which are read only at a start, is undone after this time: else it would
prevent every other fault for the rest of the run."""
SCRUBBED = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
"""The files that the scrubber reads: rot in these is found and repaired, however long that takes."""


class Rot(msgspec.Struct, frozen=True):
    """One changed byte."""

    path: str
    node: FileNode
    position: int
    before: int
    after: int

    @property
    def partition(self) -> TopicPartition | None:
        """Whose log it is in; None: it is in another file."""
        return parse_partition_directory_name(self.path.rpartition("/")[0].rpartition("/")[2])

    def is_scrubbed(self, storage: SimulatedStorage) -> bool:
        """The index of an active segment is in memory, and rewritten when the segment is closed."""
        directory, _, name = self.path.rpartition("/")
        logs = [each.rpartition("/")[2] for each, _ in storage.files(f"{directory}/") if each.endswith(LOG_SUFFIX)]
        is_active = bool(logs) and name.partition(".")[0] == logs[-1].partition(".")[0]
        return self.path.endswith(LOG_SUFFIX if is_active else SCRUBBED)

    def is_there(self, storage: SimulatedStorage) -> bool:
        """The file is the same, and the byte has not been overwritten."""
        try:
            node = storage.find(self.path)
        except FileMissing:
            return False
        content = self.node.content
        return node is self.node and self.position < len(content) and content[self.position] == self.after

    def may_return(self, storage: SimulatedStorage) -> bool:
        """In records: a loss of power would bring the rot back, for the rename or the write that ended it is not
        synced (seed 17600003). Other files are checked, or built anew, by each start."""
        is_of_records = self.path.endswith(LOG_SUFFIX) and storage.may_lead_to(self.path, self.node)
        return is_of_records and self.node.may_hold(self.position, self.after)


class FaultyDisk:
    """One disk that is faulty. Its broker is in `ReferenceState.faulty` for the checkers, and in `faulty_disks` for
    the injector."""

    def __init__(self, injector: FaultInjector) -> None:
        self._injector = injector
        self.broker: int | None = None
        self.since = 0.0
        self.rot: list[Rot] = []
        self.was_replaced = False
        self.seconds_to_repair: list[float] = []
        """From the damage to the full ISR, of replaced and damaged disks."""
        self.seconds_to_full_isr: list[float] = []
        """The same, of disks that were lost completely."""

    # -------------------------------------------------------------------------------------------------- the promise
    def may_become_faulty(self, broker_id: int) -> bool:
        """Whether all of this broker's disk may become faulty now: other in-sync replicas hold the same records."""
        self.settle()
        injector = self._injector
        if self.broker not in (None, broker_id) or injector.has_weakened_broker():
            return False
        sound = injector.steady_brokers() - {broker_id}
        return all(injector.reference.has_sound_member(state, sound) for state in injector.guarded_states())

    def mark_faulty(self, broker_id: int) -> None:
        """From now on this broker's disk is the faulty one."""
        injector = self._injector
        if self.broker is None:
            self.broker, self.since = broker_id, injector.world.loop.elapsed
        injector.reference.faulty.add(broker_id)
        injector.faulty_disks.add(broker_id)
        injector.disks_with_faults.add(broker_id)

    def rot_byte(self, path: str, position: int, after: int) -> None:
        """One byte of the faulty broker's disk changes; a second change may undo the first (seed 17052830)."""
        assert self.broker is not None
        storage = self._injector.storage(self.broker)
        node = storage.find_file(path)
        before = node.content[position]
        node.overwrite_on_platter(position, bytes([after]))
        storage.trace.record("bit-rot", storage.host, path, position)
        earlier = [each for each in self.rot if each.node is node and each.position == position]
        if earlier and earlier[-1].after == before:
            before = earlier[-1].before
        self.rot = [each for each in self.rot if each not in earlier]
        if after != before:
            self.rot.append(Rot(path, node, position, before, after))

    def note_rotten_byte(self, path: str, position: int) -> None:
        """The caller has changed this byte, of a file that is scrubbed."""
        assert self.broker is not None
        node = self._injector.storage(self.broker).find_file(path)
        byte = node.content[position]
        self.rot.append(Rot(path, node, position, byte, byte))

    # ----------------------------------------------------------------------------------------------------- its end
    def remaining(self) -> list[Rot]:
        """The rot that is still on the disk."""
        if self.broker is None:
            return []
        storage = self._injector.storage(self.broker)
        return [each for each in self.rot if each.is_there(storage)]

    def unrepaired(self) -> list[Rot]:
        """The rot that is still on the disk and that its broker could have repaired: it has no log to copy for a
        deleted topic, which an older copy of the disk brings back."""
        topics = {partition.topic for partition in self._injector.cluster.assignments()}
        return [each for each in self.remaining() if each.partition is None or each.partition.topic in topics]

    def undo_unscrubbed_rot(self) -> int:
        """Undo the rot that no scrubber finds and no write has replaced; returns the number of bytes. Data that a
        failed sync lost, but the kernel still shows, becomes stable."""
        if self.broker is None:
            return 0
        storage = self._injector.storage(self.broker)
        if not storage.faults:
            storage.keep_forgotten()
        rest = [each for each in self.remaining() if not each.is_scrubbed(storage)]
        for each in reversed(rest):
            each.node.overwrite_on_platter(each.position, bytes([each.before]))
        self.rot = [each for each in self.rot if each not in rest]
        return len(rest)

    def settle(self) -> None:
        """If the disk is repaired, another one may become faulty."""
        injector = self._injector
        if self.broker is None:
            return
        now = injector.world.loop.elapsed
        if now - self.since > UNSEEN_SECONDS:
            self.undo_unscrubbed_rot()
        if self.remaining() or not injector.is_in_every_isr(self.broker):
            return
        if any(each.may_return(injector.storage(self.broker)) for each in self.rot):
            return
        if any(each.alive and each.name == name_of(self.broker) for each in injector.reference.lost_files):
            return  # its open files are not what a start would find
        storage = injector.storage(self.broker)
        if storage.faults or storage.ignores_sync or storage.holds_forgotten:
            return
        self.seconds_to_repair.append(now - self.since)
        if self.was_replaced:
            self.seconds_to_full_isr.append(now - self.since)
        injector.note("faulty disk is whole again", self.broker, f"{now - self.since:.2f}")
        injector.reference.faulty.discard(self.broker)
        injector.faulty_disks.discard(self.broker)
        self.broker, self.rot, self.was_replaced = None, [], False

    def replace(self, blank: bool = True) -> None:
        """Give the broker, which is down, a blank disk, or a copy of another broker's."""
        assert self.broker is not None
        injector = self._injector
        assert not injector.is_alive(self.broker)
        storage = injector.storage(self.broker)
        injector.weaken(self.broker)
        injector.note("disk replaced", self.broker, "blank" if blank else "another's")
        other = None if blank else injector.storage(min(injector.others(self.broker)))
        storage.wipe()
        storage.provision("/data")
        if other is not None:
            storage.root = copied(other.root)
        self.rot = []
        self.was_replaced = blank
        storage.trace.record("disk-replaced", name_of(self.broker), blank)
