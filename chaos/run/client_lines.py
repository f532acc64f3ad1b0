"""The lines that a program of the user writes while it is the load of a run, as events of the run's history.

Owns: the form of a line, and the operations that the program has not completed yet. Leaves to others: the program
itself (`client_program`), and judging the history.

An event gets the time at which its line arrives. That is sound for one program that writes a line before it calls its
client, and the next one after the call has returned: all lines come through one pipe, in the order in which they were
written.
"""

from typing import Literal

import msgspec

from minibroker.chaos.history.client_history import Answered, Epoch, Kind, Polled, Sent, are_same_records
from minibroker.chaos.history.promise import LAST_READER
from minibroker.chaos.run.recorder import PADDING, Recorder

LINE_BYTES_MAX = 16 * 1024 * 1024
"""Of a poll with a hundred thousand records."""
OPEN_MAX = 100_000
"""Operations without an outcome; a program that never tells outcomes must not fill the memory."""


class BadLine(ValueError):
    """A line is no event; the message says why."""


class ClientLine(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the history, but for its time; unknown fields are ignored."""

    process: str
    type: Kind
    f: Literal["send", "poll", "assign"]
    index: int | None = None
    """Of an invocation: a number of the program's own choice, which its completion names."""
    operation: int | None = None
    sent: tuple[Sent, ...] = ()
    polled: tuple[Polled, ...] = ()
    error: str | None = None
    leader_epoch: Epoch | None = None
    broker: int | None = None
    answers: tuple[Answered, ...] = ()


class ClientLines:
    """Takes line by line. `keys`: the partitions, as `sent` and `polled` name them."""

    def __init__(self, recorder: Recorder, keys: frozenset[str]) -> None:
        self._recorder = recorder
        self._keys = keys
        self._open: dict[int, tuple[int, ClientLine]] = {}
        """Invocations by the program's number, with the operation in the run's history."""
        self._values: dict[str, set[str]] = {key: set() for key in keys}
        """By partition: those that were sent."""

    def take(self, line: bytes) -> None:
        """Write it into the history. Raises BadLine."""
        try:
            event = msgspec.json.decode(line, type=ClientLine)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine(f"it is no event of a history ({error})") from None
        if event.process == LAST_READER:
            raise BadLine(f"the process {event.process!r} is the run's own: give yours another name")
        named = [each.key for each in event.sent] + [each.key for each in event.polled]
        unknown = {*named, *(each.key for each in event.answers)} - self._keys
        if unknown:
            raise BadLine(f"it names {min(unknown)!r}, which is no partition of this run")
        if event.type == "invoke":
            self._begin(event)
        else:
            self._end(event)

    def _begin(self, event: ClientLine) -> None:
        if event.index is None or event.index in self._open:
            raise BadLine("an invocation needs an index that no open operation has")
        if len(self._open) >= OPEN_MAX:
            raise BadLine(f"{OPEN_MAX} operations have no outcome yet")
        if event.f == "send" and not event.sent:
            raise BadLine("a send names what it sends")
        for each in event.sent:
            self._take_value(each)
        self._open[event.index] = self._recorder.invoked(event.process, event.f, event.sent), event

    def _take_value(self, sent: Sent) -> None:
        """The checker tells records apart by their values."""
        if sent.value.endswith(PADDING):
            raise BadLine(f"it sends {sent.value!r:.60}: a value must not end with a dot")
        values = self._values[sent.key]
        if sent.value in values:
            raise BadLine(f"it sends {sent.value!r:.60} in {sent.key} again: a value is sent once in a partition")
        values.add(sent.value)

    def _end(self, event: ClientLine) -> None:
        number = -1 if event.operation is None else event.operation
        operation, begun = self._open.pop(number, (None, None))
        if operation is None or begun is None or (begun.process, begun.f) != (event.process, event.f):
            raise BadLine(f"it completes operation {event.operation}, which is no open {event.f} of {event.process!r}")
        if event.sent and not are_same_records(event.sent, begun.sent):
            raise BadLine(f"it names other records than the send that it completes, operation {event.operation}")
        self._recorder.completed(
            operation,
            event.type,
            sent=event.sent,
            polled=event.polled,
            error=event.error,
            leader_epoch=event.leader_epoch,
            broker=event.broker,
            answers=event.answers,
        )
