"""`minibroker log repair` on a disk that takes no writes: an examination needs none, a repair says what it needs."""

import errno
import fcntl
import os
import shutil
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


def test_what_would_be_done_names_the_way_of_an_only_copy(log_dir: Path) -> None:
    """Nothing that was printed led from the only copy of a partition to --cut: a note alone leaves it without a
    leader."""
    sound.flip(sound.segment(log_dir), 70)
    shown = repair(log_dir).stdout
    assert "once another broker leads (if no broker has another copy: `--cut t-0` keeps the sound part)\n" in shown
    assert shown.endswith("nothing was changed; repair with --apply\n")


@pytest.mark.parametrize(("promised", "options"), [(12, "--apply --accept-loss"), (0, "--apply")])
def test_what_would_be_cut_names_all_options_that_it_needs(log_dir: Path, promised: int, options: str) -> None:
    """`--apply` alone was advised, and then refused without `--accept-loss`."""
    sound.promise(log_dir, promised, promised, clean_end=promised) if promised else sound.killed(log_dir)
    sound.flip(sound.segment(log_dir), 70)
    assert repair(log_dir, "--cut", "t-0").stdout.endswith(f"nothing was changed; repair with {options}\n")


@pytest.mark.parametrize(("given", "near"), [("t-0", "."), ("data", "data/broker-7")])
def test_another_directory_than_a_log_dir_leads_to_one_nearby(log_dir: Path, given: str, near: str) -> None:
    """It always advised minibroker-data/broker-1, also where that was not."""
    shutil.copytree(log_dir, log_dir / "data" / "broker-7")
    assert f"give the log.dir of the broker's settings, such as {log_dir / near}\n" in repair(log_dir / given).output


def test_only_the_owner_of_a_log_directory_repairs_it(log_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new `log-start` of a log that root had cut was root's, and the broker's user could not write it: the only
    copy counted as damaged again."""
    sound.flip(sound.segment(log_dir), 70)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    assert repair(log_dir).exit_code == 10
    result = repair(log_dir, "--apply")
    assert result.exit_code == 1
    assert result.output.startswith(f"error: nothing is repaired: {log_dir} is of user ")
    assert not list(log_dir.glob(f"*/{checkpoints.DAMAGE_NOTE}"))


def test_an_examination_makes_no_lock(log_dir: Path) -> None:
    """Of a restored log directory that has none. One that root makes is closed to the broker's user: it did not
    start."""
    (log_dir / checkpoints.LOCK).unlink(missing_ok=True)
    before = sorted(log_dir.rglob("*"))
    repair(log_dir)
    assert sorted(log_dir.rglob("*")) == before
