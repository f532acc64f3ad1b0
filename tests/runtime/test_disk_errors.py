"""Errors of the disk port: the same on a real file system with failing calls and on a simulated disk with faults."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.runtime.adapters.real import real_runtime
from minibroker.runtime.ports import BadEntry, Disk, DiskError, DiskFull, FileMissing, OutOfDescriptors, SyncFailed
from minibroker.simulation.world.world import SimulatedWorld
from tests.runtime.descriptor_limit import no_descriptors

SYSTEM_CALLS = {
    "append": "pwritev",
    "write_at": "pwritev",
    "read": "pread",
    "truncate": "ftruncate",
    "sync": "fsync",
    "sync_directory": "fsync",
    "open": "open",
    "rename": "replace",
    "remove": "unlink",
    "list_directory": "listdir",
    "make_directory": "makedirs",
}
"""The system call that fails on a real machine when this call of the port fails."""


class FragileDisk:
    """A disk with a directory; the next call of a kind can be made to fail."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        fail: Callable[[str, bool], None],
        without_descriptors: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.disk = disk
        self.directory = directory
        self._fail = fail
        self.without_descriptors = without_descriptors

    def fail_next(self, call: str, is_full: bool = False) -> None:
        self._fail(call, is_full)


@pytest.fixture(params=["real", "simulated"])
def fragile(request: pytest.FixtureRequest, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> FragileDisk:
    if request.param == "simulated":
        world = SimulatedWorld()
        storage = world.machine("case").storage

        @contextmanager
        def taken() -> Iterator[None]:
            world.take_descriptors("case")
            yield
            world.give_descriptors("case")

        return FragileDisk(
            world.runtime("case").disk,
            "/data",
            lambda call, full: void(storage.fail(call, times=1, is_full=full)),
            taken,
        )

    def fail(call: str, is_full: bool) -> None:
        name = SYSTEM_CALLS[call]
        works = getattr(os, name)

        def fails_once(*arguments: object, **options: object) -> None:
            monkeypatch.setattr(os, name, works)
            number = errno.ENOSPC if is_full else errno.EIO
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, name, fails_once)

    return FragileDisk(real_runtime().disk, str(tmp_path), fail, no_descriptors)


def void(_: object) -> None:
    """Faults can be removed; in these cases each happens once."""


@pytest.mark.parametrize("is_full", [False, True])
def test_failed_append_leaves_the_file_as_it_was_and_the_next_one_works(fragile: FragileDisk, is_full: bool) -> None:
    file = fragile.disk.open(f"{fragile.directory}/log", create=True)
    file.append([b"before "])
    fragile.fail_next("append", is_full)
    with pytest.raises(DiskError) as failure:
        file.append([b"lost"])
    assert isinstance(failure.value, DiskFull) is is_full
    assert "log" in str(failure.value)
    assert file.size == 7
    file.append([b"after"])
    assert file.read_at(0, 100) == b"before after"


@pytest.mark.parametrize("is_full", [False, True])
def test_failed_sync_is_an_error_and_the_bytes_are_still_readable(fragile: FragileDisk, is_full: bool) -> None:
    file = fragile.disk.open(f"{fragile.directory}/log", create=True)
    file.append([b"written"])
    fragile.fail_next("sync", is_full)
    with pytest.raises(SyncFailed):
        file.sync()
    assert file.read_at(0, 100) == b"written"
    assert file.size == 7


@pytest.mark.parametrize("is_full", [False, True])
def test_failed_sync_of_a_directory_is_an_error(fragile: FragileDisk, is_full: bool) -> None:
    fragile.fail_next("sync_directory", is_full)
    with pytest.raises(SyncFailed):
        fragile.disk.sync_directory(fragile.directory)


