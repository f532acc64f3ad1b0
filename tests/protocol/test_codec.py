"""The codec: golden frames, round trips against the reference packer, and hostile bytes."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.errors import ErrorCode, ProtocolError
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.codec import (
    Buffer,
    FetchedRecords,
    MalformedMessage,
    decode_request_body,
    decode_request_frame,
    decode_response_body,
    decode_response_frame,
    encode_fetch_response,
    encode_request,
    encode_response,
)
from minibroker.protocol.wire.messages import (
    API_OF_REQUEST,
    APIS,
    ApiKey,
    CurrentLeader,
    EpochEndOffset,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    Request,
    Response,
)
from tests.protocol.message_values import requests, responses, values

GOLDEN = Path(__file__).parent / "golden"
BATCH = build_batch([(b"key", b"value", 1_700_000_000_000, (("h", b"1"),)), (None, b"two", 1_700_000_000_001, ())])
OTHER_BATCH = build_batch([(None, b"x" * 300, 1_700_000_000_002, ())], base_offset=2, leader_epoch=5)


def whole(pieces: Sequence[Buffer]) -> bytes:
    """The frame without its length, which must be right."""
    data = b"".join(bytes(piece) for piece in pieces)
    assert int.from_bytes(data[:4], "big") == len(data) - 4
    return data[4:]


def packed(*fields: Any) -> bytes:
    return bytes(msgpack.packb(fields))


def plain(message: Any) -> Any:
    """The message in the types of the reference packer: maps, lists, texts, numbers, bytes."""
    return msgspec.to_builtins(message, builtin_types=(bytes, bytearray, memoryview))


def fetched(*parts: bytes, **fields: Any) -> FetchedRecords:
    return FetchedRecords(FetchPartitionResponse(**fields), parts, sum(map(len, parts)))


# ------------------------------------------------------------------------------------------------------ golden files
FETCHED = [
    ("lines", [fetched(bytes(BATCH), bytes(OTHER_BATCH), partition_index=0, high_watermark=3, log_start_offset=0)]),
    (
        "other",
        [
            fetched(
                partition_index=7,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=CurrentLeader(leader_id=2, leader_epoch=9),
            ),
            fetched(partition_index=8, high_watermark=70, diverging_epoch=EpochEndOffset(epoch=3, end_offset=64)),
            fetched(bytes(OTHER_BATCH), partition_index=9, high_watermark=2**40, log_start_offset=5),
        ],
    ),
]
PRODUCED = ProduceRequest(
    acks=-1,
    timeout_ms=1500,
    topic_data=[
        ProduceTopic(
            name="lines",
            topic_id="8rBVq3jzSXm4vE1tP0YkLw",
            partition_data=[ProducePartition(index=0, records=bytearray(BATCH))],
        ),
        ProduceTopic(
            name="other",
            partition_data=[
                ProducePartition(index=1, records=bytearray(OTHER_BATCH)),
                ProducePartition(index=300, records=bytearray()),
            ],
        ),
    ],
)
ASKED = MetadataRequest(topics=[MetadataRequestTopic(name="lines"), MetadataRequestTopic(name="no such topic")])
KNOWN = MetadataResponse(
    brokers=[MetadataBroker(node_id=1, host="127.0.0.1", port=9092), MetadataBroker(node_id=2, host="b", port=9093)],
    cluster_id="9WKU5Ve6QYm3ObUbZkbYnA",
    controller_id=1,
    topics=[
        MetadataTopic(
            name="lines",
            topic_id="tid",
            partitions=[
                MetadataPartition(
                    partition_index=0,
                    leader_id=1,
                    leader_epoch=4,
                    replica_nodes=[1, 2],
                    isr_nodes=[1],
                    offline_replicas=[2],
                )
            ],
        ),
        MetadataTopic(name="no such topic", error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
GOLDEN_FRAMES: dict[str, Callable[[], Sequence[Buffer]]] = {
    "produce_request.frame": lambda: encode_request(PRODUCED, 7, "golden"),
    "fetch_response.frame": lambda: encode_fetch_response(2**31 - 1, FetchResponse(session_id=12), FETCHED),
    "metadata_request.frame": lambda: encode_request(ASKED, 8, "golden"),
    "metadata_response.frame": lambda: encode_response(8, KNOWN),
}


@pytest.mark.parametrize("name", GOLDEN_FRAMES)
def test_golden_frame_is_packed_identically(name: str) -> None:
    frame = b"".join(bytes(piece) for piece in GOLDEN_FRAMES[name]())
    if os.environ.get("REWRITE"):
        (GOLDEN / name).write_bytes(frame)
    assert frame == (GOLDEN / name).read_bytes(), "the wire changed: if that was meant, make test REWRITE=1"


def test_golden_produce_request_reads_the_same_for_both_decoders() -> None:
    frame = (GOLDEN / "produce_request.frame").read_bytes()[4:]
    api_key, api_version, correlation_id, client_id, body = msgpack.unpackb(frame)
    assert (api_key, api_version, correlation_id, client_id) == (ApiKey.PRODUCE, 0, 7, "golden")
    header = decode_request_frame(frame)
    assert (header.api_key, header.api_version, header.correlation_id, header.client_id) == (0, 0, 7, "golden")
    assert decode_request_body(header) == PRODUCED
    assert body == plain(PRODUCED) | {"transactional_id": None}
    assert body["topic_data"][0]["partition_data"][0]["records"] == bytes(BATCH)


def test_golden_fetch_response_reads_the_same_for_both_decoders() -> None:
    frame = (GOLDEN / "fetch_response.frame").read_bytes()[4:]
    correlation_id, body = msgpack.unpackb(frame)
    assert correlation_id == 2**31 - 1
    number, raw = decode_response_frame(frame)
    response = decode_response_body(ApiKey.FETCH, raw)
    assert isinstance(response, FetchResponse)
    assert number == correlation_id
    assert body == plain(response)
    assert response.session_id == 12
    assert response.responses[0].partitions[0].records == bytes(BATCH + OTHER_BATCH)
    assert [[p.partition_index for p in topic.partitions] for topic in response.responses] == [[0], [7, 8, 9]]
    assert response.responses[1].partitions[1].diverging_epoch == EpochEndOffset(epoch=3, end_offset=64)
    assert response.responses[1].partitions[2].records == bytes(OTHER_BATCH)


def test_golden_metadata_reads_the_same_for_both_decoders() -> None:
    request = (GOLDEN / "metadata_request.frame").read_bytes()[4:]
    assert msgpack.unpackb(request) == [3, 0, 8, "golden", {"topics": [{"name": "lines"}, {"name": "no such topic"}]}]
    assert decode_request_body(decode_request_frame(request)) == ASKED
    response = (GOLDEN / "metadata_response.frame").read_bytes()[4:]
    assert msgpack.unpackb(response) == [8, plain(KNOWN)]
    assert decode_response_body(ApiKey.METADATA, decode_response_frame(response)[1]) == KNOWN


# ------------------------------------------------------------------------------------------------------- round trips
def is_excessive(request: Request) -> bool:
    """Random lists may name the same thing twice, which is refused."""
    try:
        decode_request_body(decode_request_frame(whole(encode_request(request, 1, "c"))))
    except MalformedMessage as error:
        return "listed twice" in str(error)
    return False


@given(requests(), st.integers(0, 2**31 - 1), st.text(st.characters(exclude_categories=["Cs"]), max_size=256))
def test_a_request_survives_a_round_trip(request: Request, correlation_id: int, client_id: str) -> None:
    frame = decode_request_frame(whole(encode_request(request, correlation_id, client_id)))
    assert frame.api_key == API_OF_REQUEST[type(request)].key
    assert (frame.correlation_id, frame.client_id) == (correlation_id, client_id)
    if not is_excessive(request):
        assert decode_request_body(frame) == request


@given(responses(), st.integers(0, 2**31 - 1))
def test_a_response_survives_a_round_trip(answered: tuple[int, Response], correlation_id: int) -> None:
    api_key, response = answered
    number, body = decode_response_frame(whole(encode_response(correlation_id, response)))
    assert number == correlation_id
    assert decode_response_body(api_key, body) == response


@given(requests())
def test_frames_of_the_reference_packer_are_decoded(request: Request) -> None:
    key = API_OF_REQUEST[type(request)].key.value
    frame = packed(key, 0, 5, None, plain(request))
    ours = whole(encode_request(request, 5, ""))
    assert msgpack.unpackb(ours)[4] == msgpack.unpackb(frame)[4]
    if not is_excessive(request):
        assert decode_request_body(decode_request_frame(frame)) == request


@given(values(FetchResponse))
def test_spliced_records_give_the_same_frame_as_packing(response: FetchResponse) -> None:
    """It does not depend on how the records are cut into parts."""
    topics = []
    for topic in response.responses:
        found = []
        for partition in topic.partitions:
            records = partition.records
            parts = (records[:2], records[2:]) if len(records) > 2 else (records,)
            bare = msgspec.structs.replace(partition, records=b"")
            found.append(FetchedRecords(bare, parts, len(records)))
        topics.append((topic.topic, found))
    head = msgspec.structs.replace(response, responses=[])
    spliced = whole(encode_fetch_response(3, head, topics))
    number, body = decode_response_frame(spliced)
    assert number == 3
    assert decode_response_body(ApiKey.FETCH, body) == response
    assert msgpack.unpackb(spliced) == msgpack.unpackb(whole(encode_response(3, response)))


def test_records_are_not_copied_into_the_frame() -> None:
    produced = bytearray(BATCH)
    topic = ProduceTopic(name="t", partition_data=[ProducePartition(index=0, records=produced)])
    assert any(piece is produced for piece in encode_request(ProduceRequest(topic_data=[topic]), 1, "c"))
    batch = bytes(BATCH)
    answer = [("t", [fetched(batch, partition_index=0)])]
    assert any(piece is batch for piece in encode_fetch_response(1, FetchResponse(), answer))


@pytest.mark.parametrize("sizes", [(0,), (1,), (0, 1), (1, 0), (0, 0), (1, 1)], ids=str)
def test_no_piece_is_empty(sizes: tuple[int, ...]) -> None:
    """asyncio of CPython 3.12 and later never gets rid of an empty piece at the end: the connection stays writable, and
    the loop turns without a pause. `sizes`: batches of each partition."""
    produced = [ProducePartition(index=index, records=bytearray(BATCH * size)) for index, size in enumerate(sizes)]
    request = ProduceRequest(topic_data=[ProduceTopic(name="t", partition_data=produced)])
    answer = [fetched(*[bytes(BATCH)] * size, partition_index=index) for index, size in enumerate(sizes)]
    for frame in (
        encode_request(request, 1, "c"),
        encode_fetch_response(1, FetchResponse(), [("t", answer)]),
        encode_request(MetadataRequest(), 1, "c"),
        encode_response(1, KNOWN),
    ):
        assert all(frame)
        whole(frame)


def test_unknown_fields_are_ignored_and_missing_ones_take_their_default() -> None:
    body = {"replica_id": 2, "from_the_future": [{"a": 1}], "topics": [{"topic": "t", "partitions": [], "new": 1}]}
    request = decode_request_body(decode_request_frame(packed(ApiKey.FETCH, 0, 1, "c", body)))
    assert isinstance(request, FetchRequest)
    assert (request.replica_id, request.max_wait_ms, request.session_epoch) == (2, 500, -1)


def test_a_response_of_two_fields_answers_the_request_as_a_whole() -> None:
    refusal = Response(error_code=ErrorCode.INVALID_REQUEST, error_message="why")
    for key in APIS:
        _, body = decode_response_frame(whole(encode_response(1, refusal)))
        response = decode_response_body(key, body)
        assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, "why")


def test_a_field_without_default_must_be_there() -> None:
    body = {"topics": [{"topic": "t", "partitions": [{"partition": 1}]}]}
    with pytest.raises(MalformedMessage, match="fetch_offset") as caught:
        decode_request_body(decode_request_frame(packed(ApiKey.FETCH, 0, 44, "c", body)))
    assert caught.value.correlation_id == 44, "so that the answer finds its request"


# ------------------------------------------------------------------------------------------------------- hostile bytes
def decode_everything(data: bytes) -> None:
    """Every decoder on the same bytes: only ProtocolError may come out."""
    try:
        decode_request_body(decode_request_frame(data))
    except ProtocolError:
        pass
    except KeyError as error:  # the server looks up the key first
        assert error.args[0] not in APIS
    for key in APIS:
        for body in (data, b"\x92\x01" + data):
            try:
                decode_response_body(key, decode_response_frame(body)[1])
            except ProtocolError:
                pass


def decode_as_each_request(body: bytes) -> None:
    for key in APIS:
        try:
            decode_request_body(decode_request_frame(b"\x95" + msgpack.packb(key) + b"\x00\x01\xa1c" + body))
        except ProtocolError as error:
            assert isinstance(error, MalformedMessage)
            assert str(error)


@given(st.binary(max_size=300))
def test_random_bytes_raise_only_a_protocol_error(data: bytes) -> None:
    decode_everything(data)
    decode_as_each_request(data)


@given(requests(), st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4), st.data())
def test_damaged_frames_raise_only_a_protocol_error(
    request: Request, changes: list[tuple[int, int]], data: st.DataObject
) -> None:
    frame = bytearray(whole(encode_request(request, 1, "client")))
    for position, value in changes:
        frame[position % len(frame)] = value
    cut = data.draw(st.integers(0, len(frame)))
    decode_everything(bytes(frame))
    decode_everything(bytes(frame[:cut]))
    decode_everything(bytes(frame) + b"\x00")


LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.binary(max_size=5)
TEXTS = st.text(max_size=5)
JUNK = st.recursive(
    LEAVES | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | st.integers(0, 9), inner, max_size=4),
    max_leaves=12,
)


@given(JUNK)
def test_unexpected_types_raise_only_a_protocol_error(value: Any) -> None:
    data = bytes(msgpack.packb(value, unicode_errors="surrogatepass"))
    decode_everything(data)
    decode_as_each_request(data)


@given(st.sampled_from(sorted(APIS)), st.data())
def test_a_field_of_another_type_raises_only_a_protocol_error(key: int, data: st.DataObject) -> None:
    fields = plain(data.draw(values(APIS[key].request)))
    names = [field.name for field in msgspec.structs.fields(APIS[key].request)]
    if names:
        fields[data.draw(st.sampled_from(names))] = data.draw(JUNK)
    decode_as_each_request(bytes(msgpack.packb(fields, unicode_errors="surrogatepass")))


def test_a_response_frame_of_three_elements_is_refused() -> None:
    """Its body is taken from the frame's end."""
    with pytest.raises(MalformedMessage):
        decode_response_frame(bytes(msgpack.packb((7, {}, {}))))


