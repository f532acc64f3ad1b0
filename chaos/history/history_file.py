"""A history out of a file: JSON lines, checked one by one. Pure: gets lines, gives events.

Owns: what a line must be, and the sentence about one that is not. Leaves to others: opening the file.
"""

from collections.abc import Iterable, Iterator

import msgspec

from minibroker.chaos.history.client_history import Function, HistoryEvent

FORMAT = "docs/CHAOS.md describes the format"


class BadHistory(ValueError):
    """One sentence, with the line and the cure."""


def parse_history(lines: Iterable[bytes]) -> Iterator[HistoryEvent]:
    """The events of the lines. Raises BadHistory."""
    decode = msgspec.json.Decoder(HistoryEvent).decode
    last_index, last_ns, number = -1, 0, 0
    invoked: dict[int, tuple[str, Function]] = {}
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
            invoked[event.index] = event.process, event.f
        elif event.operation is not None and invoked.pop(event.operation, None) != (event.process, event.f):
            raise BadHistory(
                f"line {number} completes operation {event.operation}, which is no open {event.f} of {event.process}:"
                f" {FORMAT}"
            )
        last_index, last_ns = event.index, event.time_ns
        yield event
    if last_index < 0:
        raise BadHistory(f"there is no event in its {number} lines: {FORMAT}")
