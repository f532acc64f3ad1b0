"""The records of a batch, decoded with the msgpack package: not with the codec that brokers and clients use.

Owns: what counts as a record, implemented a second time from docs/FORMATS.md, so that a bug of the other decoder cannot
hide itself. Tests compare both decoders.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TypeAlias

import msgpack

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.acked_list import record_checksum
from minibroker.protocol.record_batch import HEADER_BYTES, TIMESTAMP_MAX, TIMESTAMP_MIN, BatchHeader, Buffer

FIELDS = 5
COLUMNS_FROM = 8
"""From this many records on, checking column by column is cheaper."""
_BYTES_OR_NIL = {bytes, type(None)}


class Undecodable(Exception):
    """A payload that is not an array of records; the message gives the reason."""


DecodedRecord: TypeAlias = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Timestamp in ms, key, value, headers. The offset is omitted: records are in the order of their offsets."""


def decode_payload(buffer: Buffer, position: int, header: BatchHeader) -> list[DecodedRecord]:
    """The records of the batch at `position`, whose header and CRC are valid. Raises Undecodable."""
    payload = memoryview(buffer)[position + HEADER_BYTES : position + header.size_bytes]
    try:
        rows = msgpack.unpackb(payload, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise Undecodable(f"the payload does not decode: {reason}") from None
    if type(rows) is not list or len(rows) != header.record_count:
        raise Undecodable(f"the payload is not an array of {header.record_count} records")
    if len(rows) < COLUMNS_FROM:
        for index, row in enumerate(rows):
            complaint = _complaint(row, index, header)
            if complaint is not None:
                raise Undecodable(complaint)
        base_timestamp = header.base_timestamp
        return [(base_timestamp + delta, key, value, headers) for _, delta, key, value, headers in rows]
    if set(map(type, rows)) == {list} and set(map(len, rows)) == {FIELDS}:
        deltas, time_deltas, keys, values, headers = zip(*rows, strict=True)
        if (
            set(map(type, deltas)) == set(map(type, time_deltas)) == {int}
            and deltas == tuple(range(len(rows)))
            and set(map(type, chain(keys, values))) <= _BYTES_OR_NIL
            and set(map(type, headers)) == {list}
            and all(map(_is_header, chain.from_iterable(headers)))
            and header.base_timestamp + min(time_deltas) >= TIMESTAMP_MIN
            and header.base_timestamp + max(time_deltas) <= TIMESTAMP_MAX
        ):
            return list(zip(map(header.base_timestamp.__add__, time_deltas), keys, values, headers, strict=True))
    raise Undecodable(next(filter(None, (_complaint(row, index, header) for index, row in enumerate(rows)))))


def _is_header(item: object) -> bool:
    return type(item) is list and len(item) == 2 and type(item[0]) is str and type(item[1]) in _BYTES_OR_NIL


def _complaint(row: object, index: int, header: BatchHeader) -> str | None:
    """What is wrong with a record, or None."""
    if type(row) is not list or len(row) != FIELDS:
        return f"the payload does not decode: record {index} is not an array of {FIELDS}"
    offset_delta, timestamp_delta, key, value, headers = row
    if type(offset_delta) is not int or type(timestamp_delta) is not int:
        return f"the payload does not decode: a delta of record {index} is not a whole number"
    if offset_delta != index:
        return f"record {index} claims offset delta {offset_delta}"
    if type(key) not in _BYTES_OR_NIL or type(value) not in _BYTES_OR_NIL or type(headers) is not list:
        return f"the payload does not decode: record {index} has a key, value or headers of another type"
    if not all(map(_is_header, headers)):
        return f"the payload does not decode: a header of record {index} is not a name and a value"
    if not TIMESTAMP_MIN <= header.base_timestamp + timestamp_delta <= TIMESTAMP_MAX:
        return f"the timestamp of record {index} does not fit into 64 bits"
    return None


def value_checksum(record: DecodedRecord, without: int) -> int:
    """CRC-32C of the value alone, as in lists of version 1; `without` is the checksum of a missing value."""
    value = record[2]
    return without if value is None else crc32c(value)


def whole_checksum(record: DecodedRecord) -> int:
    """Checksum of the whole record, as in lists of version 2."""
    return record_checksum(*record)
