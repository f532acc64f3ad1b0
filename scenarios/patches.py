"""Rules taken out of the brokers while an act plays, to show what they are for.

Owns: every such change; each is a context manager and undone at its end. Brokers have no switch for any of it, and
nothing but a story uses them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from minibroker.broker.replication import follower
from minibroker.broker.replication.events import EpochEndAnswered
from minibroker.broker.replication.state import ReplicaState


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
    """KIP-101 as it was first: a follower cuts at the offset that it is told, whichever epoch that belongs to; and its
    fetches do not say of which epoch its last record is (that check came with KIP-595)."""

    def truncation_point(state: ReplicaState, event: EpochEndAnswered) -> tuple[int, int | None]:
        told = state.high_watermark if event.end_offset is None else event.end_offset
        return min(told, state.log_end_offset), None

    unchecked = property(lambda state: None)
    with (
        replaced(follower, "_truncation_point", truncation_point),
        replaced(ReplicaState, "last_fetched_epoch", unchecked),
    ):
        yield
