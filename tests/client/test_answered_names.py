"""A broken broker answers for other names than those that it was asked about, or for none."""

from collections.abc import Awaitable, Callable

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.errors import BrokerError
from minibroker.protocol.wire.messages import (
    AlterConfigsResult,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeletedProducerName,
    DeleteProducerNamesRequest,
    DeleteProducerNamesResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    MetadataPartition,
    MetadataRequest,
    MetadataTopic,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster

Call = Callable[[AdminClient], Awaitable[object]]

OTHER = "other\x1b[2J"


def other_answer(request: Request, cluster: FakeCluster) -> Response | None:
    """About another topic or name; None for a request that is answered as usual."""
    if isinstance(request, CreateTopicsRequest):
        return CreateTopicsResponse(topics=[CreatableTopicResult(name=OTHER)])
    if isinstance(request, DeleteTopicsRequest):
        return DeleteTopicsResponse(responses=[DeletableTopicResult(name=OTHER)])
    if isinstance(request, DeleteProducerNamesRequest):
        return DeleteProducerNamesResponse(responses=[DeletedProducerName(name=OTHER)])
    if isinstance(request, IncrementalAlterConfigsRequest):
        return IncrementalAlterConfigsResponse(responses=[AlterConfigsResult(resource_type=2, resource_name=OTHER)])
    if isinstance(request, MetadataRequest) and request.topics:
        usual = cluster.brokers[1].handle_metadata_now("t")
        topic = MetadataTopic(name=OTHER, partitions=[MetadataPartition(partition_index=0)])
        return type(usual)(brokers=usual.brokers, controller_id=1, topics=[topic])
    return None


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.create_topic("a"),
        lambda admin: admin.delete_topic("a"),
        lambda admin: admin.delete_producer_name("a"),
        lambda admin: admin.describe_topics(["a"]),
        lambda admin: admin.alter_configs({"retention.ms": "1"}, topic="a"),
    ],
    ids=["create_topic", "delete_topic", "delete_producer_name", "describe_topics", "alter_configs"],
)
def test_a_name_that_an_answer_leaves_out_has_an_error(cluster: FakeCluster, call: Call) -> None:
    """It was a KeyError, or a success."""
    cluster.intercept = lambda broker, request: answer_to(request, cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            with pytest.raises(BrokerError, match="the answer leaves 'a' out"):
                await call(admin)

    cluster.run(main)


def answer_to(request: IncomingRequest, cluster: FakeCluster) -> Response | None:
    return other_answer(request.body, cluster)


def test_results_have_the_names_that_were_asked_about_and_no_others(cluster: FakeCluster) -> None:
    """Those of the answer were printed as deleted."""
    cluster.intercept = lambda broker, request: answer_to(request, cluster)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            assert list(await admin.delete_topics(["a", "b"])) == ["a", "b"]
            assert list(await admin.delete_producer_names(["a", "b"])) == ["a", "b"]

    cluster.run(main)
