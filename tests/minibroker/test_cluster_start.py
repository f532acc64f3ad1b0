"""`minibroker cluster start` of several brokers, and all commands on ZooKeeper, without starting one."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click import Command
from click.testing import CliRunner

from minibroker.command_line import EXIT_USAGE
from minibroker.commands.cluster_broker import kill, pause, resume, start, stop
from minibroker.local_cluster import cluster_zookeeper, local_cluster
from minibroker.local_cluster.broker_names import BadBrokerName, resolve_all
from minibroker.local_cluster.cluster_file import ClusterFailed, ZooKeeperRecord
from minibroker.local_cluster.cluster_zookeeper import ClusterZooKeeper
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.processes import ProcessIdentity
from minibroker.local_cluster.zookeeper_process import PortTaken, ZooKeeperProcess


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


def test_a_broker_whose_port_is_taken_does_not_hide_the_start_of_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others were started, and not a word of it was said."""

    async def begin(broker_id: int, timeout_s: float) -> None:
        if broker_id == 1:
            raise PortTaken("port 9092 is taken by pid 7 (nc -l)")

    cluster = SimpleNamespace(
        broker_ids=[1, 2],
        process_state=lambda broker_id: "down",
        paused=lambda *broker_ids: [],
        start=begin,
        server=lambda broker_id: f"127.0.0.1:{broker_id}",
        zookeeper=SimpleNamespace(is_down=lambda: False, require=lambda: None),
    )
    monkeypatch.setattr(LocalCluster, "open", lambda directory: cluster)
    printed = CliRunner().invoke(start, ["--data-dir", str(tmp_path)])
    assert (printed.exit_code, printed.stdout) == (1, "broker 2: started, address: 127.0.0.1:2\n")
    assert printed.stderr == "error: port 9092 is taken by pid 7 (nc -l)\n"


def test_a_start_of_all_that_is_down_names_what_is_paused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It said that nothing is down, and two brokers stood still."""
    cluster = SimpleNamespace(
        broker_ids=[1, 2],
        process_state=lambda broker_id: "paused" if broker_id == 1 else "running",
        paused=lambda *broker_ids: ["broker 1 is paused: resume it"] if 1 in broker_ids else [],
        record=SimpleNamespace(brokers={1: None, 2: None}),
        zookeeper=SimpleNamespace(is_down=lambda: False, require=lambda: None),
    )
    monkeypatch.setattr(LocalCluster, "open", lambda directory: cluster)
    printed = CliRunner().invoke(start, ["--data-dir", str(tmp_path)])
    assert (printed.exit_code, printed.stdout) == (1, "")
    assert "broker 1 is paused: resume it" in printed.stderr


@pytest.mark.parametrize("keep_running", [True, False])
async def test_a_start_names_the_end_of_its_zookeeper_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep_running: bool
) -> None:
    """Brokers waited for it for 18 s, and then a broker 'has ended by itself: ZooKeeper does not answer: start it'. It
    was in its log why."""
    cluster = LocalCluster(tmp_path, 1)
    stopped: list[float] = []

    def spawn(zookeeper: ClusterZooKeeper) -> None:
        (tmp_path / "zookeeper").mkdir(exist_ok=True)
        (log := tmp_path / "zookeeper" / "zookeeper.log").write_text("Invalid config, exiting abnormally\n")
        with subprocess.Popen([sys.executable, "-c", ""]) as child:
            child.wait()
        zookeeper._child = ZooKeeperProcess(child.pid, 1, str(log), child)

    async def stop(timeout_s: float) -> None:
        stopped.append(timeout_s)

    monkeypatch.setattr(ClusterZooKeeper, "spawn", spawn)
    monkeypatch.setattr(cluster, "_spawn", lambda _: None)
    monkeypatch.setattr(cluster, "process_state", lambda _: "running")
    monkeypatch.setattr(cluster, "_stop_all", stop)
    monkeypatch.setattr(local_cluster, "SETTLE_S", 0.0)
    with pytest.raises(ClusterFailed) as failure:
        await cluster.up(keep_running=keep_running)
    log = tmp_path / "zookeeper" / "zookeeper.log"
    assert str(failure.value) == f"ZooKeeper has ended; {log} ends with: Invalid config, exiting abnormally"
    assert stopped


async def test_all_names_that_mean_no_broker_are_told(tmp_path: Path) -> None:
    with pytest.raises(ClusterFailed, match=r"there is no broker 7.*there is no broker 8"):
        await resolve_all(LocalCluster(tmp_path), ["1", "7", "8"])
    with pytest.raises(BadBrokerName):
        await resolve_all(LocalCluster(tmp_path), ["7", "boss"])


@pytest.mark.parametrize("command", [kill, pause, resume, start, stop])
def test_all_is_no_name_and_the_commands_for_all_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    """`cluster start all` was told which names there are, and not that it needs none."""
    cluster = LocalCluster(tmp_path)
    monkeypatch.setattr(LocalCluster, "open", lambda directory: cluster)
    printed = CliRunner().invoke(command, ["all", "--data-dir", str(tmp_path)])
    assert printed.exit_code == EXIT_USAGE
    assert "'all' is no process of a cluster" in printed.stderr
    assert "`minibroker cluster start" in printed.stderr
    assert "without a name starts all that are down, and `minibroker cluster down" in printed.stderr


@pytest.mark.parametrize("command", [kill, pause, resume, stop])
def test_several_processes_are_refused_in_plain_words(tmp_path: Path, command: Command) -> None:
    """Once it was 'Got unexpected extra argument (2)'."""
    printed = CliRunner().invoke(command, ["1", "2", "--data-dir", str(tmp_path)])
    assert printed.exit_code == EXIT_USAGE
    assert "1, 2: one process at a time: run the command once for each" in printed.stderr


class ZooKeeper:
    """Notes what is done to it; `is_paused` after a pause."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Callable[[], Coroutine[Any, Any, None]]:
        async def note() -> None:
            self.done.append(name)

        return note

    def require_own(self) -> None:
        pass


