"""The files and rules of a local cluster, without starting one."""

import asyncio
import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.broker.configuration.config import load_config
from minibroker.local_cluster import cluster_file, local_cluster, zookeeper_process
from minibroker.local_cluster.broker_names import BadBrokerName, resolve
from minibroker.local_cluster.broker_process import configuration_file, configuration_text
from minibroker.local_cluster.cluster_file import (
    BrokerRecord,
    ClusterBusy,
    ClusterFailed,
    ClusterMissing,
    ClusterRecord,
    RequestedCluster,
    cluster_lock,
    continued,
    differences,
    read_cluster_file,
    remove_failed_start,
    write_cluster_file,
)
from minibroker.local_cluster.cluster_zookeeper import ClusterZooKeeper
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.pasteable_cures import with_data_directory
from minibroker.local_cluster.processes import ProcessIdentity, identify
from minibroker.observation.broker_queries import BrokerQueries


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 2, settings={"log.segment.bytes": "1048576"})
    write_cluster_file(tmp_path, cluster.record)
    assert read_cluster_file(tmp_path) == cluster.record


def test_missing_and_damaged_record_are_reported_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ClusterMissing, match="minibroker cluster up"):
        read_cluster_file(tmp_path)
    (tmp_path / "cluster.json").write_text("{")
    with pytest.raises(ClusterMissing, match="remove it"):
        read_cluster_file(tmp_path)


@pytest.mark.parametrize(
    "brokers",
    [
        "{}",
        '{"-1":{"port":9092}}',
        '{"1":{"port":0}}',
        '{"1":{"port":70000}}',
        '{"1":{"port":9092,"process":{"pid":-1,"started":""}}}',
        '{"1":{"port":9092,"process":{"pid":2147483648,"started":""}}}',
    ],
)
def test_a_record_with_numbers_that_no_broker_has_is_damaged(tmp_path: Path, brokers: str) -> None:
    content = f'{{"zookeeper":{{"connect":"localhost:2181"}},"brokers":{brokers}}}'
    (tmp_path / "cluster.json").write_text(content)
    with pytest.raises(ClusterMissing, match="remove it"):
        read_cluster_file(tmp_path)


@pytest.mark.parametrize(("brokers", "factor", "least"), [(1, 1, 1), (2, 2, 2), (3, 3, 2), (5, 3, 2)])
def test_configuration_depends_on_the_number_of_brokers(tmp_path: Path, brokers: int, factor: int, least: int) -> None:
    cluster = LocalCluster(tmp_path, brokers, port=9092, zookeeper_port=2181)
    config = load_config(configuration_text(tmp_path, cluster.record, brokers))
    assert (config.broker_id, config.default_replication_factor, config.min_insync_replicas) == (brokers, factor, least)
    assert config.listeners[0].port == 9092 + brokers - 1
    assert config.zookeeper_session_timeout_ms == 3_000


def test_settings_override_the_local_defaults(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, 1, settings={"min.insync.replicas": "1", "replica.lag.time.max.ms": "2000"})
    assert load_config(configuration_text(tmp_path, cluster.record, 1)).replica_lag_time_max_ms == 2_000


async def test_name_of_a_broker_is_checked(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path)
    assert await resolve(cluster, "2") == 2
    for name, why in (
        ("4", "there is no broker 4"),
        ("boss", "'boss' is no process of a cluster"),
        ("leader:x", "'leader:x' names no partition: give leader:TOPIC-PARTITION, such as leader:x-0"),
    ):
        with pytest.raises(ClusterFailed, match=why) as caught:
            await resolve(cluster, name)
        assert isinstance(caught.value, BadBrokerName) == (name != "4"), "a usage error"
    with pytest.raises(ClusterFailed, match="no broker runs"):
        await resolve(cluster, "controller")


