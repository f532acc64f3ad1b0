"""`minibroker audit DIR` while the cluster of DIR runs."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.local_cluster.cluster_file import BrokerRecord, ClusterRecord, ZooKeeperRecord, write_cluster_file
from minibroker.local_cluster.processes import ProcessIdentity, identify
from minibroker.protocol.files.cluster_state import CLUSTER_STATE
from minibroker.protocol.ids import TopicPartition
from tests.audit.damage import ENCODED
from tests.audit.planted_cluster import PlantedCluster

HINT = "the cluster runs: `--zookeeper 127.0.0.1:2182` asks its ZooKeeper what should be there\n"


def audited(directory: Path, *options: str) -> tuple[int, str]:
    ended = CliRunner().invoke(minibroker, ["audit", str(directory), "--engine", "local", *options])
    return ended.exit_code, ended.stderr


def write_running_cluster(directory: Path, process: ProcessIdentity | None) -> None:
    zookeeper = ZooKeeperRecord(connect="127.0.0.1:2182")
    record = ClusterRecord(zookeeper=zookeeper, brokers={1: BrokerRecord(port=9092, process=process)})
    write_cluster_file(directory, record)


def test_the_address_of_its_zookeeper_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that runs leaves no cluster-state.json, and the finding says HOST:PORT. A copy of its directory names
    its processes, too, and was said to run."""
    cluster = PlantedCluster(tmp_path)
    cluster.write(TopicPartition("lines", 0), ENCODED)
    (tmp_path / CLUSTER_STATE).unlink()
    write_running_cluster(tmp_path, identify(os.getpid()))
    assert audited(tmp_path) == (10, ""), "it was not started with the files of this directory"
    with monkeypatch.context() as patch:
        patch.setattr(ProcessIdentity, "was_started_with", lambda self, file: file.parent == tmp_path)
        assert audited(tmp_path) == (10, HINT)
        assert audited(tmp_path, "--allow-unproven") == (0, "")
    write_running_cluster(tmp_path, None)
    assert audited(tmp_path) == (10, "")
