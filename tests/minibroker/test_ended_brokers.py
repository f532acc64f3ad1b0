"""What is told of brokers that ended by themselves, and of those that run on."""

import json
from pathlib import Path

import pytest

from minibroker.local_cluster import local_cluster
from minibroker.local_cluster.broker_process import ended_brokers
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation import broker_queries
from minibroker.observation.broker_queries import BrokerQueries
from minibroker.observation.cluster_view import ClusterView

REFUSAL = "ZooKeeper's data is older than what this broker has seen there ({} of 9): restore the youngest copy"


@pytest.fixture
def logs(tmp_path: Path) -> dict[int, Path]:
    """Three brokers refuse the same; the third logs JSON."""
    files = {each: tmp_path / f"broker-{each}.log" for each in (1, 2, 3)}
    for each, file in files.items():
        line = f"2026-11-28 06:01:02,345 ERROR minibroker: broker {each}: {REFUSAL.format(each)}"
        if each == 3:
            text = f"broker {each}: {REFUSAL.format(each)}"
            line = json.dumps({"time": "2026-11-28T06:01:02.345Z", "level": "ERROR", "text": text})
        file.write_text(f"2026-11-28 06:01:02,300 INFO minibroker: starts\n{line}\n")
    return files


def test_a_reason_is_a_sentence_and_is_told_once(logs: dict[int, Path]) -> None:
    """Once each was a whole line of the log, with its time."""
    assert ended_brokers(logs) == [
        f"broker 1 has ended by itself: {logs[1]} ends with: {REFUSAL.format(1)}",
        "broker 2 has ended by itself, for the same reason as broker 1",
        "broker 3 has ended by itself, for the same reason as broker 1",
    ]
    (third,) = ended_brokers({3: logs[3]})
    assert third.endswith(f" ends with: {REFUSAL.format(3)}")
    logs[1].write_text("{not json\n")
    assert ended_brokers({1: logs[1]})[0].endswith(" ends with: {not json")


async def test_brokers_that_end_a_moment_later_do_not_keep_running(
    tmp_path: Path, logs: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the first one that ended was told alone, and that the others run on."""
    cluster = LocalCluster(tmp_path, 3)
    states = {1: "dead", 2: "running", 3: "running"}
    asked: list[str] = []

    async def ends_when_asked(_: BrokerQueries, server: str, timeout_s: float) -> str:
        asked.append(server)
        states[2 if server == cluster.server(2) else 3] = "dead"
        return "it is fenced"

    async def undo(was_unused: bool) -> None:
        pass

    monkeypatch.setattr(cluster, "process_state", states.__getitem__)
    monkeypatch.setattr(cluster, "_begin", lambda _: None)
    monkeypatch.setattr(cluster, "_undo", undo)
    monkeypatch.setattr(broker_queries, "POLL_S", 0.0)
    monkeypatch.setattr(BrokerQueries, "why_not_serving", ends_when_asked)
    with pytest.raises(ClusterFailed) as failure:
        await cluster.up(keep_running=True)
    assert asked == [cluster.server(2), cluster.server(3)]
    assert "keep running" not in str(failure.value)
    assert str(failure.value).endswith("broker 3 has ended by itself, for the same reason as broker 1")


async def test_a_cluster_that_is_not_healthy_keeps_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the message said 'it', and named nothing before."""
    cluster = LocalCluster(tmp_path, 1)

    async def not_healthy(timeout_s: float) -> ClusterView:
        raise ClusterFailed("not healthy after 1 s: t-0 has no leader")

    monkeypatch.setattr(local_cluster, "SETTLE_S", 0.0)
    monkeypatch.setattr(cluster, "process_state", lambda _: "running")
    monkeypatch.setattr(cluster, "_begin", lambda _: None)
    monkeypatch.setattr(cluster, "wait_healthy", not_healthy)
    with pytest.raises(ClusterFailed, match="t-0 has no leader; the cluster keeps running: see `minibroker cluster"):
        await cluster.up(keep_running=True)


def test_a_broker_that_refused_to_run_is_not_only_started_again(
    tmp_path: Path, logs: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over an older copy of ZooKeeper's data it would refuse again."""
    cluster = LocalCluster(tmp_path, 3)
    monkeypatch.setattr(cluster, "process_state", lambda _: "dead")
    refused, same, _ = cluster.process_problems()[:3]
    assert refused.endswith(f"{REFUSAL.format(1)}; after a repair, `minibroker cluster start` starts it again")
    assert same.endswith("as broker 1; after a repair, `minibroker cluster start` starts it again")
    logs[1].write_text("2026-11-28 06:01:02,300 INFO minibroker: starts\n")
    killed = cluster.process_problems()[0]
    assert killed.endswith("; `minibroker cluster start` starts it again")
    assert "after a repair" not in killed
