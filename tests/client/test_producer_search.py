"""What the producer says while it finds no broker, and of a partition that it does not find; in simulated time."""

import asyncio

import pytest

from minibroker.client.errors import BufferTimedOut, ClusterUnreachable, UnknownTopicOrPartition
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster


def test_start_without_any_broker_raises_each_servers_error(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers="broker1:1,broker2:2", bootstrap_timeout_ms=1_500, runtime=runtime)
        start = asyncio.get_running_loop().time()
        with pytest.raises(ClusterUnreachable, match=r"broker1:1.*broker2:2.*right address"):
            await producer.start()
        assert asyncio.get_running_loop().time() - start < 2

    cluster.run(main)


@pytest.mark.parametrize(
    ("silent", "at_least_s", "at_most_s"), [((), 0.15, 0.6), ((1,), 2.0, 3.1)], ids=["all refuse", "one is silent"]
)
def test_a_command_does_not_wait_where_every_server_refuses(
    cluster: FakeCluster, silent: tuple[int, ...], at_least_s: float, at_most_s: float
) -> None:
    """A server that is silent may be slow: the search goes on. A service waits either way: the test above."""
    cluster.intercept = lambda broker, request: True

    async def main(runtime: Runtime) -> None:
        for broker in cluster.brokers:
            if broker not in silent:
                cluster.kill(broker)
        producer = Producer(bootstrap_servers=cluster.bootstrap, bootstrap_timeout_ms=3_000, runtime=runtime)
        producer._refusals_end_start = True
        start = asyncio.get_running_loop().time()
        cure = r"\. Let brokers that are paused go on with" if silent else r"\. Start one with"
        with pytest.raises(ClusterUnreachable, match=cure) as caught:
            await producer.start()
        reasons = [str(reason) for _, reason in caught.value.failures]
        assert [broker for broker, reason in zip(cluster.brokers, reasons, strict=True) if "silent" in reason] == [
            *silent
        ]
        assert at_least_s <= asyncio.get_running_loop().time() - start <= at_most_s

    cluster.run(main)


@pytest.mark.parametrize(("timeout_ms", "warning_count"), [(10_000, 1), (3_000, 0)])
def test_a_start_that_looks_long_for_a_broker_is_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, timeout_ms: int, warning_count: int
) -> None:
    """Programs were silent for ten seconds; a start that fails soon only raises."""

    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers="broker1:1", bootstrap_timeout_ms=timeout_ms, runtime=runtime)
        with pytest.raises(ClusterUnreachable):
            await producer.start()

    cluster.run(main)
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == warning_count
    for text in warnings:
        assert text.startswith("minibroker-producer: looking for a broker, up to 10 s: no broker answered at broker1:1")


def test_a_partition_that_the_topic_does_not_have_is_not_cured_by_creating_the_topic(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(UnknownTopicOrPartition) as caught:
                await producer.send("t", b"x", partition=7)
        assert str(caught.value) == (
            "UNKNOWN_TOPIC_OR_PARTITION for t-7: the topic has 1 partition, numbered from 0"
            " [`minibroker topic list -l` shows all topics and numbers of partitions]"
        )

    cluster.run(main)


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_partition_is_looked_for_as_long_as_a_topic_while_no_broker_answers(
    cluster: FakeCluster, comes_back: bool
) -> None:
    """The topic may be made again with more partitions. `send` raised ClusterUnreachable at the first refusal."""

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, max_block_ms=3_000, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"x")
            for broker in cluster.brokers:
                cluster.kill(broker)
            await asyncio.sleep(1)
            cluster.add_topic("t", 2)
            if comes_back:
                loop.call_later(1, cluster.start)
                await producer.send_and_wait("t", b"x", partition=1)
                return
            start = loop.time()
            with pytest.raises(BufferTimedOut, match=r"t-1 stayed unknown for 3000 ms; .*connection refused"):
                await producer.send("t", b"x", partition=1)
            assert loop.time() - start == pytest.approx(3, abs=0.1)

    cluster.run(main)