async def test_a_dead_broker_does_not_prevent_the_start_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the start of broker 1 failed with 'broker 2 has ended by itself'."""
    cluster = LocalCluster(tmp_path)

    async def at_once(*_: object) -> None:
        return None

    started: list[int] = []
    states = {1: "down", 2: "dead", 3: "dead"}
    monkeypatch.setattr(cluster, "process_state", states.__getitem__)
    monkeypatch.setattr(zookeeper_process, "wait_for_port", at_once)
    monkeypatch.setattr(BrokerQueries, "why_not_serving", at_once)
    monkeypatch.setattr(cluster, "_spawn", started.append)
    await cluster.start(1)
    assert started == [1]
    states[1] = "dead"
    with pytest.raises(ClusterFailed, match="broker 1 has ended by itself"):
        await cluster.start(1)


def _at_once(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, states: dict[int, str]) -> list[int]:
    """Start nothing; `states` are those afterwards. Returns which brokers would be spawned, 0 for ZooKeeper."""
    spawned: list[int] = []
    monkeypatch.setattr(cluster, "process_state", states.__getitem__)
    monkeypatch.setattr(cluster, "_spawn", spawned.append)
    monkeypatch.setattr(cluster.zookeeper, "spawn", lambda: spawned.append(0))
    monkeypatch.setattr(local_cluster, "SETTLE_S", 0.0)
    return spawned


async def test_a_broker_that_refuses_its_disk_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once they were stopped with ZooKeeper, and `cluster start` could not start the repaired one."""
    cluster = LocalCluster(tmp_path)
    write_cluster_file(tmp_path, cluster.record)
    _at_once(cluster, monkeypatch, {1: "dead", 2: "running", 3: "running"})
    ended: list[str] = []
    monkeypatch.setattr(cluster, "_stop_all", lambda *_: ended.append("stopped"))
    cluster.process_log(1).write_text("it is a directory; move that entry away\n")
    with pytest.raises(ClusterFailed) as failure:
        await cluster.up(keep_running=True)
    message = str(failure.value)
    assert "broker 1 has ended by itself: " in message
    assert "it is a directory; move that entry away; the other brokers keep running; " in message
    assert "after a repair, `minibroker cluster start` starts it again" in message
    assert ended == []


async def test_an_interrupted_start_says_what_it_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it said nothing for up to ten seconds."""
    cluster = LocalCluster(tmp_path)
    write_cluster_file(tmp_path, cluster.record)
    _at_once(cluster, monkeypatch, {1: "running", 2: "running", 3: "running"})
    steps: list[str] = []
    waits = asyncio.Event()

    async def wait_healthy(timeout_s: float) -> None:
        waits.set()
        await asyncio.Event().wait()

    async def stop_all(timeout_s: float) -> None:
        steps.append("stopped")

    monkeypatch.setattr(cluster, "wait_healthy", wait_healthy)
    monkeypatch.setattr(cluster, "_stop_all", stop_all)
    start = asyncio.create_task(cluster.up(tell=steps.append))
    await waits.wait()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert steps == [f"interrupted: stopping the brokers and ZooKeeper in {tmp_path}", "stopped"]


async def test_up_uses_the_running_zookeeper_of_killed_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once `up` asked to run `down` first, and all other commands asked to run `up`."""
    cluster = LocalCluster(tmp_path)
    cluster.record.zookeeper.process = identify(os.getpid())
    write_cluster_file(tmp_path, cluster.record)
    monkeypatch.setattr(ClusterZooKeeper, "is_running", lambda _: True)
    again = LocalCluster.resumed(tmp_path, RequestedCluster())
    spawned = _at_once(again, monkeypatch, {1: "dead", 2: "running", 3: "running"})
    with pytest.raises(ClusterFailed, match="the other brokers keep running"):
        await again.up(keep_running=True)
    assert spawned == [1, 2, 3]
    with pytest.raises(ClusterFailed, match="a cluster already runs in"):
        await LocalCluster.resumed(tmp_path, RequestedCluster(zookeeper="other:2181")).up()


def test_without_its_zookeeper_a_broker_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(ClusterFailed, match="`minibroker cluster start zookeeper` starts it"):
        LocalCluster(tmp_path).zookeeper.require()


