"""The audit's model of one replica: the content of its files, in columns. Pure data, no I/O.

Owns: the types that travel from the readers (in this process or in a Spark executor) to the rules. A scan of one range
of a segment carries its batches as packed columns, so moving a million batches costs as much as copying a file, and two
equal stretches of log compare with one memcmp.
"""

from array import array
from collections.abc import Iterable

import msgspec

from minibroker.protocol.files.checkpoints import LogStart, segment_file_name
from minibroker.protocol.files.partition_metadata import PartitionMetadata
from minibroker.protocol.record_batch import BatchHeader

NO_VALUE = -1
"""The checksum of a missing value."""
UNDECODED = -2
"""The checksum of an unreadable value: equal to no acknowledged one."""


UNREADABLE = "cannot be read: "
"""Prefix of a gap's reason when the operating system refuses to read the bytes."""


class IndexFile(msgspec.Struct, frozen=True):
    """One of a segment's two indexes, where a file of that name exists."""

    content: bytes
    problem: str | None = None
    """Why it cannot be read."""


class SegmentGap(msgspec.Struct, frozen=True):
    """Bytes of a segment that form no batch, up to the next batch that passes every check."""

    position: int
    end: int
    reason: str
    torn: bool
    """The file ends inside this batch, as a crash leaves it."""
    reaches_end: bool
    """No valid batch follows in the file, as far as it was read."""


class Columns:
    """Valid batches in file order, one column a field."""

    __slots__ = (
        "base_offsets",
        "base_sequences",
        "crcs",
        "ends",
        "epochs",
        "max_timestamps",
        "positions",
        "producer_epochs",
        "producer_ids",
        "record_crcs",
        "sizes",
    )

    def __init__(self) -> None:
        self.positions = array("q")
        self.base_offsets = array("q")
        self.ends = array("q")
        """Offset behind the batch (exclusive)."""
        self.epochs = array("i")
        self.crcs = array("I")
        self.sizes = array("i")
        self.max_timestamps = array("q")
        self.producer_ids = array("q")
        self.producer_epochs = array("h")
        self.base_sequences = array("i")
        self.record_crcs = array("q")
        """One entry per record, when requested: of its value, or of the whole record."""

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, position: int, header: BatchHeader) -> None:
        self.positions.append(position)
        self.base_offsets.append(header.base_offset)
        self.ends.append(header.base_offset + header.record_count)
        self.epochs.append(header.partition_leader_epoch)
        self.crcs.append(header.crc)
        self.sizes.append(header.size_bytes)
        self.max_timestamps.append(header.max_timestamp)
        self.producer_ids.append(header.producer_id)
        self.producer_epochs.append(header.producer_epoch)
        self.base_sequences.append(header.base_sequence)

    def pack(self) -> tuple[bytes, ...]:
        return tuple(getattr(self, name).tobytes() for name in self.__slots__)

    def extend(self, packed: Iterable[bytes]) -> None:
        for name, content in zip(self.__slots__, packed, strict=True):
            getattr(self, name).frombytes(content)


class RangeScan(msgspec.Struct, frozen=True, kw_only=True):
    """Content of one byte range of one segment."""

    directory: str
    """The replica's partition directory."""
    segment: int
    """Base offset in the segment's name."""
    planned_start: int
    planned_end: int
    start: int
    """Where the first batch of this range begins (or the gap, for the first range of a file); its planned end if none
    begins in it."""
    end: int
    """Where the batch or gap behind this range begins."""
    size: int
    """Bytes of the file that this audit reads: its size when the audit began, or what is left of it."""
    columns: tuple[bytes, ...]
    gaps: tuple[SegmentGap, ...] = ()
    undecodable: tuple[tuple[int, int, str], ...] = ()
    """(position, base offset, reason) of batches with a valid CRC but invalid records."""
    index: IndexFile | None = None
    time_index: IndexFile | None = None
    is_open: bool = False
    """The last gap continues behind this range; its end is not known yet."""
    vanished: bool = False


class LinkedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A segment file that is also a file of another broker."""

    file: str
    other_broker: int
    other_file: str


class ReplicaFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The small files next to a replica's log; read before the log, so that a live high watermark is a lower bound."""

    broker: int
    topic: str
    partition: int
    directory: str
    high_watermark: int | None
    log_start: LogStart | None
    """From its own file, with the reason."""
    later_log_start: int = 0
    """The same when the files of all brokers had been listed."""
    recovery_point: int | None
    cleanly_stopped: bool
    lost_power: bool = True
    """Its machine may have lost power since its broker started: another machine, or rebooted since."""
    epoch_entries: tuple[tuple[int, int], ...] | None
    metadata: PartitionMetadata | None
    segments: tuple[tuple[int, int], ...]
    """(base offset, size in bytes) of each, in order."""
    snapshots: tuple[int, ...] = ()
    """Offsets in the names of the producer snapshots, ascending."""
    damage: tuple[tuple[str, str], ...] = ()
    """(file, what is wrong) of small files that could not be read or parsed."""
    linked: LinkedFile | None = None

    @property
    def topic_id(self) -> str | None:
        return None if self.metadata is None else self.metadata.topic_id

    @property
    def owner(self) -> int:
        """The partition that owns this directory, if its files agree; else the one in its name."""
        claims = {claim.partition for claim in (self.metadata, self.log_start) if claim is not None}
        return claims.pop() if len(claims) == 1 else self.partition


