"""Writing at a constant rate, in simulated time: a silence of one partition is seen although others answer."""

import asyncio

from minibroker.bench.steady_writing import SteadyReport, SteadyWriter, percentile_of_counts
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ProduceRequest
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster

SECONDS = 10.0
PER_SECOND = 100


def written(cluster: FakeCluster, silent_s: tuple[float, float] = (0.0, 0.0)) -> SteadyReport:
    """Two partitions on two brokers; the second broker drops requests for a while."""

    async def main(runtime: Runtime) -> SteadyReport:
        clock = asyncio.get_running_loop().time

        def drop(broker: int, request: IncomingRequest) -> bool | None:
            is_silent = began + silent_s[0] <= clock() < began + silent_s[1]
            return True if broker == 2 and is_silent and isinstance(request.body, ProduceRequest) else None

        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            linger_ms=0,
            request_timeout_ms=500,
            delivery_timeout_ms=60_000,
            runtime=runtime,
        ) as producer:
            began = clock()
            cluster.intercept = drop
            writer = SteadyWriter(producer, "t", 2, PER_SECOND, 100)
            await writer.write(SECONDS)
            return await writer.settle(None)

    return cluster.run(main)


def two_leaders() -> FakeCluster:
    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("t", 2)
    return cluster


def test_an_undisturbed_cluster_has_no_gap_but_the_schedule() -> None:
    report = written(two_leaders())
    assert (report.sent, report.acknowledged, report.failed) == (1_000, 1_000, 0)
    assert 0.015 < report.gap_s < 0.1, "a record for each partition every 20 ms"
    assert report.longest_ms is not None
    assert report.longest_ms < 100


def test_the_gap_is_that_of_the_silent_partition() -> None:
    cluster = two_leaders()
    leaders = [cluster.partition("t", index).leader for index in (0, 1)]
    report = written(cluster, silent_s=(3.0, 6.0))
    assert report.acknowledged == 1_000
    assert report.gap_partition == leaders.index(2)
    assert 2.5 < report.gap_s < 5.0
    assert 2.5 < report.gap_began_s < 3.5
    assert report.longest_ms is not None
    assert report.longest_ms >= 2_500, "a late record counts from when it was due"


def test_percentiles_of_counts() -> None:
    assert percentile_of_counts({}, 0.5) is None
    assert percentile_of_counts({1.0: 98, 7.0: 1, 9.0: 1}, 0.5) == 1.0
    assert percentile_of_counts({1.0: 98, 7.0: 1, 9.0: 1}, 0.99) == 7.0
