"""The record batch: Kafka v2's 61-byte header, then one msgpack array of records (docs/FORMATS.md).

Owns: the layout, its checks, and building a batch. Leaves to others: logs, producers' state, the network.

    field                   type  at    covered by the CRC
    base_offset             i64    0    no: the leader stamps it
    batch_length            i32    8    no: bytes after this field
    partition_leader_epoch  i32   12    no: the leader stamps it
    magic                   i8    16    no: 77, 'M'
    crc                     u32   17    CRC-32C of everything behind it
    attributes              i16   21    yes, like all that follows
    last_offset_delta       i32   23
    base_timestamp          i64   27
    max_timestamp           i64   35
    producer_id             i64   43
    producer_epoch          i16   51
    base_sequence           i32   53
    record_count            i32   57
    payload                       61    array of [offset_delta, timestamp_delta, key|nil, value|nil, headers]

Three depths of reading: `read_header` (61 bytes, to walk a log), `check_batch` (plus CRC and the claimed number of
records, for a leader that gets a client's batch), `decode_records` (every record, for a consumer and the audit).
Whatever the bytes are, this module raises only CorruptBatch, and it allocates nothing for a size that is only claimed.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, repeat, takewhile
from operator import sub
from typing import TypeAlias

import msgspec

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ProtocolError

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_BYTES = 61
HEADER_FORMAT = ">qiibIhiqqqhii"
"""The table above, for `struct`."""
EMPTY_BATCH_BYTES = HEADER_BYTES + 5
"""Header, and the head of the payload's array at its longest."""
MAGIC = 77
LENGTH_PREFIX_BYTES = 12
"""batch_length counts the bytes behind itself: it excludes the first 12 bytes of a batch."""
CRC_COVERS_FROM = 21
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Largest batch that any reader accepts: a batch must fit into a frame, which has the same limit."""
RECORD_BYTES_MIN = 6
"""An array header and five one-byte members: no payload can hold more records than its length divided by this."""

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
TIMESTAMP_MIN, TIMESTAMP_MAX = -(2**63), 2**63 - 1
"""Range of a timestamp in a header and in messages. A record's own timestamp is a sum, which may exceed it."""
EXTEND_VALUE_BYTES = 0xFF00
"""Many values shorter than this may be appended at once: their lengths take two bytes, whatever else is in a record."""
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
_SMALL_MAX = 0xFFFF
"""Up to this number an offset delta, and the length of a key or value, take 3 bytes."""
_PLAIN_EXTRA_BYTES = 16
"""Array 1, offset delta 3, timestamp delta 5, key and value 3 each, headers 1."""
_LARGE_EXTRA_BYTES = 14
"""More for large members: offset delta 2, timestamp delta 4, key and value 2 each, the array of headers 4."""
_RecordTuple: TypeAlias = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]
_PAYLOAD_DECODER = msgspec.msgpack.Decoder(list[_RecordTuple])

Header: TypeAlias = tuple[str, bytes | None]
"""One header of a record: a name and a value."""
RecordInput: TypeAlias = tuple[bytes | None, bytes | None, int, Sequence[Header]]
"""A record of a producer: key, value, timestamp in ms, headers."""


class CorruptBatch(ProtocolError):
    """Bytes that are not a batch, or not the batch that was written."""

    def __init__(self, reason: str, position: int) -> None:
        super().__init__(reason, position)
        self.reason = reason
        self.position = position
        """Where the batch begins in the given buffer."""

    def __str__(self) -> str:
        return f"corrupt batch at position {self.position}: {self.reason}"


class UndecodableBatch(CorruptBatch):
    """A batch that is whole by its CRC, but its payload is no array of records: its producer packed it wrongly."""


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


class DecodedRecord(msgspec.Struct, frozen=True):
    """One record as a reader gets it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position` and check that its fields fit each other. CRC and records are not checked."""
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
    """The rest of `check_batch`, after the header has been read."""
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
    claimed = _payload_array_length(buffer, position + HEADER_BYTES)
    if claimed != header.record_count:
        found = "no array" if claimed is None else f"an array of {claimed}"
        raise CorruptBatch(f"the payload is {found}, not of {header.record_count} records", position)


def _payload_array_length(buffer: Buffer, start: int) -> int | None:
    """At least one record fits behind `start`, so the bytes of a length are there."""
    first = buffer[start]
    if 0x90 <= first <= 0x9F:
        return first & 0x0F
    if first == 0xDC:
        return buffer[start + 1] << 8 | buffer[start + 2]
    if first == 0xDD:
        return int.from_bytes(buffer[start + 1 : start + 5], "big")
    return None