def test_a_cluster_that_is_started_again_keeps_its_ports_and_settings(tmp_path: Path) -> None:
    """Once it moved to the default ports and lost the settings given with `--set`."""
    settings = {"log.segment.bytes": "1048576", "min.insync.replicas": "1"}
    first = LocalCluster(tmp_path, 3, port=19_092, zookeeper_port=12_181, settings=settings)
    first.record.brokers[2].settings["num.partitions"] = "5"
    write_cluster_file(tmp_path, first.record)
    assert LocalCluster.resumed(tmp_path, RequestedCluster()).record == first.record

    requested = RequestedCluster(brokers=4, zookeeper_port=2181, settings={"min.insync.replicas": "2"})
    changed = LocalCluster.resumed(tmp_path, requested).record
    assert [broker.port for broker in changed.brokers.values()] == [19_092, 19_093, 19_094, 19_095]
    assert changed.brokers[2].settings == {"num.partitions": "5"}
    assert changed.zookeeper.connect == "127.0.0.1:2181"
    assert changed.settings == {"log.segment.bytes": "1048576", "min.insync.replicas": "2"}
    moved = LocalCluster.resumed(tmp_path, RequestedCluster(port=9092, zookeeper="other:2181")).record
    assert [broker.port for broker in moved.brokers.values()] == [9092, 9093, 9094]
    assert (moved.zookeeper.connect, moved.zookeeper.port) == ("other:2181", None)


async def _fail(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, partition: str | None = None) -> None:
    """A start after which no broker runs. Each broker has made its log directory, with this partition if any."""

    def spawn(broker_id: int) -> None:
        (cluster.log_directory(broker_id) / (partition or "")).mkdir(parents=True, exist_ok=True)

    data = cluster.data_directory / "zookeeper" / "data"
    monkeypatch.setattr(ClusterZooKeeper, "spawn", lambda _: data.mkdir(parents=True, exist_ok=True))
    monkeypatch.setattr(cluster, "_spawn", spawn)
    with pytest.raises(ClusterFailed, match="no broker runs"):
        await cluster.up()


async def test_a_first_start_that_failed_does_not_bind_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the next one was refused: 'holds the data of 2 brokers'."""
    first = LocalCluster(tmp_path, 2)
    first.process_log(1).write_text("why it failed")
    for cluster in (first, LocalCluster(tmp_path, 1)):
        await _fail(cluster, monkeypatch)
        assert sorted(os.listdir(tmp_path)) == ["broker-1.log", "cluster.lock", "zookeeper"]


async def test_a_failed_start_removes_no_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await _fail(LocalCluster(tmp_path, 1), monkeypatch, "orders-0")
    assert (tmp_path / "broker-1" / "orders-0").exists()
    assert len(read_cluster_file(tmp_path).brokers) == 1
    (tmp_path / "cluster.json").unlink()
    await _fail(LocalCluster(tmp_path, 1), monkeypatch)
    assert (tmp_path / "broker-1" / "orders-0").exists()


async def test_options_of_a_failed_start_do_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = LocalCluster(tmp_path, 1, settings={"num.partitions": "5"}).record
    write_cluster_file(tmp_path, before)
    await _fail(LocalCluster.resumed(tmp_path, RequestedCluster(brokers=2, zookeeper="wrong:2181")), monkeypatch)
    assert read_cluster_file(tmp_path) == before


def test_what_options_change_of_an_earlier_cluster_is_named(tmp_path: Path) -> None:
    """Once they replaced the kept ones without a word."""
    earlier = LocalCluster(tmp_path, 3, port=9092, zookeeper_port=2181, settings={"flush": "1", "num": "2"}).record
    assert differences(earlier, continued(earlier, RequestedCluster())) == []
    requested = RequestedCluster(brokers=4, port=19_092, zookeeper="other:2181", settings={"flush": "", "new": "3"})
    now = continued(earlier, requested)
    assert now.settings == {"num": "2", "new": "3"}
    assert differences(earlier, now) == [
        "--brokers 3 -> 4",
        "--port 9092 -> 19092",
        "--zookeeper of its own on port 2181 -> other:2181",
        "--set flush 1 -> default",
        "--set new default -> 3",
    ]
    moved = continued(earlier, RequestedCluster(zookeeper_port=2281))
    assert differences(earlier, moved) == ["--zookeeper-port 2181 -> 2281"]


async def test_fewer_brokers_than_the_data_directory_has_are_refused(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 3).record)
    with pytest.raises(ClusterFailed, match="holds the data of 3 brokers"):
        await LocalCluster.resumed(tmp_path, RequestedCluster(brokers=2)).up()


def test_a_broker_that_was_killed_is_not_said_to_need_a_repair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once status quoted ordinary lines of its log as the reason."""
    cluster = LocalCluster(tmp_path, 1, zookeeper="other:2181")
    monkeypatch.setattr(cluster, "process_state", lambda _: "dead")
    log = cluster.process_log(1)
    for line in ("2026-11-24 18:10:46,392 INFO minibroker.events: t-0: leader", '{"time": 1, "level": "INFO"}'):
        log.write_text(f"{line}\n")
        (problem,) = cluster.process_problems()
        assert f"{log} names no reason, so it was killed" in problem
        assert problem.endswith("`minibroker cluster start` starts it again")
    log.write_text("error: broker.log: it is a directory\n")
    assert "ends with: error: broker.log: it is a directory" in cluster.process_problems()[0]


