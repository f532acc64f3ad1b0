"""Messages between brokers, and to clients, that explain a scenario: epoch requests and refusals.

Owns: which frames, and their short form. It sees frames of the simulated network as they arrive, and changes none.
"""

from collections.abc import Callable, Iterator

from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.wire.messages import (
    ApiKey,
    FetchResponse,
    LeaderAndIsrResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    ProduceResponse,
)
from minibroker.scenarios.staging.broker_events import letter
from minibroker.simulation.world.message_holds import Frame

REFUSABLE = {ApiKey.FETCH: "fetch", ApiKey.PRODUCE: "produce request", ApiKey.LEADER_AND_ISR: "LeaderAndIsr"}


class FrameObserver:
    """Give `observe` to the network as a hold's match; it never matches, but passes what it sees to `note`."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._asked: dict[tuple[str, str, int], int] = {}
        """Epoch asked for, by asker, leader and correlation id."""

    def observe(self, frame: Frame) -> bool:
        if frame.api is ApiKey.OFFSET_FOR_LEADER_EPOCH:
            self._on_epoch_question(frame)
        elif not frame.is_request and frame.api in REFUSABLE:
            for refusal in sorted(set(_refusals(frame))):
                self._note(
                    f"{name_of(frame.source)} refuses {name_of(frame.target)}'s {REFUSABLE[frame.api]}: {refusal}"
                )
        return False

    def _on_epoch_question(self, frame: Frame) -> None:
        message = frame.message()
        if isinstance(message, OffsetForLeaderEpochRequest):
            for topic in message.topics:
                for asked in topic.partitions:
                    self._asked[frame.source, frame.target, frame.correlation_id] = asked.leader_epoch
        elif isinstance(message, OffsetForLeaderEpochResponse):
            epoch = self._asked.pop((frame.target, frame.source, frame.correlation_id), None)
            for answered in message.topics:
                for found in answered.partitions:
                    code = error_code(found.error_code)
                    answer = f"({found.leader_epoch}, {found.end_offset})" if code is ErrorCode.NONE else code.name
                    asker, leader = name_of(frame.target), name_of(frame.source)
                    self._note(f"{asker} asks {leader} for OffsetForLeaderEpoch({epoch}): {answer}")


def _refusals(frame: Frame) -> Iterator[str]:
    message = frame.message()
    if isinstance(message, FetchResponse):
        for fetched in message.responses:
            for partition in fetched.partitions:
                if partition.error_code:
                    yield error_code(partition.error_code).name
    elif isinstance(message, ProduceResponse):
        for produced in message.responses:
            for answer in produced.partition_responses:
                if answer.error_code:
                    more = f" ({answer.error_message})" if answer.error_message else ""
                    yield error_code(answer.error_code).name + more
    elif isinstance(message, LeaderAndIsrResponse):
        if message.error_code:
            yield error_code(message.error_code).name
        for error in message.partition_errors:
            if error.error_code:
                yield error_code(error.error_code).name


def name_of(machine: str) -> str:
    """A broker's letter, or 'the client'."""
    head, _, number = machine.rpartition("-")
    return letter(int(number)) if head == "broker" else "the client"
