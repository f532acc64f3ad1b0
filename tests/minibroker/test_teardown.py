"""A cluster that must not outlive the program: what signals do, in a program of its own, to a process in its place."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys

import pytest

from minibroker.local_cluster import teardown
from minibroker.local_cluster.processes import ProcessIdentity, identify
from minibroker.local_cluster.teardown import Ownership, TeardownTimedOut

PROGRAM = """
import asyncio, os, subprocess, sys, time
from minibroker.local_cluster.teardown import Ownership

sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
child = subprocess.Popen(sleep, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
ownership = Ownership(child.kill)
print(child.pid, flush=True)

async def teardown():
    print("teardown", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    child.terminate()
    child.wait()
    print("ended", flush=True)

async def main():
    try:
        print("runs", flush=True)
        await asyncio.sleep(30)
    finally:
        await ownership.finish(teardown())

with ownership:
    {run}
print("goes on", flush=True)
"""
ASYNC = "asyncio.run(main())"
SYNCHRONOUS = "print('runs', flush=True); time.sleep(30)"
NEVER_LEFT = "ownership.__enter__(); print('runs', flush=True); sys.stdin.read(); sys.exit(3)"
SECONDS_MAX = 20


class Program:
    """The program, and the process that it owns."""

    def __init__(self, run: str, ignores_interrupts: bool = False) -> None:
        command, pipe = [sys.executable, "-c", PROGRAM.format(run=run)], subprocess.PIPE
        before = signal.signal(signal.SIGINT, signal.SIG_IGN if ignores_interrupts else signal.SIG_DFL)
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        signal.signal(signal.SIGINT, before)
        owned = identify(int(self.line()))
        assert owned is not None
        self.owned: ProcessIdentity = owned
        assert self.line() == "runs\n"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ended(self) -> tuple[int, str]:
        """Its exit code and the rest of its output."""
        output, _ = self.process.communicate(timeout=SECONDS_MAX)
        with contextlib.suppress(ProcessLookupError):
            end = os.pidfd_open(self.owned.pid)
            select.select([end], [], [], SECONDS_MAX)
            os.close(end)
        return self.process.returncode, output


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_teardown_does_not_end_it(first: signal.Signals, second: signal.Signals) -> None:
    program = Program(ASYNC)
    program.process.send_signal(first)
    assert program.line() == "teardown\n"
    for _ in range(3):
        program.process.send_signal(second)
    code, output = program.ended()
    assert output == "ended\n"
    assert code == -signal.SIGINT, "it ends as after Ctrl-C"
    assert not program.owned.is_alive()


@pytest.mark.parametrize("run", [ASYNC, SYNCHRONOUS])
def test_sigterm_ends_a_program_that_a_shell_started_in_the_background(run: str) -> None:
    """Such a program ignores SIGINT."""
    program = Program(run, ignores_interrupts=True)
    program.process.send_signal(signal.SIGINT)
    program.process.send_signal(signal.SIGTERM)
    code, output = program.ended()
    assert (code, output) == (-signal.SIGINT, "teardown\nended\n" if run == ASYNC else "")
    assert not program.owned.is_alive()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_that_passes_the_teardown_by_kills_the_cluster(number: signal.Signals) -> None:
    program = Program(SYNCHRONOUS)
    program.process.send_signal(number)
    assert program.ended() == (-signal.SIGINT, "")
    assert not program.owned.is_alive()


def test_what_is_owned_at_the_end_of_the_program_is_killed() -> None:
    program = Program(NEVER_LEFT)
    assert program.ended() == (3, "")
    assert not program.owned.is_alive()


def test_a_program_that_owns_nothing_ends_on_sigterm_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teardown, "_OWNED", {})  # this test run may own a cluster
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Ownership(lambda: None) as ownership:
            with ownership:
                pass
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_a_teardown_that_takes_too_long_or_fails_is_followed_by_a_kill() -> None:
    killed: list[str] = []
    ownership = Ownership(lambda: killed.append("all"))

    async def fails() -> None:
        raise OSError("no engine")

    with pytest.raises(TeardownTimedOut, match=r"not stopped after 0\.01 s"):
        await ownership.finish(asyncio.Event().wait(), timeout_s=0.01)
    with pytest.raises(OSError, match="no engine"):
        await ownership.finish(fails())
    assert killed == ["all", "all"]


async def test_a_cancelled_owner_ends_after_the_teardown() -> None:
    steps: list[str] = []

    async def teardown() -> None:
        steps.append("begun")
        for _ in range(10):
            await asyncio.sleep(0)
        steps.append("ended")

    owner = asyncio.create_task(Ownership(steps.clear).finish(teardown()))
    for _ in range(3):
        await asyncio.sleep(0)
    for _ in range(3):
        owner.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert steps == ["begun", "ended"]
