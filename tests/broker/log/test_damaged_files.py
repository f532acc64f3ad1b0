"""What a start makes of one damaged, lost or older file, for each file, each kind of stop and each history of a log.

A log must come back as it was, or be called damaged; it may also come back doubtful, so that it does not lead alone.
`KNOWN` lists what comes back wrong. A line that no cell needs fails the test, so it must go when its hole is closed.

What it can not see: two files that are damaged at once, power cuts that take unsynced bytes (`test_power_loss.py`), and
rot of batches that no start reads (reads and the scrubber report it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch

import pytest

from minibroker.broker.log.errors import CorruptLog, LogDirectoryError
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.files.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START,
    RECOVERY_POINT_CHECKPOINT,
    WHOLE_SINCE,
    EpochEntry,
)
from minibroker.protocol.record_batch import BatchHeader
from tests.broker.log.histories import HISTORIES, History
from tests.broker.log.machine import PARTITION, PATH, SMALL, stored_batches

STOPS = "clean", "kill", "power"
REWRITTEN = ".lock", "noted-changes"
"""Files that say nothing about logs."""
PLACES = 6, 14
"""In a batch: of its base offset and of its leader epoch, which its CRC does not cover."""
CALLED_DAMAGED = "a sound log is called damaged"
ABSENT = b"\0absent"
"""A file without content in the histories."""


@dataclass(frozen=True)
class Truth:
    """What a log was when its broker stopped."""

    start_offset: int
    end_offset: int
    epochs: list[EpochEntry]
    batches: list[tuple[BatchHeader, bytes]]
    producers: ProducerStates
    high_watermark: int
    recovery_point: int

    @classmethod
    def of(cls, history: History) -> Truth:
        log = history.log
        return cls(
            log.log_start_offset,
            log.log_end_offset,
            log.epoch_entries(),
            stored_batches(log),
            log.producers.copy(),
            history.high_watermark,
            log.recovery_point,
        )


def damages(history: History, path: str, content: bytes | None) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each kind of damage to one file."""
    if content is not None:
        yield "lost", ABSENT
        if content:
            yield "emptied", b""
        if len(content) > 1:
            yield "torn", content[: len(content) // 2]
        for position in sorted({*PLACES, len(content) // 2, len(content) - 6}):
            if 0 <= position < len(content):
                flipped = bytearray(content)
                flipped[position] ^= 0x04
                yield f"bit at {position}", bytes(flipped)
    for number, earlier in enumerate(history.earlier[path]):
        if earlier != content:
            yield f"earlier {number}", earlier


def stopped(make: Callable[[History], None], stop: str) -> tuple[History, Truth]:
    history = History()
    make(history)
    truth = Truth.of(history)
    history.stop(stop)
    return history, truth


def cells(make: Callable[[History], None], stop: str) -> Iterator[tuple[str, str, bytes]]:
    history, _ = stopped(make, stop)
    present = history.files()
    for path in sorted({*present, *history.earlier}):
        if not path.endswith(REWRITTEN):
            for name, content in damages(history, path, present.get(path)):
                yield path, name, content


def start_after(make: Callable[[History], None], stop: str, path: str, content: bytes) -> list[str]:
    """Everything that is wrong after a start with that file."""
    history, truth = stopped(make, stop)
    disk = history.machine.disk()
    if content == ABSENT:
        disk.remove(path)
    else:
        disk.replace_file(path, content)
    disk.sync_directory(path.rpartition("/")[0])
    history.stop(stop if stop == "power" else "kill")
    try:
        directory = history.machine.open(SMALL, incarnation_id="last")
    except LogDirectoryError:
        return [] if path.endswith("meta.properties") else ["the broker does not start"]
    log = directory.logs.get(PARTITION)
    if log is None:
        return ["the log is gone"]
    if log.damage is not None:
        return [] if path.startswith(f"{PATH}/{PARTITION}/") else [CALLED_DAMAGED]
    is_doubtful = directory.wholeness.incarnations == ("last",)
    return [*wrong_offsets(truth, directory, log, is_doubtful), *wrong_content(truth, log)]


def wrong_offsets(truth: Truth, directory: LogDirectory, log: PartitionLog, is_doubtful: bool) -> Iterator[str]:
    if log.log_end_offset > truth.end_offset:
        yield "end too high"
    if log.log_end_offset < truth.end_offset:
        yield "end too low"
    if log.log_start_offset > truth.start_offset:
        yield "start too high"
    if log.log_start_offset < truth.start_offset and not is_doubtful:
        yield "start too low"
    if directory.read_high_watermarks().get(PARTITION, 0) > truth.high_watermark:
        yield "high watermark too high"
    if log.recovery_point > truth.recovery_point:
        yield "recovery point too high"


def wrong_content(truth: Truth, log: PartitionLog) -> Iterator[str]:
    produced = ProducerStates()
    for header, _ in truth.batches:
        if header.base_offset < log.log_end_offset:
            produced.update(header)
    is_whole = log.log_end_offset == truth.end_offset
    if log.producers != produced and not (is_whole and log.producers == truth.producers):
        yield "producers"
    if not names_true_epochs(truth, log):
        yield "leader epochs"
    if not serves_only_truth(truth, log):
        yield "batches"
    if not finds_timestamps(truth, log):
        yield "look-up by time"


def names_true_epochs(truth: Truth, log: PartitionLog) -> bool:
    """Whether the epochs are those of the batches from the log's start on; one that wrote nothing may be there, too."""
    entries = log.epoch_entries()
    for header, _ in truth.batches:
        if log.log_start_offset < header.end_offset <= log.log_end_offset:
            begun = [epoch for epoch, start in entries if start < header.end_offset]
            if begun[-1:] != [header.partition_leader_epoch]:
                return False
    return entries[-1:] <= truth.epochs[-1:]


def serves_only_truth(truth: Truth, log: PartitionLog) -> bool:
    """Whether each read returns the batch that was stored, or reports damage."""
    for header, content in truth.batches:
        if log.log_start_offset <= header.base_offset and header.end_offset <= log.log_end_offset:
            try:
                if b"".join(log.read(header.base_offset, 1, log.log_end_offset).parts) != content:
                    return False
            except CorruptLog:
                continue
    return True


def finds_timestamps(truth: Truth, log: PartitionLog) -> bool:
    headers = [
        header
        for header, _ in truth.batches
        if header.end_offset > log.log_start_offset and header.end_offset <= log.log_end_offset
    ]
    for timestamp_ms in range(900, 9_100, 250):
        later = [header for header in headers if header.max_timestamp >= timestamp_ms]
        expected = (later[0].max_timestamp, max(later[0].base_offset, log.log_start_offset)) if later else None
        try:
            if log.offset_for_timestamp(timestamp_ms, log.log_end_offset) != expected:
                return False
        except CorruptLog:
            return True
    return True


@dataclass(frozen=True)
class Known:
    """Patterns of cells that come back wrong."""

    why: str
    history: str
    stop: str
    file: str
    damage: str
    problems: str

    def matches(self, cell: tuple[str, ...]) -> bool:
        patterns = self.history, self.stop, self.file, self.damage, self.problems
        return all(fnmatch(text, pattern) for text, pattern in zip(cell, patterns, strict=True))


LOST_RESET = "a log that was reset may be shorter than earlier checkpoints say"
TOO_EARLY_START = "behind a power cut this may be an interrupted reset; the log is doubtful and copied anew"
LONGER = "an earlier checkpoint promises more than a cut has left"
REWRITTEN_BATCHES = "offsets and leader epochs are those of the true batches; digests of replicas differ"

KNOWN = (
    Known("the files fit it", "start_within_segment", "[ck]*", LOG_START, "earlier *", "start too low"),
    Known(LOST_RESET, "reset_not_stored", "[kp]*", "*.log", "*", "end too low"),
    Known(LOST_RESET, "reset_twice", "power", "*.log", "*", "end too low"),
    Known(TOO_EARLY_START, "reset_twice", "power", LOG_START, "*", "end too high, start too high, *"),
    Known(LONGER, "reset_twice", "clean", RECOVERY_POINT_CHECKPOINT, "earlier *", CALLED_DAMAGED),
    Known(LONGER, "reset_twice", "kill", HIGH_WATERMARK_CHECKPOINT, "earlier *", CALLED_DAMAGED),
    Known(LONGER, "cut_*", "clean", RECOVERY_POINT_CHECKPOINT, "earlier *", CALLED_DAMAGED),
    Known(LONGER, "cut_*", "*", WHOLE_SINCE, "earlier *", CALLED_DAMAGED),
    Known(LONGER, "cut_below_*", "kill", HIGH_WATERMARK_CHECKPOINT, "earlier *", CALLED_DAMAGED),
    Known("it is a log as it may be", "cut_only", "*", "*.log", "earlier *", "end too high, producers"),
    Known(REWRITTEN_BATCHES, "rewritten_segments", "*", "*.log", "earlier *", "look-up by time"),
    Known(REWRITTEN_BATCHES, "topic_made_again", "*", "*.log", "earlier *", "*batches*"),
)


@pytest.mark.parametrize("make", HISTORIES, ids=lambda make: make.__name__)
def test_a_start_believes_no_damaged_file(make: Callable[[History], None]) -> None:
    wrong = {
        (make.__name__, stop, path.rpartition("/")[2], damage, ", ".join(problems))
        for stop in STOPS
        for path, damage, content in cells(make, stop)
        if (problems := start_after(make, stop, path, content))
    }
    known = [each for each in KNOWN if fnmatch(make.__name__, each.history)]
    assert {cell for cell in wrong if not any(each.matches(cell) for each in known)} == set()
    assert [each for each in known if not any(each.matches(cell) for cell in wrong)] == [], "mended: strike it off"
