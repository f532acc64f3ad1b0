"""A process is identified by more than its number."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.local_cluster import processes
from minibroker.local_cluster.processes import ProcessIdentity, free_ports, identify


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    script = "import sys, time; sys.stdout.buffer.write(b'up\\n'); sys.stdout.flush(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    yield child
    child.kill()
    child.wait()
    child.stdout.close()


def test_living_process_is_alive(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert identity.is_alive()
    assert not identity.is_paused()


def test_recycled_number_is_another_process(sleeper: "subprocess.Popen[bytes]") -> None:
    former = ProcessIdentity(sleeper.pid, "long ago")
    assert not former.is_alive()
    assert not former.send(signal.SIGKILL)
    assert sleeper.poll() is None


def test_process_without_a_command_line_yet_is_waited_for(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a new broker 'has ended by itself: (nothing)', because Linux did not show its command line yet."""
    answers: list[list[str]] = [[], [], [sys.executable]]
    monkeypatch.setattr(processes, "command_line", lambda pid: answers.pop(0))
    identity = identify(sleeper.pid)
    assert identity is not None
    assert identity.was_started_with(Path(sys.executable))
    assert not answers


def test_killed_child_is_dead_before_its_exit_code_is_read(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert identity.send(signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()


def test_stopped_process_is_paused(sleeper: "subprocess.Popen[bytes]") -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    identity.send(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED | os.WNOWAIT)
    assert identity.is_paused()
    identity.send(signal.SIGCONT)


def test_no_process_has_an_unused_number() -> None:
    assert identify(2**22 + 1) is None


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
