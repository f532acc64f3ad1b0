"""What the clients of a run do and see, written down while it happens.

Owns: the history of one run, in memory and in its file, and what was acknowledged. Leaves to others: judging it.
"""

from collections.abc import Callable
from typing import BinaryIO

import msgspec

from minibroker.chaos.history.client_history import (
    Answered,
    EventLog,
    Function,
    Kind,
    Polled,
    Sent,
    to_json_lines,
)
from minibroker.client.consumer.fetch_answer import FetchAnswer
from minibroker.client.consumer.records import Record
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.deliveries import RecordMetadata
from minibroker.harness.cluster import Acknowledged
from minibroker.protocol.ids import TopicPartition

ERROR_CHARACTERS_MAX = 200
PADDING = "."
"""What values of the run's own producers are filled up with."""
ERROR_NAME_CHARACTERS_MAX = 40
"""Errors of a program of the user are counted by what stands in front of their first colon."""


class Recorder:
    """Of one run. `now`: seconds since its start. `file` gets the history line by line."""

    def __init__(self, now: Callable[[], float], file: BinaryIO | None = None) -> None:
        self.now = now
        self.log = EventLog()
        self.acknowledged: list[Acknowledged] = []
        self.errors: dict[str, int] = {}
        self._file = file
        self._written = 0
        self._open_sends: set[int] = set()
        self._answers: dict[str, list[Answered]] = {}
        """By process: those of which no poll has told yet."""

    def write(self) -> None:
        """Append to the file what has come since the last call."""
        if self._file is not None:
            self._file.write(to_json_lines(self.log.events[self._written :]))
            self._file.flush()
        self._written = len(self.log.events)

    # -------------------------------------------------------------------------------------------------------- sends
    def begins(self, process: str, partition: TopicPartition, value: str) -> int:
        """Returns the operation that its completion names."""
        operation = self.log.invoke(self.now(), process, "send", (Sent(str(partition), value),))
        self._open_sends.add(operation)
        return operation

    def wrote(self, operation: int, metadata: RecordMetadata, value: bytes, key: bytes, is_promised: bool) -> None:
        """It was acknowledged."""
        self._open_sends.discard(operation)
        (sent,) = self.log.events[operation].sent
        done = (Sent(sent.key, sent.value, metadata.offset),)
        kind: Kind = "ok" if is_promised else "info"
        epoch, broker = metadata.leader_epoch, metadata.broker
        self.log.complete(self.now(), operation, kind, sent=done, leader_epoch=epoch, broker=broker)
        if is_promised:
            self.acknowledged.append(Acknowledged(metadata, value, key))

    def failed(self, operation: int, error: Exception) -> None:
        """It was not acknowledged; a record that may be in the log all the same is `info`."""
        self._open_sends.discard(operation)
        self.note(error)
        is_sure = isinstance(error, MinibrokerError) and not error.maybe_written
        self.log.complete(self.now(), operation, "fail" if is_sure else "info", error=in_short(error))

    def invoked(self, process: str, f: Function, sent: tuple[Sent, ...]) -> int:
        """A program of the user calls its client. Returns the operation that its completion names."""
        operation = self.log.invoke(self.now(), process, f, sent)
        if f == "send":
            self._open_sends.add(operation)
        return operation

    def completed(
        self,
        operation: int,
        kind: Kind,
        *,
        sent: tuple[Sent, ...],
        polled: tuple[Polled, ...],
        error: str | None,
        leader_epoch: int | None,
        broker: int | None = None,
        answers: tuple[Answered, ...] = (),
    ) -> None:
        """The outcome of that call."""
        self._open_sends.discard(operation)
        if error is not None:
            name = error.partition(":")[0][:ERROR_NAME_CHARACTERS_MAX]
            self.errors[name] = self.errors.get(name, 0) + 1
        self.log.complete(
            self.now(),
            operation,
            kind,
            sent=sent,
            polled=polled,
            error=error,
            leader_epoch=leader_epoch,
            broker=broker,
            answers=answers,
        )

    def end_sends(self) -> None:
        """What has no outcome by now is unknown for ever."""
        for operation in sorted(self._open_sends):
            self.log.complete(self.now(), operation, "info", error="the run ended before its outcome")
        self._open_sends.clear()

    # -------------------------------------------------------------------------------------------------------- reads
    def begins_poll(self, process: str) -> int:
        """Returns the operation that its completion names."""
        return self.log.invoke(self.now(), process, "poll")

    def answered(self, process: str, answer: FetchAnswer) -> None:
        """A leader has answered a fetch of this process; its next poll tells of it."""
        end_offset = answer.end_offset if answer.end_offset > answer.base_offset else None
        told = Answered(
            str(answer.topic_partition), answer.high_watermark, answer.broker, answer.leader_epoch, end_offset
        )
        self._answers.setdefault(process, []).append(told)

    def polled(self, operation: int, found: dict[TopicPartition, list[Record]]) -> None:
        """What it returned; nothing, too, is an answer."""
        polled = tuple(
            Polled(str(partition), name_of(record.value), record.offset, record.leader_epoch)
            for partition, records in sorted(found.items())
            for record in records
        )
        answers = tuple(self._answers.pop(self.log.events[operation].process, ()))
        self.log.complete(self.now(), operation, "ok", polled=polled, answers=answers)

    def poll_failed(self, operation: int, error: Exception) -> None:
        """It raised this."""
        self.note(error)
        self.log.complete(self.now(), operation, "fail", error=in_short(error))

    def moves(self, process: str, partition: TopicPartition) -> None:
        """A consumer has sought there: its next records need not follow those before."""
        self._at_once(process, "assign", "ok")
        self.log.events[-1] = msgspec.structs.replace(self.log.events[-1], moved=(str(partition),))

    # ------------------------------------------------------------------------------------------------------- faults
    def nemesis(self, text: str) -> None:
        """A fault begins or ends."""
        self._at_once("nemesis", "fault", "info", text)

    def _at_once(self, process: str, f: Function, kind: Kind, error: str | None = None) -> None:
        operation = self.log.invoke(self.now(), process, f)
        self.log.complete(self.now(), operation, kind, error=error)

    def note(self, error: Exception) -> None:
        """Count it by its class."""
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1


def name_of(value: bytes | None) -> str:
    """Values are unique by their beginning; the rest is padding."""
    return (value or b"").rstrip(PADDING.encode()).decode(errors="replace")


def in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS_MAX]
