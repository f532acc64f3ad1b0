"""Messages to bytes and back.

Owns: the packing of requests and responses (msgpack through msgspec), frame prefix included, and the guarantee of every
decoder here: it raises nothing but ProtocolError, and checks limits before it builds anything. Leaves to others:
sockets, and what a message means.

Record batches are not copied into a frame: a message that carries them is written front to back as pieces, and the
pieces go to the socket in one `transport.writelines`. That works because records, and every list on the way to them,
are the last field of their struct (see `messages`): the struct is packed with that field empty, its empty tail is
dropped, and the real list header or bin header follows."""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated

import msgspec

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.message_types import I16, I32, PARTITIONS_MAX, TOPICS_MAX, Name
from minibroker.protocol.wire.messages import (
    APIS,
    KEY_OF_REQUEST,
    ApiKey,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
    ProduceRequest,
    ProduceTopic,
    Request,
    Response,
)
from minibroker.protocol.wire.request_limits import find_excess
from minibroker.protocol.wire.response_limits import refuse_excess

Buffer = bytes | bytearray | memoryview
PRODUCE_KEY = ApiKey.PRODUCE.value
API_VERSION = 0
"""We own both ends: every API has one version, and a peer that asks for another one gets UNSUPPORTED_VERSION."""
CLIENT_ID_MAX_LENGTH = 256
SMALL_PRODUCE_BYTES = 16 * PARTITIONS_MAX
"""A Produce request up to this size cannot list more than PARTITIONS_MAX partitions: each takes at least 17 bytes, its
two field names alone 14."""
TOPIC_PREFIXES_MAX = 1_000
"""Cached packed topic names: they are the same in every Produce request and Fetch response."""

_LENGTH = struct.Struct(">I")
_LENGTH_PLACE = bytes(4)
_BIN_HEADER = struct.Struct(">BI")
_SHORT_ARRAYS = tuple(bytes((0x90 | length,)) for length in range(16))
_EMPTY_ARRAY = _SHORT_ARRAYS[0]
_EMPTY_BIN = b"\xc4\x00"
_encode = msgspec.msgpack.Encoder().encode


class MalformedMessage(ProtocolError):
    """The frame is whole, but its content is not a message. `correlation_id` is set if the header could be read."""

    def __init__(self, reason: str, correlation_id: int | None = None) -> None:
        super().__init__(reason)
        self.correlation_id = correlation_id


class _ResponseFrame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    correlation_id: int
    body: msgspec.Raw


class _ProduceOutline(msgspec.Struct, frozen=True):
    """A ProduceRequest with its topics still packed: a large frame could hold a million empty partitions, and only by
    decoding topic by topic can they be counted before they take memory."""

    transactional_id: Name | None = None
    acks: I16 = -1
    timeout_ms: I32 = 30_000
    topic_data: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=TOPICS_MAX)] = []


class IncomingFrame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A request as received. `body` is a view into the receive buffer: decode it before the next read."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body: msgspec.Raw


_request_frames = msgspec.msgpack.Decoder(IncomingFrame)
_response_frames = msgspec.msgpack.Decoder(_ResponseFrame)
_produce_outlines = msgspec.msgpack.Decoder(_ProduceOutline)
_produce_topics = msgspec.msgpack.Decoder(ProduceTopic)
_produce_requests = msgspec.msgpack.Decoder(ProduceRequest)
_request_decoders = {api.key.value: msgspec.msgpack.Decoder(api.request) for api in APIS.values()}
_response_decoders = {api.key.value: msgspec.msgpack.Decoder(api.response) for api in APIS.values()}


_DECODE_ERRORS = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError, ValueError)
"""msgspec raises some of Python's errors besides its own; all are the peer's fault."""


def decode_request_frame(frame: Buffer) -> IncomingFrame:
    """Split a frame (without its length) into header and undecoded body. Raises MalformedMessage."""
    try:
        incoming = _request_frames.decode(frame)
    except _DECODE_ERRORS as error:
        raise MalformedMessage(str(error) or type(error).__name__) from None
    if incoming.client_id is not None and len(incoming.client_id) > CLIENT_ID_MAX_LENGTH:
        raise MalformedMessage(f"client_id is longer than {CLIENT_ID_MAX_LENGTH} characters")
    if not -(2**31) <= incoming.correlation_id < 2**31:
        raise MalformedMessage("correlation_id is not an i32")
    return incoming


def decode_request_body(frame: IncomingFrame) -> Request:
    """The typed body of a known API. Raises MalformedMessage with the correlation id."""
    try:
        if frame.api_key == PRODUCE_KEY:
            return _decode_produce(frame.body)
        packed = memoryview(frame.body)
        body: Request = _request_decoders[frame.api_key].decode(packed)
    except _DECODE_ERRORS as error:
        raise MalformedMessage(str(error) or type(error).__name__, frame.correlation_id) from None
    excess = find_excess(body, len(packed))
    if excess is not None:
        raise MalformedMessage(excess, frame.correlation_id)
    return body


def _decode_produce(body: msgspec.Raw) -> ProduceRequest:
    if len(memoryview(body)) <= SMALL_PRODUCE_BYTES:
        return _produce_requests.decode(body)
    outline = _produce_outlines.decode(body)
    topics: list[ProduceTopic] = []
    partitions = 0
    for packed in outline.topic_data:
        topic = _produce_topics.decode(packed)
        partitions += len(topic.partition_data)
        if partitions > PARTITIONS_MAX:
            raise msgspec.ValidationError(f"more than {PARTITIONS_MAX} partitions are listed")
        topics.append(topic)
    return ProduceRequest(
        transactional_id=outline.transactional_id,
        acks=outline.acks,
        timeout_ms=outline.timeout_ms,
        topic_data=topics,
    )


