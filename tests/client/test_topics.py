"""Whether a topic is known, as commands ask: without waiting for a misspelt one."""

import asyncio

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import UnknownTopicOrPartition
from minibroker.client.limits import UNKNOWN_TOPIC_GRACE_MS, Deadline
from minibroker.client.producer.producer import Producer
from minibroker.client.topics import DELETIONS_TIMEOUT_MS, SIMILAR_TIMEOUT_MS, topic_deletions, unknown_topics
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    Response,
    TopicDeletion,
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


def deletions_of(cluster: FakeCluster, controller: int) -> dict[str, str]:
    """What a client learns that asks the controller, if it knows one."""
    cluster.controller_id = controller
    marked = [TopicDeletion(topic=name, reason=f"{name} waits") for name in ("lines", "orders")]
    asked: list[int] = []

    def intercept(broker: int, request: IncomingRequest) -> DescribeClusterResponse | None:
        if not isinstance(request.body, DescribeClusterRequest):
            return None
        asked.append(broker)
        return DescribeClusterResponse(topic_deletions=marked)

    async def main(runtime: Runtime) -> dict[str, str]:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            return await topic_deletions(admin._cluster)

    cluster.intercept = intercept
    found = cluster.run(main)
    assert asked == ([controller] if controller >= 0 else [])
    return found


def test_the_controller_tells_of_topics_that_are_marked_for_deletion() -> None:
    told = deletions_of(FakeCluster(SimulatedWorld(seed=1)), 2)
    assert told == {"lines": "lines waits", "orders": "orders waits"}


def test_without_a_controller_no_broker_is_asked_for_deletions() -> None:
    assert deletions_of(FakeCluster(SimulatedWorld(seed=1)), -1) == {}


def test_a_controller_that_hangs_delays_a_command_by_a_moment_only() -> None:
    async def main(runtime: Runtime) -> float:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            start = asyncio.get_running_loop().time()
            assert await topic_deletions(admin._cluster) == {}
            return asyncio.get_running_loop().time() - start

    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.intercept = lambda _, request: isinstance(request.body, DescribeClusterRequest) or None
    assert cluster.run(main) <= DELETIONS_TIMEOUT_MS / 1000 + 0.1


CALLS = ("send", "start", "end_offsets", "describe_topics")


def error_of(call: str, cluster: FakeCluster, name: str) -> tuple[str, float]:
    """What a call tells of a topic that does not exist, and after how many seconds."""

    async def main(runtime: Runtime) -> tuple[str, float]:
        start = asyncio.get_running_loop().time()
        with pytest.raises(UnknownTopicOrPartition) as error:
            if call == "send":
                async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
                    await producer.send(name, b"x")
            elif call == "start":
                await Consumer(name, bootstrap_servers=cluster.bootstrap, runtime=runtime).start()
            elif call == "end_offsets":
                async with Consumer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
                    await consumer.end_offsets([TopicPartition(name, 0)])
            else:
                async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
                    await admin.describe_topics([name])
        return str(error.value), asyncio.get_running_loop().time() - start

    return cluster.run(main)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("name", "meant"), [("lnies", "did you mean 'lines'? ["), ("zebra", None)])
def test_the_error_for_a_misspelt_topic_names_a_similar_one(
    call: str, name: str, meant: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = FakeCluster(SimulatedWorld(seed=1))
    for topic in ("lines", "orders"):
        cluster.add_topic(topic)
    text, _ = error_of(call, cluster, name)
    assert (meant in text) if meant else ("did you mean" not in text)
    if call in ("send", "start") and meant:
        assert meant in caplog.text, "the warning while it waits says so, too"


REFUSED = Response(error_code=ErrorCode.REQUEST_TIMED_OUT)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", [True, False, REFUSED], ids=["hang", "lose the answer", "refuse"])
def test_brokers_that_do_not_name_other_topics_hide_and_delay_no_error(call: str, fault: bool | Response) -> None:
    def intercept(broker: int, request: IncomingRequest) -> bool | Response | None:
        return fault if isinstance(request.body, MetadataRequest) and request.body.topics is None else None

    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("lines")
    cluster.intercept = intercept
    text, seconds = error_of(call, cluster, "lnies")
    assert text.startswith("UNKNOWN_TOPIC_OR_PARTITION")
    assert "did you mean" not in text
    assert seconds < (UNKNOWN_TOPIC_GRACE_MS + 2 * SIMILAR_TIMEOUT_MS) / 1000 + 1
