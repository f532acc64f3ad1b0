"""Messages: everything in them has a limit, and they have the shape that the codec relies on."""

import types
import typing
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import pytest

from minibroker.protocol.wire import admin_messages, client_messages, control_messages, message_types, messages
from minibroker.protocol.wire.codec import MalformedMessage, decode_request_body, decode_request_frame
from minibroker.protocol.wire.message_types import PARTITIONS_MAX, SENTENCE_MAX, TEXT_MAX, clipped
from minibroker.protocol.wire.messages import (
    API_OF_REQUEST,
    APIS,
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ApiKey,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
    LeaderAndIsrRequest,
    Message,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    Request,
)

MODULES = (message_types, client_messages, admin_messages, control_messages)
SHAPES = [value for module in MODULES for value in vars(module).values() if isinstance(value, type)]
STRUCTS = sorted({s for s in SHAPES if issubclass(s, Message)}, key=lambda struct: struct.__name__)
TEXT_LIMIT = 32_768
LIST_LIMIT = 100_000
BYTES = (bytes, bytearray, memoryview)


def parts_of(hint: Any, meta: Any = None) -> Iterator[tuple[Any, Any]]:
    """(type, its limits) of a field and of everything inside it, other structs aside."""
    if typing.get_origin(hint) is typing.Annotated:
        inner, meta = typing.get_args(hint)[:2]
        yield from parts_of(inner, meta)
        return
    yield hint, meta
    if typing.get_origin(hint) in (list, dict, typing.Union, types.UnionType):
        for argument in typing.get_args(hint):
            yield from parts_of(argument)


def fields_of(struct: type[Message]) -> Iterator[tuple[str, Any, Any]]:
    for name, hint in typing.get_type_hints(struct, include_extras=True).items():
        for kind, meta in parts_of(hint):
            yield f"{struct.__name__}.{name}", kind, meta


def packed(api_key: int, body: object) -> bytes:
    return bytes(msgpack.packb([api_key, 0, 1, "test", body]))


def decoded(api_key: int, body: object) -> Request:
    return decode_request_body(decode_request_frame(packed(api_key, body)))


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_list_text_map_and_number_has_a_limit(struct: type[Message]) -> None:
    for where, kind, meta in fields_of(struct):
        origin = typing.get_origin(kind) or kind
        if origin in (list, dict):
            assert meta is not None and meta.max_length is not None, f"{where}: {kind} has no max_length"
            assert meta.max_length <= LIST_LIMIT, where
        elif kind is str:
            assert meta is not None and meta.max_length is not None, f"{where}: a text without max_length"
            assert meta.max_length <= TEXT_LIMIT, where
        elif kind is int:
            assert meta is not None and meta.ge is not None and meta.le is not None, f"{where}: any number"
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            assert issubclass(kind, Message), where
        else:
            known = (bool, *BYTES, types.NoneType, typing.Union, types.UnionType)
            assert origin in known, f"{where}: {kind} is not bounded by this test"


def test_bytes_without_a_limit_are_record_batches_and_nothing_else() -> None:
    """Only the frame's size limits them, and no object is built from them."""
    every = [(where, meta) for struct in STRUCTS for where, kind, meta in fields_of(struct) if kind in BYTES]
    found = {where for where, meta in every if meta is None or meta.max_length is None}
    assert found == {"ProducePartition.records", "FetchPartitionResponse.records"}


def test_records_and_the_lists_on_the_way_to_them_are_last() -> None:
    """The codec writes a frame front to back around them."""
    ways = [
        (ProduceRequest, "topic_data"),
        (ProduceTopic, "partition_data"),
        (ProducePartition, "records"),
        (FetchResponse, "responses"),
        (FetchTopicResponse, "partitions"),
        (FetchPartitionResponse, "records"),
    ]
    assert all(struct.__struct_fields__[-1] == field for struct, field in ways)


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_messages_are_frozen_and_built_with_keywords(struct: type[Message]) -> None:
    assert struct.__struct_config__.frozen
    with pytest.raises(TypeError):
        struct(0)


