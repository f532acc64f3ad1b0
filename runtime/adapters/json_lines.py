"""A broker's log as JSON lines, an interface for programs (docs/EVENTS.md).

Owns: the formatter, and how a line tells its time. Leaves to others: the events, and where the log goes.
"""

import logging
from datetime import UTC, datetime
from typing import Any

from minibroker.protocol.events.cluster_events import as_json_fields, json_object


class JsonLines(logging.Formatter):
    """One JSON object per line: `time` (UTC), `at_ms`, `level`, `event` and the event's fields; `text` is the sentence
    that the text log shows. A line that is no event of the catalogue has the event `log`, and `logger`."""

    def __init__(self, broker_id: int | None = None) -> None:
        super().__init__()
        self._origin = {} if broker_id is None else {"reported_by": broker_id}

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "cluster_event", None)
        moment = moment_fields(round(record.created * 1000))
        line: dict[str, Any] = {**moment, "level": record.levelname, **self._origin}
        line |= {"event": "log", "logger": record.name} if event is None else as_json_fields(event)
        line["text"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_object(line)


def moment_fields(at_ms: int) -> dict[str, Any]:
    """When it was reported: `time`, in UTC, for people, and `at_ms`, since 1970, for programs."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return {"time": at.replace("+00:00", "Z"), "at_ms": at_ms}
