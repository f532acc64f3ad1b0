"""`minibroker cluster start` of several brokers, without starting one."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from minibroker.commands.cluster_broker import start
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import LocalCluster


def test_a_broker_that_runs_already_does_not_prevent_the_start_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[int] = []

    async def begin(broker_id: int, timeout_s: float) -> None:
        if broker_id == 1:
            raise ClusterFailed("broker 1 is already running")
        started.append(broker_id)

    cluster = SimpleNamespace(
        broker_ids=[1, 2],
        record=SimpleNamespace(brokers={1: None, 2: None}),
        process_state=lambda broker_id: "running" if broker_id == 1 else "down",
        start=begin,
        server=lambda broker_id: f"127.0.0.1:{broker_id}",
        zookeeper=SimpleNamespace(is_down=lambda: False, require=lambda: None),
    )
    monkeypatch.setattr(LocalCluster, "open", lambda directory: cluster)
    printed = CliRunner().invoke(start, ["1", "2", "--data-dir", str(tmp_path)])
    assert started == [2]
    assert printed.stdout == "broker 2: started, address: 127.0.0.1:2\n"
    assert (printed.exit_code, "broker 1 is already running" in printed.stderr) == (1, True)
