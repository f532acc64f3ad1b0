"""Single faults of the one disk that may be faulty, one method each, named as `disk_options` names them.

Owns: what one fault is: rot under a running broker or while it is down, missing or foreign files, failing calls, a disk
that is lost, belongs to another broker, or lies. Leaves to others: whether a fault may come now (`faulty_disk`), and
the order (`disk_fault_schedule`).
"""

import asyncio
import random
from collections.abc import Callable

from minibroker.protocol.files.checkpoints import (
    EPOCH_CHECKPOINT,
    INDEX_SUFFIX,
    LOG_START,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_partition_directory_name,
    segment_file_name,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.faults.disk_options import CALL_NAMES, OPENING_CALLS, VANISHING
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector, name_of
from minibroker.simulation.swarm.faults.faulty_disk import FaultyDisk
from minibroker.simulation.swarm.faults.file_changes import FileChanges, unlink
from minibroker.simulation.swarm.faults.rot_places import LOG_DIRECTORY, MAGIC_AT, Place, RotPlaces, below
from minibroker.simulation.world.storage import DirectoryNode, FileNode, SimulatedStorage

RUNNING_SHARE = 0.3
"""How often files that may vanish under a running broker do so."""
BETWEEN_SHARE = 0.5
"""How much of the rot comes while the broker is down; the rest under a running broker."""
FEW_FLIPS_MAX = 3
OFFSET_BYTES = 8
"""A batch, and so a segment, begins with its base offset."""
DOWN_SECONDS = (0.0, 0.1, 0.5, 2.0)
LIE_SECONDS = (0.3, 1.0, 2.0)
FAILURE_TIMES = (1, 1, 3, 1_000)
SEGMENTS_MIN = 2
STOP_SECONDS = 15.0
"""By then a clean stop has got the controller's answer or given up."""
VANISHED_SECONDS = 4.0
"""By then a running broker has reacted to files that vanished; an operator starts it again."""


class DiskFaults:
    """Each public method named in `disk_options` is one fault. It does nothing where it does not fit."""

    def __init__(self, injector: FaultInjector, disk: FaultyDisk, rng: random.Random) -> None:
        self.injector = injector
        self.disk = disk
        self.random = rng
        self.changes = FileChanges(rng)
        self._places = RotPlaces(rng)

    def victim(self) -> int:
        """The broker that already has a faulty disk, else a random one."""
        return (
            self.disk.broker if self.disk.broker is not None else self.random.choice(self.injector.cluster.broker_ids)
        )

    # ---------------------------------------------------------------------------------------------------------- rot
    async def rot(self, kind: str) -> None:
        """Some places of one kind, under a running broker or while it is down."""
        victim = self.victim()
        if not self.disk.may_become_faulty(victim):
            return
        if self.random.random() < BETWEEN_SHARE:
            await self.while_down(victim, lambda: self.rot_now(victim, kind))
        else:
            self.rot_now(victim, kind)

    def rot_now(self, victim: int, kind: str) -> bool:
        """Flip some bits; False if there was nothing to rot."""
        draw: Callable[[SimulatedStorage], Place | None] = getattr(self._places, kind)
        hurt = False
        for _ in range(self.random.randint(1, FEW_FLIPS_MAX)):
            place = draw(self.injector.storage(victim))
            if place is not None:
                self.disk.mark_faulty(victim)
                self.injector.note(f"disk {kind}", victim, *place)
                self.disk.rot_byte(*place)
                hurt = True
        return hurt

    async def while_down(self, victim: int, act: Callable[[], bool], way: str = "kill") -> None:
        """Kill or stop the broker, act on its disk, and start it again."""
        injector = self.injector
        if not injector.is_alive(victim) or injector.has_weakened_broker() or not injector.may_fail(victim):
            return
        injector.kept_down.add(victim)
        try:
            injector.note(way, victim)
            if way == "kill":
                injector.end_by_kill(victim)
            else:
                injector.end_by_stop(victim)
                if not await injector.wait(lambda: not injector.is_alive(victim), STOP_SECONDS):
                    return
            if way == "kill" or self.disk.may_become_faulty(victim):
                act()
            await asyncio.sleep(self.random.choice(DOWN_SECONDS))
        finally:
            injector.kept_down.discard(victim)
        injector.start(victim)

    # -------------------------------------------------------------------------------------------------------- files
    async def change(self, kind: str) -> None:
        """One of `file_changes`, while the broker is down; some also under a running broker."""
        victim = self.victim()
        if not self.disk.may_become_faulty(victim):
            return
        if kind in VANISHING and self.random.random() < RUNNING_SHARE:
            await self._vanish(victim, kind)
        else:
            way = self.random.choice(("kill", "term"))
            await self.while_down(victim, lambda: self.apply_change(victim, kind, self.changes.act(kind)), way)

    async def _vanish(self, victim: int, kind: str) -> None:
        """The broker notices it later or never, because open files stay readable. An operator starts it again."""
        injector = self.injector
        if not injector.is_alive(victim) or not self.apply_change(victim, kind, self.changes.act(kind)):
            return
        process = injector.world.process(name_of(victim))
        injector.broken_disks.add(victim)
        injector.reference.lost_files.add(process)
        await asyncio.sleep(VANISHED_SECONDS)
        if process.alive:
            injector.bounce(victim)

    def apply_change(self, victim: int, kind: str, act: Callable[[SimulatedStorage], str | None]) -> bool:
        """Make the change; False if it fitted nothing."""
        storage = self.injector.storage(victim)
        what = act(storage)
        if what is not None:
            self.disk.mark_faulty(victim)
            self.injector.note(f"disk {kind}", victim, what)
            storage.trace.record("files-changed", storage.host, kind, what)
        if what is not None and kind == "zeroed_segment":
            self.disk.note_rotten_byte(what, MAGIC_AT)
        return what is not None

    async def _change_files(self, kind: str, act: Callable[[SimulatedStorage], str | None]) -> None:
        victim = self.victim()
        if self.disk.may_become_faulty(victim):
            await self.while_down(victim, lambda: self.apply_change(victim, kind, act))

    async def missing_segment(self) -> None:
        await self._change_files("missing_segment", self.remove_segment)

    def remove_segment(self, storage: SimulatedStorage) -> str | None:
        """Mostly the oldest segment of a log, else any; its indexes stay or go with it."""
        logs: dict[str, list[str]] = {}
        for path, _ in below(storage, LOG_SUFFIX):
            logs.setdefault(path.rpartition("/")[0], []).append(path)
        several = [paths for _, paths in sorted(logs.items()) if len(paths) >= SEGMENTS_MIN]
        if not several:
            return None
        paths = self.random.choice(several)
        path = paths[0] if self.random.random() < 0.7 else self.random.choice(paths)
        with_indexes = self.random.random() < 0.5
        for each in (path, *(path.removesuffix(LOG_SUFFIX) + s for s in (INDEX_SUFFIX, TIME_INDEX_SUFFIX))):
            if each == path or with_indexes:
                unlink(storage, each)
        return path

    async def missing_index(self) -> None:
        await self._change_files(
            "missing_index", lambda storage: self._remove(storage, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )

    async def missing_file(self) -> None:
        suffixes = (SNAPSHOT_SUFFIX, EPOCH_CHECKPOINT, "-offset-checkpoint")
        await self._change_files("missing_file", lambda storage: self._remove(storage, *suffixes))

    def _remove(self, storage: SimulatedStorage, *suffixes: str) -> str | None:
        files = below(storage, *suffixes)
        if not files:
            return None
        path, _ = self.random.choice(files)
        unlink(storage, path)
        return path

    async def foreign_segment(self) -> None:
        """A segment of another partition under a name that its offsets contradict, new or replacing a segment."""

        def act(storage: SimulatedStorage) -> str | None:
            logs = below(storage, LOG_SUFFIX)
            directories = sorted({path.rpartition("/")[0] for path, _ in logs})
            if len(directories) < 2:
                return None
            path, file = self.random.choice(logs)
            target = self.random.choice([each for each in directories if not path.startswith(f"{each}/")])
            names = {each.rpartition("/")[2] for each, _ in logs if each.startswith(f"{target}/")}
            own = segment_file_name(int.from_bytes(file.content[:OFFSET_BYTES], "big"))  # `path` may be a copy's name
            wrong = sorted({*names, segment_file_name(10_000)} - {path.rpartition("/")[2], own})
            if not wrong:
                return None
            name = self.random.choice(wrong)  # under its own name it may fit, for which the promise has another row
            parent = storage.find_directory(target)
            parent.entries[name] = copy = FileNode()
            copy.content = bytearray(file.content)
            copy.modified_ms = file.modified_ms
            copy.sync()
            parent.sync()
            return f"{path} -> {target}/{name}"

        await self._change_files("foreign_segment", act)

    async def swapped_directories(self) -> None:
        """The directories of two partitions of one topic change places; both logs are sound."""

        def act(storage: SimulatedStorage) -> str | None:
            pair = self._two_of_a_topic(storage)
            if pair is None:
                return None
            parent = storage.find_directory(LOG_DIRECTORY)
            one, other = (str(each) for each in pair)
            parent.entries[one], parent.entries[other] = parent.entries[other], parent.entries[one]
            parent.sync()
            return f"{one} <-> {other}"

        await self._change_files("swapped_directories", act)

    async def foreign_log_start(self) -> None:
        """The log start file of another partition of the topic replaces this partition's."""

        def act(storage: SimulatedStorage) -> str | None:
            pair = self._two_of_a_topic(storage)
            if pair is None:
                return None
            source, target = (f"{LOG_DIRECTORY}/{each}/{LOG_START}" for each in pair)
            starts = dict(below(storage, f"/{LOG_START}"))
            if source not in starts or target not in starts:
                return None
            starts[target].content[:] = starts[source].content
            starts[target].sync()
            return f"{source} -> {target}"

        await self._change_files("foreign_log_start", act)

    def _two_of_a_topic(self, storage: SimulatedStorage) -> list[TopicPartition] | None:
        """Two partitions of one topic that have a directory there."""
        found: dict[str, list[TopicPartition]] = {}
        for name in sorted({path.removeprefix(f"{LOG_DIRECTORY}/").partition("/")[0] for path, _ in below(storage)}):
            partition = parse_partition_directory_name(name)
            if partition is not None:
                found.setdefault(partition.topic, []).append(partition)
        several = [partitions for partitions in found.values() if len(partitions) > 1]
        return self.random.sample(self.random.choice(several), 2) if several else None

    async def directory_as_segment(self) -> None:
        """A directory with the name of a segment."""

        def act(storage: SimulatedStorage) -> str | None:
            logs = below(storage, LOG_SUFFIX)
            if not logs:
                return None
            parent = self.random.choice(logs)[0].rpartition("/")[0]
            path = f"{parent}/{segment_file_name(self.random.choice((1, 10_000)))}"
            if path.rpartition("/")[2] in storage.find_directory(parent).entries:
                return None
            storage.provision(path)
            return path

        await self._change_files("directory_as_segment", act)

    # -------------------------------------------------------------------------------------------------------- calls
    async def sync_forgets(self, is_full: bool = False) -> None:
        """A sync fails, and its data never becomes stable; then the power may fail."""
        victim = self.victim()
        storage = self.injector.storage(victim)
        if storage.faults or not self.injector.is_alive(victim) or not self.disk.may_become_faulty(victim):
            return
        self.disk.mark_faulty(victim)
        self.injector.broken_disks.add(victim)
        self.injector.lying_disks.add(victim)
        kind = "sync_forgets_full" if is_full else "sync_forgets"
        self.injector.note(f"disk {kind}", victim)
        storage.fail("sync", times=self.random.choice((1, 3)), is_full=is_full, forgets=True)
        await asyncio.sleep(self.random.choice(LIE_SECONDS) + 1.0)
        storage.heal()
        if self.random.random() < 0.5:
            self.cut_power(victim)
        self.injector.lying_disks.discard(victim)

    async def sync_forgets_full(self) -> None:
        """The same with ENOSPC as the kernel's error."""
        await self.sync_forgets(is_full=True)

    def cut_power(self, victim: int) -> None:
        """Of the broker with the faulty disk: all of its data may be lost."""
        injector = self.injector
        if injector.is_alive(victim) and injector.may_lose({victim}, synced_too=True):
            injector.note("power loss", victim)
            injector.weaken(victim)
            injector.cluster.power_loss(victim)
            self.injector.later(lambda: injector.start(victim), self.random.choice(DOWN_SECONDS))

    async def _fail(self, kind: str, is_full: bool = False, no_descriptor: bool = False) -> None:
        victim, storage = (broker := self.victim()), self.injector.storage(broker)
        if storage.faults or not self.disk.may_become_faulty(victim):
            return
        call = self.random.choice(OPENING_CALLS if no_descriptor else CALL_NAMES)
        times = self.random.choice(FAILURE_TIMES)
        self.disk.mark_faulty(victim)
        if not no_descriptor:  # which passes by itself
            self.injector.broken_disks.add(victim)
        self.injector.note(f"disk {kind}", victim, call, times)
        storage.fail(call, times=times, is_full=is_full, no_descriptor=no_descriptor)
        self.injector.impair(victim, storage.heal, self.random.choice(LIE_SECONDS))

    async def call_fails(self) -> None:
        await self._fail("call_fails")

    async def call_finds_no_room(self) -> None:
        await self._fail("call_finds_no_room", is_full=True)

    async def call_finds_no_descriptor(self) -> None:
        await self._fail("call_finds_no_descriptor", no_descriptor=True)

    # -------------------------------------------------------------------------------------------------- whole disks
    async def lost_disk(self) -> None:
        """The power fails, and a blank disk is put in."""
        victim = self.victim()
        if not self.disk.may_become_faulty(victim) or not self.injector.may_lose({victim}, synced_too=True):
            return
        self.disk.mark_faulty(victim)
        self.injector.note("disk lost_disk", victim)
        await self._put_in(victim, blank=True)

    async def foreign_disk(self) -> None:
        """Another broker's disk is put in: the broker refuses to start, and gets a blank one at the end."""
        victim = self.victim()
        if not self.disk.may_become_faulty(victim) or not self.injector.may_lose({victim}, synced_too=True):
            return
        self.disk.mark_faulty(victim)
        self.injector.note("disk foreign_disk", victim)
        await self._put_in(victim, blank=False)

    async def _put_in(self, victim: int, blank: bool) -> None:
        injector = self.injector
        injector.kept_down.add(victim)
        try:
            injector.cluster.power_loss(victim)
            self.disk.replace(blank)
            await asyncio.sleep(self.random.choice(DOWN_SECONDS))
        finally:
            injector.kept_down.discard(victim)
        injector.start(victim)

    async def lying_disk(self) -> None:
        """Syncs do nothing for a while; then the power fails."""
        victim = self.victim()
        storage = self.injector.storage(victim)
        if storage.faults or not self.injector.is_alive(victim) or not self.disk.may_become_faulty(victim):
            return
        self.disk.mark_faulty(victim)
        self.injector.note("disk lying_disk", victim)
        self.injector.lying_disks.add(victim)
        storage.ignores_sync = True
        await asyncio.sleep(self.random.choice(LIE_SECONDS))
        self.cut_power(victim)
        storage.ignores_sync = False
        if self.injector.is_alive(victim):
            make_stable(storage)  # the broker could not fail, so what its disk reported must become true
        self.injector.lying_disks.discard(victim)


def make_stable(storage: SimulatedStorage) -> None:
    """All content, and all names."""
    for _, file in storage.files("/"):
        file.sync()
    directories = [storage.root]
    while directories:
        directory = directories.pop()
        directory.sync()
        directories += [each for each in directory.entries.values() if isinstance(each, DirectoryNode)]
