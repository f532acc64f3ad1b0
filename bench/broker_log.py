"""The lines of minibroker's broker logs, with time and text. Pure."""

import re
from datetime import datetime, tzinfo

import msgspec

LOG_LINE = re.compile(
    r"^(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (?P<level>[A-Z]+) (?P<logger>\S+): (?P<text>.*)$"
)


class LogLine(msgspec.Struct, frozen=True):
    """One line of a broker's log."""

    broker_id: int
    at_s: float
    """Seconds since 1970, by the broker's clock."""
    text: str


def parse_log(broker_id: int, text: str, zone: tzinfo | None = None) -> list[LogLine]:
    """Lines without a time (tracebacks) are left out. `zone` is the broker's time zone, None for this machine's."""
    lines = []
    for line in text.splitlines():
        found = LOG_LINE.match(line)
        if found is not None:
            at = datetime.strptime(found["time"], "%Y-%m-%d %H:%M:%S,%f")
            at = at.replace(tzinfo=zone)
            lines.append(LogLine(broker_id, at.timestamp(), found["text"]))
    return lines
