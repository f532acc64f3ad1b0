"""Brokers that have lost ZooKeeper, or that do not answer: every call that waits for them says so."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.errors import CallTimedOut
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    CreateTopicsRequest,
    FetchRequest,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    ListProducerNamesRequest,
    MetadataRequest,
    MetadataResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest
from tests.client.test_faults_that_are_over import of_partition


def without_zookeeper(cluster: FakeCluster) -> Callable[[int, IncomingRequest], Response | bool | None]:
    """All brokers have lost it."""

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, MetadataRequest):
            return None
        answer = cluster.brokers[broker].metadata(request.body)
        assert isinstance(answer, MetadataResponse)
        return msgspec.structs.replace(answer, fenced=True)

    return intercept


def test_a_dead_controller_without_zookeeper_is_named_with_that_cause(cluster: FakeCluster) -> None:
    """Once only the dead broker was named, which is not why no other one becomes controller."""
    cluster.intercept = without_zookeeper(cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            cluster.kill(1)
            with pytest.raises(CallTimedOut, match=r"broker 1 .*; the broker at .* has lost ZooKeeper"):
                await admin.create_topic("new", timeout_ms=3_000)

    cluster.run(main)


def test_an_attempt_that_takes_all_of_the_time_does_not_hide_the_cause(cluster: FakeCluster) -> None:
    """The controller has just lost ZooKeeper when it gets the request, and does not answer."""
    fenced = without_zookeeper(cluster)

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        return isinstance(request.body, CreateTopicsRequest) or fenced(broker, request)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            cluster.intercept = intercept
            with pytest.raises(CallTimedOut, match=r"may still be done\); last error: .* has lost ZooKeeper"):
                await admin.create_topic("new", timeout_ms=3_000)

    cluster.run(main)


def test_a_leader_without_zookeeper_is_named_with_that_cause(cluster: FakeCluster) -> None:
    """Once it was said that the leader moved."""
    fenced = without_zookeeper(cluster)

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, ListOffsetsRequest):
            return fenced(broker, request)
        refused = ListOffsetsPartitionResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[refused])])

    cluster.intercept = intercept

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CallTimedOut, match=r"LEADER_NOT_AVAILABLE for t-0 .* has lost ZooKeeper"):
                await admin.offsets("t", timeout_ms=3_000)

    cluster.run(main)


def test_a_question_that_waits_for_an_answer_says_why(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Once it was silent for 30 s."""

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        asked = isinstance(request.body, ListProducerNamesRequest)
        return Response(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="no ZooKeeper") if asked else None

    cluster.intercept = intercept

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(CallTimedOut):
                await admin.list_producer_names(timeout_ms=3_000)

    cluster.run(main)
    (warning,) = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warning.startswith("minibroker-admin: waiting up to 3 s for an answer: REQUEST_TIMED_OUT from broker ")


def test_a_consumer_whose_leader_lost_zookeeper_is_told_so_by_its_state(cluster: FakeCluster) -> None:
    """Once it was told for as long as that lasted that the leader had moved."""
    fenced = without_zookeeper(cluster)
    refused = of_partition(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        return refused if isinstance(request.body, FetchRequest) else fenced(broker, request)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            cluster.intercept = intercept
            await asyncio.sleep(5)
            error = consumer.connection_state(T0).error
            assert "has lost ZooKeeper" in str(error) and "the leader moved" not in str(error)

    cluster.run(main)