class SnapshotFile(msgspec.Struct, frozen=True):
    """One producer snapshot as read."""

    offset: int
    """From its name."""
    content: bytes
    problem: str | None = None
    """Why it could not be read."""


class AuditedSegment(msgspec.Struct, kw_only=True):
    """One segment of an assembled replica; rows index into the replica's columns."""

    base_offset: int
    file: str
    size: int
    first_row: int
    end_row: int
    gaps: tuple[SegmentGap, ...]
    undecodable: tuple[tuple[int, int, str], ...]
    index: IndexFile | None
    time_index: IndexFile | None
    vanished: bool


class AuditedReplica(msgspec.Struct, kw_only=True):
    """The content of one broker's files for one partition."""

    facts: ReplicaFacts
    segments: list[AuditedSegment]
    columns: Columns
    last_end: int
    """The largest end offset of a valid batch; 0 without one."""
    snapshots: tuple[SnapshotFile, ...] = ()
    """By offset."""

    @property
    def broker(self) -> int:
        return self.facts.broker

    @property
    def log_start_offset(self) -> int:
        """The first offset that consumers may read from this replica."""
        present = [segment.base_offset for segment in self.segments if not segment.vanished]
        first = present[0] if present else max((segment.base_offset for segment in self.segments), default=0)
        return max(first, self.facts.log_start.offset if self.facts.log_start is not None else 0)

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last valid batch; an empty segment ends at the offset in its name."""
        if self.segments and self.segments[-1].vanished:  # retention deletes only what lies in front of the start
            return max(self.log_start_offset, self.last_end)
        end = self.segments[-1].base_offset if self.segments else self.log_start_offset
        return max(end, self.last_end)

    @property
    def unexplained(self) -> list[AuditedSegment]:
        """Segments that vanished, though the broker has recorded no log start behind them: not by retention."""
        start = self.facts.log_start.offset if self.facts.log_start is not None else 0
        ends = [segment.base_offset for segment in self.segments[1:]]
        if self.segments:
            ends.append(self.segments[-1].base_offset + 1)
        return [each for each, end in zip(self.segments, ends, strict=True) if each.vanished and start < end]

    @property
    def is_unread(self) -> bool:
        """Segments were gone before they could be read, and nothing behind the log start was read."""
        vanished = any(each.vanished for each in self.segments) and any(size for _, size in self.facts.segments)
        return vanished and self.last_end <= self.log_start_offset

    @property
    def may_lack_unsynced(self) -> bool:
        """Its machine may have lost power, and its broker was not started since: what it had not synced may be gone.
        Its next start fetches that from the others."""
        facts = self.facts
        return facts.lost_power and not facts.cleanly_stopped and self.log_end_offset >= (facts.recovery_point or 0)

    def segment_of_row(self, row: int) -> AuditedSegment:
        for segment in self.segments:
            if segment.first_row <= row < segment.end_row:
                return segment
        raise AssertionError(f"row {row} is in no segment")


def assemble(
    facts: ReplicaFacts, scans: Iterable[RangeScan], snapshots: tuple[SnapshotFile, ...] = ()
) -> AuditedReplica:
    """Join the ranges of one replica. They are contiguous: `stitching.stitch` ensures that."""
    columns = Columns()
    segments: dict[int, AuditedSegment] = {}
    for scan in sorted(scans, key=lambda each: (each.segment, each.planned_start)):
        first_row = len(columns)
        columns.extend(scan.columns)
        segment = segments.get(scan.segment)
        if segment is None:
            segments[scan.segment] = AuditedSegment(
                base_offset=scan.segment,
                file=segment_file(facts.directory, scan.segment),
                size=scan.size,
                first_row=first_row,
                end_row=len(columns),
                gaps=scan.gaps,
                undecodable=scan.undecodable,
                index=scan.index,
                time_index=scan.time_index,
                vanished=scan.vanished,
            )
        else:
            segment.end_row = len(columns)
            segment.gaps += scan.gaps
            segment.undecodable += scan.undecodable
    last_end = max(columns.ends, default=0)
    return AuditedReplica(
        facts=facts, segments=list(segments.values()), columns=columns, last_end=last_end, snapshots=snapshots
    )


def segment_file(directory: str, base_offset: int, suffix: str = ".log") -> str:
    return f"{directory}/{segment_file_name(base_offset, suffix)}"
