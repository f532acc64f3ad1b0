"""Counts of what happened in a run, seen from outside: log lines, states in ZooKeeper, responses, the trace of the
ports.

Owns: the names of the kinds of event, and which of them a swarm must see. It only observes.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any, get_origin

import msgspec

from minibroker.broker.replicas.observations import ReplicaStepped
from minibroker.broker.replication.events import ProduceReceived
from minibroker.broker.replication.producer_state import Duplicate
from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.events.broker_events import (
    HandoverBegun,
    LeadershipFenced,
    LeadershipUnfenced,
    LeaderSilent,
    LogDirectoryFailed,
    LogDirectoryHasRoom,
    LogScanned,
    ProcessStalled,
    RegistrationReplaced,
)
from minibroker.protocol.events.controller_events import BrokerFailureNotConfirmed, ControllerDoubtsNetwork
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.events.replica_events import (
    AlterPartitionFailed,
    ReplicaRemoved,
    ReplicaReset,
    ReplicaTruncated,
    SegmentsDeleted,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Observers
from minibroker.runtime.server.incoming_request import AnswerSent
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.world.trace import Trace

DOUBT = "controller doubts itself"
REPORTED: dict[str, type[ClusterEvent]] = {
    "log ended above its leader's: truncated": ReplicaTruncated,
    "replica reset to its leader's log start": ReplicaReset,
    "log recovered": LogScanned,
    "retention": SegmentsDeleted,
    "broker fenced: ZooKeeper silent": LeadershipFenced,
    "broker unfenced": LeadershipUnfenced,
    "log directory failed": LogDirectoryFailed,
    "log directory has room again": LogDirectoryHasRoom,
    "AlterPartition unanswered or refused": AlterPartitionFailed,
    "leader silent": LeaderSilent,
    "process stalled": ProcessStalled,
    "registration replaced an earlier start's": RegistrationReplaced,
    "leaderships handed over": HandoverBegun,
    "topic deleted": ReplicaRemoved,
    "failure not confirmed": BrokerFailureNotConfirmed,
}
"""Kinds that the brokers' own events count."""
KIND_OF = {event: kind for kind, event in {**REPORTED, DOUBT: ControllerDoubtsNetwork}.items()}

ANSWERS = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.STALE_BROKER_EPOCH,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.INELIGIBLE_REPLICA,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
TRACED = {"zk-session-end": "ZooKeeper session ended", "disk-fault": "disk call failed", "zk-write": "ZooKeeper write"}
STATES = (
    "election",
    "partition without a leader",
    "ISR shrunk",
    "ISR shrunk below min.insync.replicas",
    "ISR grew",
    "controller elected",
)

FENCING = (
    "broker fenced by confirmation",
    "broker fenced falsely: it lives",
    "controller succeeded by confirmation",
    "controller succeeded falsely: it lives",
)
"""Counted by their checker (`checks.control.fencing`)."""


MUST_SEE = (
    *STATES,
    *FENCING,
    "duplicate answered",
    *REPORTED,
    *TRACED.values(),
    *(f"answer {code.name}" for code in ANSWERS),
)
"""A swarm of many runs that never saw one of these does not test it."""
RARELY_SEEN = (f"answer {ErrorCode.STALE_CONTROLLER_EPOCH.name}",)
"""Once in a hundred runs or less. INVALID_UPDATE_VERSION (a proposal overtaken by another write of the same leader
epoch) and diverging fetches (a follower asks for the end of its epoch first) are counted, but not required."""


