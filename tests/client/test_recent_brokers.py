"""A list of live brokers that a command shows is recent, and costs no request if one has just come."""

import asyncio

from minibroker.client.admin import AdminClient
from minibroker.client.cluster import BROKERS_FRESH_MS, Cluster, ClusterSettings
from minibroker.client.limits import Deadline
from minibroker.client.metadata_cache import Address
from minibroker.protocol.wire.messages import DescribeReplicaStateRequest, DescribeReplicaStateResponse, MetadataRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import PORT, FakeCluster

HOURS_UP = 10
"""A machine's clock counts from its start, and has come far when a client starts."""


def test_brokers_are_asked_for_again_once_their_list_is_not_fresh(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        await asyncio.sleep(HOURS_UP * 3_600)
        client = Cluster(runtime, ClusterSettings(bootstrap=[Address("broker1", PORT)], client_id="test"))
        await client.start()
        try:
            asked = cluster.asked(MetadataRequest)
            await client.refresh_brokers(Deadline(1_000))
            assert cluster.asked(MetadataRequest) == asked, "the answer at the start is fresh"
            await asyncio.sleep(BROKERS_FRESH_MS / 1_000 + 0.1)
            await client.refresh_brokers(Deadline(1_000))
            assert cluster.asked(MetadataRequest) > asked
        finally:
            await client.close()

    cluster.run(main, seconds_max=HOURS_UP * 3_600 + 60)


def test_the_replicas_of_a_broker_that_has_just_come_are_described_too(cluster: FakeCluster) -> None:
    came = cluster.advertised.pop(3)
    cluster.intercept = lambda broker, request: (
        DescribeReplicaStateResponse(broker_id=broker)
        if isinstance(request.body, DescribeReplicaStateRequest)
        else None
    )

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers="broker1:9092", runtime=runtime) as admin:
            assert list(await admin.describe_replica_state(timeout_ms=1_000)) == [1, 2]
            cluster.advertised[3] = came
            await asyncio.sleep(BROKERS_FRESH_MS / 1_000 + 0.1)
            assert list(await admin.describe_replica_state(timeout_ms=1_000)) == [1, 2, 3]

    cluster.run(main)
