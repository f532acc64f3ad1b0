"""Reading a cluster's state from a real ZooKeeper, a closed port, and a server that never answers."""

import socket
import time
from collections.abc import Iterator

import msgspec
import pytest
from kazoo.client import KazooClient

from minibroker.audit.errors import AuditError
from minibroker.audit.reading.zookeeper_source import read_cluster_from_zookeeper
from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess
from minibroker.protocol.files.cluster_state import PartitionSnapshot
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import format_digest
from minibroker.protocol.witness import PartitionWitness, WitnessNode, witness_path
from minibroker.protocol.znodes import (
    CLUSTER_ID,
    BrokerRegistration,
    ClusterId,
    PartitionState,
    TopicAssignment,
    broker_path,
    delete_topic_path,
    partition_state_path,
    topic_path,
)
from tests.zookeeper_fixture import free_port

pytestmark = pytest.mark.system

ROOT = "/read-cluster"


@pytest.fixture
def tree(zookeeper: ZooKeeperProcess) -> Iterator[tuple[str, KazooClient]]:
    """The address of a ZooKeeper with a root of its own, and a client."""
    client = KazooClient(hosts=zookeeper.servers)
    client.start(timeout=10)
    client.create(f"{ROOT}", makepath=True)
    client.chroot = ROOT
    try:
        yield f"{zookeeper.servers}{ROOT}", client
    finally:
        client.chroot = ""
        client.delete(ROOT, recursive=True)
        client.stop()


def witness(epoch: int, end: int) -> PartitionWitness:
    return PartitionWitness(
        topic_id="id-t",
        leader_epoch=epoch,
        replicas=(1, 2),
        isr=(1,),
        log_start_offset=0,
        committed_offset=end,
        digest=format_digest(end),
        noted_at_ms=1,
    )


def plant(client: KazooClient) -> None:
    nodes = {
        CLUSTER_ID: ClusterId(id="c"),
        topic_path("t"): TopicAssignment.of("id-t", {0: (1, 2), 1: (2, 3)}),
        topic_path("going"): TopicAssignment.of("id-going", {0: (1,)}),
        partition_state_path(TopicPartition("t", 0)): PartitionState(
            leader=1, leader_epoch=4, controller_epoch=1, isr=[1], isr_directories={"1": "old", "2": "dir-2"}
        ),
        broker_path(1): BrokerRegistration(
            host="h",
            port=1,
            endpoints=[],
            listener_security_protocol_map={},
            timestamp="1",
            incarnation_id="i",
            directory_id="dir-1",
        ),
        witness_path(1, 0): WitnessNode(partitions={"t-0": witness(4, 7), "forgotten-0": witness(1, 1)}),
        witness_path(9, 0): WitnessNode(partitions={"t-0": witness(3, 9)}),
    }
    for path, node in nodes.items():
        client.create(path, node.encode(), makepath=True)
    client.create(delete_topic_path("going"), b"", makepath=True)


def test_all_that_the_audit_needs_is_read(tree: tuple[str, KazooClient]) -> None:
    connect, client = tree
    plant(client)
    state = read_cluster_from_zookeeper(connect)
    assert state.cluster_id == "c"
    assert state.brokers == {"1": "dir-1", "2": "dir-2", "3": None, "9": None}
    assert state.partitions == {
        "t-0": PartitionSnapshot(leader=1, leader_epoch=4, isr=(1,), replicas=(1, 2), topic_id="id-t"),
        "t-1": PartitionSnapshot(leader_epoch=0, isr=(), replicas=(2, 3), topic_id="id-t"),
    }
    assert state.witnesses == {"t-0": witness(4, 7)}


FOREIGN = ("/witness/zz/yy", "/witness/09/0", "/witness/1/zz", "/brokers/ids/x", "/brokers/topics/a b")


@pytest.mark.parametrize("path", FOREIGN)
def test_a_node_with_a_foreign_name_is_ignored(tree: tuple[str, KazooClient], path: str) -> None:
    connect, client = tree
    plant(client)
    before = read_cluster_from_zookeeper(connect)
    client.create(path, b"foreign", makepath=True)
    assert msgspec.structs.replace(read_cluster_from_zookeeper(connect), taken_at=before.taken_at) == before


def test_a_node_that_cannot_be_read_is_named_with_the_cure(tree: tuple[str, KazooClient]) -> None:
    connect, client = tree
    plant(client)
    client.set(witness_path(1, 0), b"foreign")
    with pytest.raises(AuditError, match=r"/witness/1/0: .*: correct that node, or remove it"):
        read_cluster_from_zookeeper(connect)


def test_a_zookeeper_without_a_cluster_is_an_error(tree: tuple[str, KazooClient]) -> None:
    with pytest.raises(AuditError, match="knows no cluster"):
        read_cluster_from_zookeeper(tree[0])


def test_a_closed_port_is_reported_in_one_sentence() -> None:
    with pytest.raises(AuditError, match=r"ZooKeeper at 127\.0\.0\.1:\d+ cannot be read: it does not answer"):
        read_cluster_from_zookeeper(f"127.0.0.1:{free_port()}", timeout_s=1.0)


def test_a_server_that_never_answers_times_out() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(AuditError, match="it does not answer"):
            read_cluster_from_zookeeper(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=1.0)
        assert time.monotonic() - began < 5