@pytest.mark.parametrize("command", [kill, pause, resume, stop])
def test_zookeeper_is_ended_and_paused_as_brokers_are(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Once only `cluster start` knew it."""
    zookeeper = ZooKeeper()
    cluster = SimpleNamespace(zookeeper=zookeeper, record=SimpleNamespace(zookeeper=ZooKeeperRecord(connect="h:2181")))
    monkeypatch.setattr(LocalCluster, "open", lambda directory: cluster)
    printed = CliRunner().invoke(command, ["zookeeper", "--data-dir", str(tmp_path), "--json"])
    assert zookeeper.done == [command.name]
    assert json.loads(printed.stdout)["zookeeper"] == "h:2181"


def test_zookeeper_does_not_lose_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(LocalCluster, "open", lambda directory: SimpleNamespace())
    printed = CliRunner().invoke(kill, ["zookeeper", "--power-loss", "--data-dir", str(tmp_path)])
    assert (printed.exit_code, "--power-loss is for brokers" in printed.stderr) == (2, True)


def own_zookeeper(directory: Path, process: ProcessIdentity | None, port: int | None = 2181) -> ClusterZooKeeper:
    record = ZooKeeperRecord(connect="h:2181", port=port, process=process)
    return ClusterZooKeeper(directory, lambda: record)


def test_an_external_zookeeper_and_one_that_is_down_are_not_touched(tmp_path: Path) -> None:
    with pytest.raises(ClusterFailed, match=r"is external: .* end it yourself"):
        asyncio.run(own_zookeeper(tmp_path, None, port=None).kill())
    with pytest.raises(ClusterFailed, match="`minibroker cluster start zookeeper` starts it"):
        asyncio.run(own_zookeeper(tmp_path, None).pause())


def test_a_paused_zookeeper_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ProcessIdentity, "was_started_with", lambda self, file: True)
    monkeypatch.setattr(ProcessIdentity, "is_paused", lambda self: True)
    zookeeper = own_zookeeper(tmp_path, ProcessIdentity(1, "now"))
    assert zookeeper.state_text() == "paused"
    for refusal in (zookeeper.require, zookeeper.refuse_running):
        with pytest.raises(ClusterFailed, match="is paused: `minibroker cluster resume zookeeper` lets it go on"):
            refusal()
    zookeeper.require_own()


async def test_a_broker_that_dies_before_its_turn_does_not_end_the_stop_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller is stopped last. Once `down` said 'broker 1 does not run: start it' and left ZooKeeper running."""
    cluster = LocalCluster(tmp_path, 1)
    cluster.process_log(1).write_text("error: no memory is left\n")
    states = ["running", "dead"]
    monkeypatch.setattr(cluster, "process_state", lambda _: states.pop(0) if len(states) > 1 else states[0])
    cluster.record.brokers[1].process = ProcessIdentity(1, "former")
    (problem,) = await cluster._stop_brokers(1.0, 1)
    assert problem == f"broker 1 has ended by itself: {cluster.process_log(1)} ends with: error: no memory is left"


def test_a_zookeeper_that_survives_its_kill_is_not_said_to_be_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As while its disk hangs."""
    monkeypatch.setattr(cluster_zookeeper, "KILL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(ClusterZooKeeper, "is_running", lambda _: True)
    with pytest.raises(ClusterFailed, match="ZooKeeper at h:2181 survives SIGKILL: its disk hangs"):
        asyncio.run(own_zookeeper(tmp_path, ProcessIdentity(2**22 + 1, "former")).kill())


async def test_a_process_that_ends_instead_of_pausing_is_not_said_to_be_paused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (cluster_zookeeper, local_cluster):
        monkeypatch.setattr(module, "KILL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(ClusterZooKeeper, "is_running", lambda _: True)
    gone = ProcessIdentity(2**22 + 1, "former")
    with pytest.raises(ClusterFailed, match="ZooKeeper at h:2181 is not paused"):
        await own_zookeeper(tmp_path, gone).pause()
    cluster = LocalCluster(tmp_path, 1)
    monkeypatch.setattr(cluster, "_running", lambda _: gone)
    with pytest.raises(ClusterFailed, match="broker 1 is not paused"):
        await cluster.pause(1)
