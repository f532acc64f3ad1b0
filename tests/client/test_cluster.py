"""The cluster as one client sees it: how it is searched again, and what is left of the search when it is closed."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minibroker.client.cluster import Cluster, ClusterSettings
from minibroker.client.errors import BrokerUnreachable, ClientClosed, InvalidCall
from minibroker.client.first_answer import ServerAttempts
from minibroker.client.limits import Deadline, parse_servers
from minibroker.protocol.wire.messages import MetadataBroker, MetadataRequest, MetadataResponse, Response
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill

LOST = BrokerUnreachable("lost")


@asynccontextmanager
async def searched(cluster: FakeCluster, runtime: Runtime, bootstrap: str | None = None) -> AsyncIterator[Cluster]:
    """The cluster with its topic `t`, as a client sees it."""
    servers = parse_servers(bootstrap or cluster.bootstrap)
    client = Cluster(runtime, ClusterSettings(bootstrap=servers, client_id="test"))
    client.want_topics(["t"])
    await client.start()
    try:
        yield client
    finally:
        await client.close()


def test_metadata_that_could_not_be_fetched_are_asked_for_until_they_come(cluster: FakeCluster) -> None:
    """The parts of a client do not ask again: they wait for what the next round brings."""

    async def main(runtime: Runtime) -> None:
        async with searched(cluster, runtime) as client:
            for broker in cluster.brokers:
                cluster.kill(broker)
            client.request_refresh()
            await asyncio.sleep(10)
            assert client.last_error is not None
            cluster.partition("t").elect(2)
            for broker in cluster.brokers:
                cluster.start_broker(broker)
            await asyncio.sleep(3)
            assert client.last_error is None
            assert client.metadata.partition(T0).leader == 2

    cluster.run(main)


def test_each_search_begins_with_short_pauses_however_long_ago_the_last_one_was(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with searched(cluster, runtime) as client:
            for _ in range(3):
                await asyncio.sleep(60)
                begun, asked = asyncio.get_running_loop().time(), cluster.asked(MetadataRequest)
                for _ in range(3):
                    await client.refresh(Deadline(5_000))
                assert cluster.asked(MetadataRequest) == asked + 3
                assert asyncio.get_running_loop().time() - begun < 0.5

    cluster.run(main)


def test_a_refresh_waits_for_a_round_that_begins_after_the_call(cluster: FakeCluster) -> None:
    """The round under way may have been answered before what the caller wants to learn of, and does not ask for a topic
    that is wanted since. The next one comes at once."""

    async def main(runtime: Runtime) -> None:
        async with searched(cluster, runtime) as client:
            held: list[IncomingRequest] = []

            def hold(broker: int, request: IncomingRequest) -> Response | bool | None:
                if isinstance(request.body, MetadataRequest) and not held:
                    held.append(request)
                    return True
                return None

            cluster.intercept = hold
            first = asyncio.ensure_future(client.refresh(Deadline(5_000)))
            while not held:  # noqa: ASYNC110 - no event tells that a request has arrived
                await asyncio.sleep(0.001)
            assert isinstance(held[0].body, MetadataRequest)
            answer = cluster.brokers[1].metadata(held[0].body)
            cluster.add_topic("new")
            client.want_topics(["new"])
            begun = asyncio.get_running_loop().time()
            second = asyncio.ensure_future(client.refresh(Deadline(5_000)))
            await asyncio.sleep(0)
            held[0].respond(answer)
            await first
            assert "new" not in client.metadata.topics
            await second
            assert client.metadata.topics["new"].partitions
            assert asyncio.get_running_loop().time() - begun < 1

    cluster.run(main)


@pytest.mark.parametrize(
    ("broker", "cause", "text"),
    [
        (2, None, "broker 2 at broker2:9092 does not answer (no connection yet)"),
        (2, ValueError("why"), "broker 2 at broker2:9092 does not answer (why)"),
        (3, None, "bootstrap broker1:9092 answered but advertises broker 3 as broker3:9092, which this machine cannot"),
        (9, None, "broker 9 is not registered with the cluster; is it running?"),
    ],
)
def test_a_broker_that_cannot_be_reached_is_reported_with_the_reason(
    cluster: FakeCluster, broker: int, cause: Exception | None, text: str
) -> None:
    """Broker 3 is not among the bootstrap servers, so its address may be wrong."""

    async def main(runtime: Runtime) -> None:
        async with searched(cluster, runtime, "broker1:9092,broker2:9092") as client:
            error = client.unreachable(broker, cause)
            assert str(error).startswith(text)
            assert (error.broker_id, error.in_doubt) == (broker, False)

    cluster.run(main)


@pytest.mark.parametrize("broker", [2, 3])
def test_after_a_failed_attempt_its_error_is_the_reason(cluster: FakeCluster, broker: int) -> None:
    async def main(runtime: Runtime) -> None:
        async with searched(cluster, runtime, "broker1:9092,broker2:9092") as client:
            cluster.kill(broker)
            assert client.open_connection(broker) is None
            await asyncio.sleep(1)
            last_error = client.connections.last_error(client.metadata.brokers[broker])
            assert last_error is not None
            assert f"({last_error})" in str(client.unreachable(broker))
            assert "no connection yet" not in str(client.unreachable(broker))

    cluster.run(main)


def test_servers_that_failed_or_were_late_come_last_and_the_latest_at_the_very_end(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until they answer."""
    one, two, three = parse_servers(cluster.bootstrap)
    answering = MetadataResponse(brokers=[MetadataBroker(node_id=1, host=one.host, port=one.port)])
    rounds = [
        (ServerAttempts(two, (), {one: LOST}), [two, three, one]),
        (ServerAttempts(three, (), {two: LOST}), [three, one, two]),
        (ServerAttempts(three, (), {one: LOST}), [three, two, one]),
        (ServerAttempts(three, (two,), {}), [three, one, two]),
        (ServerAttempts(one, (), {}), [one, three, two]),
        (ServerAttempts(two, (), {}), [one, two, three]),
    ]
    attempts: ServerAttempts

    async def first_answer(*_: object) -> tuple[MetadataResponse, ServerAttempts]:
        return answering, attempts

    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, ClusterSettings(bootstrap=[one, two, three], client_id="test"))
        nonlocal attempts
        monkeypatch.setattr("minibroker.client.cluster.first_answer", first_answer)
        for attempts_of_round, expected in rounds:
            attempts = attempts_of_round
            await client._fetch_metadata()
            assert client._candidates() == expected
        await client.close()

    cluster.run(main)


