"""The audit's own decoder of records and that of brokers and clients agree on any bytes."""

import struct

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.audit.reading.payload import COLUMNS_FROM, Undecodable, decode_payload
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import (
    HEADER_BYTES,
    HEADER_FORMAT,
    CorruptBatch,
    build_batch,
    decode_records,
    read_header,
)
from tests.audit.planted_cluster import START_MS
from tests.undecodable import beyond_all_times, undecodable

RECORDS = [
    (b"k", b"v" * 20, START_MS, (("name", b"x"), ("none", None))),
    (None, None, START_MS + 70_000, ()),
    (b"", b"\x00" * 300, START_MS - 5, (("", b""),)),
]
BATCH = bytes(build_batch(RECORDS, base_offset=7, leader_epoch=2))

Answer = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] | None


def sealed(payload: bytes, records: int) -> bytes:
    """A batch of this payload with a valid CRC."""
    size = HEADER_BYTES + len(payload)
    fields = (0, size - 12, 0, 77, 0, 0, records - 1, START_MS, START_MS, -1, -1, -1, records)
    batch = bytearray(struct.pack(HEADER_FORMAT, *fields) + payload)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def audits(batch: bytes) -> Answer:
    try:
        found = decode_payload(batch, 0, read_header(batch))
    except Undecodable:
        return None
    return [(at, key, value, [(name, content) for name, content in headers]) for at, key, value, headers in found]


def brokers(batch: bytes) -> Answer:
    try:
        return [(each.timestamp_ms, each.key, each.value, list(each.headers)) for each in decode_records(batch)]
    except CorruptBatch:
        return None


def test_decoded_records_equal_those_sent() -> None:
    many = RECORDS * 9
    batch = bytes(build_batch(many, base_offset=7, leader_epoch=2))
    assert audits(batch) == [(at, key, value, list(headers)) for key, value, at, headers in many] == brokers(batch)
    assert audits(BATCH) == [(at, key, value, list(headers)) for key, value, at, headers in RECORDS] == brokers(BATCH)


@pytest.mark.parametrize("batch", [bytes(undecodable(BATCH)), bytes(beyond_all_times()), sealed(b"\x91\xc0" * 9, 1)])
def test_undecodable_payloads_are_reported(batch: bytes) -> None:
    assert audits(batch) is None
    assert brokers(batch) is None


@given(st.integers(HEADER_BYTES, len(BATCH) - 1), st.integers(0, 255))
def test_both_decoders_agree_where_a_byte_differs(at: int, byte: int) -> None:
    changed = bytearray(BATCH)
    changed[at] = byte
    batch = sealed(bytes(changed[HEADER_BYTES:]), len(RECORDS))
    assert audits(batch) == brokers(batch)


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary(max_size=4)
    | st.text(max_size=3)
    | st.just(msgpack.Timestamp(5)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
LIKE_A_RECORD = st.tuples(
    st.sampled_from([0, 1, COLUMNS_FROM, 0.0, True]) | ANY,
    st.integers(-9, 9) | ANY,
    ANY,
    st.binary() | ANY,
    st.just([]) | ANY,
)


@given(st.lists(LIKE_A_RECORD | ANY, min_size=1, max_size=2), st.sampled_from([0, COLUMNS_FROM]))
def test_both_decoders_agree_on_any_msgpack(odd: list[object], good: int) -> None:
    """Also with enough valid records that they are checked column by column."""
    rows = [[number, 5, b"k", None, [["h", None]]] for number in range(good)] + odd
    payload = msgpack.packb(rows)
    batch = sealed(payload, len(rows))
    assert audits(batch) == brokers(batch)
