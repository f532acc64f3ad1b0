"""Messages of `minibroker cluster` about what a user typed, and while a user waits."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.audit.errors import AuditError
from minibroker.command_line import EXIT_USAGE, ProgressLine
from minibroker.local_cluster import cluster_snapshot
from minibroker.local_cluster.cluster_file import write_cluster_file
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation import cluster_view
from minibroker.observation.broker_queries import NoAnswer
from minibroker.observation.cluster_view import BrokerView, ClusterView
from minibroker.protocol.wire.messages import DescribeReplicaStateResponse


def test_a_misspelt_role_gets_a_suggestion(tmp_path: Path) -> None:
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    result = CliRunner().invoke(minibroker, ["cluster", "kill", "contoller", "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.endswith("or 'zookeeper'; did you mean 'controller'?\n")


@pytest.mark.parametrize("command", ["up", "status", "down"])
def test_a_data_directory_that_is_a_device_is_a_usage_error(command: str) -> None:
    """Once `cluster up` said: File exists: check the path."""
    result = CliRunner().invoke(minibroker, ["cluster", command, "--data-dir", "/dev/null"])
    assert result.exit_code == 2
    assert "'/dev/null' is not a directory: name one, or a path that does not exist yet" in result.output


def test_a_bad_address_of_zookeeper_is_told_with_its_option() -> None:
    """It said 'Invalid value', and not of what."""
    result = CliRunner().invoke(minibroker, ["cluster", "up", "--zookeeper", "h h:1"])
    assert result.exit_code == EXIT_USAGE
    assert result.output.endswith("Error: Invalid value for '--zookeeper': 'h h:1' is not HOST:PORT\n")


def test_the_state_of_a_cluster_elsewhere_has_another_command(tmp_path: Path) -> None:
    """On a host of docs/DEPLOYMENT.md `cluster status`, which cures named, said only: start one with `cluster up`."""
    result = CliRunner().invoke(minibroker, ["cluster", "status", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert result.output.endswith("; of a cluster elsewhere: `minibroker replicas --check -b HOST:PORT`\n")


def test_the_state_of_brokers_that_are_named_has_another_command() -> None:
    """`cluster status -b` was told that there is no such option."""
    result = CliRunner().invoke(minibroker, ["cluster", "status", "-b", "host:9092"])
    assert result.exit_code == 2
    told = "is of a cluster on this machine: of another one give `minibroker replicas --check -b host:9092`"
    assert told in " ".join(result.output.split())
    assert "-b" not in CliRunner().invoke(minibroker, ["cluster", "status", "--help"]).output


def test_a_broker_that_is_down_while_others_run_is_a_problem_with_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once `cluster status` said only how many are registered."""
    cluster = LocalCluster(tmp_path, 2, zookeeper="other:2181")
    states = {1: "down", 2: "running"}
    monkeypatch.setattr(cluster, "process_state", states.__getitem__)
    assert cluster.process_problems() == ["broker 1 is down: `minibroker cluster start 1` starts it"]
    states[2] = "down"
    assert cluster.process_problems() == [], "`cluster up` is the cure of that"


@pytest.mark.parametrize(
    ("options", "port", "what"),
    [
        (["--port", "2180"], 2181, "broker 2 and ZooKeeper"),
        (["--zookeeper-port", "9094"], 9094, "broker 3 and ZooKeeper"),
    ],
)
def test_one_port_for_two_processes_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], port: int, what: str
) -> None:
    """ZooKeeper was started, and then its port was 'in use'."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # so that nothing starts if it is not refused
    result = CliRunner().invoke(minibroker, ["cluster", "up", *options, "--data-dir", str(tmp_path / "new")])
    assert result.exit_code == EXIT_USAGE
    assert result.output == f"error: port {port} is for {what}: choose other ports (--port, --zookeeper-port)\n"
    assert not (tmp_path / "new").exists()


def test_a_stop_says_that_nothing_was_left_to_ask_for_the_audit(tmp_path: Path) -> None:
    """After `kill -9` of all processes there was no cluster-state.json, and no word of it."""
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    down = ["cluster", "down", "--data-dir", str(tmp_path)]
    result = CliRunner().invoke(minibroker, down)
    assert (result.exit_code, result.stdout) == (0, f"down; the data stays in {tmp_path}\n")
    assert result.stderr == (
        "cluster-state.json was not written: neither a broker nor ZooKeeper could be asked. For the audit, `minibroker"
        f" cluster up --data-dir {tmp_path}`, then `minibroker cluster down --data-dir {tmp_path}` write it\n"
    )
    assert json.loads(CliRunner().invoke(minibroker, [*down, "--json"]).stdout)["problems"] == [result.stderr.strip()]
    (tmp_path / "cluster-state.json").touch()  # of the stop before
    assert CliRunner().invoke(minibroker, down).stderr == ""
    (tmp_path / "cluster-state.json").unlink()
    assert CliRunner().invoke(minibroker, [*down, "--wipe"]).stderr == ""


def test_a_stop_does_not_say_that_a_file_holds_what_no_broker_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once it said so twice, and then that the file was not written."""
    record = LocalCluster(tmp_path, 1, zookeeper="127.0.0.1:1").record
    write_cluster_file(tmp_path, record)

    def refuse(connect: str, timeout_s: float) -> None:
        raise AuditError(f"ZooKeeper at {connect} cannot be read")

    monkeypatch.setattr(cluster_snapshot, "read_cluster_from_zookeeper", refuse)
    result = CliRunner().invoke(minibroker, ["cluster", "down", "--data-dir", str(tmp_path)])
    assert "cluster-state.json was not written: neither a broker nor ZooKeeper could be asked" in result.stderr
    assert "reported" not in caplog.text


def test_the_line_of_a_wait_shows_the_time_and_no_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it showed no time, and was cut in the middle of a cure."""
    shown: list[str] = []
    looks: Iterator[NoAnswer | ClusterView] = iter([NoAnswer("no broker answers: start one"), _view(-1), _view(1)])

    async def look(*_: object, timeout_s: float) -> ClusterView:
        found = next(looks)
        if isinstance(found, NoAnswer):
            found.fact = "no broker answers"
            raise found
        return found

    monkeypatch.setattr(cluster_view, "view_cluster", look)
    monkeypatch.setattr(ProgressLine, "show", lambda _, text: shown.append(text))
    result = CliRunner().invoke(minibroker, ["cluster", "wait", "-b", "h:1", "--timeout", "60"])
    assert shown == ["waiting, 0 s: no broker answers", "waiting, 0 s: no controller is elected"]
    assert result.output.startswith("healthy: brokers [1], controller 1, 0 partitions; after 0.")


def _view(controller_id: int) -> ClusterView:
    answer = DescribeReplicaStateResponse(broker_id=1, incarnation_id="a")
    brokers = [BrokerView(broker_id=1, server="h:1", description=answer, problem=None)]
    return ClusterView(taken_at=0.0, cluster_id="c", controller_id=controller_id, brokers=brokers, partitions={})
