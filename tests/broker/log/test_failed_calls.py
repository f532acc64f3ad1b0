"""Whichever call of the disk fails: its directory knows it, no file stays open, and no log is damaged.

One story uses all that a log directory does. It is told once for each place that calls the disk, and that call fails.
What a handler forgets shows here: an error that nothing learns of, so that the broker goes on writing to a broken disk
or says nothing of a full one; a descriptor that is lost each time.

It does not see what a caller of the log does with an error that the log raises:
tests/simulation/test_failed_disk_calls.py does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Literal

import pytest

from minibroker.broker.disk_faults.scrubber import begin_scrub
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.log_digests import complete_one
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    SMALL_FILE_BYTES_MAX,
    parse_offset_checkpoint,
)
from minibroker.protocol.files.segment_digests import DIGESTS
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors, SyncFailed
from minibroker.simulation.world.disk import SimulatedDisk, SimulatedFile
from tests.broker.log.machine import (
    PARTITION,
    PATH,
    SMALL,
    TOPIC_ID,
    Machine,
    append,
    check_log,
    drive,
    read_all,
    reset,
    retain,
    truncate,
)

Kind = Literal["io", "full", "descriptor"]
OTHER = TopicPartition("other", 0)
PLACES_MIN = 60
"""The story has many more; with fewer it has ended early."""
SYNCS = frozenset({"sync", "sync_directory"})
CALLS: dict[Kind, frozenset[str]] = {
    "io": frozenset({"append", "write_at", "truncate", "read", "open", "replace_file", "rename", "remove"})
    | {"make_directory", "list_directory", *SYNCS},
    "full": frozenset({"append", "open", "replace_file", "make_directory", "rename", *SYNCS}),
    "descriptor": frozenset({"open", "read", "replace_file", "list_directory", "sync_directory", "remove"}),
}
"""What may fail in each way."""

UNKNOWN: dict[Kind, dict[str, str]] = {
    "io": {},
    "full": {"write_digests": "they only spare the next start some work: a line of the log tells it"},
    "descriptor": {
        "write_digests": "likewise",
        "_open": "another file is closed, and the call repeated",
        "_write_epoch_file": "the file is due, and written with the next flush or maintenance",
        "sync_names": "it is due, and repeated by the maintenance",
    },
}
"""Functions whose lack of room or of a descriptor concerns nothing else."""
LEFT_TO_CALLERS = {
    "read_piece": "the scrubber tells the directory",
    "set_log_aside": "the repairs tell the directory",
    "_read_piece": "a read that serves the batches, or the scrubber, meets it, too",
    "read_set_aside": "that copy is damaged: what cannot be read of it is not used",
}
"""Functions whose IO errors the log itself does not meet."""


class Story:
    """What a log directory does, with one failing call."""

    def __init__(self, kind: Kind, failing: int, loses_power: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.machine = Machine()
        self.failed: str | None = None
        """The call that failed."""
        self.callers: list[str] = []
        """The functions that made it, innermost first."""
        self.problems: list[str] = []
        self.places: dict[tuple[str, ...], int] = {}
        """What calls the disk, and its first call, counted from 1."""
        self._kind, self._failing, self._calls = kind, failing, 0
        self._loses_power, self._is_checked, self._life = loses_power, False, 0
        self._opened: list[SimulatedFile] = []
        self._told: list[object] = []
        monkeypatch.setattr(self.machine.storage, "check_fault", self._check)
        open_file = SimulatedDisk.open

        def noted(disk: SimulatedDisk, path: str, create: bool = False) -> SimulatedFile:
            self._opened.append(open_file(disk, path, create))
            return self._opened[-1]

        monkeypatch.setattr(SimulatedDisk, "open", noted)

    def _check(self, call: str, path: str) -> None:
        if self._is_checked or call not in CALLS[self._kind]:
            return
        self._calls += 1
        if not self._failing:
            self.places.setdefault((call, *_callers()), self._calls)
        if self._calls != self._failing:
            return
        self.failed, self.callers = f"{call} {path}", _callers()
        if self._kind == "descriptor":
            raise OutOfDescriptors(f"cannot {call} {path}: too many open files")
        if call in SYNCS:
            raise SyncFailed(f"cannot {call} {path}: input/output error")
        raise (DiskFull if self._kind == "full" else DiskError)(f"cannot {call} {path}")

    def tell(self) -> None:
        """In its second life the broker must compute the digests."""
        for steps in (FIRST_LIFE, SECOND_LIFE, (close,)):
            try:
                directory = self.machine.open(SMALL)
            except DiskError:
                return  # the broker's start ends
            directory.health.on_no_descriptor = self._told.append
            directory.health.on_full = self._told.append
            self._life += 1
            self._check_sound(directory)
            for step in steps:
                self._take(step, directory)
            left = [file._path for file in self._opened if file._open]
            if left:
                self.problems.append(f"still open after the failed {self.failed} in {self.callers[:4]}: {left}")
            if self._loses_power:
                self.machine.lose_power(tear=True)
            else:
                self.machine.kill()
            self._opened.clear()
            if self.machine.disk().exists(f"{PATH}/{PARTITION}"):
                self.machine.storage.find_directory(f"{PATH}/{PARTITION}").entries.pop(DIGESTS, None)

    def _check_sound(self, directory: LogDirectory) -> None:
        """Whatever failed in the life before, its disk has all that it wrote."""
        log = directory.logs.get(PARTITION)
        if log is None:
            return
        if log.damage is not None:
            self.problems.append(
                f"damaged in life {self._life} after the failed {self.failed} in {self.callers[:6]}: {log.damage}"
            )
            return
        self._is_checked = True
        check_log(log)
        self._is_checked = False

    def _take(self, step: Callable[[LogDirectory], object], directory: LogDirectory) -> None:
        had_failed, is_raised = self.failed is not None, False
        try:
            step(directory)
        except (DiskError, CorruptLog):
            assert self.failed is not None, "it failed by itself"
            is_raised = True
        if self.failed is None or had_failed:
            return
        is_known = directory.offline or bool(LEFT_TO_CALLERS.keys() & {*self.callers})
        if self._kind == "descriptor" or (self._kind == "full" and self.failed.split()[0] not in SYNCS):
            is_known = is_known or bool(self._told) or is_raised or bool(UNKNOWN[self._kind].keys() & {*self.callers})
        if not is_known:
            self.problems.append(f"{step.__name__}: nothing knows of the failed {self.failed} in {self.callers[:6]}")


def _callers() -> list[str]:
    """Of the code under test."""
    names, frame = list[str](), sys._getframe(2)
    while frame.f_back is not None:
        if "/broker/log/" in frame.f_code.co_filename and "/tests/" not in frame.f_code.co_filename:
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def _log(directory: LogDirectory, partition: TopicPartition = PARTITION) -> PartitionLog:
    log = directory.logs.get(partition)
    if log is None:
        raise DiskError("it could not be created")
    return log


def _epoch(log: PartitionLog) -> int:
    return max((epoch for epoch, _ in log.epoch_entries()), default=0)


def create(directory: LogDirectory) -> None:
    directory.create_log(PARTITION, TOPIC_ID, SMALL)
    directory.create_log(OTHER, "other-id", SMALL)


def write(directory: LogDirectory) -> None:
    log = _log(directory)
    epoch = _epoch(log) + 1
    append(log, 8, epoch=epoch)
    append(log, 1, epoch=epoch, producer=(7, 0, 0))
    append(log, 8, epoch=epoch + 1)
    append(_log(directory, OTHER), 3)
    drive(log.flush())
    read_all(log)
    log.offset_for_timestamp(1_000, log.log_end_offset)


def store(directory: LogDirectory) -> None:
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: 4}))
    drive(directory.maintain(1))


def cool(directory: LogDirectory) -> None:
    log = _log(directory)
    for segment in log.segments:
        segment.drop_index()
        segment.close_file()
    read_all(log)


def scrub(directory: LogDirectory) -> None:
    log = _log(directory)
    for segment in log.segments:
        one = begin_scrub(log, segment)
        while not one.is_done:
            one.read_piece(directory.health.disk, 300, SMALL.index_interval_bytes)


def cut(directory: LogDirectory) -> None:
    log = _log(directory)
    truncate(log, max(log.log_end_offset - 13, 0))
    epoch = _epoch(log) + 1
    append(log, 6, epoch=epoch)
    reset(log, log.log_end_offset)
    append(log, 10, epoch=epoch + 1)


def compute_digests(directory: LogDirectory) -> None:
    while drive(complete_one(_log(directory))):
        pass


def expire(directory: LogDirectory) -> None:
    log = _log(directory)
    retain(log, log.log_end_offset, 1 << 40)
    delete_head(log, log.log_start_offset)
    drive(directory.maintain(1 << 41))


def set_aside(directory: LogDirectory) -> None:
    _log(directory, OTHER).mark_damaged("a byte is wrong")
    directory.set_log_aside(OTHER)
    directory.create_log(OTHER, "other-id", SMALL)
    directory.read_set_aside(OTHER, 0, 100)
    directory.remove_set_aside(OTHER)
    drive(directory.maintain(1 << 41))


def delete(directory: LogDirectory) -> None:
    directory.delete_log(OTHER)
    drive(directory.maintain(1 << 42))


def close(directory: LogDirectory) -> None:
    drive(directory.close(True, {PARTITION: 4}))


FIRST_LIFE = (create, write, store, cool, scrub, cut, expire, set_aside, close)
SECOND_LIFE = (create, compute_digests, write, cool, store, delete, close)


def told(kind: Kind, failing: int, loses_power: bool) -> Story:
    """`failing`: which call fails, counted from 1; 0: none does."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        story = Story(kind, failing, loses_power, monkeypatch)
        story.tell()
    story.machine.loop.close()
    return story


