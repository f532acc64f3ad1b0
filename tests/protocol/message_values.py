"""Hypothesis strategies for every message, made from the types of its fields and their limits."""

import types
import typing
from functools import cache
from typing import Any

import msgspec
from hypothesis import strategies as st

from minibroker.protocol.ids import HOST_PATTERN, IDENTIFIER_PATTERN, TOPIC_NAME_PATTERN, is_topic_name
from minibroker.protocol.wire.messages import APIS, Message, Request, Response

TEXTS: dict[str, st.SearchStrategy[str]] = {
    TOPIC_NAME_PATTERN: st.text("aZ0._-", min_size=1, max_size=12).filter(is_topic_name),
    IDENTIFIER_PATTERN: st.text("aZ0_-", max_size=12),
    HOST_PATTERN: st.sampled_from(["localhost", "broker-1.example.", "127.0.0.1", "::1", "fe80::1%eth0", "a_b"]),
}
FEW = 3
"""Elements of a generated list or map: long ones have tests of their own."""


@cache
def values(struct: type[Message]) -> st.SearchStrategy[Any]:
    """Any value of the struct; fields may be left to their defaults."""
    hints = typing.get_type_hints(struct, include_extras=True)
    required = {f.encode_name: _field(hints[f.name]) for f in msgspec.structs.fields(struct) if f.required}
    optional = {f.encode_name: _field(hints[f.name]) for f in msgspec.structs.fields(struct) if not f.required}
    return st.fixed_dictionaries(required, optional=optional).map(lambda fields: struct(**fields))


def requests() -> st.SearchStrategy[Request]:
    return st.one_of([values(api.request) for api in APIS.values()])


def responses() -> st.SearchStrategy[tuple[int, Response]]:
    """(api key, response)"""
    return st.one_of([st.tuples(st.just(key), values(api.response)) for key, api in APIS.items()])


def _field(hint: Any) -> st.SearchStrategy[Any]:
    meta: Any = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, meta = typing.get_args(hint)[:2]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([_field(each) for each in arguments])
    if origin is list:
        return st.lists(_field(arguments[0]), max_size=min(FEW, meta.max_length))
    if origin is dict:
        return st.dictionaries(_field(arguments[0]), _field(arguments[1]), max_size=min(FEW, meta.max_length))
    if isinstance(hint, type) and issubclass(hint, Message):
        return values(hint)
    if hint is int:
        return st.integers(meta.ge, meta.le)
    if hint is str and meta.pattern is not None:
        return TEXTS[meta.pattern]
    if hint is str:
        return st.text(st.characters(exclude_categories=["Cs"]), max_size=min(12, meta.max_length))
    plain: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        bytes: st.binary(max_size=80),
        bytearray: st.binary(max_size=80).map(bytearray),
        memoryview: st.binary(max_size=80).map(memoryview),
        types.NoneType: st.none(),
    }
    return plain[hint]
