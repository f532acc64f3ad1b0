"""What a broker tells administrators of its replicas."""

from minibroker.broker.replication.state import ReplicaState
from minibroker.broker.requests.replica_description import describe_replicas
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
