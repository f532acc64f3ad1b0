"""What a person at a terminal sees while a command's client looks for a first broker."""

import asyncio
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
