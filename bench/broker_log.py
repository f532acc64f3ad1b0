"""The events in minibroker's JSON broker logs. Pure."""

from datetime import datetime
from typing import Any

import msgspec

from minibroker.protocol.events.cluster_events import parse_json_line


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
    """Lines that are not JSON objects (what Python prints when it crashes) are left out."""
    events = []
    for line in text.splitlines():
        fields = parse_json_line(line)
        if fields is not None and "time" in fields:
            at = datetime.fromisoformat(fields["time"])
            events.append(LoggedEvent(broker_id, at.timestamp(), fields))
    return events
