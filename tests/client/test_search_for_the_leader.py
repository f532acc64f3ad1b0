"""How a producer finds the leader after an answer that did not acknowledge its batch."""

import asyncio

from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import MetadataRequest, ProduceRequest, ProduceResponse
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster

SOON_SECONDS = 0.5


def test_a_leader_that_only_a_refusal_names_gets_the_batch(cluster: FakeCluster) -> None:
    """Metadata may come late: brokers are busy with an election then."""
    cluster.partition("t").elect(1)

    async def main(runtime: Runtime) -> float:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.intercept = lambda broker, request: isinstance(request.body, MetadataRequest) or None
            cluster.partition("t").elect(2)
            began = asyncio.get_running_loop().time()
            await producer.send_and_wait("t", b"b")
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < SOON_SECONDS
    assert cluster.partition("t").values() == [b"a", b"b"]


def test_another_broker_is_asked_who_leads_after_an_answer_that_leaves_the_batch_out(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            asked = cluster.asked(MetadataRequest)
            cluster.intercept = lambda broker, request: (
                ProduceResponse() if isinstance(request.body, ProduceRequest) else None
            )
            delivery = await producer.send("t", b"b")
            await asyncio.sleep(SOON_SECONDS)
            assert cluster.asked(MetadataRequest) > asked
            cluster.intercept = lambda broker, request: None
            await delivery

    cluster.run(main)
