"""The messages of docs/FORMATS.md, from protocol/wire/messages: `python -m tests.docs.wire_tables` renews them there.

Between the two markers of the page there is one block for each API. A test fails if it differs from the code.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from minibroker.protocol.errors import RETRIABLE, ErrorCode
from minibroker.protocol.wire.messages import APIS, PARTITIONS_MAX, Message, Request

PAGE = Path(__file__).parents[2] / "docs" / "FORMATS.md"
BEGIN = "<!-- made by python -m tests.docs.wire_tables: begin -->"
END = "<!-- made by python -m tests.docs.wire_tables: end -->"

NUMBERS = {2**15 - 1: "i16", PARTITIONS_MAX: "i32", 2**16 - 1: "i32", 2**31 - 1: "i32", 2**63 - 1: "i64"}
ABOUT = "about:"


def renewed(page: str) -> str:
    """The page with its generated part as the code has it now."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n{made()}{END}{after}"


def made() -> str:
    return "\n".join(["### Messages", "", *_messages(), "### Error codes", "", *_error_codes(), ""])


def _messages() -> Iterator[str]:
    for api in APIS.values():
        note = ", for brokers only" if api.is_cluster_action else ""
        yield f"#### {_api_name(api.request)} ({api.key.value}){note}\n\n```"
        yield from _struct("request", api.request)
        yield from _struct("response", api.response)
        yield "```\n"


def _api_name(request: type[Request]) -> str:
    return request.__name__.removesuffix("Request")


def _error_codes() -> Iterator[str]:
    yield "| code | name | retriable |\n|---|---|---|"
    for code in sorted(ErrorCode):
        yield f"| {int(code)} | {code.name} | {'yes' if code in RETRIABLE else ''} |"


def _struct(title: str, struct: type[Message]) -> Iterator[str]:
    yield title if msgspec.structs.fields(struct) else f"{title}: no fields"
    yield from _fields(struct, "  ")


def _fields(struct: type[Any], indent: str) -> Iterator[str]:
    hints = typing.get_type_hints(struct, include_extras=True)
    notes = _notes(struct)
    for field in msgspec.structs.fields(struct):
        words, inner = _type(hints[field.name])
        line = f"{indent}{field.name}: {words}{_default(field)}"
        note = notes.get(field.name)
        yield f"{line}  # {note}" if note else line
        if inner is not None:
            yield from _fields(inner, indent + "  ")


def _type(hint: Any) -> tuple[str, type[Any] | None]:
    """The type in words, and the struct inside it."""
    meta: Any = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, meta = typing.get_args(hint)[:2]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words, inner = _type(next(each for each in arguments if each is not types.NoneType))
        return f"{words} or nil", inner
    if origin is list:
        words, inner = _type(arguments[0])
        return f"list of {'' if inner else words + ', '}up to {meta.max_length:,}".replace(",,", ","), inner
    if origin is dict:
        return f"map of str to str, up to {meta.max_length:,}", None
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "map", hint
    if hint is int:
        return _number(meta), None
    if hint is str:
        return f"str up to {meta.max_length:,}{f', {meta.description}' if meta.description else ''}", None
    return {bool: "bool", bytes: "bin", bytearray: "bin", memoryview: "bin"}[hint], None


def _number(meta: Any) -> str:
    """The width of a number, and its bounds if they are narrower."""
    width = NUMBERS[meta.le]
    bounds = [] if meta.ge == -meta.le - 1 else [f"from {meta.ge}"]
    bounds += [f"to {meta.le:,}"] if meta.le in (PARTITIONS_MAX, 2**16 - 1) else []
    return " ".join([width, *bounds])


def _default(field: Any) -> str:
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return ""
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    text = {None: "nil", True: "true", False: "false", "": '""', b"": "empty"}.get(value) if _plain(value) else None
    return f" = {text or _literal(value)}"


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | str | bytes | memoryview)


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _notes(struct: type[Any]) -> dict[str, str]:
    """The text after 'about:' in the comment next to or above each field, including those of base classes."""
    notes: dict[str, str] = {}
    for owner in reversed(struct.__mro__):
        if isinstance(owner, type) and issubclass(owner, Message) and owner is not Message:
            notes.update(_own_notes(inspect.getsource(owner)))
    return notes


def _own_notes(source: str) -> dict[str, str]:
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    notes: dict[str, str] = {}
    body = typing.cast(ast.ClassDef, ast.parse(source).body[0]).body
    previous_end = 0
    for node in body:
        end = node.end_lineno or node.lineno
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = [line for line in range(previous_end + 1, end + 1) if line in comments]
            text = " ".join(comments[line] for line in lines)
            if ABOUT in text:
                notes[node.target.id] = text.split(ABOUT, 1)[1].strip()
        previous_end = end
    return notes


def main() -> None:
    PAGE.write_text(renewed(PAGE.read_text()))
    sys.stdout.write(f"{PAGE} is up to date\n")


if __name__ == "__main__":
    main()
