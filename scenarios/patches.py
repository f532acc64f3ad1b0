"""Rules removed from the brokers while a variant runs, to show why they exist.

Owns: every such change; each is a context manager and undone at its end. Brokers have no switch for any of them, and
only scenarios use them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minibroker.broker.replication import follower, high_watermark, isr
from minibroker.broker.replication.events import EpochEndAnswered
from minibroker.broker.replication.state import RemoteReplica, ReplicaState
from minibroker.controller.core.controller_state import ControllerState


@contextmanager
def replaced(module: Any, name: str, other: object) -> Iterator[None]:
    original = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, original)


@contextmanager
def answers_without_epoch() -> Iterator[None]:
    """The first version of KIP-101: a follower truncates at the answered offset, whatever epoch it belongs to; and its
    fetches do not carry the epoch of its last record (that check came with KIP-595)."""

    def truncation_point(state: ReplicaState, event: EpochEndAnswered) -> tuple[int, int | None]:
        end_offset = state.high_watermark if event.end_offset is None else event.end_offset
        return min(end_offset, state.log_end_offset), None

    unchecked = property(lambda state: None)
    with (
        replaced(follower, "_truncation_point", truncation_point),
        replaced(ReplicaState, "last_fetched_epoch", unchecked),
    ):
        yield


@contextmanager
def restarts_unnoticed() -> Iterator[None]:
    """Before incarnations (hardening rule 1): a member of the ISR that has restarted is one as before, whatever its log
    has lost."""
    with replaced(ControllerState, "runs_as_recorded", lambda state, leadership, broker_id: True):
        yield


LAG_MESSAGES = 10
"""Kafka's default for replica.lag.max.messages was 4000, for larger bursts."""


class LagLimit:
    """What an operator has set, while `lag_in_messages` lasts."""

    messages = LAG_MESSAGES


lag_limit = LagLimit()


@contextmanager
def lag_in_messages() -> Iterator[None]:
    """replica.lag.max.messages, as before 0.9 (KAFKA-1546): a replica further behind is out of sync."""

    def in_lag_limits(state: ReplicaState, remote: RemoteReplica, now_ms: int) -> bool:
        return remote.log_end_offset is None or state.log_end_offset - remote.log_end_offset <= lag_limit.messages

    lag_limit.messages = LAG_MESSAGES
    with replaced(high_watermark, "in_lag_limits", in_lag_limits), replaced(isr, "in_lag_limits", in_lag_limits):
        yield
