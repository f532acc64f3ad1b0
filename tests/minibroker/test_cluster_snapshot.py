"""The snapshot of a stopped cluster for the audit, if ZooKeeper is empty or cannot be read."""

import pytest

from minibroker.audit.errors import AuditError
from minibroker.audit.reading.zookeeper_source import NoCluster
from minibroker.local_cluster import cluster_snapshot
from minibroker.protocol.files.cluster_state import ClusterState


def refusing(monkeypatch: pytest.MonkeyPatch, error: AuditError) -> None:
    def read(connect: str, timeout_s: float) -> ClusterState:
        raise error

    monkeypatch.setattr(cluster_snapshot, "read_cluster_from_zookeeper", read)


async def test_a_zookeeper_without_brokers_causes_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, NoCluster("knows no cluster"))
    assert await cluster_snapshot.ask_zookeeper("localhost:1") is None
    assert not caplog.records


async def test_a_zookeeper_that_cannot_be_read_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refusing(monkeypatch, AuditError("does not answer"))
    assert await cluster_snapshot.ask_zookeeper("localhost:1") is None
    assert caplog.messages == ["cluster-state.json holds only what the brokers reported: does not answer"]