def test_the_table_names_each_api_once_and_knows_all_of_them() -> None:
    assert sorted(APIS) == sorted(key.value for key in ApiKey)
    for key, api in APIS.items():
        name = ApiKey(key).name.replace("_", "").lower()
        assert api.request.__name__.lower() == f"{name}request"
        assert api.response.__name__.lower() == f"{name}response"
        assert API_OF_REQUEST[api.request] is api


def test_one_import_path_gives_all_messages() -> None:
    assert {struct.__name__ for struct in STRUCTS} <= set(messages.__all__)
    assert all(hasattr(messages, name) for name in messages.__all__)


# ------------------------------------------------------------------------------------ limits of a request altogether
def topics(name: str, inner: str, element: dict[str, object], counts: list[int]) -> list[dict[str, object]]:
    return [{name: f"t{index}", inner: [element] * count} for index, count in enumerate(counts)]


OVER = [PARTITIONS_MAX // 2, PARTITIONS_MAX // 2 + 1]
UP_TO = [PARTITIONS_MAX // 2, PARTITIONS_MAX // 2]
LISTINGS: dict[str, tuple[ApiKey, str, str, str, dict[str, object]]] = {
    "produce": (ApiKey.PRODUCE, "topic_data", "name", "partition_data", {"index": 0, "records": b""}),
    "fetch": (ApiKey.FETCH, "topics", "topic", "partitions", {"partition": 0, "fetch_offset": 0}),
    "list_offsets": (ApiKey.LIST_OFFSETS, "topics", "name", "partitions", {"partition_index": 0}),
    "epochs": (ApiKey.OFFSET_FOR_LEADER_EPOCH, "topics", "topic", "partitions", {"partition": 0, "leader_epoch": 0}),
}


@pytest.mark.parametrize("name", LISTINGS)
def test_partitions_are_bounded_over_all_topics_of_a_request(name: str) -> None:
    key, field, topic, inner, element = LISTINGS[name]
    decoded(key, {field: topics(topic, inner, element, UP_TO)})
    with pytest.raises(MalformedMessage, match=rf"{PARTITIONS_MAX}"):
        decoded(key, {field: topics(topic, inner, element, OVER)})


def test_forgotten_partitions_are_bounded_over_all_topics() -> None:
    forgotten = [{"topic": f"t{index}", "partitions": [1] * count} for index, count in enumerate(OVER)]
    with pytest.raises(MalformedMessage, match="partitions are listed"):
        decoded(ApiKey.FETCH, {"forgotten_topics_data": forgotten})


TWICE: dict[str, tuple[ApiKey, dict[str, object]]] = {
    "metadata": (ApiKey.METADATA, {"topics": [{"name": "a"}, {"name": "b"}, {"name": "a"}]}),
    "replicas": (ApiKey.DESCRIBE_REPLICA_STATE, {"topics": ["a", "b", "a"]}),
    "configs": (ApiKey.DESCRIBE_CONFIGS, {"resources": [{"resource_type": 2, "resource_name": "a"}] * 2}),
    "altered": (ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [{"resource_type": 2, "resource_name": "a"}] * 2}),
    "lookups": (
        ApiKey.LIST_OFFSETS,
        {"topics": [{"name": "a", "partitions": [{"partition_index": 0, "timestamp": at} for at in (5, -3)]}]},
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_request_that_lists_a_name_twice_is_refused(name: str) -> None:
    """Otherwise a request with a few bytes per name could have an answer of any size."""
    key, body = TWICE[name]
    with pytest.raises(MalformedMessage, match="listed twice"):
        decoded(key, body)


def test_a_follower_may_ask_for_both_ends_of_a_partition_at_once() -> None:
    ends = [{"partition_index": 0, "timestamp": at} for at in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, 1_000)]
    decoded(ApiKey.LIST_OFFSETS, {"topics": [{"name": "a", "partitions": ends}]})


@pytest.mark.parametrize("key", APIS)
def test_a_list_or_text_above_its_limit_is_refused(key: int) -> None:
    """For each field of a request that has a limit of its own."""
    request = APIS[key].request
    for name, hint in typing.get_type_hints(request, include_extras=True).items():
        for kind, meta in parts_of(hint):
            limit = getattr(meta, "max_length", None)
            if limit is not None:
                too_long = "x" * (limit + 1) if kind is str else [None] * (limit + 1)
                with pytest.raises(MalformedMessage):
                    decoded(key, {name: too_long})


def test_free_text_of_any_length_fits_an_answer_once_it_is_clipped() -> None:
    assert clipped("short") == "short"
    assert len(clipped("x" * 100_000)) <= SENTENCE_MAX <= TEXT_MAX


NO_TOPIC_NAMES = ("", ".", "..", "../../victim", "a/b", "a\0b", "a\n", "a b", "ä", "x" * 250)
TOPIC_STATE: dict[str, Any] = {
    "topic_name": "lines",
    "topic_id": "id",
    "partition_states": [
        {
            "partition_index": 0,
            "controller_epoch": 1,
            "leader": 1,
            "leader_epoch": 0,
            "isr": [1],
            "partition_epoch": 0,
            "replicas": [1],
        }
    ],
}
BROKER: dict[str, Any] = {"id": 1, "broker_epoch": 7, "endpoints": [{"listener": "IN", "host": "h", "port": 1}]}


def order(topic: dict[str, Any], partition: dict[str, Any], broker: dict[str, Any], **head: Any) -> dict[str, Any]:
    """A LeaderAndIsr, sound but for these fields."""
    state = {**TOPIC_STATE["partition_states"][0], **partition}
    return {
        "controller_id": 1,
        "controller_epoch": 1,
        "broker_epoch": 7,
        "live_brokers": [{**BROKER, **broker}],
        "topic_states": [{**TOPIC_STATE, "partition_states": [state], **topic}],
        **head,
    }


def endpoint(host: str) -> dict[str, Any]:
    return {"endpoints": [{"listener": "IN", "host": host, "port": 1}]}


IMPOSSIBLE: dict[str, dict[str, Any]] = {
    **{f"topic {ascii(name)[:20]}": order({"topic_name": name}, {}, {}) for name in NO_TOPIC_NAMES},
    "topic id with a line": order({"topic_id": "a\nb"}, {}, {}),
    "partition -1": order({}, {"partition_index": -1}, {}),
    "controller epoch -1": order({}, {"controller_epoch": -1}, {}),
    "leader -2": order({}, {"leader": -2}, {}),
    "leader epoch -1": order({}, {"leader_epoch": -1}, {}),
    "member -1": order({}, {"isr": [-1]}, {}),
    "replica -1": order({}, {"replicas": [1, -1]}, {}),
    "partition epoch -1": order({}, {"partition_epoch": -1}, {}),
    "host with a NUL": order({}, {}, endpoint("a\0b")),
    "host with an empty label": order({}, {}, endpoint("a..b")),
    "host with a long label": order({}, {}, endpoint("x" * 64)),
    "broker -1": order({}, {}, {"id": -1}),
    "broker epoch -1 of a live broker": order({}, {}, {"broker_epoch": -1}),
    "for the broker epoch -1": order({}, {}, {}, broker_epoch=-1),
    "of the controller epoch -1": order({}, {}, {}, controller_epoch=-1),
    "of the controller -1": order({}, {}, {}, controller_id=-1),
}


def test_a_sound_order_is_understood() -> None:
    assert isinstance(decoded(ApiKey.LEADER_AND_ISR, order({}, {}, {})), LeaderAndIsrRequest)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_an_order_with_an_impossible_value_is_refused(name: str) -> None:
    """Its names would become paths and lines of files, its hosts would be looked up, its epochs trusted."""
    with pytest.raises(MalformedMessage):
        decoded(ApiKey.LEADER_AND_ISR, IMPOSSIBLE[name])
