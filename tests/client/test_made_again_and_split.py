"""Split batches, and a topic that is made again, under a producer."""

import asyncio
import contextlib

import pytest

from minibroker.client.errors import MinibrokerError, OutcomeUnknown, UnknownTopicOrPartition
from minibroker.client.limits import Deadline
from minibroker.client.producer.deliveries import Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import decode_records
from minibroker.protocol.wire.messages import (
    CurrentLeader,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.server import IncomingRequest
from tests.client.fake_cluster import FakeCluster


def second_half_waits(cluster: FakeCluster) -> None:
    """Four records are too large together; the first two are taken, the others never."""

    def answer(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, ProduceRequest):
            return None
        parts = [data for topic in request.body.topic_data for data in topic.partition_data]
        values = [record.value or b"" for data in parts for record in decode_records(bytes(data.records))]
        if len(values) > 2 and len(parts) == 1:
            code = ErrorCode.MESSAGE_TOO_LARGE
        elif any(value[:1] in b"23" for value in values):
            code = ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            return None
        refused = [ProducePartitionResponse(index=data.index, error_code=code) for data in parts]
        return ProduceResponse(responses=[ProduceTopicResponse(name="t", partition_responses=refused)])

    cluster.intercept = answer


@pytest.mark.parametrize("how", ["add_done_callback", "await"])
def test_a_record_of_a_split_batch_has_its_outcome_when_its_part_has(cluster: FakeCluster, how: str) -> None:
    """Callback and await come with `done`, not after the delivery timeout of the other part."""
    second_half_waits(cluster)

    async def main(runtime: Runtime) -> float:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, delivery_timeout_ms=20_000
        ) as producer:
            loop = asyncio.get_running_loop()
            deliveries = [await producer.send("t", b"%d" % number + b"x" * 2_000) for number in range(4)]
            told: asyncio.Future[None] = loop.create_future()
            if how == "add_done_callback":
                deliveries[0].add_done_callback(lambda delivery: told.set_result(None))
            waiting = asyncio.ensure_future(_outcome(deliveries[0])) if how == "await" else told
            while not deliveries[0].done:  # noqa: ASYNC110 - what tells is what is tested
                await asyncio.sleep(0.01)
            known_at = loop.time()
            await waiting
            late = loop.time() - known_at
            for delivery in deliveries:
                with contextlib.suppress(MinibrokerError):
                    await delivery
            return late

    assert cluster.run(main) < 1


async def _outcome(delivery: Delivery) -> None:
    await delivery


def test_callbacks_of_a_split_batch_come_in_the_order_of_its_records(cluster: FakeCluster) -> None:
    """Also where one was added before the split and one after it."""
    second_half_waits(cluster)

    async def main(runtime: Runtime) -> list[int]:
        called: list[int] = []
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, delivery_timeout_ms=20_000
        ) as producer:
            deliveries = [await producer.send("t", b"%d" % number + b"x" * 2_000) for number in range(4)]
            deliveries[0].add_done_callback(lambda delivery: called.append(0))
            await asyncio.sleep(1)
            deliveries[3].add_done_callback(lambda delivery: called.append(3))
            for delivery in deliveries:
                with contextlib.suppress(MinibrokerError):
                    await delivery
            await asyncio.sleep(0)
        return called

    assert cluster.run(main) == [0, 3]


def test_a_topic_made_again_with_fewer_partitions_takes_keyed_records(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 4)

    async def main(runtime: Runtime) -> int:
        failed = 0
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, linger_ms=0, delivery_timeout_ms=5_000
        ) as producer:
            for partition in range(4):
                await producer.send_and_wait("many", b"old", partition=partition)
            for former in [each for each in cluster.partitions if each.topic == "many"]:
                del cluster.partitions[former]
            cluster.add_topic("many", 1)
            cluster.topic_ids["many"] = "another-id"
            await producer.send_and_wait("many", b"new", partition=0)
            await asyncio.sleep(10)
            for number in range(12):
                try:
                    await producer.send_and_wait("many", b"new", key=b"%d" % number)
                except MinibrokerError:
                    failed += 1
        return failed

    assert cluster.run(main) == 0


def test_a_late_refusal_that_names_the_leader_of_the_deleted_topic_does_not_mislead_for_ever(
    cluster: FakeCluster,
) -> None:
    """Its leader epoch is above that of the new topic, whose metadata was then never accepted again."""
    held: list[IncomingRequest] = []

    def hold(broker: int, request: IncomingRequest) -> bool | None:
        if not isinstance(request.body, ProduceRequest) or held:
            return None
        held.append(request)
        return True

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"old")
            cluster.intercept = hold
            delivery = await producer.send("t", b"in between")
            await asyncio.sleep(0.05)
            cluster.make_again("t")
            await producer._cluster.refresh(Deadline(1_000))
            assert producer._cluster.metadata.topic_id("t") == cluster.topic_ids["t"]
            refusal = ProducePartitionResponse(
                index=0,
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
                current_leader=CurrentLeader(leader_id=3, leader_epoch=7),
            )
            held[0].respond(ProduceResponse(responses=[ProduceTopicResponse(name="t", partition_responses=[refusal])]))
            with pytest.raises(OutcomeUnknown):  # the old leader may have written it before it was deposed
                await delivery
            assert (await producer.send_and_wait("t", b"new")).broker == 1

    cluster.run(main)
    assert cluster.partition("t").values() == [b"new"]


@pytest.mark.parametrize("is_many", [True, False])
def test_a_call_that_waits_for_memory_tells_that_its_partition_is_gone(cluster: FakeCluster, is_many: bool) -> None:
    """Its topic was made again with fewer partitions. The program got a bare KeyError, which did not tell how many
    records were taken, or BufferTimedOut after `max_block_ms`, for the queue of other partitions' calls, too."""
    cluster.add_topic("two", 2)
    cluster.intercept = lambda broker, request: isinstance(request.body, ProduceRequest) or None

    async def send(producer: Producer) -> None:
        if is_many:
            await producer.send_many("two", [bytes(1_000)] * 300, partition=1)
        for _ in range(300):
            await producer.send("two", bytes(1_000), partition=1)

    async def main(runtime: Runtime) -> None:
        producer = Producer(
            bootstrap_servers=cluster.bootstrap,
            runtime=runtime,
            buffer_memory=65_536,
            batch_size=16_384,
            delivery_timeout_ms=4_000,
            max_block_ms=60_000,
        )
        await producer.start()
        sending = asyncio.create_task(send(producer))
        await asyncio.sleep(1)
        cluster.make_again("two")
        del cluster.partitions[TopicPartition("two", 1)]
        with pytest.raises(UnknownTopicOrPartition) as gone:
            async with asyncio.timeout(10):
                await sending
        taken = vars(gone.value).get("taken")
        assert (taken is not None and 0 < len(taken) < 300) == is_many
        with contextlib.suppress(MinibrokerError):
            await producer.close(timeout_ms=0)

    cluster.run(main)
