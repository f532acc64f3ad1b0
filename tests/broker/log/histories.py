"""Ways in which a log comes to be, and every content that its files had on the way, for `test_damaged_files.py`.

Each history ends with everything stored, unless its docstring says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress

from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX, LogStartReason
from minibroker.runtime.ports import BadEntry
from tests.broker.log.machine import (
    PARTITION,
    PATH,
    SMALL,
    TOPIC_ID,
    Machine,
    append,
    drive,
    reset,
    start_at,
    trim_epochs,
    truncate,
)

RECORDS = 2
"""Of each batch."""
LATER_MS = 9_000
"""Timestamp of batches that a truncation removes; others have about 1,000."""
FOREVER_MS = 1 << 60


class History:
    """One log on one machine. `earlier` has the contents of each file in the order in which they were written."""

    def __init__(self) -> None:
        self.machine = Machine()
        self.earlier: defaultdict[str, list[bytes]] = defaultdict(list)
        self.sequences: Counter[int] = Counter()
        self.high_watermark = 0
        self.starts = 1
        self.directory, self.log = self.machine.open_log(SMALL, incarnation_id="start-1")

    def files(self) -> dict[str, bytes]:
        disk = self.machine.disk()
        found = {}
        for directory in (PATH, f"{PATH}/{PARTITION}"):
            for name in disk.list_directory(directory):
                with suppress(BadEntry):  # a directory
                    found[f"{directory}/{name}"] = disk.read_file(f"{directory}/{name}", SMALL_FILE_BYTES_MAX)
        return found

    def remember(self) -> None:
        for path, content in self.files().items():
            if content not in self.earlier[path][-1:]:
                self.earlier[path].append(content)

    def append(self, batches: int, epoch: int, producers: Sequence[int], timestamp_ms: int = 1_000) -> None:
        """Batches of these producers in turn."""
        for number in range(batches):
            producer = producers[number % len(producers)]
            sequence = self.sequences[producer]
            self.sequences[producer] += RECORDS
            append(
                self.log,
                records=RECORDS,
                epoch=epoch,
                producer=(producer, 0, sequence),
                timestamp_ms=timestamp_ms + number,
            )
        self.remember()

    def store(self, high_watermark: int | None = None) -> None:
        """Sync the log, write all checkpoints."""
        drive(self.log.flush())
        drive(self.directory.maintain(0))
        drive(self.directory.checkpoint_recovery_points())
        self.high_watermark = self.log.log_end_offset if high_watermark is None else high_watermark
        drive(self.directory.checkpoint_high_watermarks({PARTITION: self.high_watermark}))
        drive(self.directory.record_log_starts())
        self.remember()

    def restart(self, clean: bool = True) -> None:
        self.stop("clean" if clean else "kill")
        self.remember()
        self.starts += 1
        self.directory = self.machine.open(SMALL, incarnation_id=f"start-{self.starts}")
        self.log = self.directory.logs[PARTITION]
        self.remember()

    def stop(self, kind: str) -> None:
        if kind == "clean":
            drive(self.directory.close(True, {PARTITION: self.high_watermark}))
        self.machine.kill()
        if kind == "power":
            self.machine.lose_power()

    def start_at(self, offset: int, reason: LogStartReason) -> None:
        """Raise the log's start, and delete the segments in front of it."""
        start_at(self.log, offset, reason)
        trim_epochs(self.log)
        self.store()

    def cut(self, end_offset: int) -> None:
        truncate(self.log, end_offset)
        self.remember()

    def reset(self, offset: int) -> None:
        reset(self.log, offset)
        self.remember()


def empty(history: History) -> None:
    history.store()


def one_segment(history: History) -> None:
    history.append(3, 1, (1, 2))
    history.store()


def segments(history: History) -> None:
    history.append(8, 0, (1,))
    history.append(8, 1, (1, 2))
    history.append(6, 2, (3,))
    history.store()


def segments_and_restarts(history: History) -> None:
    history.append(8, 0, (1,))
    history.restart()
    history.append(8, 1, (1, 2))
    history.store()
    history.restart()
    history.append(6, 2, (3,))
    history.store()


def last_segment_empty(history: History) -> None:
    segments(history)
    history.log.roll_if_aged(FOREVER_MS)
    history.store()


def start_within_segment(history: History) -> None:
    segments(history)
    history.log.trim_before(13, LogStartReason.TRIM)
    history.store()


def head_deleted(history: History) -> None:
    segments(history)
    history.restart()
    history.start_at(24, LogStartReason.TRIM)
    history.append(4, 2, (3,))
    history.store()


def all_deleted(history: History) -> None:
    segments(history)
    history.restart()
    history.start_at(history.log.log_end_offset, LogStartReason.RETENTION)


def reset_above(history: History) -> None:
    segments(history)
    history.reset(100)
    history.append(5, 4, (5,))
    history.store()


def reset_not_stored(history: History) -> None:
    """The log is synced, but no checkpoint knows of the reset."""
    segments(history)
    history.reset(100)
    history.append(5, 4, (5,))
    drive(history.log.flush())
    history.remember()


def reset_twice(history: History) -> None:
    reset_above(history)
    history.reset(50)
    history.append(5, 6, (6,))
    history.store()


def reset_and_empty(history: History) -> None:
    segments(history)
    history.reset(100)
    history.store()


def rewritten(history: History, clean: bool = True) -> None:
    """A leader's uncommitted tail is cut, and other batches of the same offsets follow."""
    history.append(5, 1, (1,))
    history.append(3, 1, (2,), LATER_MS)
    history.store(10)
    history.restart(clean)
    history.cut(10)
    history.append(3, 3, (7,))
    history.store()


def rewritten_after_kill(history: History) -> None:
    rewritten(history, clean=False)


def rewritten_segments(history: History) -> None:
    history.append(5, 1, (1,))
    history.append(13, 1, (2,), LATER_MS)
    history.store(10)
    history.restart()
    history.cut(10)
    history.store(10)
    history.append(13, 3, (7,))
    history.store()


def cut_only(history: History) -> None:
    history.append(5, 1, (1,))
    history.append(3, 1, (2,))
    history.store(10)
    history.restart()
    history.cut(10)
    history.store(10)


def cut_below_high_watermark(history: History) -> None:
    """As an unclean election orders."""
    history.append(20, 1, (1,))
    history.store()
    history.restart()
    history.cut(4)
    history.store(4)
    history.append(10, 3, (7,))
    history.store()


def topic_made_again(history: History) -> None:
    segments(history)
    history.directory.delete_log(PARTITION)
    drive(history.directory.maintain(0))
    history.sequences.clear()
    history.log = history.directory.create_log(PARTITION, f"another-{TOPIC_ID}", SMALL)
    history.remember()
    history.append(8, 0, (8,), 5_000)
    history.append(8, 1, (9,))
    history.store()


def producers_expired(history: History) -> None:
    history.append(4, 0, (1,))
    history.append(4, 0, (2,))
    history.log.expire_producers(0)
    history.log.producers.expire(FOREVER_MS, 0)
    history.store()
    history.restart()
    history.append(4, 1, (3,))
    history.store()


HISTORIES: tuple[Callable[[History], None], ...] = (
    empty,
    one_segment,
    segments,
    segments_and_restarts,
    last_segment_empty,
    start_within_segment,
    head_deleted,
    all_deleted,
    reset_above,
    reset_not_stored,
    reset_twice,
    reset_and_empty,
    rewritten,
    rewritten_after_kill,
    rewritten_segments,
    cut_only,
    cut_below_high_watermark,
    topic_made_again,
    producers_expired,
)
