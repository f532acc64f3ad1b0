"""The record batch: golden bytes, round trips against the reference decoder, and hostile input."""

import struct
from collections.abc import Callable
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import (
    EXTEND_VALUE_BYTES,
    HEADER_BYTES,
    BatchBuilder,
    BatchHeader,
    CorruptBatch,
    DecodedRecord,
    RecordInput,
    UndecodableBatch,
    build_batch,
    check_batch,
    check_payload,
    decode_records,
    iterate_headers,
    read_header,
    stamp,
)

GOLDEN = Path(__file__).parent / "golden"

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RECORDS: st.SearchStrategy[list[RecordInput]] = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=300),
        st.sampled_from([7, 8])
        | st.integers(-(2**40), 2**41),  # records that differ in nothing else are packed together
        st.just(()) | st.lists(st.tuples(TEXT, st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=20,
)


def resealed(batch: bytearray) -> bytearray:
    """The same bytes with a CRC that fits them."""
    struct.pack_into(">I", batch, 17, crc32c(memoryview(batch)[21:]))
    return batch


def with_payload(payload: bytes, record_count: int) -> bytearray:
    batch = bytearray(HEADER_BYTES) + payload
    header = (0, len(batch) - 12, -1, 77, 0, 0, record_count - 1, 0, 0, -1, -1, -1, record_count)
    struct.pack_into(">qiibIhiqqqhii", batch, 0, *header)
    return resealed(batch)


def read_all(buffer: bytes | bytearray) -> None:
    """Every decoder on the same bytes: only CorruptBatch may come out."""
    functions: list[Callable[[bytes | bytearray], object]] = [
        read_header,
        check_batch,
        decode_records,
        lambda data: list(iterate_headers(data)),
    ]
    for function in functions:
        try:
            function(buffer)
        except CorruptBatch as error:
            assert str(error).startswith("corrupt batch at position")


# golden files

GOLDEN_CASES: dict[str, tuple[list[RecordInput], dict[str, int]]] = {
    "one_record.bin": ([(b"key", b"value", 1_700_000_000_000, ())], {}),
    "null_key_and_value.bin": ([(None, None, 0, ())], {"base_offset": 7, "leader_epoch": 3}),
    "idempotent.bin": (
        [(None, b"a", 1000, ()), (b"", b"", 900, (("h", b"1"), ("none", None))), (b"k", b"\x00" * 300, 2**33, ())],
        {
            "base_offset": 2**40,
            "leader_epoch": 12,
            "producer_id": 4001,
            "producer_epoch": 2,
            "base_sequence": 2**31 - 2,
        },
    ),
    "many_records.bin": ([(None, bytes([n % 256]), 5 + n, ()) for n in range(300)], {"base_offset": 1}),
}


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_batch_decodes_as_documented(name: str) -> None:
    records, fields = GOLDEN_CASES[name]
    content = (GOLDEN / name).read_bytes()
    base_offset = fields.get("base_offset", 0)
    assert decode_records(content) == [
        DecodedRecord(base_offset + index, timestamp, key, value, tuple(headers))
        for index, (key, value, timestamp, headers) in enumerate(records)
    ]


@pytest.mark.parametrize("name", GOLDEN_CASES)
def test_golden_batch_is_built_identically(name: str) -> None:
    records, fields = GOLDEN_CASES[name]
    assert build_batch(records, **fields) == (GOLDEN / name).read_bytes()


def test_golden_header_fields_are_where_kafka_has_them() -> None:
    header = read_header((GOLDEN / "idempotent.bin").read_bytes())
    assert (header.base_offset, header.last_offset, header.end_offset) == (2**40, 2**40 + 2, 2**40 + 3)
    assert (header.partition_leader_epoch, header.magic, header.attributes) == (12, 77, 0)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 2**33)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (4001, 2, 2**31 - 2)
    assert header.last_sequence == 0, "sequences wrap to 0 after 2^31 - 1"


# round trips