def test_a_zookeeper_that_is_down_is_a_problem_at_once(tmp_path: Path) -> None:
    """Once status was healthy until the sessions had ended."""
    assert "`minibroker cluster start zookeeper` starts it" in LocalCluster(tmp_path, 1).process_problems()[0]


# ---------------------------------------------------------------------------------------- foreign processes and files
@pytest.fixture
def other_process() -> Iterator[ProcessIdentity]:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    identity = identify(child.pid)
    assert identity is not None
    yield identity
    child.kill()
    child.wait()


async def test_a_process_named_by_a_forged_file_is_not_killed(tmp_path: Path, other_process: ProcessIdentity) -> None:
    cluster = LocalCluster(tmp_path, 1)
    cluster.record.brokers[1].process = cluster.record.zookeeper.process = other_process
    write_cluster_file(tmp_path, cluster.record)
    configuration_file(tmp_path, 1).touch()
    forged = LocalCluster.open(tmp_path)
    assert forged.process_state(1) == "dead"
    assert not forged.zookeeper.is_running()
    with pytest.raises(ClusterFailed, match="does not run"):
        await forged.kill(1)
    await forged.down(wipe=True)
    assert other_process.is_alive()


def test_an_interrupted_start_kills_no_process_that_it_did_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other_process: ProcessIdentity
) -> None:
    """Such as those of a cluster that runs already."""
    first = LocalCluster(tmp_path, 1)
    first.record.brokers[1].process = first.record.zookeeper.process = other_process
    write_cluster_file(tmp_path, first.record)
    second = LocalCluster.resumed(tmp_path, RequestedCluster())

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(second, "_begin", interrupted)
    monkeypatch.setattr(second, "running_brokers", lambda: [1])
    monkeypatch.setattr(second.zookeeper, "is_running", lambda: True)
    sent: list[object] = []
    monkeypatch.setattr(ProcessIdentity, "send", lambda _, number: sent.append(number))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(second.up())
    assert sent == []


