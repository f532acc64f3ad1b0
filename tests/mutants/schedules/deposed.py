"""Orders of events around deposed controllers and earlier registrations."""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    LEADER_EPOCH_DURING_DELETE,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    ApiKey,
    BrokerState,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataRequest,
)
from minibroker.protocol.znodes import CONTROLLER_EPOCH
from minibroker.simulation.world.message_holds import requests
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import (
    admin_client,
    broker_epoch,
    host,
    members,
    must_be_acknowledged,
    remove_controller,
    report,
    send_to,
    separate_roles,
    until_changes_are_noted,
    until_registered_again,
    zookeeper_client,
)

LONG_SESSION = {"zookeeper.session.timeout.ms": "6000"}
AGAIN = TopicPartition("again", 0)


def _controller_epoch(directed: DirectedRun) -> int:
    return int(directed.world.zookeeper.tree.nodes[CONTROLLER_EPOCH].data)


# -------------------------------------------------------------------------------------------------------- controllers
@with_setup(ClusterSetup(settings=LONG_SESSION))
async def write_of_a_deposed_controller(directed: DirectedRun) -> None:
    """KAFKA-6082, KAFKA-1096: a controller's write is on its way to ZooKeeper when an operator has another one elected;
    the write arrives, its session still alive, before the next controller has changed anything."""
    leader, controller, third = await separate_roles(directed)
    zookeeper, network = directed.world.zookeeper, directed.world.network
    async with zookeeper_client(directed) as coordination:
        network.partition(host(leader), host(third))
        waiting = directed.produce_soon("one follower lags")
        proposal = network.hold(host(leader), host(controller), requests(ApiKey.ALTER_PARTITION))
        await proposal.caught()
        zookeeper.cut(host(controller))
        proposal.release()
        await asyncio.sleep(0.05)
        epoch = _controller_epoch(directed)
        await remove_controller(coordination)
        while _controller_epoch(directed) == epoch:  # noqa: ASYNC110  (no event signals what happens in ZooKeeper)
            await asyncio.sleep(0.000_1)
        zookeeper.heal(host(controller))
        await asyncio.sleep(0.01)
        network.heal_all()
        await waiting
        await asyncio.sleep(1.0)


@with_setup(ClusterSetup())
async def request_of_a_deposed_controller(directed: DirectedRun) -> None:
    """KAFKA-532, KAFKA-1188: a deposed controller's request arrives after one of its successor."""
    _, controller, other = await separate_roles(directed)
    image = directed.cluster.brokers[other].image
    old_id, old_epoch = image.controller_id, image.controller_epoch
    directed.cluster.kill(controller)
    await directed.until(lambda: image.controller_epoch > old_epoch, "a request of the next controller")
    epoch = image.controller_epoch
    assert old_id is not None
    late = UpdateMetadataRequest(
        controller_id=old_id, controller_epoch=old_epoch, broker_epoch=broker_epoch(directed, other)
    )
    await send_to(directed, other, late)
    if image.controller_epoch < epoch:
        report(directed, "I29", f"broker {other} obeys controller epoch {image.controller_epoch} after {epoch}")


@with_setup(ClusterSetup(topics={TOPIC: (3, 3, 1)}))
async def leader_and_controller_die_together(directed: DirectedRun) -> None:
    """KAFKA-3143: when the next controller takes over, the leader is gone already."""
    controller = directed.controller
    partition = next(s.partition for s in directed.reference.states() if s.leader != controller)
    leader = directed.cluster.leader(TOPIC, partition.partition)
    assert leader is not None
    third = next(b for b in directed.cluster.broker_ids if b not in (leader, controller))
    await directed.produce("everywhere", partition=partition)
    zookeeper = directed.world.zookeeper
    sessions = [*zookeeper.sessions_of(host(leader)), *zookeeper.sessions_of(host(controller))]
    directed.cluster.kill(leader)
    directed.cluster.kill(controller)
    for session in sessions:
        zookeeper.expire_session(session)
    await asyncio.sleep(3.0)
    if directed.cluster.leader(TOPIC, partition.partition) != third:
        report(directed, "I37", f"broker {third} lives and is in sync, and leads nothing for three seconds")


# ------------------------------------------------------------------------------------------------------ registrations
@with_setup(ClusterSetup(topics={TOPIC: (6, 3, 2)}, settings=LONG_SESSION))
async def orders_for_an_earlier_registration(directed: DirectedRun) -> None:
    """KIP-380: a follower loses power and is elected before that is noticed; it is back before the order arrives."""
    cluster, zookeeper = directed.cluster, directed.world.zookeeper
    controller = directed.controller
    partition = next(
        state.partition for state in directed.reference.states() if state.members[0] != controller == state.members[2]
    )
    leader, elected, _ = members(directed, partition)
    for number in range(3):
        await directed.produce(f"{number}", partition=partition)
    sessions = zookeeper.sessions_of(host(leader))
    old_epoch = broker_epoch(directed, elected)
    cluster.kill(elected)
    cluster.power_loss(elected)
    cluster.kill(leader)
    for session in sessions:
        zookeeper.expire_session(session)
    await directed.until(
        lambda: any(s.partition == partition and s.leader == elected for s in directed.reference.states()),
        "its election",
    )
    zookeeper.cut(host(controller))
    cluster.start(elected)
    await until_registered_again(directed, elected, old_epoch)
    await asyncio.sleep(2.0)
    zookeeper.heal()
    await directed.until(lambda: cluster.leader(TOPIC, partition.partition) == controller, "a leader with a whole log")