@given(RECORDS, st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_records_survive_a_round_trip(records: list[RecordInput], base_offset: int, epoch: int) -> None:
    batch = build_batch(records, base_offset=base_offset, leader_epoch=epoch)
    decoded = decode_records(memoryview(b"pad" + batch), 3)
    assert [(each.key, each.value, each.timestamp_ms, each.headers) for each in decoded] == records
    assert [each.offset for each in decoded] == [base_offset + index for index in range(len(records))]
    assert read_header(batch).max_timestamp == max(timestamp for _, _, timestamp, _ in records)


@given(RECORDS)
def test_reference_decoder_reads_the_payload(records: list[RecordInput]) -> None:
    payload = msgpack.unpackb(bytes(build_batch(records)[HEADER_BYTES:]))
    first = records[0][2]
    assert payload == [
        [index, timestamp - first, key, value, [list(header) for header in headers]]
        for index, (key, value, timestamp, headers) in enumerate(records)
    ]


@given(RECORDS)
def test_a_batch_packed_by_the_reference_encoder_is_taken(records: list[RecordInput]) -> None:
    payload = [[index, 0, key, value, headers] for index, (key, value, _, headers) in enumerate(records)]
    decoded = decode_records(with_payload(msgpack.packb(payload), len(records)))
    assert [each.value for each in decoded] == [value for _, value, _, _ in records]


@given(RECORDS, st.integers(70, 2000))
def test_builder_keeps_its_limit_and_counts(records: list[RecordInput], max_bytes: int) -> None:
    builder = BatchBuilder(max_bytes)
    taken = 0
    for key, value, timestamp, headers in records:
        delta = builder.append(key, value, timestamp, headers)
        if delta is None:
            break
        assert delta == taken
        taken += 1
    batch = builder.close(5, 1, 10)
    assert builder.record_count == taken >= 1, "the first record is always taken"
    assert len(batch) <= builder.size_bytes
    assert taken == 1 or len(batch) <= max_bytes
    assert check_batch(batch).record_count == taken


@given(
    st.lists(st.sampled_from([0, 3, 40, 255, 256, 5_000, EXTEND_VALUE_BYTES - 1]).map(bytes), max_size=60)
    | st.lists(st.integers(0, 60).map(bytes), max_size=60),
    st.lists(st.tuples(st.none() | st.just(b"key"), st.sampled_from([0, 7, 2**40])), max_size=3),
    st.sampled_from([100, 700, 6_000, 200_000]),
)
def test_appending_many_values_at_once_equals_appending_each(
    values: list[bytes], before: list[tuple[bytes | None, int]], max_bytes: int
) -> None:
    at_once, one_by_one = BatchBuilder(max_bytes), BatchBuilder(max_bytes)
    for builder in (at_once, one_by_one):
        for key, timestamp in before:
            builder.append(key, b"before", timestamp)
    taken = at_once.extend(values, 1, 7)
    accepted = 0
    while accepted < len(values) - 1 and one_by_one.append(None, values[1 + accepted], 7) is not None:
        accepted += 1
    assert taken == accepted
    assert at_once.size_bytes == one_by_one.size_bytes
    if at_once.record_count:
        assert at_once.close() == one_by_one.close()


@pytest.mark.parametrize("length", range(41))
def test_many_values_at_once_stop_where_the_room_ends(length: int) -> None:
    at_once, one_by_one = BatchBuilder(700), BatchBuilder(700)
    values = [b"first", b"", *[b"x" * length] * 100]
    taken = at_once.extend(values, 0, 7)
    assert taken == sum(1 for value in values if one_by_one.append(None, value, 7) is not None)
    assert at_once.size_bytes <= 700
    assert at_once.close() == one_by_one.close()


def test_many_values_at_once_beyond_the_small_offset_deltas() -> None:
    at_once, one_by_one = BatchBuilder(2**24), BatchBuilder(2**24)
    values = [b"x"] * 70_000
    assert at_once.extend(values, 0, 7) == 70_000
    for value in values:
        one_by_one.append(None, value, 7)
    assert at_once.close() == one_by_one.close()
    assert at_once.size_bytes == one_by_one.size_bytes


def test_large_members_stay_below_the_estimate() -> None:
    builder = BatchBuilder(2**24)
    for timestamp in (0, 2**40, -(2**40)):
        builder.append(b"k" * 70_000, b"v" * 70_000, timestamp, (("n" * 300, b"x" * 70_000),))
    for _ in range(70_000):
        builder.append(None, b"", 2**33)
    assert len(builder.close()) <= builder.size_bytes


@pytest.mark.parametrize("edge", [-(2**31), -(2**15), 2**16, 2**32])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_the_estimate_covers_each_size_of_a_timestamp(edge: int, beyond: int) -> None:
    """In records without any slack: their other members are as long as the estimate assumes."""
    builder = BatchBuilder(2**24)
    builder.append(None, None, 0)
    for _ in range(1_000):
        builder.append(b"k" * 256, b"v" * 256, edge + beyond)
    assert len(builder.close()) <= builder.size_bytes


@pytest.mark.parametrize("letter", ["a", "\u00e4", "\u20ac", "\U0001f600"])
def test_the_estimate_of_headers_covers_every_letter_and_wastes_nothing_on_the_longest(letter: str) -> None:
    """What the estimate wastes fills batches, and the producer's memory, early."""
    builder = BatchBuilder(2**24)
    builder.append(None, None, 0)
    before = builder.size_bytes, len(builder.close())
    builder.append(None, None, 0, [(letter * 10_000, b"x" * 10_000)] * 10)
    estimated, real = builder.size_bytes - before[0], len(builder.close()) - before[1]
    assert real <= estimated
    assert len(letter.encode()) < 4 or estimated - real < 300


def test_a_full_builder_refuses_and_keeps_what_it_has() -> None:
    builder = BatchBuilder(200)
    while builder.append(None, b"x" * 20, 1) is not None:
        pass
    before = builder.close()
    assert builder.append(None, b"x" * 200, 1) is None
    assert builder.close() == before


# checks


def test_stamp_changes_only_offset_and_epoch_and_keeps_the_crc_valid() -> None:
    buffer = bytearray(b"....") + build_batch([(None, b"a", 1, ()), (None, b"b", 1, ())])
    stamp(buffer, 40, 9, position=4)
    header = check_batch(buffer, 4)
    assert (header.base_offset, header.partition_leader_epoch, header.end_offset) == (40, 9, 42)
    assert [record.offset for record in decode_records(buffer, 4)] == [40, 41]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_check_takes_every_kind_of_buffer(kind: Callable[[bytearray], bytes]) -> None:
    assert check_batch(kind(build_batch([(None, b"a", 1, ())]))).record_count == 1


@given(RECORDS, st.data())
def test_any_flipped_bit_behind_the_stamped_fields_is_detected(records: list[RecordInput], data: st.DataObject) -> None:
    batch = build_batch(records)
    bit = data.draw(st.integers(16 * 8, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptBatch):
        check_batch(batch)


@pytest.mark.parametrize("cut", [0, 1, 11, 60, 61, -1])
def test_a_cut_batch_is_corrupt_but_ends_a_walk_quietly(cut: int) -> None:
    whole = bytes(build_batch([(None, b"a", 1, ())]))
    buffer = whole + whole[:cut]
    assert [position for position, _ in iterate_headers(buffer)] == [0]
    with pytest.raises(CorruptBatch, match=f"position {len(whole)}"):
        check_batch(buffer, len(whole))


def test_a_walk_stops_at_the_end_it_was_given() -> None:
    whole = bytes(build_batch([(None, b"a", 1, ())]))
    positions = [position for position, _ in iterate_headers(whole * 3, 0, 2 * len(whole) + 10)]
    assert positions == [0, len(whole)]


@pytest.mark.parametrize(
    ("at", "layout", "value", "reason"),
    [
        (0, ">q", -1, "base offset"),
        (0, ">q", 2**63 - 1, "base offset"),
        (8, ">i", 48, "claimed length"),
        (8, ">i", -5, "claimed length"),
        (8, ">i", 2**31 - 1, "claimed length"),
        (12, ">i", -2, "below -1"),
        (16, ">b", 2, "magic is 2, not 77"),
        (23, ">i", 1, "last offset delta"),
        (43, ">q", -2, "below -1"),
        (51, ">h", -2, "below -1"),
        (53, ">i", -2, "below -1"),
        (57, ">i", 0, "record count"),
        (57, ">i", -1, "record count"),
    ],
)
def test_an_invalid_header_field_is_named(at: int, layout: str, value: int, reason: str) -> None:
    batch = build_batch([(None, b"a", 1, ())])
    struct.pack_into(layout, batch, at, value)
    with pytest.raises(CorruptBatch, match=reason):
        read_header(batch)


@pytest.mark.parametrize("bit", [bit for bit in range(15) if bit != 3])
def test_compression_and_other_unknown_attributes_are_refused(bit: int) -> None:
    batch = build_batch([(None, b"a", 1, ())])
    struct.pack_into(">h", batch, 21, 1 << bit)
    with pytest.raises(CorruptBatch, match=f"attributes {1 << bit:#x} are not understood"):
        check_batch(resealed(batch))


RECORD: list[object] = [0, 0, None, b"v", []]


@pytest.mark.parametrize(
    "payload",
    [
        [],
        [RECORD, RECORD],
        {0: RECORD},
        b"bytes",
        "text",
        None,
    ],
)
def test_check_refuses_a_payload_that_is_not_as_many_records(payload: object) -> None:
    with pytest.raises(CorruptBatch):
        check_batch(with_payload(msgpack.packb(payload) + b"\xc0" * 8, 1))


@pytest.mark.parametrize("count", [1, 15, 16, 255, 256, 65_535, 65_536, 70_000])
def test_a_batch_of_any_size_holds_as_many_records_as_it_says(count: int) -> None:
    """MessagePack writes the length of an array in three ways."""
    payload = msgpack.packb([RECORD] * count)
    assert check_batch(with_payload(payload, count)).record_count == count
    for claimed in (count - 1, count + 1):
        if claimed > 1:
            with pytest.raises(CorruptBatch, match=f"an array of {count}, not of {claimed} records|cannot fit"):
                check_batch(with_payload(payload, claimed))


@pytest.mark.parametrize("start", [b"\x80", b"\xa9", b"\xc0", b"\xc4\x07", b"\xde\x00\x01"])
def test_a_payload_that_is_no_array_is_refused(start: bytes) -> None:
    with pytest.raises(CorruptBatch, match="the payload is no array"):
        check_batch(with_payload(start + b"\xc0" * 8, 1))


@pytest.mark.parametrize("count", [1, 2, 7, 15])
def test_records_need_six_bytes_each(count: int) -> None:
    header = bytes([0x90 | count])
    check_batch(with_payload(header + b"\xc0" * (count * 6 - 1), count))
    with pytest.raises(CorruptBatch, match=f"{count} records cannot fit"):
        check_batch(with_payload(header + b"\xc0" * (count * 6 - 2), count))


@pytest.mark.parametrize("head", [b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01"])
def test_the_shortest_payload_has_room_for_each_form_of_its_length(head: bytes) -> None:
    check_batch(with_payload(head.ljust(6, b"\xc0"), 1))


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        [0, 0, None, b"v"],
        [0, 0, None, b"v", [], None],
        [1, 0, None, b"v", []],
        [-1, 0, None, b"v", []],
        [0.0, 0, None, b"v", []],
        [False, 0, None, b"v", []],
        [0, None, None, b"v", []],
        [0, 0, "text", b"v", []],
        [0, 0, None, "text", []],
        [0, 0, None, 5, []],
        [0, 0, None, b"v", None],
        [0, 0, None, b"v", {}],
        [0, 0, None, b"v", [["name"]]],
        [0, 0, None, b"v", [[b"name", b"value"]]],
        [0, 0, None, b"v", [["name", "value"]]],
        [0, 0, None, b"v", [["name", b"value", b"more"]]],
    ],
)
def test_mistyped_records_are_refused(record: object) -> None:
    payload = msgpack.packb([record])
    with pytest.raises(CorruptBatch):
        decode_records(with_payload(payload + b"\xc0" * (8 - len(payload)), 1))


@pytest.mark.parametrize(("base", "delta"), [(2**63 - 1, 1), (1, 2**63 - 1), (0, 2**64 - 1), (-1, -(2**63))])
def test_a_record_whose_timestamp_leaves_64_bits_is_refused(base: int, delta: int) -> None:
    """No message could carry it."""
    with pytest.raises(UndecodableBatch, match="timestamp"):
        decode_records(timed(base, delta))
    with pytest.raises(UndecodableBatch, match="timestamp"):
        check_payload(timed(base, delta), 0, read_header(timed(base, delta)))


@pytest.mark.parametrize(("base", "delta", "time"), [(-(2**63), 2**64 - 1, 2**63 - 1), (0, -(2**63), -(2**63))])
def test_each_timestamp_of_64_bits_is_taken(base: int, delta: int, time: int) -> None:
    assert decode_records(timed(base, delta))[0].timestamp_ms == time


def test_a_record_that_is_too_much_older_than_the_first_begins_another_batch() -> None:
    builder = BatchBuilder(1_000)
    assert builder.append(None, b"v", 2**63 - 1) == 0
    assert builder.append(None, b"v", -2) is None
    assert builder.append(None, b"v", -1) == 1
    assert [each.timestamp_ms for each in decode_records(builder.close())] == [2**63 - 1, -1]


def timed(base: int, delta: int) -> bytearray:
    """One record; the batch begins at `base`."""
    batch = with_payload(msgpack.packb([[0, delta, None, b"v", []]]), 1)
    struct.pack_into(">q", batch, 27, base)
    return resealed(batch)


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\xff\xff\xff\xff" + b"\xc0" * 8,  # an array of 4 billion
        b"\x91\x95\x00\x00\xc0\xc0\xdd\x7f\xff\xff\xff",  # so many headers
        b"\x91\x95\x00\x00\xc0\xc6\xff\xff\xff\xff\x90",  # a value of 4 GB
        b"\x91\x95\x00\x00\xc0\xc0\x91\x92\xa1\xff\xc0",  # a name that is not UTF-8
        b"\x91" * 100_000,  # nested deeply
        b"\xdc\x00",  # an array header cut short
        b"\x91\x95\x00\x00\xc0\xc0\x90\x00",  # one byte too many
    ],
)
def test_claims_beyond_the_payload_are_refused_without_allocating(payload: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_records(with_payload(payload, 1))


def test_more_records_than_bytes_are_refused_before_decoding() -> None:
    with pytest.raises(CorruptBatch, match="cannot fit"):
        check_batch(with_payload(b"\xdd\x00\x0f\x42\x40" + b"\xc0" * 90, 1_000_000))


# fuzz


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_corrupt_batch(content: bytes) -> None:
    read_all(content)


@given(RECORDS, st.data())
def test_mutated_batches_raise_only_corrupt_batch(records: list[RecordInput], data: st.DataObject) -> None:
    batch = build_batch(records)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(batch) - 1))
        batch[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=4))
    read_all(batch)
    if len(batch) >= HEADER_BYTES:
        struct.pack_into(">i", batch, 8, len(batch) - 12)
        read_all(resealed(batch))


NESTED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=30,
)


@given(NESTED, st.binary(max_size=3), st.integers(1, 5))
def test_nested_payloads_raise_only_corrupt_batch(payload: object, tail: bytes, count: int) -> None:
    packed = msgpack.packb(payload) + tail
    read_all(with_payload(packed, count))
    if isinstance(payload, list) and payload:
        read_all(with_payload(packed, len(payload)))


@given(st.lists(st.tuples(NESTED, NESTED, NESTED, NESTED, NESTED), min_size=1, max_size=3))
def test_odd_record_members_raise_only_corrupt_batch(records: list[tuple[object, ...]]) -> None:
    read_all(with_payload(msgpack.packb(records), len(records)))


def test_header_struct_matches_the_documented_size() -> None:
    assert len(BatchHeader.__struct_fields__) == 13
    assert struct.calcsize(">qiibIhiqqqhii") == HEADER_BYTES
