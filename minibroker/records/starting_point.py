"""Where reading begins and ends: kcat's `-o`, as a value, and as offsets of a topic's partitions.

Owns: the forms beginning, end, N, -N and @TIMESTAMP (milliseconds or ISO-8601), and the range FROM:TO of two of them.
Leaves to others: reading records.
"""

from datetime import datetime
from enum import Enum

import msgspec

from minibroker.client.consumer.consumer import Consumer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import TIMESTAMP_MAX


class StartKind(Enum):
    BEGINNING = "beginning"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before end"
    TIME = "time"


class BadStartingPoint(ValueError):
    """The text is not a starting point; the message is one sentence."""


class StartingPoint(msgspec.Struct, frozen=True):
    """Where to begin in every partition."""

    start: StartKind
    number: int = 0
    """The offset, the records before the end, or the time in ms."""


def parse_start(text: str) -> StartingPoint:
    """Raises BadStartingPoint."""
    if text in ("beginning", "earliest"):
        return StartingPoint(StartKind.BEGINNING)
    if text in ("end", "latest"):
        return StartingPoint(StartKind.END)
    if text.startswith("@"):
        return StartingPoint(StartKind.TIME, _milliseconds(text[1:]))
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) < 2**63):
        raise BadStartingPoint(f"'{text}' is not an offset: give beginning, end, N, -N (before the end) or @TIMESTAMP")
    return StartingPoint(StartKind.BEFORE_END if text.startswith("-") else StartKind.OFFSET, int(digits))


def parse_range(text: str) -> tuple[StartingPoint, StartingPoint | None]:
    """FROM, or FROM:TO, of which either may be left out. A time contains colons: a text that is one point is no range.
    Raises BadStartingPoint."""
    try:
        return parse_start(text), None
    except BadStartingPoint:
        begin, colon, end = text.partition(":@")
        if colon:
            end = f"@{end}"
        else:
            begin, colon, end = text.rpartition(":")
        if not colon:
            raise
    if ":" in begin and "@" not in text:
        raise BadStartingPoint(f"'{text}' has more than one colon: give FROM or FROM:TO, such as 5:10")
    first, last = parse_start(begin or "beginning"), parse_start(end or "end")
    if first.start is last.start and _is_after(first, last):
        raise BadStartingPoint(f"'{text}' ends before it begins: give FROM:TO")
    return first, last


def _is_after(first: StartingPoint, last: StartingPoint) -> bool:
    """Of two points of one kind."""
    if first.start is StartKind.BEFORE_END:
        return first.number < last.number
    return first.number > last.number


def _is_day(date: str) -> bool:
    try:
        datetime.fromisoformat(date)
    except ValueError:
        return False
    return True


def _milliseconds(text: str) -> int:
    """Raises BadStartingPoint, also for a year or a date without dashes, and for seconds: as milliseconds they would be
    in the first weeks of 1970. Who means those writes a zero before them."""
    is_number = text.isascii() and text.isdigit()
    if is_number and len(text) in (4, 8) and text[:2] in ("19", "20"):
        date = f"{text[:4]}-{text[4:6] or '01'}-{text[6:] or '01'}"
        what = f"a date or milliseconds: give @{date}" if _is_day(date) else "no day: give @YYYY-MM-DD"
        raise BadStartingPoint(f"'@{text}' is {what}, or @0{text} for milliseconds")
    if is_number and len(text) == 10 and text[0] in "12":
        raise BadStartingPoint(f"'@{text}' is seconds or milliseconds: give @{text}000, or @0{text} for milliseconds")
    try:
        found = int(text) if is_number else round(datetime.fromisoformat(text).timestamp() * 1000)
        if found > TIMESTAMP_MAX:
            raise OverflowError
        return found
    except (ValueError, OverflowError):  # also a year that the clock does not have, and thousands of digits
        raise BadStartingPoint(f"'{text}' is not a time: give milliseconds since 1970 or ISO-8601") from None


async def find_offsets(
    consumer: Consumer,
    point: StartingPoint,
    partitions: list[TopicPartition],
    ends: dict[TopicPartition, int],
    timeout_ms: float,
) -> dict[TopicPartition, int]:
    """The offset of the starting point in each partition; `ends` are the end offsets."""
    if point.start is StartKind.END:
        return ends
    if point.start is StartKind.OFFSET:
        return dict.fromkeys(partitions, point.number)
    beginnings = await consumer.beginning_offsets(partitions, timeout_ms)
    if point.start is StartKind.BEGINNING:
        return beginnings
    if point.start is StartKind.BEFORE_END:
        return {partition: max(beginnings[partition], ends[partition] - point.number) for partition in partitions}
    found = await consumer.offsets_for_times(dict.fromkeys(partitions, point.number), timeout_ms)
    offsets = {}
    for partition in partitions:
        answer = found[partition]
        offset = None if answer is None else answer.offset
        offsets[partition] = ends[partition] if offset is None else offset  # the end if all records are older
    return offsets
