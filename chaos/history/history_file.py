"""A history out of a file: JSON lines, checked one by one. Pure: gets lines, gives events.

Owns: what a line must be, and the sentence about one that is not. Leaves to others: opening the file.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from minibroker.chaos.history.client_history import Function, HistoryEvent, Sent, are_same_records

FORMAT = "docs/CHAOS.md describes the format"


class BadHistory(ValueError):
    """One sentence, with the line and the cure."""


class _Invoked(NamedTuple):
    """An operation without an outcome."""

    process: str
    f: Function
    sent: tuple[Sent, ...]


def parse_history(lines: Iterable[bytes]) -> Iterator[HistoryEvent]:
    """The events of the lines. Raises BadHistory."""
    decode = msgspec.json.Decoder(HistoryEvent).decode
    last_index, last_ns, number = -1, 0, 0
    invoked: dict[int, _Invoked] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadHistory(f"line {number} is no event of a history ({error}): {FORMAT}") from None
        if event.index <= last_index:
            raise BadHistory(
                f"line {number} has index {event.index} behind {last_index}: number the lines in the order in which"
                " things happened"
            )
        if event.time_ns < last_ns:
            raise BadHistory(
                f"line {number} goes back by {(last_ns - event.time_ns) / 1e9:.3f} s: write all lines by one monotonic"
                " clock"
            )
        if event.operation is not None and event.operation >= event.index:
            raise BadHistory(f"line {number} completes operation {event.operation}, which comes later: {FORMAT}")
        if event.type == "invoke":
            invoked[event.index] = _Invoked(event.process, event.f, event.sent)
        elif event.operation is not None:
            event = _completed(event, invoked.pop(event.operation, None), number)
        last_index, last_ns = event.index, event.time_ns
        yield event
    if last_index < 0:
        raise BadHistory(f"there is no event in its {number} lines: {FORMAT}")


def _completed(event: HistoryEvent, begun: _Invoked | None, number: int) -> HistoryEvent:
    """The outcome of an operation. One that names no records is that of all records of its send: an acknowledgement
    that counted for none of them would leave their loss unseen. Raises BadHistory."""
    if begun is None or (begun.process, begun.f) != (event.process, event.f):
        raise BadHistory(
            f"line {number} completes operation {event.operation}, which is no open {event.f} of {event.process}:"
            f" {FORMAT}"
        )
    if not event.sent:
        return msgspec.structs.replace(event, sent=begun.sent) if begun.sent else event
    if begun.sent and not are_same_records(event.sent, begun.sent):
        raise BadHistory(
            f"line {number} names other records than the send that it completes, operation {event.operation}: give the"
            " same keys and values in the same order, or none"
        )
    return event