def test_a_long_search_for_a_leader_costs_few_requests(cluster: FakeCluster) -> None:
    """The pauses grow with the time for which it has been searched."""

    async def main(runtime: Runtime) -> int:
        async with searched(cluster, runtime) as client:
            await asyncio.sleep(1)
            cluster.partition("t").elect(None)
            client.add_listener(lambda: None if client.metadata.partition(T0).leader else client.request_refresh())
            client.request_refresh()
            before = cluster.asked(MetadataRequest)
            await asyncio.sleep(10)
            return cluster.asked(MetadataRequest) - before

    assert 10 < cluster.run(main) < 50


def test_a_closed_search_ends_the_calls_that_wait_for_it_and_begins_no_other(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: Runtime) -> None:
        async with searched(cluster, runtime) as client:
            cluster.intercept = lambda broker, request: isinstance(request.body, MetadataRequest) or None
            asked = asyncio.create_task(client.refresh(Deadline(60_000)))
            await asyncio.sleep(0.5)  # its round is under way
            queued = asyncio.create_task(client.refresh(Deadline(60_000)))
            await asyncio.sleep(0)
            began = asyncio.get_running_loop().time()
            await client.close()
            for waiting in (asked, queued):
                with pytest.raises(ClientClosed):
                    await waiting
            assert asyncio.get_running_loop().time() - began < 0.1
        for call in (client.start(), client.refresh(Deadline(60_000))):
            with pytest.raises(ClientClosed):
                await call
        assert asyncio.get_running_loop().time() - began < 0.1

    with caplog.at_level(logging.INFO, "minibroker.client"):
        cluster.run(main)
    assert [each.message for each in caplog.records].count("test: closed") == 1


def test_a_broker_that_was_reached_before_has_no_wrong_address(cluster: FakeCluster) -> None:
    """Its listeners are not to blame: a user who looks there does not see that it is down."""

    async def main(runtime: Runtime) -> str:
        async with searched(cluster, runtime, "broker2:9092") as client:
            await client.acquire(1, Deadline(1_000))
            assert "advertises broker 3" in str(client.unreachable(3))
            cluster.kill(1)
            await asyncio.sleep(1)
            return str(client.unreachable(1))

    assert "does not answer" in cluster.run(main)


def test_a_client_uses_no_more_topics_than_one_request_can_ask_for(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit no broker answered any more, and the topics that worked before were lost, too."""
    monkeypatch.setattr("minibroker.client.cluster.TOPICS_MAX", 3)

    async def main(runtime: Runtime) -> None:
        for name in ("a", "b"):
            cluster.add_topic(name)
        async with searched(cluster, runtime) as client:
            client.want_topics(["a", "a", "t"])
            with pytest.raises(InvalidCall, match=r"up to 3 topics until it is closed: use another one"):
                client.want_topics(["b", "c"])
            client.want_topics(["b"])
            await client.refresh(Deadline(1_000))
            assert sorted(client.metadata.topics) == ["a", "b", "t"]

    cluster.run(main)


def test_an_assignment_beyond_the_topics_of_a_client_changes_nothing(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster, 1)
    monkeypatch.setattr("minibroker.client.cluster.TOPICS_MAX", 2)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            with pytest.raises(InvalidCall):
                consumer.assign([("a", 0), ("b", 0)])
            assert consumer.assignment() == [T0]
            assert (await consumer.getone(timeout_ms=1_000)).offset == 0

    cluster.run(main)
