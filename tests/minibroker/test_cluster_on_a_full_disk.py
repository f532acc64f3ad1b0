"""A local cluster whose `cluster.json` cannot be written, or whose files were moved: processes can be ended, and none
is left unknown."""

import asyncio
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.doctor_checks import ports_of_cluster_in
from minibroker.local_cluster import cluster_zookeeper, local_cluster
from minibroker.local_cluster.broker_process import configuration_file
from minibroker.local_cluster.cluster_file import (
    BrokerRecord,
    ClusterFailed,
    ClusterRecord,
    NotWritten,
    read_cluster_file,
    write_cluster_file,
)
from minibroker.local_cluster.cluster_zookeeper import ClusterZooKeeper
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.processes import identify
from minibroker.local_cluster.unrecorded_processes import refuse_unrecorded

CHILDREN: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def no_child_stays() -> Iterator[None]:
    yield
    while CHILDREN:
        child = CHILDREN.pop()
        child.kill()
        child.wait()


def runs_as(*words: str, directory: Path | None = None) -> int:
    """The number of a process with these last arguments, which does nothing."""
    script = "import sys, time; sys.stdout.buffer.write(b'up'); sys.stdout.flush(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script, *words], stdout=subprocess.PIPE, cwd=directory)
    CHILDREN.append(child)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.read(2)
    return child.pid


def broker_process_of(directory: Path, broker_id: int) -> int:
    configuration_file(directory, broker_id).touch()
    return runs_as("broker", "--config", str(configuration_file(directory, broker_id)), directory=directory)


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """With a process of broker 1."""
    cluster = LocalCluster(tmp_path, 2)
    cluster.record.brokers[1].process = identify(broker_process_of(tmp_path, 1))
    write_cluster_file(tmp_path, cluster.record)
    return LocalCluster.open(tmp_path)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No file can be written any more."""

    def refuse(_: Path, __: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", refuse)


@pytest.mark.parametrize("command", ["stop", "kill"])
def test_a_broker_is_ended_on_a_full_disk(cluster: LocalCluster, full_disk: None, command: str) -> None:
    """Once it ran on, and the error named no file."""
    directory = cluster.data_directory
    result = CliRunner().invoke(minibroker, ["cluster", command, "1", "--data-dir", str(directory)])
    assert result.exit_code == 0, result.output
    assert not cluster.running_brokers()
    assert result.stderr == (
        f"warning: {directory}/cluster.json could not be written (No space left on device): free space on its disk;"
        f" until the next start `minibroker cluster status --data-dir {directory}` says that broker 1 ended by itself\n"
    )


@pytest.mark.parametrize("wipe", [False, True])
async def test_a_cluster_is_stopped_on_a_full_disk(cluster: LocalCluster, full_disk: None, wipe: bool) -> None:
    """Once `down --wipe`, which makes room, failed for want of room."""
    problems = await cluster.down(wipe=wipe)
    assert not cluster.running_brokers()
    assert [("cluster.json could not be written" in each) for each in problems] == ([] if wipe else [True])
    assert cluster.data_directory.exists() != wipe


def test_a_broker_that_cannot_be_written_down_is_not_started(
    cluster: LocalCluster, full_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it ran, and no command could reach it."""
    directory = cluster.data_directory
    started: list[int] = []

    def start(*_: object) -> BrokerRecord:
        started.append(broker_process_of(directory, 2))
        return BrokerRecord(port=1, process=identify(started[0]))

    monkeypatch.setattr(local_cluster, "start_broker", start)
    with pytest.raises(NotWritten, match=r"broker 2 was not started: .*/cluster.json could not .*: free space on"):
        cluster._spawn(2)
    assert started
    assert CHILDREN[-1].wait() == -signal.SIGKILL
    assert cluster.process_state(2) == "down"


def test_zookeeper_that_cannot_be_written_down_is_not_started(
    tmp_path: Path, full_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, 1)
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "zookeeper" / "zoo.cfg").touch()

    def spawn(_: ClusterZooKeeper) -> None:
        cluster.record.zookeeper.process = identify(runs_as(str(tmp_path / "zookeeper" / "zoo.cfg")))

    monkeypatch.setattr(ClusterZooKeeper, "spawn", spawn)
    with pytest.raises(NotWritten, match=r"cluster\.json could not be written"):
        cluster._spawn_zookeeper()
    assert CHILDREN[-1].wait() == -signal.SIGKILL


