"""Answers to the controller's orders LeaderAndIsr, UpdateMetadata and StopReplica that are late, false or repeated."""

from typing import Any

import pytest
from msgspec.structs import replace

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.state import Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire import messages as m
from tests.broker.requests import TOPIC, ClusterClient, in_cluster


def order(client: ClusterClient, broker_id: int) -> m.LeaderAndIsrRequest:
    """The controller's last order to that broker, again."""
    broker = client.cluster.brokers[broker_id]
    state = broker.manager.partitions[TopicPartition(TOPIC, 0)].state
    topic_id = broker.image.topic_id(TOPIC)
    assert topic_id is not None
    partition = m.LeaderAndIsrPartition(
        partition_index=0,
        controller_epoch=broker.image.controller_epoch,
        leader=client.leader,
        leader_epoch=state.leader_epoch or 0,
        isr=[1, 2, 3],
        partition_epoch=state.partition_epoch,
        replicas=list(state.assignment),
    )
    return m.LeaderAndIsrRequest(
        controller_id=broker.image.controller_id or 0,
        controller_epoch=broker.image.controller_epoch,
        broker_epoch=client.broker_epoch(broker_id),
        topic_states=[m.LeaderAndIsrTopic(topic_name=TOPIC, topic_id=topic_id, partition_states=[partition])],
    )


def with_partition(request: m.LeaderAndIsrRequest, **changes: object) -> m.LeaderAndIsrRequest:
    topic = request.topic_states[0]
    partition = replace(topic.partition_states[0], **changes)
    return replace(request, topic_states=[replace(topic, partition_states=[partition])])


async def send_order(client: ClusterClient, broker_id: int, request: m.LeaderAndIsrRequest) -> tuple[int, list[int]]:
    reply = await client.ask(broker_id, request, m.LeaderAndIsrResponse)
    return reply.error_code, [e.error_code for e in reply.partition_errors]


@pytest.mark.invariant("I29")
def test_a_deposed_controller_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        request = replace(order(client, 1), controller_epoch=0)
        assert (await send_order(client, 1, request))[0] == ErrorCode.STALE_CONTROLLER_EPOCH

    in_cluster(check)


@pytest.mark.invariant("I29")
def test_an_order_does_not_lift_a_fence_that_is_set_while_the_order_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 17002492: a disk that hung kept the broker past its session's deadline, in the middle of an order."""

    async def check(client: ClusterClient) -> None:
        broker = client.cluster.brokers[client.leader]
        partition = broker.manager.partitions[TopicPartition(TOPIC, 0)]
        configure = Partition.configure

        def slowly(self: Partition, *settings: Any) -> None:
            configure(self, *settings)
            monkeypatch.setattr(broker.registration, "is_fenced", lambda: True)

        monkeypatch.setattr(Partition, "configure", slowly)
        assert not partition.state.fenced
        later = (partition.state.leader_epoch or 0) + 1
        await send_order(client, client.leader, with_partition(order(client, client.leader), leader_epoch=later))
        monkeypatch.undo()
        assert partition.state.leader_epoch == later
        assert broker.manager.fenced
        assert partition.state.fenced

    in_cluster(check)


@pytest.mark.invariant("I29")
def test_an_order_for_an_earlier_registration_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        request = replace(order(client, 1), broker_epoch=client.broker_epoch(1) - 1)
        assert (await send_order(client, 1, request))[0] == ErrorCode.STALE_BROKER_EPOCH

    in_cluster(check)


@pytest.mark.invariant("I29")
def test_a_late_order_does_not_lift_the_fence_of_a_broker_that_zookeeper_has_not_confirmed() -> None:
    async def check(client: ClusterClient) -> None:
        leader, cluster = client.leader, client.cluster
        late = order(client, leader)
        cluster.world.zookeeper.cut(f"broker-{leader}")
        manager = cluster.brokers[leader].manager
        await cluster.until(lambda: manager.fenced, 10, "a fenced leader")
        assert await send_order(client, leader, late) == (0, [0])
        answer = await client.produce(leader, acks=1)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_cluster(check)


def test_a_repeated_order_changes_nothing() -> None:
    async def check(client: ClusterClient) -> None:
        leader = client.leader
        await client.produce()
        assert await send_order(client, leader, order(client, leader)) == (0, [0])
        replica = client.cluster.replica(leader, TOPIC)
        assert replica is not None
        assert replica.state.high_watermark == 1
        assert replica.state.epoch_history.entries == [(0, 0)]

    in_cluster(check)


