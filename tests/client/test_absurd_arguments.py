"""Arguments that no message can carry: refused at once, and nothing else suffers from them."""

import math
from typing import Any

import pytest

from minibroker.client.admin import AdminClient, NewTopic
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import CallTimedOut, InvalidCall
from minibroker.client.limits import BATCH_SIZE_MAX, check_at_least
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster

ABSURD_TOPICS: list[Any] = ["", "x\udcff", "a" * 250, 5, None, b"t", 2**70]
ABSURD_INDEXES: list[Any] = [-1, 2**31, 2**70, 1.0, True, "0", None]


@pytest.mark.parametrize("topic", ABSURD_TOPICS)
def test_a_name_that_no_request_carries_does_not_stop_other_topics(cluster: FakeCluster, topic: Any) -> None:
    """Such a name in the request for metadata made every later round fail, for all topics of the client."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(InvalidCall, match="is not a topic name"):
                await producer.send(topic, b"x")
            with pytest.raises(InvalidCall, match="is not a topic name"):
                await producer.send_many(topic, [b"x"])
            with pytest.raises(InvalidCall, match="is not a topic name"):
                await producer.partitions_for(topic)
            await producer.send_and_wait("t", b"sent")
        with pytest.raises(InvalidCall):
            Consumer(topic, bootstrap_servers=cluster.bootstrap, runtime=runtime)

    cluster.run(main, seconds_max=5)
    assert cluster.partition("t").values() == [b"sent"]


@pytest.mark.parametrize(
    "partition",
    [TopicPartition(topic, 0) for topic in ABSURD_TOPICS] + [TopicPartition("t", index) for index in ABSURD_INDEXES],
)
def test_a_partition_that_no_request_names_changes_no_assignment(
    cluster: FakeCluster, partition: TopicPartition
) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"sent")
        async with Consumer(
            "t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime
        ) as consumer:
            assigned = consumer.assignment()
            with pytest.raises(InvalidCall):
                consumer.assign([("t", 0), partition])
            with pytest.raises(InvalidCall):
                await consumer.end_offsets([partition])
            assert consumer.assignment() == assigned
            assert (await consumer.getone(1_000)).value == b"sent"

    cluster.run(main, seconds_max=5)


def test_the_name_of_a_header_is_text(cluster: FakeCluster) -> None:
    """A batch with another one could not be packed: its records, and all later ones, had no outcome."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(InvalidCall, match="UTF-8"):
                await producer.send("t", b"x", headers=[("x\udcff", b"")])
            with pytest.raises(InvalidCall, match="UTF-8"):
                await producer.send_many("t", [b"x"], headers=[("x\udcff", b"")])
            await producer.send_and_wait("t", b"sent")

    cluster.run(main, seconds_max=5)
    assert cluster.partition("t").values() == [b"sent"]