async def test_wipe_removes_a_clusters_files_and_no_others(tmp_path: Path) -> None:
    """Once it removed the user's project, because the data directory was '.'."""
    cluster = LocalCluster(tmp_path, 2)
    write_cluster_file(tmp_path, cluster.record)
    for name in ("broker-1/a-0/x.log", "broker-2.log", "broker-3.log.4", "broker-1.properties", "zookeeper/data/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    theirs = ("main.py", "broker-7/notes", "broker-1.py", "broker-1.log.gz", ".git/config")
    for name in theirs:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (problem,) = await cluster.down(wipe=True)
    assert "stays, because it holds files that are not the cluster's" in problem
    assert sorted(os.listdir(tmp_path)) == [".git", "broker-1.log.gz", "broker-1.py", "broker-7", "main.py"]
    assert all((tmp_path / name).exists() for name in theirs)


async def test_wipe_follows_no_link(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path / "data", 1)
    (tmp_path / "data").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept").touch()
    (tmp_path / "data" / "broker-1").symlink_to(tmp_path / "elsewhere")
    write_cluster_file(tmp_path / "data", cluster.record)
    assert await cluster.down(wipe=True) == []
    assert not (tmp_path / "data").exists()
    assert (tmp_path / "elsewhere" / "kept").exists()


async def test_a_directory_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    with pytest.raises(ClusterMissing, match=r"holds no cluster, but other files \(main\.py\): choose a --data-dir"):
        await LocalCluster(tmp_path).up()
    assert os.listdir(tmp_path) == ["main.py"]


def test_two_commands_keep_each_others_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once both read the file before the other one wrote it, and a broker was orphaned."""
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 2).record)
    one, other = LocalCluster.open(tmp_path), LocalCluster.open(tmp_path)

    def started(_: Path, record: ClusterRecord, broker_id: int, log_format: str, program: list[str]) -> BrokerRecord:
        return BrokerRecord(port=record.brokers[broker_id].port, process=ProcessIdentity(broker_id, "now"))

    monkeypatch.setattr(local_cluster, "start_broker", started)
    (tmp_path / cluster_file.STATE_FILE).write_text("{}")
    one._spawn(1)
    assert not (tmp_path / cluster_file.STATE_FILE).exists(), "it is of a cluster that is down"
    other._spawn(2)
    written = read_cluster_file(tmp_path).brokers
    assert [written[each].process for each in (1, 2)] == [ProcessIdentity(1, "now"), ProcessIdentity(2, "now")]


def test_a_cluster_locked_by_another_command_is_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_file, "LOCK_TIMEOUT_S", 0.05)
    with (tmp_path / cluster_file.LOCK_FILE).open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ClusterBusy, match="another command"), cluster_lock(tmp_path):
            pass
    with cluster_lock(tmp_path), cluster_lock(tmp_path):
        pass


def test_files_of_a_cluster_are_private_to_their_owner(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    with cluster_lock(tmp_path):
        pass
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@pytest.mark.parametrize(
    ("given", "text", "expected"),
    [
        ("minibroker-data", "stop it with `minibroker cluster down`", "stop it with `minibroker cluster down`"),
        (
            "my data",
            "`minibroker cluster start 1`, or `minibroker cluster up`; `minibroker topic list`",
            "`minibroker cluster start 1 --data-dir 'my data'`, or `minibroker cluster up --data-dir 'my data'`;"
            " `minibroker topic list`",
        ),
        ("x", "`minibroker cluster up --data-dir y`", "`minibroker cluster up --data-dir y`"),
    ],
)
def test_a_command_in_a_message_names_the_data_directory_that_was_given(
    given: str, text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a pasted cure was for another cluster, or for none."""
    monkeypatch.delenv("MINIBROKER_DATA_DIR", raising=False)
    assert with_data_directory(text, Path(given)) == expected
    monkeypatch.setenv("MINIBROKER_DATA_DIR", given)
    assert with_data_directory(text, Path(given)) == text


async def test_wipe_after_a_first_start_that_failed_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once the output of its processes could be removed by no command."""
    directory = tmp_path / "data"
    directory.mkdir()
    cluster = LocalCluster(directory, 1)
    cluster.process_log(1).write_text("why it failed")
    await _fail(cluster, monkeypatch)
    assert remove_failed_start(directory)
    assert not directory.exists()


@pytest.mark.parametrize("names", [["zookeeper/Makefile"], ["cluster.lock", "notes"], ["cluster.lock", "broker-1/t-0"]])
def test_what_may_not_be_of_a_failed_start_is_not_removed(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert not remove_failed_start(tmp_path)
    assert all((tmp_path / name).exists() for name in names)


def test_fewer_brokers_are_refused_before_anything_is_told(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 4).record)
    result = CliRunner().invoke(minibroker, ["cluster", "up", "--brokers", "2", "--data-dir", str(tmp_path)])
    assert result.output == (
        f"error: {tmp_path} holds the data of 4 brokers: give --brokers 4 or none, or remove the data with"
        f" `minibroker cluster down --wipe --data-dir {tmp_path}`\n"
    )


async def test_a_start_that_was_given_too_little_time_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the cure was `cluster up`, the command that had just failed."""
    cluster = LocalCluster(tmp_path, 1)
    monkeypatch.setattr(cluster, "process_state", lambda _: "running")
    with pytest.raises(ClusterFailed) as failure:
        await cluster.wait_healthy(0.0)
    assert str(failure.value) == (
        f"not healthy after 0 s: no broker answered at {cluster.server(1)} (connection refused); a longer --timeout may"
        f" be enough, else see {cluster.process_log(1)}"
    )
