"""`minibroker log repair` on a disk that takes no writes: an examination needs none, a repair says what it needs."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from minibroker.__main__ import minibroker
from minibroker.protocol.files import checkpoints
from tests.minibroker import test_log_repair as sound

log_dir = sound.log_dir  # the fixture


def repair(log_dir: Path, *arguments: str) -> Result:
    return CliRunner().invoke(minibroker, ["log", "repair", str(log_dir), *arguments], catch_exceptions=False)


def refuse_writes(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    real_open = os.open

    def open_to_read(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(number, os.strerror(number))
        return real_open(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", open_to_read)


def test_a_read_only_file_system_is_examined_and_not_repaired(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once both were a traceback: cannot lock .lock."""
    sound.flip(sound.segment(log_dir), 70)
    refuse_writes(monkeypatch, errno.EROFS)
    result = repair(log_dir)
    assert result.exit_code == 10
    assert result.stdout.startswith(
        f"a broker refuses to start: {log_dir} is on a read-only file system. Cure: mount it for writing, and start the"
        " broker\nt-0\n  damaged: "
    )
    assert result.stdout.count("read-only file system") == 1
    result = repair(log_dir, "--apply")
    assert result.exit_code == 1
    assert result.output == (
        f"error: nothing is repaired: cannot lock {log_dir}/.lock: Read-only file system: mount it for writing, and run"
        " this again\n"
    )


def test_a_broker_that_runs_on_a_read_only_file_system_is_in_use(
    log_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log_dir / checkpoints.LOCK).touch()
    refuse_writes(monkeypatch, errno.EROFS)
    with (log_dir / checkpoints.LOCK).open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "is in use: stop its broker first" in repair(log_dir).output
    assert "is in use" not in repair(log_dir).output


def test_a_full_disk_is_examined_and_its_repair_needs_space(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_writes(monkeypatch, errno.ENOSPC)
    assert "is in use" not in repair(log_dir).output
    assert ": free space on its disk, and run this again" in repair(log_dir, "--apply").output
