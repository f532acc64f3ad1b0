"""A program of the user is started, asked to end, and found out when it does something else."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path

import pytest

from minibroker.chaos.run.client_lines import ClientLines
from minibroker.chaos.run.client_program import LOG_FILE, ClientProgram, ProgramFailed
from minibroker.chaos.run.recorder import Recorder

GOOD = """
import os, signal, sys
print('{"process":"r","type":"invoke","f":"poll","index":1}', flush=True)
print('{"process":"r","type":"ok","f":"poll","operation":1}', flush=True)
print(os.environ["CHAOS_TOPIC"], file=sys.stderr, flush=True)
signal.pause()
"""


def program(script: str, out: Path) -> tuple[ClientProgram, Recorder]:
    recorder = Recorder(lambda: 0.0)
    command = shlex.join([sys.executable, "-c", script])
    lines = ClientLines(recorder, frozenset())
    return ClientProgram(command, {"CHAOS_TOPIC": "chaos"}, lines, out / LOG_FILE), recorder


async def test_a_program_runs_until_it_is_asked_to_end(tmp_path: Path) -> None:
    tested, recorder = program(GOOD, tmp_path)
    running = asyncio.create_task(tested.run())
    while len(recorder.log.events) < 2:
        await asyncio.wait([running], timeout=0.05)
        assert not running.done()
    tested.stop()
    await running
    assert (tmp_path / LOG_FILE).read_text() == "chaos\n"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(3)", "ended with exit code 3 before the run.*client.log"),
        ("pass", "ended with exit code 0 before the run"),
        ("print('hello', flush=True); import signal; signal.pause()", "wrote line 1: it is no event"),
        ("print('x' * 20_000_000)", "wrote line 1: it is longer than"),
    ],
)
async def test_a_program_that_fails_is_named_with_the_reason(script: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ProgramFailed, match=reason):
        await program(script, tmp_path)[0].run()


async def test_a_program_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    tested = ClientProgram("/nowhere/program", {}, ClientLines(Recorder(lambda: 0.0), frozenset()), tmp_path / LOG_FILE)
    with pytest.raises(ProgramFailed, match="cannot be started"):
        await tested.run()


async def test_a_program_that_does_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    script = GOOD.replace("signal.pause()", "signal.signal(15, signal.SIG_IGN)\nwhile True: signal.pause()")
    tested, recorder = program(script, tmp_path)
    running = asyncio.create_task(tested.run())
    while len(recorder.log.events) < 2:
        await asyncio.wait([running], timeout=0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert tested._process is not None and tested._process.returncode == -9
