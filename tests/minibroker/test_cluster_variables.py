"""What brokers of a local cluster get from the environment, and what is refused before one is started."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.local_cluster import broker_process
from minibroker.local_cluster.broker_process import start_broker
from minibroker.local_cluster.cluster_file import write_cluster_file
from minibroker.local_cluster.local_cluster import LocalCluster


@pytest.mark.parametrize("command", ["up", "start"])
def test_a_log_level_that_does_not_exist_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Once each broker ended in a traceback."""
    monkeypatch.setenv("MINIBROKER_LOG_LEVEL", "LOUD")
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 1).record)
    result = CliRunner().invoke(minibroker, ["cluster", command, "--data-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert result.output.endswith(
        " start: environment variable MINIBROKER_LOG_LEVEL is 'LOUD': give one of DEBUG, INFO, WARNING, ERROR\n"
    )


@pytest.mark.parametrize(
    ("setting", "cure"),
    [
        ("broker.id=7", "a local cluster numbers its brokers from 1: leave it out"),
        ("log.dirs=/tmp/x", "a local cluster gives each broker a folder in the --data-dir: leave it out"),
        ("listeners=PLAINTEXT://127.0.0.1:19999", "a local cluster gives each broker a port of its own: give --port"),
        ("zookeeper.connect=other:2181", "or that of --zookeeper: leave it out"),
    ],
)
def test_a_setting_that_each_broker_has_for_itself_is_refused(tmp_path: Path, setting: str, cure: str) -> None:
    """Once all was started, the brokers ended, and their files stayed."""
    directory = tmp_path / "data"
    result = CliRunner().invoke(minibroker, ["cluster", "up", "--data-dir", str(directory), "--set", setting])
    assert result.exit_code == 2
    assert cure in result.output
    assert not directory.exists()


@pytest.mark.parametrize(("given", "option"), [(None, []), ("text", ["--log-format", "text"])])
def test_brokers_log_in_the_format_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None, option: list[str]
) -> None:
    """Once `cluster up` gave all brokers --log-format text."""
    started: list[tuple[list[str], dict[str, str]]] = []

    def popen(command: list[str], *, env: dict[str, str], **_: object) -> SimpleNamespace:
        started.append((command, env))
        return SimpleNamespace(pid=2**30)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(broker_process, "_CHILDREN", [])
    monkeypatch.setenv("MINIBROKER_LOG_FORMAT", "json")
    monkeypatch.setenv("MINIBROKER_BROKER_ID", "7")
    start_broker(tmp_path, LocalCluster(tmp_path, 1).record, 1, given)
    ((command, environment),) = started
    assert command[command.index("--log-file") + 2 :] == option
    assert environment["MINIBROKER_LOG_FORMAT"] == "json"
    assert "MINIBROKER_BROKER_ID" not in environment
