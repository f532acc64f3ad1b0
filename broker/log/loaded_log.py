"""One partition's log as a start finds it: what is known before, and the result.

Owns: these records. Leaves to others: the decision which files are believed (`recovery.py`).
"""

from collections.abc import Callable

import msgspec

from minibroker.broker.log.segments.segment_files import SegmentFile
from minibroker.broker.log.side_files.epoch_file import EpochEntry
from minibroker.broker.log.side_files.producer_snapshots import ProducerSnapshots
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import LogStart
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import Disk


class RecoveryReport(msgspec.Struct, kw_only=True):
    """The result of loading one partition; for one log line."""

    clean: bool
    segments: int = 0
    segments_scanned: int = 0
    segments_removed: int = 0
    bytes_scanned: int = 0
    bytes_cut: int = 0
    reason: str | None = None
    """Why something was cut or removed."""
    found: list[FileNotUsed] = []
    """Files beside the log that are not used. Loading runs off the loop, so it reports nothing itself."""

    @property
    def files_not_used(self) -> list[FileNotUsed]:
        """One event for each file: the first reason."""
        first: dict[str, FileNotUsed] = {}
        for each in self.found:
            first.setdefault(each.path, each)
        return list(first.values())

    def is_reported(self, path: str) -> bool:
        """Whether the file is not used, or not all of it."""
        return any(each.path == path for each in self.found)


class LoadedLog(msgspec.Struct, kw_only=True):
    """One partition as it stands on disk now."""

    segments: list[SegmentFile]
    """In rising order; if there are none, the log is empty at log_start_offset."""
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: list[EpochEntry]
    stored_epochs: list[EpochEntry]
    """What the epoch file holds; a part of it, or all, may be wrong."""
    producers: ProducerStates
    snapshots: ProducerSnapshots
    report: RecoveryReport
    recorded_start: tuple[LogStart, int] | None = None
    """The content of the `log-start` file, and how often it changed; None if it is missing or unreadable."""
    damage: str | None = None
    """Why the files cannot hold what this replica promised: they contradict each other, or the durable records about
    them. Such a replica serves nothing and joins no ISR; its files stay until it starts empty again."""

    @property
    def has_batches(self) -> bool:
        return any(segment.size for segment in self.segments)


class LoadContext(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a log from outside of its files, or from its damage note."""

    recovery_point: int | None = 0
    """None: its checkpoint is unreadable."""
    clean: bool = False
    """The last stop was clean."""
    same_boot: bool = False
    """The machine has not gone down since."""
    high_watermark: int = 0
    """The last checkpointed one of this same topic."""
    clean_end: int = 0
    """The log end that a clean stop recorded, if no start came since."""
    damage: str | None = None
    """The log was damaged before: it is read as far as possible, and nothing in it is changed."""
    topic_id: str | None = None
    partition: int = -1


Progress = Callable[[int, int, TopicPartition, RecoveryReport], None]
"""Called on the loop after each loaded partition: number done, total number, partition, and its report."""


def unreadable_log(disk: Disk, directory: str, reason: str) -> LoadedLog:
    """The log of a partition with an unreadable directory on a working disk: damaged and empty."""
    return LoadedLog(
        segments=[],
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        epochs=[],
        stored_epochs=[],
        producers=ProducerStates(),
        snapshots=ProducerSnapshots(disk, directory, []),
        report=RecoveryReport(clean=False, reason=reason),
        damage=reason,
    )
