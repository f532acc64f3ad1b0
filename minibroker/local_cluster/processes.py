"""Processes of this machine: their identity, whether they are alive, and ports that no process uses.

Owns: telling a process from a later one with the same number (by pid and start time), and signals to it. Leaves to
others: what a process does. Uses Linux's /proc, or `ps` elsewhere.
"""

import asyncio
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

PROC = Path("/proc")
COMMAND_LINE_WAIT_S = 0.5
"""For the command line of a program that has just started: it appears within a millisecond of processor time."""


class ProcessIdentity(msgspec.Struct, frozen=True):
    """One process, never a later one with the same number."""

    pid: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    started: str
    """When it started, as its system reports it."""

    def is_alive(self) -> bool:
        """Is it running or paused? A zombie, which waits for its parent to read its exit code, is dead."""
        _reap(self.pid)
        return _start_of(self.pid) == self.started

    def was_started_with(self, file: Path) -> bool:
        """Is it alive, and does its command line name this file? Then it is ours, even if its number was forged. Linux
        lets a parent continue before it shows the new program's command line, so a missing one is waited for."""
        deadline = time.monotonic() + COMMAND_LINE_WAIT_S
        while self.is_alive():
            words = command_line(self.pid)
            if words or time.monotonic() > deadline:
                return any(is_same_file(self.pid, word, file) or self._names_former(word, file) for word in words)
            time.sleep(0.001)
        return False

    def _names_former(self, word: str, file: Path) -> bool:
        """Does it run in the directory of this file, and name a file that was called so? The file was removed, or its
        directory renamed: the working directory of a process follows. Another directory may have its former name."""
        try:
            return os.path.basename(word) == file.name and os.path.samefile(_directory_of(self.pid), file.parent)
        except OSError:
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
    """The process with this number now."""
    started = _start_of(pid)
    return None if started is None else ProcessIdentity(pid, started)


def command_line(pid: int) -> list[str]:
    """The arguments that it was started with; none if the process is gone."""
    if not PROC.joinpath("self").exists():
        return (_ask_ps(pid, "args") or "").split()
    try:
        content = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in content.split(b"\0") if word]


def own_command_lines() -> Iterator[tuple[int, list[str]]]:
    """Each process that this user may end, with its arguments."""
    if not PROC.joinpath("self").exists():
        command = ["ps", "-xo", "pid=,args="]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        for pid, *words in filter(None, map(str.split, answer.stdout.splitlines())):
            yield int(pid), words
        return
    user = os.geteuid()
    for name in os.listdir(PROC):
        try:
            is_ours = name.isdigit() and (user == 0 or (PROC / name).stat().st_uid == user)
        except OSError:
            continue
        if is_ours:
            yield int(name), command_line(int(name))


def is_same_file(pid: int, word: str, file: Path) -> bool:
    """Is this argument of the process the path of that file? A relative one counts from the working directory of the
    process, as far as its system shows that."""
    try:
        # an absolute one stays as it is
        return os.path.samefile(_directory_of(pid) / word, file) and not runs_beside_another(pid, file)
    except (OSError, ValueError):
        return False


def runs_beside_another(pid: int, file: Path) -> bool:
    """Does the process run in another directory that has a file of this name? A cluster's processes run beside their
    files. Its directory was renamed then, and the path in its arguments is of another one now."""
    directory = _directory_of(pid)
    try:
        return os.path.lexists(directory / file.name) and not os.path.samefile(directory, file.parent)
    except OSError:
        return False


def ran_beside_removed(pid: int, word: str, file: Path) -> bool:
    """Is this argument the path that the file had, and was its directory, in which the process runs, removed?"""
    path = os.path.realpath(file)
    try:
        removed = os.readlink(_directory_of(pid))
    except OSError:
        return False
    return removed == f"{os.path.dirname(path)} (deleted)" and os.path.realpath(word) == path


def _directory_of(pid: int) -> Path:
    """The working directory of a process."""
    return PROC / str(pid) / "cwd"


def _reap(pid: int) -> None:
    """Read the exit code of our own dead child, so that it does not stay a zombie."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _stat_fields(pid: int) -> list[str] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()  # the name before it may contain anything


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
    """Poll the condition; returns whether it became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


# ------------------------------------------------------------------------------------------------------------ ports
PORTS_TO_CHOOSE_FROM = range(15_000, 30_000)
"""Below Linux's ports for outgoing connections, so that no client takes a broker's port while it is down."""


def free_ports(count: int) -> list[int]:
    """Different ports that no process listens on now."""
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
