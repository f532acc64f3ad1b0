"""The snapshot of a stopped cluster for the audit: what of it is from before the stop, and what from after it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.audit.errors import AuditError
from minibroker.audit.reading.zookeeper_source import NoCluster
from minibroker.local_cluster import cluster_file, cluster_snapshot, local_cluster
from minibroker.local_cluster.cluster_file import STATE_FILE, forget_cluster_state, only_stop
from minibroker.local_cluster.cluster_snapshot import joined, state_of_view
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.cluster_view import BrokerView, ClusterView
from minibroker.protocol.files.cluster_state import ClusterState, PartitionSnapshot
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    DescribedReplicaTopic,
    DescribeReplicaStateResponse,
    MetadataPartition,
    ReplicaStateDescription,
)


def refusing(monkeypatch: pytest.MonkeyPatch, error: AuditError) -> None:
    def read(connect: str, timeout_s: float) -> ClusterState:
        raise error

    monkeypatch.setattr(cluster_snapshot, "read_cluster_from_zookeeper", read)


async def test_a_zookeeper_without_brokers_causes_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, NoCluster("knows no cluster"))
    assert await cluster_snapshot.ask_zookeeper("localhost:1", brokers_told=True) is None
    assert not caplog.records


async def test_a_zookeeper_that_cannot_be_read_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, AuditError("does not answer"))
    assert await cluster_snapshot.ask_zookeeper("localhost:1", brokers_told=True) is None
    assert caplog.messages == ["cluster-state.json holds only what the brokers reported: does not answer"]


# ----------------------------------------------------------------------------------------------------- before the stop
def as_seen(role: str, leader_epoch: int) -> ClusterState:
    """Metadata says that broker 1 leads in epoch 5 with the ISR (1, 2); broker 1 describes its replica so."""
    replica = ReplicaStateDescription(
        partition=0, role=role, leader_epoch=leader_epoch, in_sync_replicas=[1, 2, 3], high_watermark=40
    )
    described = DescribeReplicaStateResponse(
        broker_id=1, topics=[DescribedReplicaTopic(topic="lines", partitions=[replica])]
    )
    return state_of_view(
        ClusterView(
            taken_at=7.0,
            cluster_id="cluster",
            controller_id=1,
            brokers=[
                BrokerView(broker_id=1, server="a:1", description=described, problem=None),
                BrokerView(broker_id=2, server="b:2", description=None, problem="silent"),
            ],
            partitions={
                TopicPartition("lines", 0): MetadataPartition(
                    partition_index=0, leader_id=1, leader_epoch=5, replica_nodes=[1, 2, 3], isr_nodes=[1, 2]
                )
            },
            topic_ids={"lines": "id"},
        )
    )


def test_the_leader_tells_who_was_in_sync_and_what_each_of_them_held() -> None:
    """Both in one answer: metadata may name a member that joined later, and lacks records below the high watermark."""
    state = as_seen("leader", 5)
    assert (state.taken_at, state.cluster_id, state.brokers) == (7.0, "cluster", {"1": None, "2": None})
    assert state.partitions == {
        "lines-0": PartitionSnapshot(
            leader=1,
            leader_epoch=5,
            isr=(1, 2),
            isr_before=(1, 2, 3),
            committed_before=40,
            replicas=(1, 2, 3),
            topic_id="id",
        )
    }


@pytest.mark.parametrize(("role", "leader_epoch"), [("follower", 5), ("leader", 4), ("leader", 6), ("none", 5)])
def test_a_replica_that_does_not_lead_in_that_epoch_tells_nothing(role: str, leader_epoch: int) -> None:
    found = as_seen(role, leader_epoch).partitions["lines-0"]
    assert (found.isr_before, found.committed_before) == ((1, 2), None)


# ------------------------------------------------------------------------------------------------------ after the stop
def at_the_end(topic_id: str | None = "id", **brokers: str | None) -> ClusterState:
    snapshot = PartitionSnapshot(leader=None, leader_epoch=8, isr=(3,), replicas=(1, 2, 3), topic_id=topic_id)
    return ClusterState(
        version=2,
        taken_at=9.0,
        brokers={name[1:]: known for name, known in brokers.items()},
        partitions={"lines-0": snapshot},
    )


def test_the_state_after_the_stop_counts_and_who_was_in_sync_before_is_kept() -> None:
    """A stop takes one broker after the other out of the ISR: their replicas hold what was committed, too."""
    found = joined(as_seen("leader", 5), None, at_the_end(), (1, 3))
    known = found.partitions["lines-0"]
    assert (known.isr, known.leader_epoch, known.isr_before, known.committed_before) == ((3,), 8, (1, 2, 3), 40)
    assert (found.version, found.taken_at, found.stopped_cleanly) == (2, 9.0, (1, 3))


@pytest.mark.parametrize(
    "before", [None, ClusterState(partitions={}), as_seen("leader", 5)], ids=["none", "new", "other"]
)
def test_nothing_is_known_of_a_topic_that_was_made_since(before: ClusterState | None) -> None:
    known = joined(before, None, at_the_end("id of the next topic"), ()).partitions["lines-0"]
    assert (known.isr_before, known.committed_before) == ((), None)


def test_the_directory_of_a_broker_is_that_of_its_registration() -> None:
    """Registrations end with the stop. Without their directories another disk in a broker's place is not noticed."""
    running = at_the_end(b1="disk 1", b2="disk 2", b3=None)
    found = joined(as_seen("leader", 5), running, at_the_end(b1=None, b2="an earlier disk", b3="disk 3", b4=None), ())
    assert found.brokers == {"1": "disk 1", "2": "disk 2", "3": "disk 3", "4": None}


