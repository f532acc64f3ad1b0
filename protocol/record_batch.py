"""The record batch: Kafka v2's 61-byte header, then one msgpack array of records (docs/FORMATS.md).

Owns: the layout, its checks, and building a batch. Refuses to know logs, producers' state or the network.

    field                   type  at    covered by the CRC
    base_offset             i64    0    no: the leader stamps it
    batch_length            i32    8    no: bytes after this field
    partition_leader_epoch  i32   12    no: the leader stamps it
    magic                   i8    16    no: 77, 'M'
    crc                     u32   17    CRC-32C of everything behind it
    attributes              i16   21    yes, as all that follows
    last_offset_delta       i32   23
    base_timestamp          i64   27
    max_timestamp           i64   35
    producer_id             i64   43
    producer_epoch          i16   51
    base_sequence           i32   53
    record_count            i32   57
    payload                       61    array of [offset_delta, timestamp_delta, key|nil, value|nil, headers]

Three depths of reading, each for its caller: `read_header` (61 bytes, to walk a log), `check_batch` (plus CRC and the
claimed number of records, what a leader does to a client's batch), `decode_records` (every record, what a consumer and
the audit do). Whatever the bytes are, nothing but CorruptBatch leaves this module, and nothing is allocated for a size
that is only claimed.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
HEADER_FORMAT = ">qiibIhiqqqhii"
"""The table above, for `struct`."""
MAGIC = 77
LENGTH_PREFIX_BYTES = 12
"""batch_length counts the bytes behind itself: the first 12 bytes of a batch are not in it."""
CRC_COVERS_FROM = 21
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Largest batch that any reader takes: a batch must fit into a frame, and a frame is bounded by the same number."""
RECORD_BYTES_MIN = 6
"""An array header and five one-byte members: no payload can hold more records than its length divided by this."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
TIMESTAMP_TYPE_BIT = 0b1000
ATTRIBUTES_KNOWN = TIMESTAMP_TYPE_BIT
"""Compression (bits 0-2), transactions and control batches are not in use: a batch that claims them is refused."""

_HEADER = struct.Struct(HEADER_FORMAT)
_STAMP_OFFSET = struct.Struct(">q")
_STAMP_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_EPOCH_AT = 12
_CRC_AT = 17
_ENCODER = msgspec.msgpack.Encoder()
_RecordTuple: TypeAlias = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
_PAYLOAD_DECODER = msgspec.msgpack.Decoder(list[_RecordTuple])

Header: TypeAlias = tuple[str, bytes | None]
"""One header of a record: a name and a value."""
RecordInput: TypeAlias = tuple[bytes | None, bytes | None, int, Sequence[Header]]
"""What a producer gives: key, value, timestamp in ms, headers."""


class CorruptBatch(ProtocolError):
    """Bytes that are not a batch, or not the batch that was written."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position
        """Where in the given buffer the batch begins."""

    def __str__(self) -> str:
        return f"corrupt batch at position {self.position}: {self.reason}"


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The 61 bytes in front of a batch's records."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return self.batch_length + LENGTH_PREFIX_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        """The offset after the last record (exclusive)."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences wrap to 0 after 2^31 - 1. -1 without a producer id."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


class Record(msgspec.Struct, frozen=True):
    """One record as its reader sees it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; its fields fit each other. Neither the CRC nor the records are looked at."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{max(len(buffer) - position, 0)} bytes are fewer than a header's {HEADER_BYTES}", position)
    header = BatchHeader(*_HEADER.unpack_from(buffer, position))
    if (
        header.magic != MAGIC
        or header.batch_length < HEADER_BYTES - LENGTH_PREFIX_BYTES
        or header.batch_length > BATCH_BYTES_MAX - LENGTH_PREFIX_BYTES
        or header.record_count < 1
        or header.last_offset_delta != header.record_count - 1
        or not 0 <= header.base_offset <= OFFSET_MAX - header.record_count
        or header.partition_leader_epoch < NO_LEADER_EPOCH
        or header.producer_id < NO_PRODUCER_ID
        or header.producer_epoch < NO_PRODUCER_EPOCH
        or header.base_sequence < NO_SEQUENCE
    ):
        raise CorruptBatch(_nonsense(header), position)
    return header


def _nonsense(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"magic is {header.magic}, not {MAGIC}"
    if not HEADER_BYTES <= header.size_bytes <= BATCH_BYTES_MAX:
        return f"claimed length of {header.batch_length} bytes is outside {HEADER_BYTES} to {BATCH_BYTES_MAX}"
    if header.record_count < 1:
        return f"record count is {header.record_count}"
    if header.last_offset_delta != header.record_count - 1:
        return f"last offset delta {header.last_offset_delta} does not fit {header.record_count} records"
    if not 0 <= header.base_offset <= OFFSET_MAX - header.record_count:
        return f"base offset is {header.base_offset}"
    return (
        f"a field is below -1: leader epoch {header.partition_leader_epoch}, producer {header.producer_id},"
        f" producer epoch {header.producer_epoch}, sequence {header.base_sequence}"
    )


def check_batch(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Check the batch at `position` as a leader does: header, whole, CRC, and as many records as claimed.

    Costs little more than the CRC: no record is decoded, nothing is copied.
    """
    header = read_header(buffer, position)
    check_body(buffer, position, header)
    return header


