"""What a consumer returns: records, decoded one batch at a time.

Owns: the public Record, and reading one batch of a fetched chunk. The hot path of consuming: one decoder call per batch
and one object per record.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from minibroker.protocol.ids import LeaderEpoch, Offset, TopicPartition
from minibroker.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    Header,
    UndecodableBatch,
    check_body,
)

RecordTuple = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
_DECODER = msgspec.msgpack.Decoder(list[RecordTuple])


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record and its place in the log."""

    topic: str
    partition: int
    offset: Offset
    leader_epoch: LeaderEpoch
    """Epoch of the leader that wrote it."""
    timestamp_ms: int
    key: Any
    """bytes or None, or what the consumer's `key_deserializer` made of the bytes."""
    value: Any
    headers: tuple[Header, ...] = ()


class RecordBatch(msgspec.Struct, frozen=True):
    """Consecutive records of one partition, as `getmany_batches` returns them: without an object per record.

    The record `values[i]` has the offset `base_offset + i`.
    """

    topic_partition: TopicPartition
    base_offset: Offset
    leader_epoch: LeaderEpoch
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps_ms: Sequence[int]

    def __len__(self) -> int:
        return len(self.values)


def read_batch(buffer: memoryview, position: int, header: BatchHeader, check_crcs: bool) -> list[RecordTuple]:
    """Records of the batch at `position`. `check_crcs`: check the CRC first. Raises CorruptBatch, and UndecodableBatch
    if the CRC is right: then no other reader can decode it, either."""
    if check_crcs:
        check_body(buffer, position, header)
    try:
        tuples = _DECODER.decode(buffer[position + HEADER_BYTES : position + header.size_bytes])
        if len(tuples) == header.record_count:
            return tuples
        reason = f"{len(tuples)} records instead of {header.record_count}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        reason = f"the payload does not decode: {error}"
    if not check_crcs:
        check_body(buffer, position, header)
    raise UndecodableBatch(reason, position)


def to_records(
    partition: TopicPartition, header: BatchHeader, tuples: list[RecordTuple], start: Offset
) -> list[Record]:
    """The records from offset `start` on."""
    topic, index = partition
    epoch = header.partition_leader_epoch
    base, time = header.base_offset, header.base_timestamp
    if start > base:
        tuples = tuples[start - base :]
    return [
        Record(topic, index, base + delta, epoch, time + timestamp_delta, key, value, headers)
        for delta, timestamp_delta, key, value, headers in tuples
    ]


def to_columns(partition: TopicPartition, header: BatchHeader, tuples: list[RecordTuple], start: Offset) -> RecordBatch:
    """The records from offset `start` on, as columns."""
    base, time = header.base_offset, header.base_timestamp
    if start > base:
        tuples = tuples[start - base :]
    return RecordBatch(
        partition,
        max(base, start),
        header.partition_leader_epoch,
        [entry[2] for entry in tuples],
        [entry[3] for entry in tuples],
        [time + entry[1] for entry in tuples],
    )