# -------------------------------------------------------------------------------------------------- when it is written
@pytest.mark.parametrize("has_started", [True, False])
async def test_a_second_stop_keeps_what_the_first_one_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_started: bool
) -> None:
    """ZooKeeper alone was started, and knows neither who was in sync before the stop nor what was committed: the state
    that says so was overwritten, and the audit then missed that a replica had lost records. The start of a broker
    removes that state."""

    async def state(**_: object) -> ClusterState:
        return at_the_end()

    cluster = LocalCluster(tmp_path, 1)
    monkeypatch.setattr(cluster.zookeeper, "state", state)
    (tmp_path / STATE_FILE).write_text("of the first stop")
    if has_started:
        forget_cluster_state(tmp_path)
    assert await cluster.down() == []
    assert ((tmp_path / STATE_FILE).read_text() == "of the first stop") != has_started
    assert (tmp_path / STATE_FILE).exists()


async def test_a_stop_that_found_no_broker_replaces_no_state_that_another_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had not waited for the other one: that took too long, or the file system has no locks."""

    async def state(**_: object) -> ClusterState:
        (tmp_path / STATE_FILE).write_text("of the first stop")
        return at_the_end()

    cluster = LocalCluster(tmp_path, 1)
    monkeypatch.setattr(cluster.zookeeper, "state", state)
    assert await cluster.down() == []
    assert (tmp_path / STATE_FILE).read_text() == "of the first stop"


def test_a_stop_waits_for_one_that_has_to_kill_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited as long as the first one waits for that broker, and then wrote a state that knew less."""
    waited: list[float] = []

    @contextlib.asynccontextmanager
    async def only_stop(data_directory: Path, timeout_s: float) -> AsyncIterator[None]:
        waited.append(timeout_s)
        yield

    monkeypatch.setattr(cluster_file, "only_stop", only_stop)
    cluster_file.write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    CliRunner().invoke(minibroker, ["cluster", "down", "--data-dir", str(tmp_path), "--timeout", "7"])
    assert waited[0] > 7 + local_cluster.KILL_TIMEOUT_S


async def test_one_stop_waits_for_another(tmp_path: Path) -> None:
    """The later one saw an ISR that was shrinking, or no broker, and its state replaced that of the first one. One that
    hangs is not waited for without end, and one that has removed the directory not at all."""
    order: list[str] = []

    async def stop(name: str, timeout_s: float) -> None:
        async with only_stop(tmp_path, timeout_s):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(stop("first", 10), stop("second", 10))
    assert order == ["first begins", "first ends", "second begins", "second ends"]
    async with only_stop(tmp_path, 10):
        await stop("impatient", 0)
    async with only_stop(tmp_path / "gone", 10):
        order.append("gone")
    assert order[4:] == ["impatient begins", "impatient ends", "gone"]


@pytest.mark.parametrize("is_interrupted", [True, False])
async def test_no_state_is_left_of_a_cluster_that_was_not_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """The brokers that still ran went on writing, and the audit missed that on those that had been stopped. Without
    ZooKeeper what the brokers said is kept, once all have stopped."""

    class View:
        controller_id = -1

    async def look() -> View:
        return View()

    async def nothing(**_: object) -> None:
        pass

    async def stop(*_: object) -> list[str | None]:
        if is_interrupted:
            raise asyncio.CancelledError
        return []

    cluster = LocalCluster(tmp_path, 1)
    monkeypatch.setattr(cluster, "look", look)
    monkeypatch.setattr(local_cluster, "state_of_view", lambda _: as_seen("leader", 5))
    monkeypatch.setattr(cluster.zookeeper, "state", nothing)
    monkeypatch.setattr(cluster, "_stop_brokers", stop)
    await asyncio.wait([asyncio.create_task(cluster.down())])
    assert (tmp_path / STATE_FILE).exists() != is_interrupted
