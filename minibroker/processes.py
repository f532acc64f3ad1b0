"""Processes of this machine: who they are, whether they still live, and ports that nobody uses yet.

Owns: telling one process from a later one that was given the same number (pid and start time), and signals to it.
Refuses to know what a process does. Linux's /proc where there is one, `ps` elsewhere.
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

PROC = Path("/proc")
COMMAND_LINE_WAIT_S = 0.5
"""For the words of a program that has just been started: they come within a millisecond of processor time."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, never another that was given the same number later."""

    pid: int
    started: str
    """When it started, in the words of its system."""

    def is_alive(self) -> bool:
        """Runs or is paused. A zombie, which only waits for its parent to read its exit code, is dead."""
        _reap(self.pid)
        return _start_of(self.pid) == self.started

    def was_started_with(self, file: Path) -> bool:
        """Whether it lives and its command line names this file: then it is no stranger's process, whoever wrote its
        number down. Linux tells a parent that the program runs before it shows the program's words: those of a process
        that has none yet are waited for."""
        deadline = time.monotonic() + COMMAND_LINE_WAIT_S
        while self.is_alive():
            words = command_line(self.pid)
            if words or time.monotonic() > deadline:
                return any(_is_same_file(word, file) for word in words)
            time.sleep(0.001)
        return False

    def is_paused(self) -> bool:
        return self.is_alive() and _state_of(self.pid) in ("T", "t")

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False if the process is gone."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def identify(pid: int) -> ProcessIdentity | None:
    """The process that has this number now."""
    started = _start_of(pid)
    return None if started is None else ProcessIdentity(pid, started)


def command_line(pid: int) -> list[str]:
    """The words that it was started with; none of a process that is gone."""
    if not PROC.joinpath("self").exists():
        return (_ask_ps(pid, "args") or "").split()
    try:
        content = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.split(b"\0") if word]


def _is_same_file(word: str, file: Path) -> bool:
    try:
        return os.path.isabs(word) and os.path.samefile(word, file)
    except (OSError, ValueError):
        return False


def _reap(pid: int) -> None:
    """Read the exit code if it is our own dead child, so that it does not stay a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name before it may hold anything


def _start_of(pid: int) -> str | None:
    if not PROC.joinpath("self").exists():
        return _ask_ps(pid, "lstart")
    fields = _stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return f"{fields[19]}@{_boot_id()}"


def _state_of(pid: int) -> str:
    fields = _stat_fields(pid)
    return fields[0] if fields is not None else (_ask_ps(pid, "state") or "?")[0]


def _boot_id() -> str:
    try:
        return (PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _ask_ps(pid: int, field: str) -> str | None:
    command = ["ps", "-o", f"{field}=", "-p", str(pid)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    return answer.stdout.strip() or None


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it came true in time, asked again and again."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


# ------------------------------------------------------------------------------------------------------------ ports
PORTS_TO_CHOOSE_FROM = range(15_000, 30_000)
"""Below the ports that Linux gives to outgoing connections: no client may sit on a broker's port while it is down."""


def free_ports(count: int) -> list[int]:
    """Different ports that nobody listens on now."""
    found: list[int] = []
    for port in random.sample(PORTS_TO_CHOOSE_FROM, 1000):
        if len(found) == count:
            break
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found