def decode_response_frame(frame: Buffer) -> tuple[int, memoryview]:
    """(correlation id, undecoded body), the body a view into `frame`. Raises MalformedMessage."""
    try:
        raw = _response_frames.decode(frame)
    except _DECODE_ERRORS as error:
        raise MalformedMessage(str(error) or type(error).__name__) from None
    view = memoryview(frame)
    return raw.correlation_id, view[len(view) - len(memoryview(raw.body)) :]


def decode_response_body(api_key: int, body: Buffer) -> Response:
    """The typed response of an API; fetched records are views into `body`. Raises MalformedMessage."""
    try:
        refuse_excess(body)
        response: Response = _response_decoders[api_key].decode(body)
    except (ProtocolError, *_DECODE_ERRORS) as error:
        raise MalformedMessage(str(error) or type(error).__name__) from None
    return response


def encode_request(body: Request, correlation_id: int, client_id: str) -> list[Buffer]:
    """A whole frame, as pieces for one writelines. Record batches of a Produce request are passed through uncopied."""
    if isinstance(body, ProduceRequest):
        return _produce_frame(body, correlation_id, client_id)
    packed = _encode((KEY_OF_REQUEST[type(body)], API_VERSION, correlation_id, client_id, body))
    return [_LENGTH.pack(len(packed)) + packed]


def encode_response(correlation_id: int, body: Response) -> list[Buffer]:
    """A whole frame for any response; a Fetch response with records goes through `encode_fetch_response`."""
    packed = _encode((correlation_id, body))
    return [_LENGTH.pack(len(packed)) + packed]


class FetchedRecords(msgspec.Struct, frozen=True):
    """One partition of a Fetch response, with its records still separate."""

    response: FetchPartitionResponse
    parts: Sequence[Buffer]
    size_bytes: int


def encode_fetch_response(
    correlation_id: int, head: FetchResponse, topics: Sequence[tuple[str, Sequence[FetchedRecords]]]
) -> list[Buffer]:
    """A whole frame: `head` without its `responses`, then the topics with their records, uncopied."""
    pieces = _Pieces(_open(_encode((correlation_id, head)), _EMPTY_ARRAY) + _array_header(len(topics)))
    for topic, partitions in topics:
        pieces.add(_fetch_topic_prefix(topic) + _array_header(len(partitions)))
        for fetched in partitions:
            packed = _encode(fetched.response)
            if fetched.size_bytes:
                pieces.add_records(_open(packed, _EMPTY_BIN), fetched.parts, fetched.size_bytes)
            else:
                pieces.add(packed)
    return pieces.frame()


@lru_cache(maxsize=TOPIC_PREFIXES_MAX)
def _fetch_topic_prefix(topic: str) -> bytes:
    return _open(_encode(FetchTopicResponse(topic=topic, partitions=[])), _EMPTY_ARRAY)


def _produce_frame(body: ProduceRequest, correlation_id: int, client_id: str) -> list[Buffer]:
    without_data = ProduceRequest(transactional_id=body.transactional_id, acks=body.acks, timeout_ms=body.timeout_ms)
    packed = _encode((PRODUCE_KEY, API_VERSION, correlation_id, client_id, without_data))
    pieces = _Pieces(_open(packed, _EMPTY_ARRAY) + _array_header(len(body.topic_data)))
    for topic in body.topic_data:
        pieces.add(_produce_topic_prefix(topic.name, topic.topic_id) + _array_header(len(topic.partition_data)))
        for data in topic.partition_data:
            start = b"\x83\xa5retry\xc3\xa5index" if data.retry else b"\x82\xa5index"  # false is left out
            prefix = start + _encode(data.index) + b"\xa7records"
            pieces.add_records(prefix, [data.records], len(data.records))
    return pieces.frame()


@lru_cache(maxsize=TOPIC_PREFIXES_MAX)
def _produce_topic_prefix(topic: str, topic_id: str) -> bytes:
    return _open(_encode(ProduceTopic(name=topic, topic_id=topic_id, partition_data=[])), _EMPTY_ARRAY)


class _Pieces:
    """Collects small bytes together and keeps record batches as they are."""

    __slots__ = ("_pieces", "_small")

    def __init__(self, start: bytes) -> None:
        self._small = bytearray(_LENGTH_PLACE + start)  # the frame length goes to the front at the end
        self._pieces: list[Buffer] = [self._small]

    def add(self, data: bytes) -> None:
        self._small += data

    def add_records(self, packed: bytes, parts: Sequence[Buffer], size_bytes: int) -> None:
        """`packed`: what holds them, up to its last field, the records."""
        if not size_bytes:
            self._small += packed + _EMPTY_BIN
            return
        self._small += packed + _BIN_HEADER.pack(0xC6, size_bytes)
        self._pieces += parts
        self._small = bytearray()
        self._pieces.append(self._small)

    def frame(self) -> list[Buffer]:
        pieces = self._pieces
        if not self._small:
            pieces.pop()
        first = pieces[0]
        assert isinstance(first, bytearray)
        _LENGTH.pack_into(first, 0, sum(map(len, pieces)) - len(_LENGTH_PLACE))
        return pieces


def _open(packed: bytes, empty_tail: bytes) -> bytes:
    """Drop the empty last field of a packed struct, so that its real content can follow."""
    assert packed.endswith(empty_tail)
    return packed[: -len(empty_tail)]


def _array_header(length: int) -> bytes:
    if length < len(_SHORT_ARRAYS):
        return _SHORT_ARRAYS[length]
    return _BIN_HEADER.pack(0xDD, length)