class RunCoverage(logging.Handler):
    """Counts for one run."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: Counter[str] = Counter()
        """The program's own log lines by template: one line per retry would fill a disk in a long outage."""
        self.seen: Counter[str] = Counter()
        self.truncations = 0
        """Truncations that removed records."""
        self._states: dict[TopicPartition, ReferencePartition | None] = {}
        self._controller_epoch = 0

    # ---------------------------------------------------------------------------------------------------- log lines
    def emit(self, record: logging.LogRecord) -> None:
        self.lines[f"{record.levelname} {record.name}: {record.msg}"] += 1

    # ------------------------------------------------------------------------------------------------------- states
    def watch(self, reference: ReferenceState) -> None:
        """Follow what ZooKeeper holds."""
        reference.listeners.append(lambda partition: self._state_written(reference, partition))

    def _state_written(self, reference: ReferenceState, partition: TopicPartition) -> None:
        now = reference.state(partition)
        before, self._states[partition] = self._states.get(partition), now
        if now is None:
            return
        self.seen["controller elected"] += now.controller_epoch > self._controller_epoch
        self._controller_epoch = max(self._controller_epoch, now.controller_epoch)
        if before is None or before.czxid != now.czxid:
            return
        self.seen["election"] += now.leader not in (-1, before.leader)
        self.seen["partition without a leader"] += now.leader == -1 != before.leader
        shrunk = bool(set(before.members) - set(now.members))
        self.seen["ISR shrunk"] += shrunk
        self.seen["ISR shrunk below min.insync.replicas"] += shrunk and len(now.members) < now.min_isr
        self.seen["ISR grew"] += bool(set(now.members) - set(before.members))

    def partitions(self) -> list[TopicPartition]:
        """All partitions that ever had a state in ZooKeeper."""
        return sorted(self._states)

    # ------------------------------------------------------------------------------------------------------ answers
    @contextlib.contextmanager
    def listening(self, observers: Observers, trace: Trace) -> Iterator[None]:
        """Count log lines, responses and duplicate checks until the block ends."""
        logger = logging.getLogger("minibroker")
        level, propagates = logger.level, logger.propagate
        logger.addHandler(self)
        logger.setLevel(logging.INFO)
        try:
            with observers.subscribed(self._observe):
                yield
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagates
            self._sum_up(trace)

    def _observe(self, event: object) -> None:
        if isinstance(event, ClusterEvent):
            self._reported(event)
        elif type(event) is AnswerSent:
            self._answered(event.body)
        elif type(event) is ReplicaStepped and type(event.event) is ProduceReceived:
            first = event.event.headers[0]
            result = event.event.producers.check(first, event.event.is_retry)
            self.seen["duplicate answered"] += isinstance(result, Duplicate)

    def _reported(self, event: ClusterEvent) -> None:
        kind = KIND_OF.get(type(event))
        if kind is not None:
            self.seen[kind] += 1
        if type(event) is ReplicaTruncated:
            self.truncations += event.end_before != event.end_after

    def _answered(self, answer: msgspec.Struct) -> None:
        has_code, has_divergence, lists = outline(type(answer))
        if has_code and (code := answer.error_code) != 0:  # type: ignore[attr-defined]
            self.seen[f"answer {error_code(code).name}"] += 1
        if has_divergence and answer.diverging_epoch is not None:  # type: ignore[attr-defined]
            self.seen["diverging fetch"] += 1
        for name in lists:
            for part in getattr(answer, name) or ():
                self._answered(part)

    def _sum_up(self, trace: Trace) -> None:
        for kind, name in TRACED.items():
            self.seen[name] += trace.kinds[kind]


@cache
def outline(kind: type[msgspec.Struct]) -> tuple[bool, bool, tuple[str, ...]]:
    """Whether a message has an error code, whether it has a divergence, and its lists of parts that may have them."""
    fields = {field.name: field.type for field in msgspec.structs.fields(kind)}
    lists = [name for name, annotation in fields.items() if any(any(outline(part)) for part in listed(annotation))]
    return "error_code" in fields, "diverging_epoch" in fields, tuple(lists)


def listed(annotation: Any) -> list[type[msgspec.Struct]]:
    """The message types in a list field."""
    arguments = getattr(annotation, "__args__", ())
    if get_origin(annotation) is list:
        return [each for each in arguments if isinstance(each, type) and issubclass(each, msgspec.Struct)]
    return [found for argument in arguments for found in listed(argument)]