HOSTILE = {
    "nested lists": b"\x91" * 100_000,
    "nested lists, closed": b"\x91" * 100_000 + b"\x90",
    "nested maps": b"\x81\xa1a" * 100_000,
    "nested in a field": b"\x81\xa6topics" + b"\x91" * 100_000,
    "nested in an unknown field": b"\x81\xa3new" + b"\x91" * 100_000 + b"\x90",
    "a list of four thousand million": b"\xdd\xff\xff\xff\xff",
    "a map of four thousand million": b"\xdf\xff\xff\xff\xff",
    "a text of four thousand million": b"\xdb\xff\xff\xff\xff",
    "bytes of four thousand million": b"\xc6\xff\xff\xff\xff",
    "claims inside a field": b"\x81\xa6topics\xdd\xff\xff\xff\xff",
    "a text that is not UTF-8": b"\x81\xa6topics\x91\x81\xa4name\xa2\xff\xfe",
    "a name that is not UTF-8": b"\x81\xa2\xff\xfe\x01",
    "an extension": b"\xc7\x04\x05abcd",
    "a timestamp": b"\xd6\xff\x00\x00\x00\x01",
    "a number above i64": b"\x81\xaacontroller\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    "the byte that means nothing": b"\xc1",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bodies_raise_only_a_protocol_error(name: str) -> None:
    decode_everything(HOSTILE[name])
    decode_as_each_request(HOSTILE[name])


HEADERS: dict[str, bytes] = {
    "four fields": packed(3, 0, 1, "c"),
    "six fields": packed(3, 0, 1, "c", {}, {}),
    "a map": packed({"api_key": 3})[1:],
    "a text for the key": packed("3", 0, 1, "c", {}),
    "a correlation id above i32": packed(3, 0, 2**31, "c", {}),
    "a client id too long": packed(3, 0, 1, "c" * 257, {}),
    "a client id that is not UTF-8": b"\x95\x03\x00\x01\xa2\xff\xfe\x80",
    "bytes behind it": packed(3, 0, 1, "c", {}) + b"\x00",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_of_another_shape_is_refused(name: str) -> None:
    with pytest.raises(MalformedMessage):
        decode_request_frame(HEADERS[name])
