"""What a broker's data path shows to those who check it: a checker that is shown nothing finds nothing."""

from minibroker.broker.replicas import observations as shown
from minibroker.client.admin import AdminClient
from minibroker.protocol.wire import messages as m
from tests.broker.requests import TOPIC, ClusterClient, in_cluster

KINDS = (
    shown.OrderAdmitted,
    shown.ReplicaLoaded,
    shown.ReplicaStepped,
    shown.BatchesLogged,
    shown.RecordsRead,
    shown.ConsumerReadGranted,
    shown.MetadataAnswered,
)
"""All but a shortened log."""


async def kinds_of(client: ClusterClient, request: m.Request, response: type[m.Response]) -> list[str]:
    """What the leader shows while it answers a client."""
    seen: list[object] = []
    with client.cluster.world.observers.subscribed(seen.append):
        await client.ask(client.leader, request, response)
    return [type(each).__name__ for each in seen if isinstance(each, shown.ConsumerReadGranted | shown.RecordsRead)]


def test_each_kind_of_observation_is_made() -> None:
    async def check(client: ClusterClient) -> None:
        cluster, seen = client.cluster, set[type]()
        with cluster.world.observers.subscribed(lambda event: seen.add(type(event))):
            runtime = cluster.client_runtime()
            async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=runtime) as admin:
                await admin.create_topic("another", partitions=1, replication_factor=3)
            await client.produce()
            await client.fetch()
        assert [kind.__name__ for kind in KINDS if kind not in seen] == []

    in_cluster(check)


def test_a_consumer_that_may_read_is_shown_though_there_is_nothing_to_read() -> None:
    """It learns the high watermark, which a fenced broker must not tell. A follower is no consumer."""

    async def check(client: ClusterClient) -> None:
        topics = [m.FetchTopic(topic=TOPIC, partitions=[m.FetchPartition(partition=0, fetch_offset=0)])]
        consumer = m.FetchRequest(max_wait_ms=0, topics=topics)
        assert await kinds_of(client, consumer, m.FetchResponse) == ["ConsumerReadGranted"]
        follower = client.followers[0]
        replica = m.FetchRequest(
            replica_id=follower, replica_epoch=client.broker_epoch(follower), max_wait_ms=0, topics=topics
        )
        assert await kinds_of(client, replica, m.FetchResponse) == []

    in_cluster(check)
