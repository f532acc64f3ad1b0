"""Orders of events that show what clients were promised."""

import asyncio

from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.swarm.expiring import CHECK_INTERVAL, expire_all
from minibroker.simulation.world.message_holds import requests
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import admin_client, host, separate_roles

IN_TIME = {"zookeeper.session.timeout.ms": "6000", "request.timeout.ms": "1000"}
AGAIN = TopicPartition("again", 0)
STANDING_SECONDS = 15.0
SETTLED_SECONDS = 8.0
"""A session and a request: then nothing is left of the start."""


@with_setup(ClusterSetup())
async def first_of_two_batches_is_refused(directed: DirectedRun) -> None:
    """A new leader gets the first of two batches before its order to lead, and the second one after it."""
    cluster, network = directed.cluster, directed.world.network
    await directed.produce("known", acks=1)
    leader, followers = directed.leader, directed.followers()
    orders = {b: network.hold(None, host(b), requests(ApiKey.LEADER_AND_ISR)) for b in followers}
    cluster.kill(leader)
    await directed.until(lambda: directed.reference.states()[0].leader in followers, "an election")
    elected = directed.reference.states()[0].leader
    next(hold for broker_id, hold in orders.items() if broker_id != elected).release()
    sent = network.hold("client", host(elected), requests(ApiKey.PRODUCE))
    sending = [directed.produce_soon("one", acks=1)]
    await sent.caught()
    sending.append(directed.produce_soon("two", acks=1))
    await asyncio.sleep(0.05)  # longer than linger_ms
    sent.let_one_pass()
    await asyncio.sleep(0.01)  # refused
    orders[elected].release()
    await directed.until(lambda: cluster.leader(TOPIC) == elected, "the new leader")
    sent.release()
    await asyncio.gather(*sending)


@with_setup(ClusterSetup(judges_time=True, settings=IN_TIME))
async def leader_dies_in_a_quiet_cluster(directed: DirectedRun) -> None:
    """All is well, and the controller and a third broker see the dead leader's refusals."""
    leader, _, _ = await separate_roles(directed)
    await asyncio.sleep(SETTLED_SECONDS)
    directed.cluster.kill(leader)
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, leader), "another leader")


@with_setup(ClusterSetup(judges_time=True, settings=IN_TIME))
async def settings_change(directed: DirectedRun) -> None:
    """A setting of the topic changes twice; no broker fails."""
    async with admin_client(directed) as admin:
        for change in ({"segment.bytes": "8192", "retention.ms": "3600000"}, {"segment.bytes": None}):
            await admin.alter_configs(change, topic=TOPIC)
            await asyncio.sleep(SETTLED_SECONDS)


@with_setup(
    ClusterSetup(
        judges_time=True, settings={**IN_TIME, "zookeeper.session.timeout.ms": "2000"}, topics={TOPIC: (1, 3, 2)}
    )
)
async def one_broker_stays_down(directed: DirectedRun) -> None:
    """A follower is dead, and a client writes on."""
    await directed.produce("all are up")
    dead = directed.followers()[0]
    directed.cluster.kill(dead)
    await directed.until_isr(*(b for b in directed.cluster.broker_ids if b != dead))
    await asyncio.wait([directed.produce_soon("two are up")], timeout=STANDING_SECONDS)


@with_setup(ClusterSetup())
async def follower_returns_without_load(directed: DirectedRun) -> None:
    """A follower was down, no record was written meanwhile, and none is written after its return."""
    await directed.produce("everywhere")
    leader, follower = directed.leader, directed.followers()[0]
    directed.cluster.kill(follower)
    await directed.until(lambda: follower not in directed.cluster.in_sync_replicas(TOPIC), "the shrunken ISR")
    directed.cluster.start(follower)
    await asyncio.sleep(SETTLED_SECONDS)
    assert directed.leader == leader


@with_setup(
    ClusterSetup(judges_time=True, settings={"log.retention.ms": "4000", "log.retention.check.interval.ms": "300"})
)
async def young_and_old_records_share_a_segment(directed: DirectedRun) -> None:
    """Records are written every second, so their segment stays young."""
    for number in range(8):
        await directed.produce(f"{number}")
        await asyncio.sleep(1.0)


@with_setup(ClusterSetup())
async def topic_is_made_again(directed: DirectedRun) -> None:
    """A topic under no promise is filled, deleted, made again and filled further; then a consumer reads it."""
    async with admin_client(directed) as admin, directed.workload.consumer() as consumer:
        for life, records in (("first", 5), ("second", 8)):
            await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
            for number in range(records):
                await directed.produce(f"{life}-{number}", acks=0, partition=AGAIN)
            await asyncio.sleep(1.0)
            if life == "first":
                await admin.delete_topic(AGAIN.topic)
        consumer.assign([AGAIN])
        await consumer.getmany(timeout_ms=2_000)
        await admin.delete_topic(AGAIN.topic)


@with_setup(ClusterSetup(settings={CHECK_INTERVAL: "300", "log.retention.bytes": "1000000"}))
async def all_records_expire_without_load(directed: DirectedRun) -> None:
    """No record is written behind those that expire, so none brings the new log start to the followers."""
    await directed.produce("will expire")
    await expire_all(directed.cluster, directed.options, directed.reference, directed.history)


@with_setup(ClusterSetup(topics={TOPIC: (1, 3, 2)}))
async def too_few_in_sync_are_refused_and_not_counted(directed: DirectedRun) -> None:
    """The ISR shrinks to the leader alone, and a client goes on trying for a while."""
    await directed.produce("counted")
    leader = directed.leader
    for follower in directed.followers():
        directed.cluster.kill(follower)
    await directed.until_isr(leader)
    await asyncio.wait([directed.produce_soon("refused")], timeout=2.0)