# -------------------------------------------------------------------------------------------------------- late orders
async def _stop(directed: DirectedRun, broker_id: int, topic: str, topic_id: str, order: StopReplicaPartition) -> None:
    """Send a copy of an earlier request of the controller, on another connection."""
    image = directed.cluster.brokers[broker_id].image
    assert image.controller_id is not None
    request = StopReplicaRequest(
        controller_id=image.controller_id,
        controller_epoch=image.controller_epoch,
        broker_epoch=broker_epoch(directed, broker_id),
        topic_states=[StopReplicaTopic(topic_name=topic, topic_id=topic_id, partition_states=[order])],
    )
    await send_to(directed, broker_id, request)


@with_setup(ClusterSetup())
async def late_stop_replica(directed: DirectedRun) -> None:
    """KIP-570: the order to stop a replica of an earlier leader epoch arrives late."""
    _, controller, follower = await separate_roles(directed)
    old_epoch = directed.replica(follower).state.leader_epoch
    assert old_epoch is not None
    directed.cluster.kill(controller)
    await directed.until(
        lambda: (directed.replica(follower).state.leader_epoch or 0) > old_epoch, "another leader epoch"
    )
    topic_id = directed.replica(follower).log.topic_id
    assert topic_id is not None
    order = StopReplicaPartition(partition_index=0, leader_epoch=old_epoch)
    await _stop(directed, follower, TOPIC, topic_id, order)
    if directed.replica(follower).state.leader_id is None:
        report(directed, "I35", f"a StopReplica of leader epoch {old_epoch} stopped the replica of a later one")


@with_setup(ClusterSetup())
async def late_deletion(directed: DirectedRun) -> None:
    """KIP-570: the deletion of a topic arrives after a topic of the same name was made."""
    async with admin_client(directed) as admin:
        await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
        old_id = directed.replica(1, AGAIN).log.topic_id
        await admin.delete_topic(AGAIN.topic)
        await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
    await directed.until(lambda: directed.cluster.leader(AGAIN.topic) is not None, "a leader of the new topic")
    broker_id = directed.cluster.leader(AGAIN.topic)
    assert broker_id is not None and old_id is not None
    order = StopReplicaPartition(partition_index=0, leader_epoch=LEADER_EPOCH_DURING_DELETE, delete_partition=True)
    await _stop(directed, broker_id, AGAIN.topic, old_id, order)
    if directed.cluster.replica(broker_id, AGAIN.topic) is None:
        report(directed, "I35", f"the deletion of topic id {old_id} removed a replica of another topic")


@with_setup(ClusterSetup())
async def late_alter_partition(directed: DirectedRun) -> None:
    """KAFKA-2729: a proposal of a larger ISR arrives after the ISR has shrunk."""
    leader, controller, joiner = await separate_roles(directed)
    network = directed.world.network
    state = next(s for s in directed.reference.states() if s.partition == FIRST)
    wished = [BrokerState(broker_id=b, broker_epoch=broker_epoch(directed, b)) for b in state.members]
    network.partition(host(leader), host(joiner))
    waiting = directed.produce_soon("without it")
    await directed.until_isr(leader, controller)
    await waiting
    data = AlterPartitionData(
        partition_index=0,
        leader_epoch=state.leader_epoch,
        new_isr_with_epochs=wished,
        partition_epoch=state.version,
    )
    late = AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=broker_epoch(directed, leader),
        topics=[AlterPartitionTopic(topic_name=TOPIC, partitions=[data])],
    )
    await send_to(directed, controller, late)
    await directed.produce("still without it")
    await asyncio.sleep(1.0)


# -------------------------------------------------------------------------------------------------------- lost answers
@with_setup(ClusterSetup(settings=LONG_SESSION))
async def session_of_a_leader_is_replaced_unnoticed(directed: DirectedRun) -> None:
    """KAFKA-9769: a leader's session ends and it registers again before the controller notices: it gets its state again,
    with the same epochs, and this time it counts."""
    leader, controller, _ = await separate_roles(directed)
    zookeeper = directed.world.zookeeper
    await directed.produce("before")
    old_epoch = broker_epoch(directed, leader)
    zookeeper.cut(host(controller))
    for session in zookeeper.sessions_of(host(leader)):
        zookeeper.expire_session(session)
    await until_registered_again(directed, leader, old_epoch)
    zookeeper.heal()
    await asyncio.sleep(1.0)
    await must_be_acknowledged(directed, "after a session was replaced")


@with_setup(ClusterSetup())
async def answer_to_an_isr_change_is_lost(directed: DirectedRun) -> None:
    """KAFKA-14144: the change was made, the answer is lost, the leader asks again."""
    leader, controller, third = await separate_roles(directed)
    network = directed.world.network
    network.count_frames()  # from now on responses are matched with requests
    lost = network.lose_replies(host(leader), host(controller), ApiKey.ALTER_PARTITION)
    network.partition(host(leader), host(third))
    waiting = directed.produce_soon("one follower lags")
    await lost.caught()
    await asyncio.sleep(2.0)
    await must_be_acknowledged(directed, "after an answer was lost")
    network.heal_all()
    await waiting


@with_setup(ClusterSetup())
async def answer_of_zookeeper_is_lost(directed: DirectedRun) -> None:
    """KAFKA-1382, KAFKA-2729: the controller's write was applied, but its answer is lost."""
    leader, controller, third = await separate_roles(directed)
    network = directed.world.network
    await directed.produce("first")  # the producer has its id then; a block of ids is a write, too
    await until_changes_are_noted()
    network.partition(host(leader), host(third))
    waiting = directed.produce_soon("one follower lags")
    await asyncio.sleep(0.5)
    directed.world.zookeeper.lose_next_reply(host(controller))
    await directed.until(lambda: third not in members(directed), "an ISR without it")
    await asyncio.sleep(3.0)
    await must_be_acknowledged(directed, "after an answer of ZooKeeper was lost")
    network.heal_all()
    await waiting
