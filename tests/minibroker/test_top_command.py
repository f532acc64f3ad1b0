"""`minibroker top` ends when the user types q or closes the terminal, and draws no more than a terminal shows."""

import asyncio
import os
import signal
import sys
import termios
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from minibroker.__main__ import minibroker
from minibroker.command_line import EXIT_INTERRUPTED, run_command_line
from minibroker.commands.top import SIDE_MAX, EventLines, LiveScreen, _can_draw, _ending_tidily, _until_q
from minibroker.observation.cluster_view import ClusterView
from tests.minibroker.test_cluster_view import view


@pytest.mark.parametrize("key", [b"q", b"Q"])
def test_q_ends_it_and_the_terminal_is_as_before(monkeypatch: pytest.MonkeyPatch, key: bytes) -> None:
    """Once q did nothing, and only Ctrl-C ended it."""
    person, terminal = os.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        before = termios.tcgetattr(terminal)

        async def typed() -> None:
            watching = asyncio.create_task(_until_q(asyncio.Event().wait()))
            await asyncio.sleep(0)  # it listens now
            os.write(person, b"x" + key)
            await asyncio.wait_for(watching, 10)

        asyncio.run(typed())
        assert termios.tcgetattr(terminal) == before
    os.close(person)


def test_a_terminal_that_is_gone_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SIGHUP is ignored. It read nothing, again and again, as fast as it could."""
    person, terminal = os.openpty()
    with os.fdopen(terminal, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(termios, "tcsetattr", lambda *arguments: None)

        async def closed() -> None:
            watching = asyncio.create_task(_until_q(asyncio.Event().wait()))
            await asyncio.sleep(0)
            os.close(person)
            await asyncio.wait_for(watching, 10)

        asyncio.run(closed())


@pytest.mark.parametrize("as_json", [False, True])
def test_without_a_table_it_says_that_there_are_only_events(
    capsys: pytest.CaptureFixture[str], *, as_json: bool
) -> None:
    """`top -n 2 | cat` printed nothing at all."""
    lines = EventLines(as_json)
    lines.show(cast("ClusterView", None), [])
    lines.show(cast("ClusterView", None), [])
    told = "only events are printed, as they come: `minibroker replicas` prints the replicas\n"
    assert capsys.readouterr() == ("", told)


def test_a_terminal_that_knows_no_escapes_gets_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed empty."""
    person, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        monkeypatch.setenv("TERM", "xterm")
        assert _can_draw()
        monkeypatch.setenv("TERM", "dumb")
        assert not _can_draw()
    os.close(person)


@pytest.mark.parametrize("command", ["top", "events"])
def test_an_interrupt_has_one_exit_code_in_every_command(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    """`top` ended with 0, `events` with 130."""

    def interrupted(work: Coroutine[Any, Any, object], *_: object) -> None:
        work.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"minibroker.commands.{command}.run_async", interrupted)
    monkeypatch.setattr(sys, "argv", ["minibroker", command])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        run_command_line(minibroker)
    assert left.value.code == EXIT_INTERRUPTED


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), _ending_tidily(LiveScreen()):
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_a_terminal_that_claims_billions_of_cells_is_drawn_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LINES", "99999999999999")
    monkeypatch.setenv("COLUMNS", "80")
    assert LiveScreen()._live.console.size == (80, SIDE_MAX)


def test_an_old_picture_says_how_old_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all brokers dead it stood for ten seconds as if they lived."""
    monkeypatch.setenv("COLUMNS", "100")
    screen = LiveScreen()

    def title() -> str:
        return str(screen._live.get_renderable()).splitlines()[0][10:]

    screen.show_silence(5)  # there is no picture yet
    screen.show(view(), [])
    screen.show_silence(0.5)
    assert title() == "brokers 1, 2, 3  controller 1  (q ends)"
    screen.show_silence(3.2)
    assert title() == "no broker has answered for 3 s: this is from before  (q ends)"
