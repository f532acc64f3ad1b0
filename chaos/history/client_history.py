"""What clients did and saw, as a list of events: the history that `anomalies` checks, and its file format.

Owns: the form of an event, and its JSON lines (one event per line, in order; Jepsen's fields and a few more). Leaves to
others: all checks. A `send` writes records, a `poll` reads some, an `assign` resets a reader's position.

Completions: `ok`; `fail`: certainly nothing was written; `info`: unknown. Only acks=all promises anything: a send with
less is recorded as `info` when it succeeds, with its offset if it has one.
"""

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

import msgspec

from minibroker.protocol.ids import MAX_INT32, MAX_OFFSET

Kind: TypeAlias = Literal["invoke", "ok", "fail", "info"]
Function: TypeAlias = Literal["send", "poll", "assign", "fault"]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)]
Epoch: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]


class Sent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of a send."""

    key: str
    """The partition, such as `orders-0`."""
    value: str
    offset: Count | None = None


def are_same_records(these: Iterable[Sent], those: Iterable[Sent]) -> bool:
    """In the same order, whether or not their offsets are known."""
    return [(each.key, each.value) for each in these] == [(each.key, each.value) for each in those]


class Polled(msgspec.Struct, frozen=True, omit_defaults=True):
    """One record of a poll."""

    key: str
    value: str
    offset: Count
    leader_epoch: Epoch | None = None


class Answered(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one answer to a fetch told a reader about one partition, whether or not it brought records."""

    key: str
    high_watermark: Count
    broker: int | None = None
    leader_epoch: Epoch | None = None
    """The epoch in which that broker answered as the leader."""
    end_offset: Count | None = None
    """Behind the last record that it brought; None if it brought none."""


class HistoryEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One line of the history."""

    index: Count
    time_ns: Count
    process: str
    """The client process; its operations are sequential unless `operation` tells them apart."""
    type: Kind
    f: Function
    operation: Count | None = None
    """The index of the invocation that this completes."""
    sent: tuple[Sent, ...] = ()
    polled: tuple[Polled, ...] = ()
    error: str | None = None
    broker: int | None = None
    leader_epoch: Epoch | None = None
    high_watermark: Count | None = None
    answers: tuple[Answered, ...] = ()
    """Of a poll: the answers to fetches that its process has got since its last poll, in order."""
    moved: tuple[str, ...] = ()
    """Of an assign: the partitions in which the reader has moved; empty: in all, or not told."""


class EventLog:
    """Events in the order in which they happened."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []

    def invoke(self, now: float, process: str, f: Function, sent: tuple[Sent, ...] = ()) -> int:
        """Returns the operation number that its completion names. `now`: virtual seconds."""
        index = len(self.events)
        self.events.append(HistoryEvent(index=index, time_ns=_ns(now), process=process, type="invoke", f=f, sent=sent))
        return index

    def specify(self, operation: int, sent: tuple[Sent, ...]) -> None:
        """What an invocation sends, if that was not known when it began."""
        self.events[operation] = msgspec.structs.replace(self.events[operation], sent=sent)

    def complete(
        self,
        now: float,
        operation: int,
        kind: Kind,
        *,
        sent: tuple[Sent, ...] = (),
        polled: tuple[Polled, ...] = (),
        error: str | None = None,
        leader_epoch: int | None = None,
        broker: int | None = None,
        answers: tuple[Answered, ...] = (),
    ) -> None:
        asked = self.events[operation]
        self.events.append(
            HistoryEvent(
                index=len(self.events),
                time_ns=_ns(now),
                process=asked.process,
                type=kind,
                f=asked.f,
                operation=operation,
                sent=sent or asked.sent,
                polled=polled,
                error=error,
                leader_epoch=leader_epoch,
                broker=broker,
                answers=answers,
            )
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def to_json_lines(events: Iterable[HistoryEvent]) -> bytes:
    return b"".join(msgspec.json.encode(event) + b"\n" for event in events)


def from_json_lines(content: bytes) -> list[HistoryEvent]:
    """Raises msgspec.DecodeError or ValidationError, naming what does not fit."""
    return [msgspec.json.decode(line, type=HistoryEvent) for line in content.splitlines() if line.strip()]
