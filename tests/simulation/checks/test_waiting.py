"""Waiting that the rules forbid is found; other waiting is not."""

from typing import cast

import pytest

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.broker.replication.state import ProduceWaiter, RemoteReplica, ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch, read_header
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.waiting import WaitingChecker
from minibroker.simulation.cluster import SimulatedCluster

TICK = ev.BrokersChanged(eligible={}, now_ms=0)


def follower(log_end_offset: int, eligible: bool = True) -> RemoteReplica:
    return RemoteReplica(
        log_end_offset=log_end_offset,
        eligible=eligible,
        last_caught_up_ms=0,
        last_fetch_ms=0,
        leader_end_at_last_fetch=log_end_offset,
    )


class Replica:
    """The part of a partition that the rules read: broker 1 leads, 3 is not in sync and ends early."""

    topic_partition = TopicPartition("a", 0)

    def __init__(self, in_sync: tuple[int, ...], high_watermark: int, eligible: bool) -> None:
        self.state = ReplicaState(
            config=ReplicationConfig(broker_id=1, min_insync_replicas=2),
            role=Role.LEADER,
            leader_epoch=0,
            assignment=(1, 2, 3),
            in_sync_replicas=in_sync,
            log_end_offset=9,
            high_watermark=high_watermark,
            remotes={2: follower(9), 3: follower(4, eligible)},
        )


def found(replica: Replica, event: ev.ReplicaEvent = TICK, effects: tuple[ev.ReplicaEffect, ...] = ()) -> list[str]:
    reference = ReferenceState(SimulatedCluster(0, brokers=1), {"a": (1, 3, 2)})
    WaitingChecker(reference).stepped(cast(Partition, replica), event, effects, refused=False)
    return [finding.invariant for finding in reference.findings]


@pytest.mark.invariant("I37")
def test_a_high_watermark_that_waits_for_a_replica_that_may_not_join_is_found() -> None:
    assert found(Replica((1, 2), high_watermark=4, eligible=False)) == ["I37"]


def test_a_high_watermark_may_wait_for_a_replica_that_may_join() -> None:
    assert found(Replica((1, 2), high_watermark=4, eligible=True)) == []
    assert found(Replica((1, 2), high_watermark=9, eligible=False)) == []
    assert found(Replica((1,), high_watermark=4, eligible=False)) == []


@pytest.mark.invariant("I24")
def test_requests_that_keep_waiting_below_the_minimum_are_found() -> None:
    replica = Replica((1,), high_watermark=4, eligible=False)
    replica.state.waiters = [ProduceWaiter(tokens=(None,), base_offset=4, required_offset=5, leader_epoch=0)]
    assert found(replica) == ["I24"]


@pytest.mark.invariant("I24")
@pytest.mark.parametrize(("acks", "findings"), [(1, ["I24"]), (-1, [])])
def test_the_minimum_is_for_acks_all_only(acks: int, findings: list[str]) -> None:
    header = read_header(build_batch([(None, b"value", 0, ())]))
    answer = ev.AnswerProduce(tokens=(None,), error_code=ErrorCode.NOT_ENOUGH_REPLICAS)
    produce = ev.ProduceReceived(tokens=(None,), acks=acks, headers=(header,), producers=ProducerStates())
    assert found(Replica((1,), high_watermark=4, eligible=False), produce, (answer,)) == findings
