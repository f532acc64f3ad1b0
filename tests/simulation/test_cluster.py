"""The unmodified broker, controller and client on simulated ports, with the default settings.

The swarm breaks more, with short timeouts; a broker that loses everything at once, ZooKeeper included, is only here.
"""

from collections.abc import Callable

import pytest

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import DescribeClusterRequest, Response
from minibroker.simulation.cluster import SimulatedCluster
from tests.broker.requests import ClusterClient, in_cluster

TOPIC = "story"
PARTITIONS = (0, 1)
RECORDS = 300
BROKEN_AT = 120
SECONDS_MAX = 300

Fault = Callable[[SimulatedCluster, int], Callable[[], None]]
"""Breaks a broker, and returns the repair."""


def killed(cluster: SimulatedCluster, broker_id: int) -> Callable[[], None]:
    cluster.kill(broker_id)
    return lambda: cluster.start(broker_id)


def cut_off(cluster: SimulatedCluster, broker_id: int) -> Callable[[], None]:
    """Cut off from brokers, clients and ZooKeeper."""
    world, name = cluster.world, f"broker-{broker_id}"
    world.network.isolate(name)
    world.zookeeper.cut(name)

    def repair() -> None:
        world.network.heal_all()
        world.zookeeper.heal(name)

    return repair


@pytest.mark.invariant("I21", "I23", "I28", "I36", "I38")
@pytest.mark.parametrize("fault", [killed, cut_off])
def test_cluster_survives_the_loss_of_a_leader_which_rejoins(fault: Fault) -> None:
    cluster = SimulatedCluster(1)
    written: dict[tuple[int, int], bytes] = {}
    epochs: set[int] = set()
    read: dict[tuple[int, int], bytes | None] = {}

    async def live() -> None:
        cluster.start_all()
        await cluster.until_ready()
        ports, servers = cluster.client_runtime(), cluster.bootstrap_servers
        async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
            await admin.create_topic(TOPIC, partitions=len(PARTITIONS), replication_factor=3)
        repair = None
        async with Producer(bootstrap_servers=servers, acks="all", linger_ms=1, runtime=ports) as producer:
            for number in range(RECORDS):
                if number == BROKEN_AT:
                    repair = fault(cluster, cluster.leader(TOPIC) or 0)
                value = b"value-%d" % number
                metadata = await producer.send_and_wait(TOPIC, value, partition=number % len(PARTITIONS))
                assert metadata.offset is not None
                assert metadata.leader_epoch is not None
                written[metadata.partition, metadata.offset] = value
                epochs.add(metadata.leader_epoch)
        assert repair is not None
        repair()
        await cluster.until(
            lambda: all(cluster.in_sync_replicas(TOPIC, partition) == (1, 2, 3) for partition in PARTITIONS),
            what="a full ISR",
        )
        async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", runtime=ports) as consumer:
            consumer.assign([TopicPartition(TOPIC, partition) for partition in PARTITIONS])
            while len(read) < RECORDS:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    read.update({(record.partition, record.offset): record.value for record in records})

    cluster.world.run(live(), seconds_max=SECONDS_MAX)
    assert len(epochs) > 1
    assert read == written


def test_a_process_that_was_just_started_shows_nothing_of_the_one_before() -> None:
    """Once a cluster looked converged by the replicas of a broker that had been killed and started at that moment."""
    cluster = SimulatedCluster(1)

    async def live() -> None:
        cluster.start_all()
        await cluster.until_ready()
        ports, servers = cluster.client_runtime(), cluster.bootstrap_servers
        async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
            await admin.create_topic(TOPIC, replication_factor=3)
        await cluster.until(lambda: cluster.replica(3, TOPIC) is not None, 5, "its replica")
        cluster.kill(3)
        cluster.start(3)
        assert cluster.replica(3, TOPIC) is None
        await cluster.until(lambda: cluster.replica(3, TOPIC) is not None, 5, "its replica again")

    cluster.world.run(live(), seconds_max=SECONDS_MAX)


def test_bug_in_a_process_is_remembered_when_its_broker_runs_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker repeats a query that got an error from another one, so no client learns of the bug. The swarm asked only
    the processes that lived at the end of a run."""

    def fail(*_: object) -> Response:
        raise KeyError("a bug")

    async def check(client: ClusterClient) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(MetadataImage, "answer_describe_cluster", fail)
            await client.ask(1, DescribeClusterRequest(), Response)
        client.cluster.kill(1)
        client.cluster.start(1)
        await client.cluster.until(lambda: 1 not in client.cluster.starting)
        assert client.cluster.failed_reads() == [(1, "DESCRIBE_CLUSTER")]
        assert (await client.ask(2, DescribeClusterRequest(), Response)).error_code == ErrorCode.NONE

    in_cluster(check)
