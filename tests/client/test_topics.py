"""Whether a topic is known, as commands ask: without waiting for a misspelt one."""

import asyncio

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.limits import Deadline
from minibroker.client.topics import DELETIONS_TIMEOUT_MS, topic_deletions, unknown_topics
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    DescribeClusterRequest,
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import PORT, FakeCluster


def ask(cluster: FakeCluster, *names: str) -> tuple[list[str], list[str], float]:
    """The unknown topics, all topics, and the seconds that it took."""

    async def main(runtime: Runtime) -> tuple[list[str], list[str], float]:
        loop = asyncio.get_running_loop()
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            start = loop.time()
            unknown, known = await unknown_topics(admin._cluster, names, Deadline(5_000))
            return unknown, known, loop.time() - start

    return cluster.run(main)


def test_a_misspelt_topic_is_unknown_at_once_and_the_others_are_listed() -> None:
    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("lines")
    cluster.add_topic("orders")
    unknown, known, seconds = ask(cluster, "line", "orders")
    assert (unknown, known) == (["line"], ["lines", "orders"])
    assert seconds < 0.2


def test_a_topic_is_known_if_one_broker_knows_it() -> None:
    """A broker that has just started does not know all topics yet."""
    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("lines")
    brokers = [MetadataBroker(node_id=each, host=f"broker{each}", port=PORT) for each in cluster.brokers]
    unknown = MetadataTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="lines")
    for broker in (1, 2):
        cluster.brokers[broker].metadata_of = MetadataResponse(brokers=brokers, topics=[unknown])
    assert ask(cluster, "lines")[0] == []


@pytest.mark.parametrize("fault", [False, True], ids=["fails", "hangs"])
def test_a_broker_that_cannot_be_asked_hides_no_topic_of_the_others(fault: bool) -> None:
    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("lines")

    def intercept(broker: int, request: IncomingRequest) -> bool | None:
        asks_for_all = isinstance(request.body, MetadataRequest) and request.body.topics is None
        return fault if broker == 2 and asks_for_all else None

    cluster.intercept = intercept
    unknown, known, seconds = ask(cluster, "line")
    assert (unknown, known) == (["line"], ["lines"])
    assert seconds < 5


def test_a_controller_that_hangs_delays_a_command_by_a_moment_only() -> None:
    async def main(runtime: Runtime) -> float:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            start = asyncio.get_running_loop().time()
            assert await topic_deletions(admin._cluster) == {}
            return asyncio.get_running_loop().time() - start

    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.intercept = lambda _, request: isinstance(request.body, DescribeClusterRequest) or None
    assert cluster.run(main) <= DELETIONS_TIMEOUT_MS / 1000 + 0.1
