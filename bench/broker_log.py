"""The events in minibroker's JSON broker logs. Pure."""

import json
from datetime import datetime
from typing import Any

import msgspec


class LoggedEvent(msgspec.Struct, frozen=True):
    """One event of a broker's log."""

    broker_id: int
    at_s: float
    """Seconds since 1970, by the broker's clock."""
    fields: dict[str, Any]

    @property
    def name(self) -> str:
        return str(self.fields["event"])


def parse_log(broker_id: int, text: str) -> list[LoggedEvent]:
    """Lines that are no JSON objects (what Python prints when it crashes) are left out."""
    events = []
    for line in text.splitlines():
        start = line.find("{")  # compose puts the container's name in front
        try:
            fields = json.loads(line[start:]) if start >= 0 else None
        except ValueError:
            continue
        if isinstance(fields, dict) and "event" in fields and "time" in fields:
            at = datetime.fromisoformat(fields["time"])
            events.append(LoggedEvent(broker_id, at.timestamp(), fields))
    return events
