"""Why a line of `produce --input jsonl` is refused, in the words of its user and not in those of a JSON library.

Owns: these parts of a sentence, which follow 'line 7'. Leaves to others: which lines are refused (`json_records`).
"""

import codecs
import json
import re
from typing import Any

import msgspec

from minibroker.protocol.similar_names import suggestion

HEADER_FORMS = '{"name": "value"}, [["name", "value"]] or ["name", "value"]'
FIELDS = ("value", "payload", "key", "headers", "partition", "timestamp", "ts", "base64", "topic")
IGNORED = ("leader_epoch", "offset", "tstype")
IN_BASE64 = ("key", "value", "payload", "headers")
BYTE_ORDER_MARKS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
SHOWN = 40
"""Characters of a value that is quoted."""


def why_refused(line: bytes) -> str:
    """For a line that does not decode to a record."""
    if not line.strip():
        return "is empty: each line is a JSON object"
    try:
        found = msgspec.json.decode(line)
    except RecursionError:
        return "is not a record: it is nested too deeply"
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return _why_no_json(line, str(error))
    if not isinstance(found, dict):
        return f'is no JSON object, such as {{"value": "text"}}, but {_shown(found)}'
    for name, value in found.items():
        problem = _why_no_field(name, value)
        if problem is not None:
            return problem
    return "is not a record"


def _why_no_json(line: bytes, reason: str) -> str:
    if line.startswith(BYTE_ORDER_MARKS):
        return "begins with a byte order mark: write UTF-8 without one"
    try:
        json.loads(line)
    except UnicodeDecodeError:
        return "is not UTF-8, which JSON is written in"
    except (ValueError, RecursionError):
        place = re.search(r"byte (\d+)", reason)
        where = f"at byte {int(place[1]) + 1}" if place else "at its end: something is missing there"
        return f"is not JSON, {where}"
    return "holds half of a surrogate pair, or a number or constant that JSON does not have"


def _why_no_field(name: str, value: Any) -> str | None:
    if name in IGNORED or name in ("value", "payload", "key"):
        return None
    if name not in FIELDS:
        meant = suggestion(name, FIELDS)
        rest = f" ({meant})" if meant else f": there are {', '.join(FIELDS)}"
        return f"has an unknown field {name[:SHOWN]!r}{rest}"
    if name == "headers":
        return None if _are_headers(value) else f"has `headers` {_shown(value)}: give {HEADER_FORMS}, with text or null"
    if name == "base64":
        fits = isinstance(value, list) and all(each in IN_BASE64 for each in value)
        return None if fits else f"has `base64` {_shown(value)}: it is a list of {', '.join(map(_shown, IN_BASE64))}"
    kind, wanted = (str, "text") if name == "topic" else (int, "a whole number")
    fits = value is None or (isinstance(value, kind) and not isinstance(value, bool))
    return None if fits else f"has `{name}` {_shown(value)}: it must be {wanted}"


def _are_headers(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(each, str | None) for each in value.values())
    return isinstance(value, list) and all(_is_pair(each) or isinstance(each, str | None) for each in value)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and isinstance(value[1], str | None)
    )


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}.."
