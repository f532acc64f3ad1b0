"""Orders of events around retries of an idempotent producer."""

import asyncio
import contextlib

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import admin_client, host, produce_with, report

IN_FLIGHT = 5
AGAIN = TopicPartition("again", 0)
SHORT_MS = 1_000


@with_setup(ClusterSetup())
async def replies_lost_at_depth(directed: DirectedRun) -> None:
    """KAFKA-5494: five batches are written, all their answers are lost, and they are sent again, oldest first."""
    leader, network = directed.leader, directed.world.network
    network.count_frames()  # from here on it is known which request a response answers
    await directed.produce("first")
    answers = network.hold(host(leader), "client", responses(ApiKey.PRODUCE))
    sends = []
    for number in range(IN_FLIGHT):
        sends.append(directed.produce_soon(f"{number}"))
        await asyncio.sleep(0.02)
    await directed.until(lambda: directed.replica(leader).state.log_end_offset == 1 + IN_FLIGHT, "five batches")
    answers.drop()
    offsets = await asyncio.gather(*sends)
    if offsets != [1 + number for number in range(IN_FLIGHT)]:
        report(directed, "I25", f"retries of offsets 1 to {IN_FLIGHT} are acknowledged with {offsets}")


@with_setup(ClusterSetup())
async def batch_is_cut_and_sent_again(directed: DirectedRun) -> None:
    """KAFKA-5494: a batch is on the leader alone, which fails, returns, and truncates it; the producer sends it again,
    to the leader of that time."""
    cluster, network, leader = directed.cluster, directed.world.network, directed.leader
    await directed.produce("everywhere")
    for follower in directed.followers():
        network.cut(host(leader), host(follower))
    sending = directed.produce_soon("on the leader alone")
    await directed.until(lambda: directed.replica(leader).state.log_end_offset == 2, "the batch")
    network.hold("client", None, requests(ApiKey.PRODUCE))
    cluster.kill(leader)
    await directed.until(lambda: cluster.leader(TOPIC) not in (None, leader), "another leader")
    for follower in cluster.broker_ids:
        network.heal(host(leader), host(follower))
    cluster.start(leader)
    await directed.until_isr(*cluster.broker_ids)
    cluster.kill(directed.leader)
    await asyncio.sleep(4.0)
    network.heal_all()
    await sending


@with_setup(ClusterSetup())
async def records_come_late_to_a_topic_made_again(directed: DirectedRun) -> None:
    """A record is on its way to its leader; before it arrives its producer gives up, and the topic is deleted, made
    again, and led by the same broker."""
    servers, network = directed.cluster.bootstrap_servers, directed.world.network
    runtime = directed.cluster.client_runtime()
    async with admin_client(directed) as admin:
        await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
        hold = network.hold("client", None, produce_with(b"old"))
        async with Producer(
            bootstrap_servers=servers, delivery_timeout_ms=SHORT_MS, request_timeout_ms=SHORT_MS, runtime=runtime
        ) as producer:
            late = await producer.send(AGAIN.topic, b"old")
            await hold.caught()
            leader, again = directed.cluster.leader(AGAIN.topic), None
            while again != leader:
                await admin.delete_topic(AGAIN.topic)
                await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
                again = directed.cluster.leader(AGAIN.topic)
            with contextlib.suppress(MinibrokerError):
                await late
            hold.release()
            await producer.send_and_wait(AGAIN.topic, b"new")
        async with Consumer(bootstrap_servers=servers, runtime=runtime) as consumer:
            consumer.assign([AGAIN])
            consumer.seek(AGAIN, 0)
            found = [(await consumer.getone(timeout_ms=SHORT_MS)).value]
        if found != [b"new"]:
            report(directed, "I25", f"a topic made again begins with {found}, which was sent to the deleted one")
        await admin.delete_topic(AGAIN.topic)
