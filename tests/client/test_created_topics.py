"""When a topic counts as created."""

import asyncio

from minibroker.client.admin import AdminClient
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import CreateTopicsRequest, Response
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster, FakePartition
from tests.client.test_admin import Administration


def test_a_created_topic_has_all_its_partitions_when_the_call_returns(cluster: FakeCluster) -> None:
    """A controller elects many leaders in several steps: the call returned after the first, and `topic create` printed
    180 partitions of 1,000."""
    administration = Administration(cluster)

    def first_half(broker: int, request: IncomingRequest) -> Response | bool | None:
        if isinstance(request.body, CreateTopicsRequest):
            loop, index = asyncio.get_running_loop(), TopicPartition("new", 3)
            loop.call_later(1e-6, lambda: halves.append(cluster.partitions.pop(index)))
            loop.call_later(0.5, lambda: cluster.partitions.update({index: halves[0]}))
        return administration.answer(broker, request)

    halves: list[FakePartition] = []
    cluster.intercept = first_half

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            await admin.create_topic("new", partitions=4)
            described = await admin.describe_topics(["new"])
            assert len(described["new"].partitions) == 4

    cluster.run(main)