def check_body(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """The rest of `check_batch`, of a batch whose header has been read."""
    size = header.batch_length + LENGTH_PREFIX_BYTES
    end = position + size
    if end > len(buffer):
        raise CorruptBatch(f"{size} bytes are claimed, {len(buffer) - position} are there", position)
    if crc32c(memoryview(buffer)[position + CRC_COVERS_FROM : end]) != header.crc:
        raise CorruptBatch("CRC does not match", position)
    if header.attributes & ~ATTRIBUTES_KNOWN:
        raise CorruptBatch(f"attributes {header.attributes:#x} are not understood", position)
    if header.record_count * RECORD_BYTES_MIN > size - HEADER_BYTES:
        raise CorruptBatch(f"{header.record_count} records cannot fit into the payload", position)
    claimed = _payload_array_length(buffer, position + HEADER_BYTES, end)
    if claimed != header.record_count:
        found = "no array" if claimed is None else f"an array of {claimed}"
        raise CorruptBatch(f"the payload is {found}, not of {header.record_count} records", position)


def _payload_array_length(buffer: Buffer, start: int, end: int) -> int | None:
    first = buffer[start]  # at least one record fits, so the byte is there
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first == 0xDC and end - start >= 3:
        return buffer[start + 1] << 8 | buffer[start + 2]
    if first == 0xDD and end - start >= 5:
        return int.from_bytes(buffer[start + 1 : start + 5], "big")
    return None


def stamp(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write offset and leader epoch into a checked batch, in place. The CRC does not cover them and stays true."""
    _STAMP_OFFSET.pack_into(buffer, position, base_offset)
    _STAMP_EPOCH.pack_into(buffer, position + _EPOCH_AT, leader_epoch)


def iterate_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over whole batches by their headers; ends quietly in front of a batch that is not whole before `end`.

    A header that makes no sense raises CorruptBatch.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    while end - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def decode_records(buffer: Buffer, position: int = 0) -> list[Record]:
    """All records of the batch at `position`, after every check. Anything odd is a CorruptBatch."""
    header = check_batch(buffer, position)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    return [
        Record(base_offset + delta, base_timestamp + timestamp_delta, key, value, headers)
        for delta, timestamp_delta, key, value, headers in _decode_payload(buffer, position, header)
    ]


def decode_values(buffer: Buffer, position: int, header: BatchHeader) -> list[bytes | None]:
    """The values alone, of a batch that `check_batch` has passed with this header."""
    return [value for _, _, _, value, _ in _decode_payload(buffer, position, header)]


def _decode_payload(buffer: Buffer, position: int, header: BatchHeader) -> list[_RecordTuple]:
    payload = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    try:
        records = _PAYLOAD_DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptBatch(f"the payload does not decode: {error}", position) from None
    for index, record in enumerate(records):
        if record[0] != index:
            raise CorruptBatch(f"record {index} claims offset delta {record[0]}", position)
    return records


class BatchBuilder:
    """Collects the records of one batch, cheaply, and packs them with one call at the end.

    Keeps a running upper bound of the packed size, so `close` never yields more than max_bytes, except that a first
    record is always taken, however large: whether it may be sent at all is not the builder's question.
    """

    __slots__ = ("_base_timestamp", "_max_timestamp", "_records", "max_bytes", "size_bytes")

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = HEADER_BYTES + 5
        """Upper bound of the packed size so far."""
        self._records: list[tuple[int, int, bytes | None, bytes | None, Sequence[Header]]] = []
        self._base_timestamp = 0
        self._max_timestamp = 0

    @property
    def record_count(self) -> int:
        return len(self._records)

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Sequence[Header] = ()
    ) -> int | None:
        """Take a record and say its offset delta, or None when the batch is full and nothing was taken."""
        records = self._records
        delta = len(records)
        timestamp_delta = timestamp_ms - self._base_timestamp if delta else 0
        # array 1, offset delta 3, timestamp delta 5, key and value 3 each, headers 1; more only where `_rare` says so
        size = self.size_bytes + 16
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if headers or delta > 0xFFFF or size > 0xFFFF + self.size_bytes or not -(2**31) <= timestamp_delta < 2**32:
            size += _rare_bytes(headers)
        if delta:
            if size > self.max_bytes:
                return None
            if timestamp_ms > self._max_timestamp:
                self._max_timestamp = timestamp_ms
        else:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        self.size_bytes = size
        records.append((delta, timestamp_delta, key, value, headers))
        return delta

    def close(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        *,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> bytearray:
        """The finished batch. May be called again, e.g. with another producer epoch after a reset of sequences."""
        assert self._records, "a batch holds at least one record"
        batch = bytearray(HEADER_BYTES)
        _ENCODER.encode_into(self._records, batch, HEADER_BYTES)
        last_delta = len(self._records) - 1
        _HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - LENGTH_PREFIX_BYTES,
            leader_epoch,
            MAGIC,
            0,
            0,
            last_delta,
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            last_delta + 1,
        )
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
        return batch


def _rare_bytes(headers: Sequence[Header]) -> int:
    """What large members (2 more for a delta, 4 for a timestamp, 2 for key and value each) and headers add."""
    extra = 14
    for name, content in headers:
        extra += 11 + 4 * len(name) + (len(content) if content is not None else 0)
    return extra


def build_batch(
    records: Iterable[RecordInput],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """One batch of all the given (key, value, timestamp_ms, headers)."""
    builder = BatchBuilder(BATCH_BYTES_MAX)
    for key, value, timestamp_ms, headers in records:
        if builder.append(key, value, timestamp_ms, headers) is None:
            raise ValueError(f"more than {BATCH_BYTES_MAX} bytes of records for one batch")
    return builder.close(producer_id, producer_epoch, base_sequence, base_offset=base_offset, leader_epoch=leader_epoch)
