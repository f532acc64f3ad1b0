"""What a person at a terminal sees while a command's client looks for a first broker."""

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
    """Opens at once, or when the event says so."""
    if until is not None:
        await until.wait()
    yield "client"


async def said_by_a_slow_start(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(opened_client, "LOOKING_AFTER_S", 0.0)
    until = asyncio.Event()
    asyncio.get_running_loop().call_later(0.01, until.set)
    async with opened(client(until), "host:9092") as entered:
        assert entered == "client"
    return capsys.readouterr().err


async def test_a_terminal_is_told_that_no_broker_answers_yet_and_wiped_when_one_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    said = await said_by_a_slow_start(monkeypatch, capsys)
    assert "no broker answers yet at host:9092" in said
    assert said.endswith("\r\x1b[K")


async def test_a_pipe_is_told_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert await said_by_a_slow_start(monkeypatch, capsys) == ""


async def test_a_start_that_works_says_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    async with opened(client(None), "host:9092"):
        pass
    assert capsys.readouterr().err == ""


async def test_what_the_client_warns_of_is_a_warning_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("minibroker.client")
    async with opened(client(None), "host:9092"):
        log.warning("no records of %s", "t-0")
        log.info("t-0 is read again")
    log.warning("nobody's")
    assert capsys.readouterr().err == "warning: no records of t-0\n"