def stamp(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write offset and leader epoch into a checked batch, in place. The CRC does not cover them and stays valid."""
    _STAMP_OFFSET.pack_into(buffer, position, base_offset)
    _STAMP_EPOCH.pack_into(buffer, position + _EPOCH_AT, leader_epoch)


def iterate_headers(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Walk over whole batches by their headers; stop in front of a batch that is not whole before `end`.

    An inconsistent header raises CorruptBatch.
    """
    end = len(buffer) if end is None else min(end, len(buffer))
    while end - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if position + header.size_bytes > end:
            return
        yield position, header
        position += header.size_bytes


def decode_records(buffer: Buffer, position: int = 0) -> list[DecodedRecord]:
    """All records of the batch at `position`, after every check. Raises CorruptBatch."""
    header = check_batch(buffer, position)
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    return [
        DecodedRecord(base_offset + delta, base_timestamp + timestamp_delta, key, value, headers)
        for delta, timestamp_delta, key, value, headers in _decode_payload(buffer, position, header)
    ]


def decode_values(buffer: Buffer, position: int, header: BatchHeader) -> list[bytes | None]:
    """Only the values, of a batch that has passed `check_batch` with this header."""
    return [value for _, _, _, value, _ in _decode_payload(buffer, position, header)]


def check_payload(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Decode each record of a batch that has passed `check_batch` with this header. Raises UndecodableBatch."""
    _decode_payload(buffer, position, header)


def _decode_payload(buffer: Buffer, position: int, header: BatchHeader) -> list[_RecordTuple]:
    payload = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    try:
        records = _PAYLOAD_DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableBatch(f"the payload does not decode: {error}", position) from None
    earliest, latest = TIMESTAMP_MIN - header.base_timestamp, TIMESTAMP_MAX - header.base_timestamp
    for index, record in enumerate(records):
        if record[0] != index:
            raise UndecodableBatch(f"record {index} claims offset delta {record[0]}", position)
        if not earliest <= record[1] <= latest:
            raise UndecodableBatch(f"the timestamp of record {index} does not fit into 64 bits", position)
    return records


class BatchBuilder:
    """Collects the records of one batch in columns, and packs them with one call at the end.

    Keeps a running upper bound of the packed size, so that `close` never yields more than max_bytes, except that a
    first record is always taken, however large: the caller checks whether it may be sent.
    """

    __slots__ = (
        "_base_timestamp",
        "_headers",
        "_keys",
        "_max_timestamp",
        "_record_extra",
        "_time_deltas",
        "_time_starts",
        "_timestamp",
        "_values",
        "max_bytes",
        "size_bytes",
    )

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = EMPTY_BATCH_BYTES
        """Upper bound of the packed size so far."""
        self._values: list[bytes | None] = []
        self._keys: list[bytes | None] | None = None
        """None while no record has a key."""
        self._headers: dict[int, Sequence[Header]] = {}
        """By offset delta, for the records that have any."""
        self._timestamp: int | None = None
        """Of the last record. Consecutive records mostly share one: see `_time_starts`."""
        self._record_extra = _PLAIN_EXTRA_BYTES
        """Bytes of a record with that timestamp besides its key and value, while no other member of it is large."""
        self._time_starts: list[int] = []
        """Offset deltas at which a new timestamp delta begins: the one at the same index in `_time_deltas`."""
        self._time_deltas: list[int] = []
        self._base_timestamp = 0
        self._max_timestamp = 0

    @property
    def record_count(self) -> int:
        return len(self._values)

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Sequence[Header] = ()
    ) -> int | None:
        """Take a record and return its offset delta, or None if the batch is full and nothing was taken."""
        if timestamp_ms != self._timestamp or headers:
            return self._append_unlike(key, value, timestamp_ms, headers)
        values = self._values
        delta = len(values)
        before = self.size_bytes
        size = before + self._record_extra
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        if size > self.max_bytes or delta > _SMALL_MAX or size - before > _SMALL_MAX:
            return self._append_unlike(key, value, timestamp_ms, headers)
        self.size_bytes = size
        if self._keys is not None:
            self._keys.append(key)
        elif key is not None:
            self._keys = [*repeat(None, delta), key]
        values.append(value)
        return delta

    def _append_unlike(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: Sequence[Header]
    ) -> int | None:
        """Like `append`, for a first record, and for one that differs from the last in more than key and value."""
        delta = len(self._values)
        timestamp_delta = timestamp_ms - self._base_timestamp if delta else 0
        small = delta <= _SMALL_MAX and -(2**31) <= timestamp_delta < 2**32
        member_bytes = (len(value) if value is not None else 0) + (len(key) if key is not None else 0)
        size = self.size_bytes + record_bytes_max(member_bytes, headers, small=small)
        if not delta:
            self._base_timestamp = self._max_timestamp = timestamp_ms
        elif size > self.max_bytes or timestamp_delta < TIMESTAMP_MIN:  # outside msgpack's integers
            return None
        if timestamp_ms != self._timestamp:
            self._timestamp = timestamp_ms
            self._time_starts.append(delta)
            self._time_deltas.append(timestamp_delta)
            self._max_timestamp = max(timestamp_ms, self._max_timestamp)
        self._record_extra = record_bytes_max(0, small=small)
        self.size_bytes = size
        if self._keys is not None:
            self._keys.append(key)
        elif key is not None:
            self._keys = [*repeat(None, delta), key]
        if headers:
            self._headers[delta] = headers
        self._values.append(value)
        return delta

    def extend(self, values: Sequence[bytes], start: int, timestamp_ms: int) -> int:
        """Take `values[start:]` in order, as records without key and headers, as far as they fit; return how many.

        The result is the same as with single calls of `append`. Each value must be shorter than EXTEND_VALUE_BYTES.
        """
        taken = start
        while taken < len(values):
            if self.append(None, values[taken], timestamp_ms) is None:
                break
            taken += 1
            taken += self._extend_alike(values, taken)
        return taken - start

    def _extend_alike(self, values: Sequence[bytes], start: int) -> int:
        """Take many records at once that differ from the last one only in their values; return how many. At most as
        many as fit if all are as long as the first of them; 0 where `append` has to handle the next one."""
        if start == len(values):
            return 0
        extra, room = self._record_extra, self.max_bytes - self.size_bytes
        count = min(room // (extra + len(values[start])), _SMALL_MAX + 1 - len(self._values))
        if count <= 0:
            return 0
        chunk = values[start : start + count]
        size = sum(map(len, chunk)) + extra * len(chunk)
        if size > room:
            ends = accumulate(len(value) + extra for value in chunk)
            chunk = chunk[: sum(1 for _ in takewhile(room.__ge__, ends))]
            size = sum(map(len, chunk)) + extra * len(chunk)
        self.size_bytes += size
        self._values += chunk
        if self._keys is not None:
            self._keys += repeat(None, len(chunk))
        return len(chunk)

    def close(
        self,
        producer_id: int = NO_PRODUCER_ID,
        producer_epoch: int = NO_PRODUCER_EPOCH,
        base_sequence: int = NO_SEQUENCE,
        *,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> bytearray:
        """The packed batch. May be called again, e.g. with another producer epoch after a reset of sequences."""
        assert self._values, "a batch holds at least one record"
        batch = bytearray(HEADER_BYTES)
        count = len(self._values)
        keys = self._keys if self._keys is not None else repeat(None)
        rows = zip(range(count), self._timestamp_deltas(), keys, self._values, self._header_column(), strict=False)
        _ENCODER.encode_into(list(rows), batch, HEADER_BYTES)
        _HEADER.pack_into(
            batch,
            0,
            base_offset,
            len(batch) - LENGTH_PREFIX_BYTES,
            leader_epoch,
            MAGIC,
            0,
            0,
            count - 1,
            self._base_timestamp,
            self._max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )
        _CRC.pack_into(batch, _CRC_AT, crc32c(memoryview(batch)[CRC_COVERS_FROM:]))
        return batch

    def _timestamp_deltas(self) -> Iterable[int]:
        """For all records, in order, and possibly more."""
        ends = [*self._time_starts[1:], len(self._values)]
        lengths = map(sub, ends, self._time_starts)
        return chain.from_iterable(map(repeat, self._time_deltas, lengths))

    def _header_column(self) -> Iterable[Sequence[Header]]:
        """For all records, in order, and possibly more."""
        if not self._headers:
            return repeat(())
        return (self._headers.get(delta, ()) for delta in range(len(self._values)))


def record_bytes_max(member_bytes: int, headers: Sequence[Header] = (), *, small: bool = True) -> int:
    """Upper bound of a record's size, of which `member_bytes` are key and value. `small`: its deltas are small."""
    size = _PLAIN_EXTRA_BYTES + member_bytes
    if headers or not small or size > _SMALL_MAX:
        size += _LARGE_EXTRA_BYTES
        for name, content in headers:
            size += 11 + 4 * len(name) + (len(content) if content is not None else 0)
    return size


def build_batch(
    records: Iterable[RecordInput],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """One batch of all the given records."""
    builder = BatchBuilder(BATCH_BYTES_MAX)
    for key, value, timestamp_ms, headers in records:
        if builder.append(key, value, timestamp_ms, headers) is None:
            raise ValueError(f"more than {BATCH_BYTES_MAX} bytes of records for one batch")
    return builder.close(producer_id, producer_epoch, base_sequence, base_offset=base_offset, leader_epoch=leader_epoch)