@pytest.mark.parametrize(
    "call",
    [
        lambda disk, path: disk.open(f"{path}/log"),
        lambda disk, path: disk.open(f"{path}/new", create=True),
        lambda disk, path: disk.read_file(f"{path}/log", SMALL_FILE_BYTES_MAX),
        lambda disk, path: disk.replace_file(f"{path}/log", b"new"),
        lambda disk, path: disk.list_directory(path),
        lambda disk, path: disk.sync_directory(path),
        lambda disk, path: disk.remove_tree(f"{path}/below"),
        lambda disk, path: disk.lock(f"{path}/.lock"),
    ],
    ids=["open", "create", "read_file", "replace_file", "list_directory", "sync_directory", "remove_tree", "lock"],
)
def test_without_a_descriptor_nothing_is_done_and_it_passes(
    fragile: FragileDisk, call: Callable[[Disk, str], object]
) -> None:
    disk, path = fragile.disk, fragile.directory
    disk.make_directory(f"{path}/below")
    disk.open(f"{path}/log", create=True).close()
    before = disk.list_directory(path)
    with fragile.without_descriptors():
        with pytest.raises(OutOfDescriptors, match="oo many open files"):
            call(disk, path)
        assert disk.exists(f"{path}/below")
        assert disk.free_bytes(path) > 0
    assert disk.list_directory(path) == before
    call(disk, path)


@pytest.mark.parametrize("number", [errno.EBUSY, errno.EXDEV, errno.ENOTEMPTY])
@pytest.mark.parametrize(("call", "function"), [("rename", "replace"), ("remove_tree", "rmdir")])
def test_entries_that_cannot_be_moved_or_removed_are_no_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, function: str, number: int
) -> None:
    """For example a mount point, or a directory into which another program writes."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "partition").mkdir()
    monkeypatch.setattr(os, function, fails)
    targets = [f"{tmp_path}/elsewhere"] if call == "rename" else []
    with pytest.raises(BadEntry):
        getattr(real_runtime().disk, call)(f"{tmp_path}/partition", *targets)


def test_failed_truncation_keeps_the_bytes(fragile: FragileDisk) -> None:
    file = fragile.disk.open(f"{fragile.directory}/log", create=True)
    file.append([b"kept"])
    fragile.fail_next("truncate")
    with pytest.raises(DiskError):
        file.truncate(1)
    assert file.size == 4
    assert file.read_at(0, 100) == b"kept"


def test_failed_overwriting_keeps_the_bytes(fragile: FragileDisk) -> None:
    file = fragile.disk.open(f"{fragile.directory}/index", create=True)
    file.append([b"kept"])
    fragile.fail_next("write_at")
    with pytest.raises(DiskError):
        file.write_at(0, b"lost")
    assert file.read_at(0, 100) == b"kept"


def test_failed_reading_is_an_error_and_no_end_of_file(fragile: FragileDisk) -> None:
    file = fragile.disk.open(f"{fragile.directory}/log", create=True)
    file.append([b"there"])
    fragile.fail_next("read")
    with pytest.raises(DiskError):
        file.read_at(0, 5)
    assert file.read_at(0, 5) == b"there"


def test_a_file_that_cannot_be_opened_is_not_missing(fragile: FragileDisk) -> None:
    fragile.disk.open(f"{fragile.directory}/log", create=True).close()
    fragile.fail_next("open")
    with pytest.raises(DiskError) as failure:
        fragile.disk.open(f"{fragile.directory}/log")
    assert not isinstance(failure.value, FileMissing)


@pytest.mark.parametrize("call", ["sync", "rename"])
def test_a_replacement_that_fails_keeps_the_old_file_and_leaves_no_other(fragile: FragileDisk, call: str) -> None:
    path = f"{fragile.directory}/checkpoint"
    fragile.disk.replace_file(path, b"old")
    fragile.fail_next(call)
    with pytest.raises(DiskError):
        fragile.disk.replace_file(path, b"new")
    assert fragile.disk.read_file(path, SMALL_FILE_BYTES_MAX) == b"old"
    assert fragile.disk.list_directory(fragile.directory) == ["checkpoint"]


def test_failed_removal_keeps_the_file(fragile: FragileDisk) -> None:
    path = f"{fragile.directory}/log"
    fragile.disk.open(path, create=True).close()
    fragile.fail_next("remove")
    with pytest.raises(DiskError):
        fragile.disk.remove(path)
    assert fragile.disk.exists(path)


@pytest.mark.parametrize("call", ["sync_directory", "list_directory"])
def test_failed_calls_on_directories_are_errors(fragile: FragileDisk, call: str) -> None:
    fragile.fail_next(call)
    with pytest.raises(DiskError):
        getattr(fragile.disk, call)(fragile.directory)


def test_failed_making_of_a_directory_makes_none(fragile: FragileDisk) -> None:
    fragile.fail_next("make_directory")
    with pytest.raises(DiskError):
        fragile.disk.make_directory(f"{fragile.directory}/new")
    assert not fragile.disk.exists(f"{fragile.directory}/new")
