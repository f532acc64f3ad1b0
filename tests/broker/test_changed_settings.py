"""A setting of a topic or a broker that changes applies to the replicas that run already."""

from minibroker.client.admin import AdminClient
from minibroker.protocol.ids import TopicPartition
from tests.broker.requests import TOPIC, ClusterClient, in_cluster

SOON_SECONDS = 10


def settings_of(client: ClusterClient, broker_id: int, topic: str) -> tuple[int, int | None]:
    """min.insync.replicas and retention.bytes of the replica of that broker."""
    partition = client.cluster.brokers[broker_id].manager.partitions[TopicPartition(topic, 0)]
    return partition.state.config.min_insync_replicas, partition.log.config.retention_bytes


def test_a_changed_setting_applies_to_running_replicas_of_its_topic_or_broker_alone() -> None:
    """Otherwise a leader commits with fewer copies than the topic asks for until the next election, and no retention
    that is asked for frees a disk."""

    async def check(client: ClusterClient) -> None:
        cluster, servers = client.cluster, client.cluster.bootstrap_servers
        async with AdminClient(bootstrap_servers=servers, runtime=client.runtime) as admin:
            await admin.create_topic("other", partitions=1, replication_factor=3)
            await cluster.until(lambda: cluster.in_sync_replicas("other") == (1, 2, 3), what="a second topic")
            before = settings_of(client, 1, "other")

            await admin.alter_configs({"min.insync.replicas": "3", "retention.bytes": "2097152"}, topic=TOPIC)
            await cluster.until(
                lambda: {settings_of(client, b, TOPIC) for b in (1, 2, 3)} == {(3, 2_097_152)},
                SOON_SECONDS,
                "the topic's settings",
            )
            assert {settings_of(client, b, "other") for b in (1, 2, 3)} == {before}

            await admin.alter_configs({"log.retention.bytes": "4194304"}, broker_id=2)
            await cluster.until(
                lambda: settings_of(client, 2, "other") == (before[0], 4_194_304), SOON_SECONDS, "the broker's setting"
            )
            assert settings_of(client, 2, TOPIC) == (3, 2_097_152), "the topic's own setting comes first"
            assert settings_of(client, 1, "other") == before

    in_cluster(check)
