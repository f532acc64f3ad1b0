"""Orders of events around a consumer: answers that overtake each other, a leader that reads from a wrong place, a topic
made again."""

import asyncio
from typing import Any

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import LogTruncated, MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import requests, responses
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import admin_client, fetch_answer_with, host, report

SOON_MS = 5_000
AGAIN = TopicPartition("again", 0)


async def _read(consumer: Consumer, count: int) -> list[tuple[int, bytes]]:
    """(offset, value) of the next records; fewer if they do not come soon."""
    found: list[tuple[int, bytes]] = []
    for _ in range(count):
        try:
            record = await consumer.getone(timeout_ms=SOON_MS)
        except LogTruncated:
            raise
        except MinibrokerError:
            continue  # reported; the next call tries again
        found.append((record.offset, record.value or b""))
    return found


@with_setup(ClusterSetup())
async def a_record_lands_between_question_and_answer(directed: DirectedRun) -> None:
    """Seeds 912015 and 914490. A consumer has read a record of one epoch and waits at the leader of the next. That one
    answers it with a record and dies, but the answer is slow; meanwhile the consumer asks the third leader where the
    first epoch ended. The record arrives, then the answer."""
    cluster, network = directed.cluster, directed.world.network
    network.count_frames()
    async with directed.workload.consumer() as consumer:
        consumer.assign([FIRST])
        await directed.produce("epoch 0")
        await _read(consumer, 1)
        first = directed.leader
        cluster.kill(first)
        await directed.until(lambda: cluster.leader(TOPIC) not in (None, first), "the second leader")
        cluster.start(first)
        await directed.until_isr(*cluster.broker_ids)
        await asyncio.sleep(1)  # its position has been validated, and its fetch waits there
        second = directed.leader
        fetched = network.hold(host(second), "client", fetch_answer_with(b"epoch 1"))
        await directed.produce("epoch 1")
        await fetched.caught()
        answer = network.hold(None, "client", responses(ApiKey.OFFSET_FOR_LEADER_EPOCH))
        cluster.kill(second)
        await directed.until(lambda: cluster.leader(TOPIC) not in (None, second), "the third leader")
        while not answer.seen:
            consumer._cluster.request_refresh()
            await asyncio.sleep(0.02)
        fetched.release()
        await asyncio.sleep(0.05)
        answer.release()
        try:
            await _read(consumer, 1)
            await directed.produce("epoch 2")
            await _read(consumer, 1)
        except LogTruncated as error:
            report(directed, "I22", f"nothing was truncated: {error}")


@with_setup(ClusterSetup())
async def leader_reads_from_a_wrong_place(directed: DirectedRun) -> None:
    """A bit of an index or of a header: a leader answers with sound batches, but not with those asked for."""
    log: Any = directed.replica(directed.leader).log
    read, lies = log.read, 2

    def read_elsewhere(offset: int, max_bytes: int, end_offset: int) -> Any:
        nonlocal lies
        if offset != 3 or not lies or end_offset <= 6:
            return read(offset, max_bytes, end_offset)
        lies -= 1
        return read(6, max_bytes, end_offset)

    async with directed.workload.consumer() as consumer:
        consumer.assign([FIRST])
        for number in range(3):
            await directed.produce(f"{number}")
        await _read(consumer, 3)
        consumer.pause(FIRST)
        await asyncio.sleep(1)
        for number in range(3, 9):
            await directed.produce(f"{number}")
        log.read = read_elsewhere
        consumer.resume(FIRST)
        found = [offset for offset, _ in await _read(consumer, 6)]
        if found != [3, 4, 5, 6, 7, 8]:
            report(directed, "I22", f"behind offset 2 a consumer was handed {found}, and no error")


async def _send(directed: DirectedRun, values: list[bytes]) -> None:
    """By a separate producer: this topic's records are under no promise."""
    runtime = directed.cluster.client_runtime()
    async with Producer(bootstrap_servers=directed.cluster.bootstrap_servers, runtime=runtime) as producer:
        for value in values:
            await producer.send_and_wait(AGAIN.topic, value)


@with_setup(ClusterSetup())
async def topic_made_again_under_a_consumer(directed: DirectedRun) -> None:
    """A consumer's fetch is on its way; before it arrives the topic is deleted, made again, and filled beyond the
    consumer's position."""
    async with admin_client(directed) as admin, directed.workload.consumer() as consumer:
        await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
        await _send(directed, [b"old-%d" % number for number in range(5)])
        consumer.assign([AGAIN])
        await _read(consumer, 5)
        hold = directed.world.network.hold("client", None, requests(ApiKey.FETCH))
        await hold.caught()
        leader, again = directed.cluster.leader(AGAIN.topic), None
        while again != leader:  # where the fetch is going
            await admin.delete_topic(AGAIN.topic)
            await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
            again = directed.cluster.leader(AGAIN.topic)
        await _send(directed, [b"new-%d" % number for number in range(10)])
        hold.release()
        found = await _read(consumer, 10)
        if found != [(number, b"new-%d" % number) for number in range(10)]:
            report(directed, "I22", f"of a topic made again a consumer was handed {found}, and no error")
        await admin.delete_topic(AGAIN.topic)
