"""What a broker tells administrators of its replicas."""

import pytest

from minibroker.broker.replication.high_watermark import NEVER_MS
from minibroker.broker.replication.state import RemoteReplica, ReplicaState, ReplicationConfig
from minibroker.broker.requests.replica_description import _describe_remote, describe_replicas
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.ids import NONE
from minibroker.protocol.wire.messages import DescribeReplicaStateRequest
from minibroker.testing import simulated


@simulated(brokers=1)
async def test_a_replica_that_had_no_order_yet_names_no_leader_and_no_epoch(c: SimulatedHarness) -> None:
    await c.create_topic("lines")
    broker = c.simulation.brokers[1]
    (partition,) = broker.manager.partitions.values()
    partition.state = ReplicaState(config=partition.state.config)
    answer = describe_replicas(broker.manager, broker.registration, broker.image, DescribeReplicaStateRequest())
    (described,) = answer.topics[0].partitions
    assert described.role == "none"
    assert (described.leader_id, described.leader_epoch, described.leader_epoch_start) == (NONE, NONE, NONE)
    assert described.partition_epoch == NONE
    assert (described.assignment, described.in_sync_replicas, described.remotes) == ([], [], [])


@simulated(brokers=1)
async def test_the_named_topics_are_not_searched_for_each_replica(c: SimulatedHarness) -> None:
    """Ten thousand names for each of five thousand replicas took half a second of the loop."""

    class Names(list[str]):
        def __contains__(self, _: object) -> bool:
            raise AssertionError("a list is searched from its start")

    await c.create_topic("lines")
    await c.create_topic("words")
    broker = c.simulation.brokers[1]
    asked = DescribeReplicaStateRequest(topics=Names(["words", "others"]))
    answer = describe_replicas(broker.manager, broker.registration, broker.image, asked)
    assert [each.topic for each in answer.topics] == ["words"]


@pytest.mark.parametrize(("caught_up_ms", "ago_ms"), [(NEVER_MS, -1), (0, 5_000), (2_000, 3_000), (5_000, 0)])
def test_it_is_told_how_long_ago_a_follower_was_last_known_to_be_caught_up(caught_up_ms: int, ago_ms: int) -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=1), log_end_offset=9)
    remote = RemoteReplica(
        last_caught_up_ms=caught_up_ms, last_fetch_ms=0, leader_end_at_last_fetch=7, log_end_offset=7
    )
    described = _describe_remote(state, 2, remote, 5_000)
    assert (described.replica_id, described.lag, described.last_caught_up_ago_ms) == (2, 2, ago_ms)
