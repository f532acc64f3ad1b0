"""What the user of a terminal sees while a command's client tries to reach a first broker."""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minibroker import opened_client
from minibroker.opened_client import opened


@asynccontextmanager
async def client(until: asyncio.Event | None) -> AsyncIterator[str]:
    """Opens at once, or when the event is set."""
    if until is not None:
        await until.wait()
    yield "client"


async def stderr_of_a_slow_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(opened_client, "LOOKING_AFTER_S", 0.0)
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, until.set)
    async with opened(client(until), "host:9092") as entered:
        assert entered == "client"
    return capsys.readouterr().err


async def test_a_terminal_shows_that_no_broker_answers_until_one_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    shown = await stderr_of_a_slow_start(monkeypatch, capsys)
    assert "no broker answers yet at host:9092" in shown
    assert shown.endswith("\r\x1b[K")


async def test_a_pipe_gets_no_progress_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await stderr_of_a_slow_start(monkeypatch, capsys) == ""


async def test_a_start_that_works_prints_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with opened(client(None), "host:9092"):
        pass
    assert capsys.readouterr().err == ""


async def test_a_warning_of_the_client_is_a_warning_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("minibroker.client")
    async with opened(client(None), "host:9092"):
        log.warning("no records of %s", "t-0")
        log.info("t-0 is read again")
    log.warning("not of a command")
    assert capsys.readouterr().err == "warning: no records of t-0\n"