@pytest.mark.invariant("I12")
@pytest.mark.parametrize(("kind", "loses_power"), [("io", False), ("full", True), ("descriptor", False)])
def test_a_directory_knows_of_each_failed_call_and_keeps_no_file(kind: Kind, loses_power: bool) -> None:
    places = told(kind, 0, loses_power).places
    assert len(places) > PLACES_MIN
    for place, failing in places.items():
        story = told(kind, failing, loses_power)
        assert story.failed is not None, place
        assert story.problems == []


def test_an_empty_log_whose_file_cannot_be_made_stops_only_itself(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(directory.create_log(OTHER, "other-id", SMALL), 3)
    del machine.storage.find_directory(log.directory).entries[log.segments[0].log_path.rpartition("/")[2]]
    machine.kill()
    machine.storage.fail("open", log.segments[0].log_path, is_bad_entry=True)
    directory = machine.open()
    damage = directory.logs[PARTITION].damage
    assert (damage is not None, directory.logs[OTHER].damage, directory.offline) == (True, None, False)
    machine.kill()
    machine.storage.heal()
    assert machine.open().logs[PARTITION].damage is None


def test_a_new_log_whose_file_cannot_be_made_is_refused(machine: Machine) -> None:
    directory = machine.open()
    machine.storage.fail("open", f"{PATH}/{PARTITION}/", is_bad_entry=True)
    with pytest.raises(BadEntry):
        directory.create_log(PARTITION, TOPIC_ID, SMALL)
    machine.storage.heal()
    assert directory.create_log(PARTITION, TOPIC_ID, SMALL).damage is None


def test_a_full_disk_that_breaks_goes_offline(machine: Machine) -> None:
    directory, log = machine.open_log()
    machine.storage.fail("append", times=1, is_full=True)
    with pytest.raises(DiskFull):
        append(log, 1)
    machine.storage.fail("read", PATH)
    assert not directory.try_heal()
    assert directory.offline


def test_an_index_that_a_start_could_not_save_whole_is_not_believed(machine: Machine) -> None:
    """The older file of the two would be of batches that a cut has replaced since."""
    _, log = machine.open_log()
    append(log, 9)
    path = log.segments[0].path
    machine.kill()
    machine.storage.fail("replace_file", f"{path}.timeindex", is_full=True)
    machine.open()
    machine.storage.heal()
    names = machine.file_names()
    assert not [name for name in names if name.startswith(path.rpartition("/")[2]) and name.endswith("index")]


@pytest.mark.parametrize("name", [RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT])
def test_a_checkpoint_that_could_not_be_written_stays_due(name: str) -> None:
    """Its old entries could do harm: records that a cut removed would count as synced, or as committed."""
    machine = Machine()
    directory, log = machine.open_log()
    append(log, 9)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: 18}))
    truncate(log, 4)
    directory.log_was_cut(log)
    machine.storage.fail("replace_file", f"{PATH}/{name}", times=1, no_descriptor=True)
    drive(directory.maintain(1))
    assert _checkpointed(machine, name) == 18
    drive(directory.maintain(2))
    assert _checkpointed(machine, name) <= 4
    machine.loop.close()


def _checkpointed(machine: Machine, name: str) -> int:
    content = machine.disk().read_file(f"{PATH}/{name}", SMALL_FILE_BYTES_MAX)
    return parse_offset_checkpoint(content)[PARTITION]
