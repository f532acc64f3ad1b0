"""A cluster's data directory, written straight from the formats, and ways to damage it."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from minibroker.audit.reading.discovery import BOOT_ID_FILE
from minibroker.audit.reading.replica import NO_VALUE
from minibroker.broker.replication.producer_state import ProducerStates, SnapshotPlace
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStart, LogStartReason
from minibroker.protocol.files.cluster_state import (
    CLUSTER_STATE,
    VERSION,
    ClusterState,
    PartitionSnapshot,
    format_cluster_state,
)
from minibroker.protocol.files.meta_properties import MetaProperties, format_meta_properties, parse_meta_properties
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    build_batch,
    read_header,
    stamp,
)
from minibroker.protocol.witness import PartitionWitness

INDEX_INTERVAL_BYTES = 100
SEGMENT_BYTES = 1000
TOPIC_ID = "topic-id"
START_MS = 1_700_000_000_000

Batch = tuple[int, Sequence[bytes | None]]
"""A leader epoch and the values of a batch."""


def some_batches(count: int = 12, epoch: Callable[[int], int] = lambda index: index // 5) -> list[Batch]:
    """A history of `count` batches of one to three records, with a new epoch every fifth."""
    return [(epoch(index), [b"%d.%d" % (index, n) + b"x" * 40 for n in range(index % 3 + 1)]) for index in range(count)]


def encode(batches: Sequence[Batch], base_offset: int = 0, producer_id: int | None = None) -> list[bytes]:
    """One log. `producer_id`: of the one idempotent producer that sent it; without one the batches have no
    sequences."""
    encoded = []
    offset = base_offset
    for epoch, values in batches:
        records = [(b"k", value, START_MS + offset + n, (("h", b"1"),)) for n, value in enumerate(values)]
        batch = build_batch(
            records,
            base_offset=offset,
            leader_epoch=epoch,
            producer_id=NO_PRODUCER_ID if producer_id is None else producer_id,
            producer_epoch=NO_PRODUCER_EPOCH if producer_id is None else 0,
            base_sequence=NO_SEQUENCE if producer_id is None else offset - base_offset,
        )
        encoded.append(bytes(batch))
        offset += len(values)
    return encoded


def put(file: Path, content: bytes | bytearray) -> None:
    """Rewrite a file. The old one is removed first: when a truncated and rewritten file is closed, some file systems
    write it to the disk, which takes a hundred times as long."""
    file.unlink(missing_ok=True)
    file.write_bytes(content)


class PlantedReplica:
    """One replica's directory."""

    def __init__(self, log_directory: Path, partition: TopicPartition) -> None:
        self.log_directory = log_directory
        self.partition = partition
        self.directory = log_directory / str(partition)

    def write(self, batches: list[bytes], base_offset: int = 0) -> None:
        """Write segments, indexes and the epoch history for these batches."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        segment: list[bytes] = []
        segment_base = offset = base_offset
        epochs: list[tuple[int, int]] = []
        for batch in batches:
            header = read_header(batch)
            if sum(map(len, segment)) + len(batch) > SEGMENT_BYTES and segment:
                self.write_segment(segment_base, segment)
                segment, segment_base = [], offset
            segment.append(batch)
            if not epochs or header.partition_leader_epoch > epochs[-1][0]:
                epochs.append((header.partition_leader_epoch, header.base_offset))
            offset = header.end_offset
        self.write_segment(segment_base, segment)
        self.write_epochs(epochs)
        self.write_metadata()
        self.write_log_start(base_offset)

    def write_segment(self, base_offset: int, batches: list[bytes]) -> None:
        index, time_index = bytearray(), bytearray()
        position = last_indexed = 0
        timestamp = -1
        for batch in batches:
            header = read_header(batch)
            timestamp = max(timestamp, header.max_timestamp)
            if position - last_indexed > INDEX_INTERVAL_BYTES:
                relative = header.last_offset - base_offset
                index += checkpoints.encode_index_entry(relative, position)
                time_index += checkpoints.encode_time_index_entry(timestamp, relative)
                last_indexed = position
            position += len(batch)
        put(self.file(base_offset), b"".join(batches))
        put(self.file(base_offset, ".index"), index)
        put(self.file(base_offset, ".timeindex"), time_index)

    def write_epochs(self, entries: Sequence[tuple[int, int]]) -> None:
        put(self.directory / checkpoints.EPOCH_CHECKPOINT, checkpoints.format_epoch_checkpoint(entries))

    def write_metadata(self, topic_id: str = TOPIC_ID, partition: int | None = None) -> Path:
        number = self.partition.partition if partition is None else partition
        file = self.directory / checkpoints.PARTITION_METADATA
        put(file, format_partition_metadata(PartitionMetadata(topic_id=topic_id, partition=number)))
        return file

    def write_log_start(
        self,
        offset: int,
        topic_id: str = TOPIC_ID,
        partition: int | None = None,
        reason: LogStartReason = LogStartReason.RETENTION,
    ) -> Path:
        number = self.partition.partition if partition is None else partition
        start = LogStart(topic_id=topic_id, partition=number, offset=offset, reason=reason)
        file = self.directory / checkpoints.LOG_START
        put(file, checkpoints.format_log_start(start))
        return file

    def write_snapshot(self, batches: Sequence[bytes], topic_id: str = TOPIC_ID) -> Path:
        """The snapshot of these batches' producers, as their broker writes it when it stops."""
        states, end = ProducerStates(), 0
        for batch in batches:
            header = read_header(batch)
            states.update(header)
            end = header.end_offset
        file = self.file(end, checkpoints.SNAPSHOT_SUFFIX)
        put(file, states.snapshot(SnapshotPlace(topic_id, self.partition.partition, end)))
        return file

    def file(self, base_offset: int, suffix: str = ".log") -> Path:
        return self.directory / checkpoints.segment_file_name(base_offset, suffix)

    @property
    def segments(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    def rewrite(self, change: Callable[[list[bytes]], list[bytes]], segment: int | None = None) -> Path:
        """Change the batches of a segment (the last one by default); the indexes stay as they are."""
        file = self.file(self.segments[-1] if segment is None else segment)
        put(file, b"".join(change(split_batches(file.read_bytes()))))
        return file

    def batches(self) -> list[bytes]:
        """Of all segments."""
        return [batch for segment in self.segments for batch in split_batches(self.file(segment).read_bytes())]

    def patch(self, segment: int, position: int, content: bytes) -> None:
        with self.file(segment).open("r+b") as file:
            file.seek(position)
            file.write(content)


def split_batches(content: bytes) -> list[bytes]:
    batches = []
    position = 0
    while position < len(content):
        size = read_header(content, position).size_bytes
        batches.append(content[position : position + size])
        position += size
    return batches


def _this_boot() -> str:
    return Path(BOOT_ID_FILE).read_text(encoding="ascii").strip()


class PlantedCluster:
    """Brokers' log directories below one data directory."""

    def __init__(self, root: Path, brokers: Sequence[int] = (1, 2, 3), clean: bool = True) -> None:
        self.root = root
        self.brokers = brokers
        self.high_watermarks: dict[int, dict[TopicPartition, int]] = {broker: {} for broker in brokers}
        self.topic_ids: dict[TopicPartition, str] = {}
        """In the brokers' checkpoints; those of older versions have none."""
        self.state = ClusterState(
            version=VERSION,
            taken_at=1.0,
            cluster_id="c",
            brokers={str(broker): f"d{broker}" for broker in brokers},
            partitions={},
        )
        root.mkdir(parents=True, exist_ok=True)
        put(root / CLUSTER_STATE, format_cluster_state(self.state))
        for broker in brokers:
            directory = self.log_directory(broker)
            directory.mkdir(parents=True, exist_ok=True)
            meta = MetaProperties(broker_id=broker, cluster_id="c", directory_id=f"d{broker}", boot_id=_this_boot())
            put(directory / checkpoints.META_PROPERTIES, format_meta_properties(meta))
            self.stop_cleanly(clean, broker)

    def stop_cleanly(self, clean: bool, *brokers: int) -> None:
        """Or, with `clean=False`, as if these brokers (all by default) were killed, or still running."""
        for broker in brokers or self.brokers:
            marker = self.log_directory(broker) / checkpoints.CLEAN_SHUTDOWN
            if clean:
                put(marker, checkpoints.format_clean_shutdown(7))
            else:
                marker.unlink(missing_ok=True)

    def lose_power(self, *brokers: int) -> None:
        """The machines (all by default) reboot."""
        for broker in brokers or self.brokers:
            self._write_meta(broker, boot_id="former")

    def replace_disk(self, broker: int) -> None:
        """As if the broker's files had been copied to another disk."""
        self._write_meta(broker, directory_id=f"another-{broker}")

    def _write_meta(self, broker: int, **changes: str) -> None:
        file = self.log_directory(broker) / checkpoints.META_PROPERTIES
        meta = parse_meta_properties(file.read_bytes())
        put(file, format_meta_properties(msgspec.structs.replace(meta, **changes)))

    def log_directory(self, broker: int) -> Path:
        return self.root / f"broker-{broker}"

    def replica(self, broker: int, partition: TopicPartition) -> PlantedReplica:
        return PlantedReplica(self.log_directory(broker), partition)

    def write(
        self,
        partition: TopicPartition,
        batches: list[bytes],
        brokers: Sequence[int] | None = None,
        high_watermark: int | None = None,
        base_offset: int = 0,
    ) -> None:
        """The same log on these brokers (all by default), committed to its end; all of them are in sync."""
        end = read_header(batches[-1]).end_offset if batches else base_offset
        for broker in self.brokers if brokers is None else brokers:
            self.replica(broker, partition).write(batches, base_offset)
            self.set_high_watermark(broker, partition, end if high_watermark is None else high_watermark)
        holders = [broker for broker in self.brokers if self.replica(broker, partition).directory.exists()]
        epoch = max((read_header(batch).partition_leader_epoch for batch in batches), default=0)
        earlier = self.state.partitions.get(str(partition))
        epoch = max(epoch, earlier.leader_epoch if earlier is not None else 0)
        self.write_state(partition, holders[0] if holders else -1, epoch, holders, replicas=holders)

    def set_high_watermark(self, broker: int, partition: TopicPartition, offset: int | None) -> None:
        high_watermarks = self.high_watermarks[broker]
        high_watermarks.pop(partition, None)
        if offset is not None:
            high_watermarks[partition] = offset
        file = self.log_directory(broker) / checkpoints.HIGH_WATERMARK_CHECKPOINT
        put(file, checkpoints.format_offset_checkpoint(high_watermarks, self.topic_ids))

    def set_recovery_point(self, broker: int, partition: TopicPartition, offset: int) -> None:
        """The broker's recovery point of this partition; other lines of the file are dropped."""
        file = self.log_directory(broker) / checkpoints.RECOVERY_POINT_CHECKPOINT
        put(file, checkpoints.format_offset_checkpoint({partition: offset}, self.topic_ids))

    def write_state(
        self,
        partition: TopicPartition,
        leader: int,
        leader_epoch: int,
        isr: Sequence[int],
        *,
        replicas: Sequence[int] | None = None,
        topic_id: str | None = TOPIC_ID,
        witness: PartitionWitness | None = None,
        isr_before: Sequence[int] | None = None,
        committed_before: int | None = None,
    ) -> None:
        """The recorded state of this partition when the cluster was stopped. Every broker is assigned by default; the
        ISR was the same before the stop."""
        snapshot = PartitionSnapshot(
            leader=leader,
            leader_epoch=leader_epoch,
            isr=tuple(isr),
            isr_before=tuple(isr if isr_before is None else isr_before),
            committed_before=committed_before,
            replicas=tuple(self.brokers if replicas is None else replicas),
            topic_id=topic_id,
        )
        partitions = self.state.partitions | {str(partition): snapshot}
        witnesses = self.state.witnesses | ({str(partition): witness} if witness is not None else {})
        self.state = msgspec.structs.replace(self.state, partitions=partitions, witnesses=witnesses)
        put(self.root / CLUSTER_STATE, format_cluster_state(self.state))

    def forget_state(self) -> None:
        """As if the cluster had not been stopped by the launcher."""
        (self.root / CLUSTER_STATE).unlink(missing_ok=True)

    def write_acked(self, partition: TopicPartition, batches: Sequence[Batch], base_offset: int = 0) -> Path:
        """Add every record of these batches to the list of acknowledged records."""
        file = self.root / "acked.tsv"
        offset = base_offset
        with file.open("a") as lines:
            for _, values in batches:
                for value in values:
                    lines.write(acked_line(partition, offset, value))
                    offset += 1
        return file


def acked_line(partition: TopicPartition, offset: int, value: bytes | None) -> str:
    crc = NO_VALUE if value is None else crc32c(value)
    shown = "-" if crc == NO_VALUE else f"{crc:08x}"
    return f"{partition.topic}\t{partition.partition}\t{offset}\t{shown}\n"


def restamped(batch: bytes, base_offset: int, epoch: int) -> bytes:
    copy = bytearray(batch)
    stamp(copy, base_offset, epoch)
    return bytes(copy)
