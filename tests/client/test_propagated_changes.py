"""A change of topics returns once all live brokers know of it: what happens where one dies meanwhile."""

import asyncio

import msgspec
import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.errors import ClientClosed
from minibroker.protocol.wire.messages import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import PORT, FakeCluster

DYING = 2
CREATED_AFTER_SECONDS = 0.5
DIES_AFTER_SECONDS = 0.2
ANSWERS_AFTER_SECONDS = 3.0


@pytest.mark.parametrize("noticed_after_seconds", [DIES_AFTER_SECONDS, 3.0], ids=["noticed at once", "noticed later"])
@pytest.mark.parametrize("way", ["kill", "pause"])
def test_a_broker_that_is_gone_is_not_waited_for_once_the_cluster_has_noticed(
    cluster: FakeCluster, way: str, noticed_after_seconds: float
) -> None:
    """It is named in metadata until its session with ZooKeeper ends: the client has to ask for them again."""

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()

        def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
            body = request.body
            if isinstance(body, CreateTopicsRequest):
                loop.call_later(DIES_AFTER_SECONDS, getattr(cluster.world, way), f"broker{DYING}")
                loop.call_later(CREATED_AFTER_SECONDS, cluster.add_topic, "new")
                return CreateTopicsResponse(topics=[CreatableTopicResult(name="new", topic_id="x", num_partitions=1)])
            if not isinstance(body, MetadataRequest):
                return None
            answer = cluster.brokers[broker].metadata(body)
            assert isinstance(answer, MetadataResponse)
            named = [each for each in answer.brokers if each.node_id != DYING]
            if loop.time() - began < noticed_after_seconds:
                named.append(MetadataBroker(node_id=DYING, host=f"broker{DYING}", port=PORT))
            return msgspec.structs.replace(answer, brokers=named)

        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            began = loop.time()
            cluster.intercept = intercept
            await admin.create_topic("new")
            return loop.time() - began

    assert CREATED_AFTER_SECONDS <= cluster.run(main) < max(CREATED_AFTER_SECONDS, noticed_after_seconds) + 2


@pytest.mark.parametrize("fault", [True, False], ids=["silent", "loses the connection"])
def test_a_broker_that_lives_and_does_not_answer_for_a_moment_is_waited_for(cluster: FakeCluster, fault: bool) -> None:
    """The call would return while that broker does not know the topic: what the program sends next could fail."""

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()

        def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
            if isinstance(request.body, CreateTopicsRequest):
                loop.call_later(CREATED_AFTER_SECONDS, cluster.add_topic, "new")
                return CreateTopicsResponse(topics=[CreatableTopicResult(name="new", topic_id="x", num_partitions=1)])
            is_quiet = loop.time() - began < ANSWERS_AFTER_SECONDS
            return fault if broker == DYING and is_quiet and isinstance(request.body, MetadataRequest) else None

        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            began = loop.time()
            cluster.intercept = intercept
            await admin.create_topic("new")
            return loop.time() - began

    assert ANSWERS_AFTER_SECONDS <= cluster.run(main) < ANSWERS_AFTER_SECONDS + 2


def test_a_call_that_waits_for_brokers_ends_when_another_task_closes_its_client(cluster: FakeCluster) -> None:
    """It took a closed client for brokers that do not answer, and waited for them up to its deadline."""

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, CreateTopicsRequest):
            return None
        return CreateTopicsResponse(topics=[CreatableTopicResult(name="new", topic_id="x", num_partitions=1)])

    cluster.intercept = intercept

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            creating = asyncio.create_task(admin.create_topic("new"))
            await asyncio.sleep(1)
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(creating, 0.1)

    cluster.run(main)