def test_an_order_of_an_older_leader_epoch_is_ignored() -> None:
    async def check(client: ClusterClient) -> None:
        client.cluster.kill(client.leader)
        await client.cluster.until(lambda: client.cluster.leader(TOPIC) is not None, what="a new leader")
        leader = client.leader
        request = with_partition(order(client, leader), leader_epoch=0)
        assert await send_order(client, leader, request) == (0, [ErrorCode.STALE_CONTROLLER_EPOCH])

    in_cluster(check)


@pytest.mark.invariant("I1", "I34")
def test_a_leader_outside_its_isr_or_assignment_is_never_obeyed() -> None:
    async def check(client: ClusterClient) -> None:
        outside = with_partition(order(client, 1), leader=1, leader_epoch=7, isr=[2, 3])
        assert (await send_order(client, 1, outside))[1] == [ErrorCode.INVALID_REQUEST]
        outside_assignment = with_partition(order(client, 1), leader_epoch=7, replicas=[2, 3])
        assert (await send_order(client, 1, outside_assignment))[1] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    in_cluster(check)


@pytest.mark.invariant("I35")
def test_a_stale_stop_changes_nothing_and_a_stopped_replica_serves_nothing() -> None:
    async def check(client: ClusterClient) -> None:
        leader = client.leader
        broker = client.cluster.brokers[leader]

        async def stop(epoch: int) -> list[int]:
            state = m.StopReplicaPartition(partition_index=0, leader_epoch=epoch)
            request = m.StopReplicaRequest(
                controller_id=broker.image.controller_id or 0,
                controller_epoch=broker.image.controller_epoch,
                broker_epoch=client.broker_epoch(leader),
                topic_states=[m.StopReplicaTopic(topic_name=TOPIC, partition_states=[state])],
            )
            return [e.error_code for e in (await client.ask(leader, request, m.StopReplicaResponse)).partition_errors]

        replica = broker.manager.partitions[TopicPartition(TOPIC, 0)]
        replica.state.leader_epoch = 5
        replica.state.epoch_history.assign(5, 0)
        assert await stop(4) == [ErrorCode.FENCED_LEADER_EPOCH]
        assert replica.state.is_leader
        assert await stop(5) == [0]
        assert replica.state.role is Role.NONE
        assert (await client.produce(leader)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    in_cluster(check)


@pytest.mark.invariant("I35")
def test_a_deleted_topic_leaves_nothing_and_its_name_can_be_used_again() -> None:
    async def check(client: ClusterClient) -> None:
        from minibroker.client.admin import AdminClient

        await client.produce()
        servers = client.cluster.bootstrap_servers
        async with AdminClient(bootstrap_servers=servers, runtime=client.runtime) as admin:
            await admin.delete_topic(TOPIC)
            await client.cluster.until(
                lambda: all(client.cluster.replica(b, TOPIC) is None for b in (1, 2, 3)), what="a deleted topic"
            )
            await admin.create_topic(TOPIC, partitions=1, replication_factor=3)
        await client.cluster.until(lambda: client.cluster.leader(TOPIC) is not None, what="a leader of the new topic")
        assert (await client.produce()).base_offset == 0

    in_cluster(check)


@pytest.mark.invariant("I35")
def test_a_late_order_does_not_recreate_a_deleted_replica() -> None:
    """Its sender gave the connection up, sent it again, and then had the topic deleted."""

    async def check(client: ClusterClient) -> None:
        late = order(client, 1)
        stop = m.StopReplicaRequest(
            controller_id=late.controller_id,
            controller_epoch=late.controller_epoch,
            broker_epoch=late.broker_epoch,
            topic_states=[
                m.StopReplicaTopic(
                    topic_name=TOPIC,
                    topic_id=late.topic_states[0].topic_id,
                    partition_states=[
                        m.StopReplicaPartition(
                            partition_index=0, leader_epoch=m.LEADER_EPOCH_DURING_DELETE, delete_partition=True
                        )
                    ],
                )
            ],
        )
        assert (await client.ask(1, stop, m.StopReplicaResponse)).partition_errors[0].error_code == ErrorCode.NONE
        assert await send_order(client, 1, late) == (0, [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
        assert TopicPartition(TOPIC, 0) not in client.cluster.brokers[1].manager.partitions

    in_cluster(check)