@pytest.mark.parametrize("timeout_ms", [math.nan, math.inf, 1e308, 10**400, -1, "1", None, True])
def test_a_time_is_a_number_that_a_clock_can_hold(cluster: FakeCluster, timeout_ms: Any) -> None:
    async def main(runtime: Runtime) -> None:
        async with Consumer("t", bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
            with pytest.raises(InvalidCall, match="timeout_ms"):
                await consumer.partitions_for("t", timeout_ms)
        with pytest.raises(InvalidCall, match="max_block_ms"):
            Producer(bootstrap_servers=cluster.bootstrap, max_block_ms=timeout_ms)

    cluster.run(main, seconds_max=5)


def test_a_producer_that_is_to_close_within_no_possible_time_stays_open(cluster: FakeCluster) -> None:
    """The records that it holds were given up for a wrong argument."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=100, runtime=runtime) as producer:
            delivery = await producer.send("t", b"held")
            with pytest.raises(InvalidCall, match="timeout_ms"):
                await producer.close(timeout_ms=-1)
            await delivery
            await producer.send_and_wait("t", b"sent")

    cluster.run(main, seconds_max=5)
    assert cluster.partition("t").values() == [b"held", b"sent"]


def test_an_offset_of_64_bits_is_a_number() -> None:
    check_at_least(0, offset=2**63 - 1)
    with pytest.raises(InvalidCall, match="below 2"):
        check_at_least(0, offset=2**63)


@pytest.mark.parametrize("name", ["batch_size", "max_request_size"])
def test_a_batch_may_be_as_large_as_a_broker_takes_and_no_larger(name: str) -> None:
    def producer(size: int) -> Producer:
        return Producer(bootstrap_servers="localhost", buffer_memory=2**30, **{name: size})  # type: ignore[arg-type]

    producer(BATCH_SIZE_MAX)
    for above in (BATCH_SIZE_MAX + 1, 2 * BATCH_SIZE_MAX):
        with pytest.raises(InvalidCall, match=f"are at most {BATCH_SIZE_MAX} bytes"):
            producer(above)


@pytest.mark.parametrize("client_id", ["x" * 257, "x\udcff", 5, None])
def test_a_client_id_is_text_that_a_broker_takes(client_id: Any) -> None:
    for client in (Producer, Consumer, AdminClient):
        with pytest.raises(InvalidCall, match="client_id"):
            client(bootstrap_servers="localhost", client_id=client_id)


def test_what_cannot_be_sent_to_a_broker_is_a_wrong_call(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            wrong_topics = [NewTopic(name="x\udcff"), NewTopic(name="a", partitions=2**70)]
            for wrong in (*wrong_topics, NewTopic(name="a", configs={"a": "\udcff"})):
                with pytest.raises(InvalidCall):
                    await admin.create_topics([wrong])

    cluster.run(main, seconds_max=5)


def test_what_is_no_topic_to_create_is_named(cluster: FakeCluster) -> None:
    """`create_topics(["x"])` ended in Python's own error, and so did a name by position."""
    assert NewTopic("a", 3, 2) == NewTopic(name="a", partitions=3, replication_factor=2)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            wrong: Any
            for wrong in (["x"], "xy", [None]):
                with pytest.raises(InvalidCall, match=r"is no topic to create: give NewTopic\(name"):
                    await admin.create_topics(wrong)

    cluster.run(main, seconds_max=5)


@pytest.mark.parametrize("servers", ["a:9092;b:9093", "a:9092 b:9093", "a/b:1", "me@a:1", ["a:1,b:2"]])
def test_servers_that_no_comma_separates_are_refused(servers: Any) -> None:
    """The host was `a:9092;b`, which does not exist."""
    with pytest.raises(InvalidCall, match="is not HOST:PORT: commas separate servers"):
        Producer(bootstrap_servers=servers)


@pytest.mark.parametrize("servers", ["::1", "[::1]:9092", "fe80::1%eth0", "a_b.example-c.org.:9092", "bücher.example"])
def test_hosts_have_these_forms(servers: str) -> None:
    Producer(bootstrap_servers=servers)


@pytest.mark.parametrize("wrong", ["lines", ["lines"], [("lines",)], [7]])
def test_what_is_no_partition_is_named(cluster: FakeCluster, wrong: Any) -> None:
    """Once a topic alone gave 'not enough values to unpack'."""

    async def main(runtime: Runtime) -> None:
        async with Consumer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
            with pytest.raises(InvalidCall, match=r"is not a partition: give \[TopicPartition"):
                consumer.assign(wrong)
            assert consumer.assignment() == []
            for call in (consumer.beginning_offsets, consumer.end_offsets):
                with pytest.raises(InvalidCall, match="is not a partition"):
                    await call(wrong)
            for one in (consumer.pause, consumer.resume, consumer.highwater, lambda each: consumer.seek(each, 0)):
                with pytest.raises(InvalidCall, match="is not a partition"):
                    one(next(iter(wrong)))

    cluster.run(main, seconds_max=5)


def test_an_offset_is_a_whole_number(cluster: FakeCluster) -> None:
    """Brokers refuse a fetch with a fraction, so the consumer got no records of any partition of that leader."""

    async def main(runtime: Runtime) -> None:
        async with Consumer("t", bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
            with pytest.raises(InvalidCall, match=r"offset is 1\.5; it must be a whole number"):
                consumer.seek(TopicPartition("t", 0), 1.5)  # type: ignore[arg-type]
            with pytest.raises(InvalidCall, match="max_records"):
                await consumer.getmany(max_records=1.5)  # type: ignore[arg-type]

    cluster.run(main, seconds_max=5)


@pytest.mark.parametrize(
    "name", ["fetch_min_bytes", "fetch_max_bytes", "max_partition_fetch_bytes", "fetch_max_wait_ms"]
)
def test_what_a_fetch_carries_is_a_whole_number(name: str) -> None:
    with pytest.raises(InvalidCall, match=f"{name} is 1000.5; it must be a whole number"):
        Consumer("t", bootstrap_servers="localhost", **{name: 1000.5})  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", [b"localhost:9092", [b"localhost:9092"], [("localhost", 9092)], [9092], 9092])
def test_servers_are_named_by_text(servers: Any) -> None:
    for client in (Producer, Consumer, AdminClient):
        with pytest.raises(InvalidCall, match="give HOST:PORT"):
            client(bootstrap_servers=servers)


def test_one_name_is_not_taken_for_a_list_of_its_letters(cluster: FakeCluster) -> None:
    """`delete_topics("abc")` deleted the topics a, b and c."""

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            for call in (admin.delete_topics, admin.describe_topics, admin.delete_producer_names):
                with pytest.raises(InvalidCall, match="'t' is one name: give a list of names"):
                    await call("t")
            assert await admin.list_topics() == ["t"]

    cluster.run(main, seconds_max=5)


@pytest.mark.parametrize("partition", ["0", 0.5])
def test_the_number_of_a_partition_is_no_text(cluster: FakeCluster, partition: Any) -> None:
    """The error said that the topic had no such partition."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(InvalidCall, match="is not a partition number of topic 't'"):
                await producer.send("t", b"x", partition=partition)
            with pytest.raises(InvalidCall, match="is not a partition number of topic 't'"):
                await producer.send_many("t", [b"x"], partition=partition)

    cluster.run(main, seconds_max=5)


@pytest.mark.parametrize("chosen", [99, -1, "0", None])
def test_a_partitioner_that_names_no_partition_is_told_of(cluster: FakeCluster, chosen: Any) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, partitioner=lambda key, count: chosen
        ) as producer:
            with pytest.raises(InvalidCall, match="partitioner returned"):
                await producer.send("t", b"x", key=b"k")
            with pytest.raises(InvalidCall, match="partitioner returned"):
                await producer.send_many("t", [b"x"], keys=[b"k"])

    cluster.run(main, seconds_max=5)


def test_a_consumer_whose_partitions_are_all_paused_says_so(cluster: FakeCluster) -> None:
    """It blamed a broker that it had not asked."""

    async def main(runtime: Runtime) -> None:
        async with Consumer("t", bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
            consumer.pause(*consumer.assignment())
            with pytest.raises(CallTimedOut, match="all assigned partitions are paused"):
                await consumer.getone(1_000)

    cluster.run(main, seconds_max=5)


def test_a_pause_or_its_end_that_names_a_foreign_partition_changes_nothing(cluster: FakeCluster) -> None:
    """The partitions in front of it were paused, and the batch of one went on being returned; or they were resumed, and
    nothing fetched them."""
    ours, foreign = TopicPartition("t", 0), TopicPartition("t", 7)

    async def main(runtime: Runtime) -> None:
        async with Consumer("t", bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
            for before in ([], [ours]):
                consumer.pause(*before)
                for call in (consumer.pause, consumer.resume):
                    with pytest.raises(InvalidCall, match="t-7 is not assigned"):
                        call(ours, foreign)
                    assert consumer.paused() == before

    cluster.run(main, seconds_max=5)
