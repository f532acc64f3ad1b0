"""The catalogue of typed events: what brokers and controllers report of themselves.

Owns: the names of all events, and their JSON. The text log, JSON lines (`--log-format json`) and `minibroker events`
are made of them, so names and fields are an interface (docs/EVENTS.md). Leaves to others: the events
themselves (beside this file), when one is reported, and what reads it. What only checkers want is in
`broker/replicas/observations.py`.
"""

import json
import re
from typing import Any

import msgspec

from minibroker.protocol.events import broker_events, controller_events, replica_events
from minibroker.protocol.events.event_base import LEVEL_NAMES, ClusterEvent, snake_case

EVENTS: dict[str, type[ClusterEvent]] = {
    snake_case(name): kind
    for module in (replica_events, broker_events, controller_events)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, ClusterEvent) and kind.TEXT
}
"""All events by the name that JSON lines give them."""


CONTENT_MAX = 1_500
"""Characters of an event in an answer; a longer one is told by its short fields and the beginning of its sentence."""
CLIPPED_TEXT_MAX = 500
SURROGATE = re.compile("[\ud800-\udfff]")
SHORT_FIELD_MAX = 249
"""A topic name has as many characters at most: filters by topic find a clipped event, too."""


def as_json(event: ClusterEvent) -> str:
    """One JSON object: the event's name, its fields, and its sentence as `text`."""
    fields, text = as_json_fields(event), event.text()
    level = LEVEL_NAMES[event.level]
    content = json_object({**fields, "level": level, "text": text})
    if len(content) <= CONTENT_MAX:
        return content
    short = {name: value for name, value in fields.items() if len(str(value)) <= SHORT_FIELD_MAX}
    return json_object({**short, "level": level, "text": text[:CLIPPED_TEXT_MAX]})


def json_object(fields: dict[str, Any]) -> str:
    """The fields as one line of JSON that UTF-8 can carry: a name of a file that is no UTF-8 holds surrogates, which
    are told as `\\udcff`, in six characters."""
    return SURROGATE.sub(lambda found: rf"\\u{ord(found[0]):04x}", json.dumps(fields, ensure_ascii=False))


def as_json_fields(event: ClusterEvent) -> dict[str, Any]:
    """The event as JSON shows it: its name, then its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return fields


def parse_json_line(line: str) -> dict[str, Any] | None:
    """The fields of a line of a broker's JSON log; None for what is none, such as Python's traceback of a crash."""
    start = line.find("{")  # compose puts the container's name in front
    try:
        fields = json.loads(line[start:]) if start >= 0 else None
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None
