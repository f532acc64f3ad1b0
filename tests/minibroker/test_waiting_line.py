"""What a terminal shows of a command that waits."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minibroker import waiting_line as module
from minibroker.__main__ import minibroker
from minibroker.local_cluster.cluster_file import write_cluster_file
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.processes import identify
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.waiting_line import waiting_line


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is shown at once, and every stream is a terminal."""
    monkeypatch.setattr(module, "PROGRESS_AFTER_S", 0.0)
    monkeypatch.setattr("minibroker.command_line.ProgressLine.__init__", _enabled)
    monkeypatch.setenv("TERM", "xterm")


def _enabled(self: object, after_s: float = 0.0, every_s: float = 0.0) -> None:
    vars(self).update(enabled=True, _every_s=0.0, _next=0.0, _shown=False)


async def _a_moment() -> None:
    """Long enough for the line."""
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, until.set)
    await until.wait()


async def _no_answer(*_: object, **__: object) -> None:
    await _a_moment()
    raise NoAnswer("h:1 is silent")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr(BrokerQueries, "ask", _no_answer)
    return CliRunner().invoke(minibroker, arguments)


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("command", "told"),
    [
        (("replicas",), "waiting for the brokers' answers"),
        (("offsets",), "waiting for the brokers' answers"),
        (("events", "--once"), "waiting for the brokers' answers"),
        (("partition", "elect"), "waiting for an answer"),
        (("doctor",), "asking the brokers at h:1"),
    ],
)
def test_a_command_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], told: str) -> None:
    """They were silent for as long as brokers were."""
    assert f"\r\x1b[K{told} (Ctrl-C ends it)" in run(monkeypatch, *command, "-b", "h:1").stderr


@pytest.mark.usefixtures("terminal")
def test_cluster_commands_say_that_they_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    local = LocalCluster(tmp_path, 1, port=19_092, zookeeper_port=12_181)
    local.record.brokers[1].process = identify(os.getpid())
    write_cluster_file(tmp_path, local.record)
    monkeypatch.setattr(LocalCluster, "process_state", lambda *_: "running")
    shown = run(monkeypatch, "cluster", "status", "--data-dir", str(tmp_path)).stderr
    assert "waiting for brokers and ZooKeeper (Ctrl-C ends it)" in shown


async def test_the_line_goes_before_other_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "PROGRESS_AFTER_S", 0.0)
    async with waiting_line("waiting"):
        await _a_moment()
    assert capsys.readouterr().err == "\r\x1b[Kwaiting (Ctrl-C ends it)\r\x1b[K"
    async with waiting_line("waiting"):
        pass
    assert capsys.readouterr().err == ""


async def test_what_ends_after_ctrl_c_shows_no_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cluster up` said that it starts brokers while it stopped them."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(module, "PROGRESS_AFTER_S", 0.0)

    async def work() -> None:
        async with waiting_line("starting"):
            try:
                await asyncio.Event().wait()
            finally:
                await _a_moment()

    task = asyncio.create_task(work())
    asyncio.get_running_loop().call_soon(task.cancel)
    await asyncio.wait([task])
    assert capsys.readouterr().err == ""
