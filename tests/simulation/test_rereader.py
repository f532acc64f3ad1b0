"""A consumer that reads again from the beginning may skip only what retention has deleted."""

from types import SimpleNamespace
from typing import cast

import pytest

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.rereader import RoundPositions

A = TopicPartition("a", 0)
TICK = ev.BrokersChanged(eligible={}, now_ms=0)


def replica(start: int) -> Partition:
    """The part of a replica that a round reads."""
    return cast(Partition, SimpleNamespace(topic_partition=A, state=SimpleNamespace(log_start_offset=start)))


@pytest.mark.invariant("I22")
def test_a_gap_that_no_log_start_explains_is_found() -> None:
    positions = RoundPositions([replica(3)])
    assert positions.advance(A, 5) == 0
    assert positions.advance(A, 6) is None
    assert positions.advance(A, 8) == 7
    assert positions.advance(A, 8) == 9


def test_a_reader_may_begin_at_a_log_start() -> None:
    positions = RoundPositions([])
    positions.replica_loaded(replica(5))
    assert positions.advance(A, 5) is None


def test_a_log_start_counts_for_the_whole_round_though_the_next_leader_begins_earlier() -> None:
    """The answer was under way when the leader that had deleted failed (seed 17152458)."""
    positions = RoundPositions([replica(0)])
    positions.stepped(replica(49), TICK, [], refused=False)
    positions.stepped(replica(0), TICK, [], refused=False)
    assert positions.advance(A, 49) is None


@pytest.mark.invariant("I22")
def test_a_log_start_of_an_earlier_round_explains_nothing() -> None:
    RoundPositions([replica(49)])
    assert RoundPositions([replica(0)]).advance(A, 49) == 0