async def test_a_start_that_cannot_be_written_down_leaves_nothing_running(
    tmp_path: Path, full_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = LocalCluster(tmp_path, 2)

    def start_zookeeper_only() -> None:
        process = identify(runs_as("zookeeper"))
        assert process is not None
        cluster._started.append(process)

    monkeypatch.setattr(cluster, "_spawn_zookeeper", start_zookeeper_only)
    with pytest.raises(NotWritten):
        await cluster.up()
    assert CHILDREN[-1].wait() == -signal.SIGKILL
    assert "cluster.json" not in os.listdir(tmp_path)


def test_a_start_for_which_the_machine_has_no_process_left_leaves_nothing_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once ZooKeeper and the first brokers ran on."""

    def start(_: Path, record: ClusterRecord, broker_id: int, *__: object) -> BrokerRecord:
        if broker_id == 2:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return BrokerRecord(port=1, process=identify(broker_process_of(tmp_path, broker_id)))

    monkeypatch.setattr(ClusterZooKeeper, "spawn", lambda _: None)
    monkeypatch.setattr(local_cluster, "start_broker", start)
    with pytest.raises(BlockingIOError):
        asyncio.run(LocalCluster(tmp_path, 2).up())
    assert CHILDREN[-1].wait() == -signal.SIGKILL
    assert "cluster.json" not in os.listdir(tmp_path)


# ------------------------------------------------------------------------------- what cluster.json does not know
async def test_a_broker_that_is_not_written_down_is_found_and_stopped(cluster: LocalCluster) -> None:
    """Once `status` called it down, `down` left it running, and `up` advised `down`."""
    directory = cluster.data_directory
    pid = broker_process_of(directory, 2)
    again = LocalCluster.open(directory)
    assert again.process_state(2) == "running"
    process = again.record.brokers[2].process
    assert process is not None
    assert process.pid == pid
    assert await again.down() == []
    assert not process.is_alive()
    assert {broker.ended_by for broker in read_cluster_file(directory).brokers.values()} == {"stop"}


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_broker_whose_configuration_file_is_not_found_is_stopped(
    cluster: LocalCluster, tmp_path: Path, is_moved: bool
) -> None:
    """Because its data directory was renamed, or the file removed: once `down` said 'down' and left it running."""
    directory = cluster.data_directory
    configuration_file(directory, 1).unlink()
    if is_moved:
        directory = tmp_path.with_name(f"{tmp_path.name}-moved")
        tmp_path.rename(directory)
    again = LocalCluster.open(directory)
    assert again.process_state(1) == "running"
    assert asyncio.run(again.down()) == []
    assert CHILDREN[-1].poll() is not None


async def test_a_process_of_another_directory_is_not_killed(cluster: LocalCluster, tmp_path: Path) -> None:
    """Though its configuration file has the same name, and is gone."""
    other = tmp_path / "other"
    other.mkdir()
    pid = runs_as("broker", "--config", str(tmp_path / "broker-2.properties"), directory=other)
    cluster.record.brokers[2].process = identify(pid)
    write_cluster_file(tmp_path, cluster.record)
    again = LocalCluster.open(tmp_path)
    assert again.process_state(2) == "dead"
    await again.down()
    assert CHILDREN[-1].poll() is None


def test_a_second_zookeeper_is_not_started_over_the_data_of_a_running_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper has no lock of its own. A damaged `cluster.json` was removed, as the error advised, and the ports of
    the running cluster were taken, so others were given."""
    configuration = tmp_path / "zookeeper" / "zoo.cfg"
    (tmp_path / "zookeeper" / "data").mkdir(parents=True)
    configuration.touch()
    zookeeper = runs_as("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration))
    first, second = sorted([zookeeper, broker_process_of(tmp_path, 2)])
    spawned: list[str] = []
    monkeypatch.setattr(ClusterZooKeeper, "spawn", lambda _: spawned.append("zookeeper"))
    monkeypatch.setattr(local_cluster, "start_broker", lambda *_: spawned.append("broker"))
    with pytest.raises(ClusterFailed, match=rf"without a cluster\.json: .*`kill {first} {second}`"):
        asyncio.run(LocalCluster(tmp_path, 1).up())
    assert spawned == []
    assert (tmp_path / "zookeeper" / "data").exists()


@pytest.mark.parametrize("is_made_again", [True, False])
def test_a_cluster_whose_directory_was_removed_is_not_down_while_it_runs(tmp_path: Path, is_made_again: bool) -> None:
    """After `rm -rf` of it `down` knew no cluster, and `down --wipe` after a start that was refused said 'down'."""
    directory = tmp_path / "data"
    (directory / "zookeeper").mkdir(parents=True)
    broker = broker_process_of(directory, 1)
    configuration = str(directory / "zookeeper" / "zoo.cfg")
    zookeeper = runs_as(
        "org.apache.zookeeper.server.quorum.QuorumPeerMain", configuration, directory=directory / "zookeeper"
    )
    shutil.rmtree(directory)
    if is_made_again:
        directory.mkdir()
        (directory / "cluster.lock").touch()
    first, second = sorted([broker, zookeeper])
    for command in (["status"], ["down"], ["down", "--wipe"]):
        result = CliRunner().invoke(minibroker, ["cluster", *command, "--data-dir", str(directory)])
        assert result.exit_code == 1
        assert result.output == (
            f"error: processes of a cluster run in {directory} without a cluster.json: end them with"
            f" `kill {first} {second}`, then start it again\n"
        )
    assert directory.exists() == is_made_again


async def test_down_of_a_copy_leaves_the_zookeeper_of_the_original(tmp_path: Path) -> None:
    """A data directory that is copied while it is used names the processes of the original. Once they lost their
    ZooKeeper."""
    for name in ("original", "copy"):
        (tmp_path / name / "zookeeper").mkdir(parents=True)
        (tmp_path / name / "zookeeper" / "zoo.cfg").touch()
    configuration = str(tmp_path / "original" / "zookeeper" / "zoo.cfg")
    record = LocalCluster(tmp_path / "copy", 1).record
    record.zookeeper.process = identify(runs_as("org.apache.zookeeper.server.quorum.QuorumPeerMain", configuration))
    write_cluster_file(tmp_path / "copy", record)
    assert ports_of_cluster_in(tmp_path / "copy") == ([], record.zookeeper.connect), "the doctor, the audit and a start"
    assert await LocalCluster.open(tmp_path / "copy").down() == []
    assert CHILDREN[-1].poll() is None


def test_processes_of_a_renamed_directory_are_not_of_the_one_that_takes_its_name(tmp_path: Path) -> None:
    """Their command lines name the former path. Once a start there advised to kill them, `down` there killed them, and
    the renamed cluster did not find them."""
    former, renamed = tmp_path / "former", tmp_path / "renamed"
    former.mkdir()
    record = LocalCluster(former, 1, zookeeper="other:2181").record
    configuration_file(former, 1).touch()
    pid = runs_as("broker", "--config", str(configuration_file(former, 1)), directory=former)
    former.rename(renamed)
    former.mkdir()
    refuse_unrecorded(former)
    write_cluster_file(former, record)
    configuration_file(former, 1).touch()
    assert LocalCluster.open(former).process_state(1) == "down"
    record.brokers[1].process = identify(pid)
    for directory, state in ((former, "dead"), (renamed, "running")):  # the former one is a copy now
        write_cluster_file(directory, record)
        assert LocalCluster.open(directory).process_state(1) == state


def test_an_own_zookeeper_that_is_not_written_down_is_found(tmp_path: Path) -> None:
    configuration = tmp_path / "zookeeper" / "zoo.cfg"
    configuration.parent.mkdir()
    configuration.touch()
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    assert not LocalCluster.open(tmp_path).is_running()
    runs_as("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration))
    assert LocalCluster.open(tmp_path).zookeeper.is_running()


def test_a_process_that_only_reads_a_configuration_is_no_broker(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    configuration_file(tmp_path, 1).touch()
    runs_as("tail", "-f", str(configuration_file(tmp_path, 1)))
    assert LocalCluster.open(tmp_path).process_state(1) == "down"


def test_a_broker_that_was_started_by_hand_with_a_relative_path_is_stopped(tmp_path: Path) -> None:
    """Once `down` said 'down' and left it running."""
    directory = tmp_path / "data"
    directory.mkdir()
    write_cluster_file(directory, LocalCluster(directory, 1, zookeeper="other:2181").record)
    configuration_file(directory, 1).touch()
    runs_as("broker", "--config", "data/broker-1.properties", directory=tmp_path)
    again = LocalCluster.open(directory)
    assert again.process_state(1) == "running"
    asyncio.run(again.stop(1))
    assert CHILDREN[-1].poll() is not None


@pytest.mark.parametrize("options", [[], ["--wipe"]])
def test_a_cluster_is_not_down_while_a_process_uses_its_logs(tmp_path: Path, options: list[str]) -> None:
    """Such as a broker which was started with another configuration. Nothing is removed under it."""
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    (tmp_path / "broker-1").mkdir()
    lock = tmp_path / "broker-1" / ".lock"
    lock.touch()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = CliRunner().invoke(minibroker, ["cluster", "down", "--data-dir", str(tmp_path), *options])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"a process that no command of this cluster started uses {lock}: end it (`fuser" in result.stderr
    assert lock.exists()


@pytest.mark.parametrize(("stays", "is_file"), [("broker-1", False), ("zookeeper", False), ("broker-1.log", True)])
def test_data_that_could_not_be_removed_is_not_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stays: str, is_file: bool
) -> None:
    """Such as files of another user. Once the exit code was 0, 'its data is removed' was said beside a ZooKeeper's file
    that stayed, and 'the data stays' beside a broker's, though the rest was gone. One file ended the removal."""
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    for name in ("broker-1", "zookeeper"):
        (tmp_path / name).mkdir()
    (tmp_path / "broker-1.log").touch()
    real_rmtree, real_unlink = shutil.rmtree, Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == stays:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        real_unlink(path, missing_ok)

    monkeypatch.setattr(shutil, "rmtree", lambda path, **_: None if path.name == stays else real_rmtree(path))
    monkeypatch.setattr(Path, "unlink", unlink)
    result = CliRunner().invoke(minibroker, ["cluster", "down", "--wipe", "--data-dir", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"error: {stays} in {tmp_path} could not be removed, the rest is: run this as its")
    assert os.listdir(tmp_path) == [stays]


async def test_a_wipe_does_not_ask_zookeeper_what_it_would_not_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it waited for an external one that is gone, and told how to complete `cluster-state.json`."""
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1, zookeeper="gone:2181").record)
    asked: list[str] = []

    async def ask(connect: str) -> None:
        asked.append(connect)

    monkeypatch.setattr(cluster_zookeeper, "ask_zookeeper", ask)
    assert await LocalCluster.open(tmp_path).down(wipe=True) == []
    assert asked == []
