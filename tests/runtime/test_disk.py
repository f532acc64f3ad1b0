"""The disk port: the same cases on real files and on simulated ones."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.runtime.ports import (
    BadEntry,
    Disk,
    FileMissing,
    FileTooLarge,
    LockHeld,
)
from tests.runtime.ports import Bench, RealBench, RuntimePorts, SimulatedBench, conformance, settle


@pytest.fixture(params=["asyncio", "uvloop", "simulated", "simulated with threads"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    """Every kind of disk."""
    if request.param.startswith("simulated"):
        return SimulatedBench(has_disk_threads=request.param != "simulated")
    return RealBench(request.param, str(tmp_path))


def read(disk: Disk) -> Callable[[str], bytes]:
    return lambda path: disk.read_file(path, SMALL_FILE_BYTES_MAX)


@conformance
async def test_appended_parts_are_read_back(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([b"one", bytearray(b"two"), memoryview(b"-three-")[1:6]])
    file.append([b"four"])
    assert file.size == 15
    assert file.read_at(0, 15) == b"onetwothreefour"
    assert file.read_at(3, 3) == b"two"
    file.close()


@conformance
async def test_more_parts_than_the_kernel_takes_at_once(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([b"%04d" % number for number in range(3000)])
    assert file.size == 12_000
    assert file.read_at(11_996, 4) == b"2999"


@conformance
async def test_nothing_to_append_changes_nothing(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([])
    file.append([b""])
    assert file.size == 0


@conformance
async def test_a_read_is_short_only_at_the_end(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([b"abcdef"])
    assert file.read_at(4, 10) == b"ef"
    assert file.read_at(6, 10) == b""
    assert file.read_at(60, 10) == b""
    assert file.read_at(2, 0) == b""


@conformance
async def test_a_read_into_a_buffer_fills_what_there_is_and_no_more(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([b"abcdef"])
    memory = bytearray(b"....")
    assert file.read_into(1, memoryview(memory)) == 4
    assert memory == b"bcde"
    assert file.read_into(4, memoryview(memory)) == 2
    assert memory == b"efde"
    assert file.read_into(60, memoryview(memory)) == 0
    assert file.read_into(0, memoryview(memory)[:0]) == 0


@conformance
async def test_overwriting_in_place_keeps_the_size(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/index", create=True)
    file.append([b"abcdef"])
    file.write_at(2, b"XY")
    assert file.read_at(0, 10) == b"abXYef"
    assert file.size == 6


@conformance
async def test_overwriting_never_extends(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/index", create=True)
    file.append([b"abc"])
    with pytest.raises(AssertionError):
        file.write_at(2, b"XY")
    assert file.read_at(0, 10) == b"abc"


@conformance
async def test_truncated_bytes_are_gone_and_appends_go_on_there(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([b"abcdef"])
    file.truncate(2)
    assert file.size == 2
    file.append([b"Z"])
    assert file.read_at(0, 10) == b"abZ"


@conformance
async def test_reopened_file_knows_its_size_and_appends_at_the_end(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/log"
    file = ports.disk.open(path, create=True)
    file.append([b"abc"])
    file.sync()
    file.close()
    again = ports.disk.open(path)
    assert again.size == ports.disk.file_size(path) == 3
    again.append([b"d"])
    assert ports.disk.read_file(path, SMALL_FILE_BYTES_MAX) == b"abcd"


@conformance
async def test_two_openings_of_a_file_see_the_same_bytes(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/log"
    writer = ports.disk.open(path, create=True)
    reader = ports.disk.open(path)
    writer.append([b"abc"])
    assert reader.read_at(0, 3) == b"abc"


@conformance
async def test_the_error_of_a_missing_file_names_it(ports: RuntimePorts) -> None:
    disk, missing = ports.disk, f"{ports.directory}/missing"
    for call in (disk.open, read(disk), disk.file_size, disk.list_directory, disk.modified_ms, disk.free_bytes):
        with pytest.raises(FileMissing, match="missing"):
            call(missing)
    with pytest.raises(FileMissing, match="missing"):
        disk.open(f"{missing}/file", create=True)
    with pytest.raises(FileMissing, match="missing"):
        disk.rename(missing, f"{ports.directory}/elsewhere")
    assert not disk.exists(missing)


@conformance
async def test_directories_are_made_with_parents_and_listed_sorted(ports: RuntimePorts) -> None:
    disk, deep = ports.disk, f"{ports.directory}/a/b"
    disk.make_directory(deep)
    disk.make_directory(deep)
    for name in ("z", "x", "y"):
        disk.open(f"{deep}/{name}", create=True).close()
    assert disk.list_directory(deep) == ["x", "y", "z"]
    assert disk.list_directory(f"{ports.directory}/a") == ["b"]
    assert disk.exists(deep)


@conformance
async def test_a_directory_is_no_file_and_a_file_no_directory(ports: RuntimePorts) -> None:
    disk = ports.disk
    disk.make_directory(f"{ports.directory}/directory")
    disk.open(f"{ports.directory}/file", create=True).close()
    for call in (disk.open, read(disk), disk.file_size, disk.remove):
        with pytest.raises(BadEntry, match="directory"):
            call(f"{ports.directory}/directory")
    with pytest.raises(BadEntry):
        disk.list_directory(f"{ports.directory}/file")
    with pytest.raises(BadEntry):
        disk.make_directory(f"{ports.directory}/file")


@conformance
async def test_replaced_file_holds_the_new_bytes_only(ports: RuntimePorts) -> None:
    disk, path = ports.disk, f"{ports.directory}/checkpoint"
    disk.replace_file(path, b"a long first version")
    disk.replace_file(path, b"second")
    assert disk.read_file(path, SMALL_FILE_BYTES_MAX) == b"second"
    disk.replace_file(path, b"third", sync=False)
    assert disk.read_file(path, SMALL_FILE_BYTES_MAX) == b"third"
    assert disk.list_directory(ports.directory) == ["checkpoint"]


@conformance
async def test_an_open_file_survives_its_replacement(ports: RuntimePorts) -> None:
    disk, path = ports.disk, f"{ports.directory}/checkpoint"
    disk.replace_file(path, b"first")
    old = disk.open(path)
    disk.replace_file(path, b"second")
    assert old.read_at(0, 10) == b"first"


@conformance
async def test_rename_replaces_the_target(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    disk.replace_file(f"{here}/new", b"new")
    disk.replace_file(f"{here}/old", b"old")
    disk.rename(f"{here}/new", f"{here}/old")
    assert disk.list_directory(here) == ["old"]
    assert disk.read_file(f"{here}/old", SMALL_FILE_BYTES_MAX) == b"new"


@conformance
async def test_a_renamed_directory_keeps_its_files(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    disk.make_directory(f"{here}/orders-0")
    file = disk.open(f"{here}/orders-0/log", create=True)
    disk.rename(f"{here}/orders-0", f"{here}/orders-0.deleted")
    file.append([b"still open"])
    assert disk.read_file(f"{here}/orders-0.deleted/log", SMALL_FILE_BYTES_MAX) == b"still open"


@conformance
async def test_removing_twice_is_fine(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    disk.replace_file(f"{here}/file", b"x")
    disk.make_directory(f"{here}/tree/deep")
    disk.replace_file(f"{here}/tree/deep/file", b"x")
    for _ in range(2):
        disk.remove(f"{here}/file")
        disk.remove_tree(f"{here}/tree")
    assert disk.list_directory(here) == []


@conformance
async def test_directory_is_locked_once(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/.lock"
    lock = ports.disk.lock(path)
    with pytest.raises(LockHeld, match="lock"):
        ports.disk.lock(path)
    lock.release()
    lock.release()
    ports.disk.lock(path).release()


@conformance
async def test_facts_of_the_machine(ports: RuntimePorts) -> None:
    disk, path = ports.disk, f"{ports.directory}/file"
    disk.replace_file(path, b"x")
    assert disk.free_bytes(ports.directory) > 1_000_000
    assert disk.has_room(ports.directory, 1_000_000)
    assert not disk.has_room(ports.directory, 1 << 60)
    assert disk.list_directory(ports.directory) == ["file"]
    assert abs(disk.modified_ms(path) - ports.runtime.clock.now_ms()) < 10_000
    assert disk.boot_id() == disk.boot_id() != ""


@conformance
async def test_background_work_returns_its_result(ports: RuntimePorts) -> None:
    file = ports.disk.open(f"{ports.directory}/log", create=True)
    file.append([b"abc"])
    await ports.disk.in_background(file.sync)
    assert await ports.disk.in_background(lambda: file.read_at(0, 3)) == b"abc"


@conformance
async def test_background_work_raises_its_error(ports: RuntimePorts) -> None:
    with pytest.raises(FileMissing):
        await ports.disk.in_background(lambda: ports.disk.read_file(f"{ports.directory}/missing", SMALL_FILE_BYTES_MAX))


@conformance
async def test_cancelled_background_work_is_over_when_its_caller_goes_on(ports: RuntimePorts) -> None:
    """Its caller may do it again at once, as at a broker's stop: two replacements of one file at a time would spoil
    each other."""
    disk, path, begun = ports.disk, f"{ports.directory}/file", 0

    def replace(content: bytes) -> None:
        nonlocal begun
        begun += 1
        disk.replace_file(path, content)
        begun -= 1

    for number in range(20):
        first = asyncio.ensure_future(disk.in_background(partial(replace, b"first" * (number + 1))))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert first.cancelled()
        assert begun == 0
        await disk.in_background(partial(replace, b"second"))
        assert read(disk)(path) == b"second"


# ------------------------------------------------------------------------------------------- the real disk alone
@conformance
async def test_renaming_what_is_missing_and_onto_what_is_in_the_way_is_refused(ports: RuntimePorts) -> None:
    disk, directory = ports.disk, ports.directory
    with pytest.raises(FileMissing):
        disk.rename(f"{directory}/none", f"{directory}/other")
    with pytest.raises(FileMissing):
        disk.rename(f"{directory}/none/log", f"{directory}/other")
    disk.replace_file(f"{directory}/file", b"kept")
    disk.make_directory(f"{directory}/full/below")
    disk.make_directory(f"{directory}/empty")
    with pytest.raises(BadEntry):
        disk.rename(f"{directory}/file", f"{directory}/empty")
    with pytest.raises(BadEntry):
        disk.rename(f"{directory}/empty", f"{directory}/full")
    with pytest.raises(BadEntry):
        disk.rename(f"{directory}/empty", f"{directory}/file")
    disk.rename(f"{directory}/full", f"{directory}/empty")
    assert disk.list_directory(directory) == ["empty", "file"]
    assert disk.list_directory(f"{directory}/empty") == ["below"]
    assert disk.read_file(f"{directory}/file", SMALL_FILE_BYTES_MAX) == b"kept"


@conformance
async def test_a_link_to_a_directory_is_followed_but_renamed_and_removed_itself(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    disk.make_directory(f"{here}/elsewhere")
    disk.replace_file(f"{here}/elsewhere/file", b"kept")
    ports.link(f"{here}/link", f"{here}/elsewhere")
    disk.make_directory(f"{here}/link")
    disk.open(f"{here}/link/more", create=True).close()
    disk.sync_directory(f"{here}/link")
    assert disk.list_directory(f"{here}/link") == ["file", "more"]
    assert disk.read_file(f"{here}/link/file", SMALL_FILE_BYTES_MAX) == b"kept"
    disk.rename(f"{here}/link", f"{here}/other")
    assert disk.list_directory(here) == ["elsewhere", "other"]
    assert disk.remove_tree(f"{here}/other") == f"{here}/elsewhere"
    assert disk.remove_tree(f"{here}/other") is None
    assert disk.list_directory(here) == ["elsewhere"]
    assert disk.list_directory(f"{here}/elsewhere") == ["file", "more"]


@conformance
async def test_a_link_that_leads_nowhere_takes_its_name_and_no_more(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    for target in ("nothing", "link"):
        ports.link(f"{here}/link", f"{here}/{target}")
        assert disk.exists(f"{here}/link")
        for call in (disk.open, read(disk), disk.list_directory, disk.file_size):
            with pytest.raises((FileMissing, BadEntry)):
                call(f"{here}/link")
        with pytest.raises(BadEntry):
            disk.make_directory(f"{here}/link")
        disk.make_directory(f"{here}/directory")
        with pytest.raises(BadEntry):
            disk.rename(f"{here}/directory", f"{here}/link")
        assert disk.remove_tree(f"{here}/link") == f"{here}/{target}"
        disk.remove_tree(f"{here}/directory")
        assert disk.list_directory(here) == []


@conformance
async def test_a_replacement_never_writes_through_a_link(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    disk.replace_file(f"{here}/foreign", b"kept")
    ports.link(f"{here}/file", f"{here}/foreign")
    assert disk.read_file(f"{here}/file", SMALL_FILE_BYTES_MAX) == b"kept"
    disk.replace_file(f"{here}/file", b"new")
    ports.link(f"{here}/file.tmp", f"{here}/foreign")
    with pytest.raises(BadEntry):
        disk.replace_file(f"{here}/file", b"newer")
    assert disk.read_file(f"{here}/file", SMALL_FILE_BYTES_MAX) == b"new"
    assert disk.read_file(f"{here}/foreign", SMALL_FILE_BYTES_MAX) == b"kept"


@conformance
async def test_what_is_neither_file_nor_directory_is_refused_but_can_be_removed(ports: RuntimePorts) -> None:
    disk, here = ports.disk, ports.directory
    ports.make_pipe(f"{here}/pipe")
    ports.link(f"{here}/link", f"{here}/pipe")
    assert disk.list_directory(here) == ["link", "pipe"]
    for path in (f"{here}/pipe", f"{here}/link"):
        for call in (disk.open, read(disk), disk.file_size, disk.list_directory, disk.make_directory, disk.lock):
            with pytest.raises(BadEntry):
                call(path)
    disk.rename(f"{here}/pipe", f"{here}/other")
    disk.remove(f"{here}/other")
    disk.replace_file(f"{here}/link", b"a file now")
    assert disk.read_file(f"{here}/link", SMALL_FILE_BYTES_MAX) == b"a file now"


@conformance
async def test_a_file_that_is_larger_than_it_may_be_is_not_read(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/file"
    ports.disk.replace_file(path, b"0123456789")
    assert ports.disk.read_file(path, 10) == b"0123456789"
    with pytest.raises(FileTooLarge, match=r"file: it has 10 bytes, and at most 9 belong there"):
        ports.disk.read_file(path, 9)


@conformance
async def test_a_file_is_no_tree(ports: RuntimePorts) -> None:
    ports.disk.replace_file(f"{ports.directory}/file", b"kept")
    with pytest.raises(BadEntry):
        ports.disk.remove_tree(f"{ports.directory}/file")
    assert ports.disk.exists(f"{ports.directory}/file")


@conformance
async def test_renaming_to_its_own_name_changes_nothing(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/file"
    ports.disk.replace_file(path, b"kept")
    ports.disk.rename(path, path)
    assert ports.disk.read_file(path, SMALL_FILE_BYTES_MAX) == b"kept"


@conformance
async def test_an_open_file_survives_its_removal(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/log"
    file = ports.disk.open(path, create=True)
    file.append([b"old"])
    ports.disk.remove(path)
    assert not ports.disk.exists(path)
    file.append([b" and more"])
    assert file.read_at(0, 100) == b"old and more"
    assert ports.disk.open(path, create=True).size == 0


@conformance
async def test_calls_that_need_a_directory_fail_if_there_is_none(ports: RuntimePorts) -> None:
    disk, missing = ports.disk, f"{ports.directory}/none"
    for call in (
        lambda: disk.open(f"{missing}/log", create=True),
        lambda: disk.lock(f"{missing}/.lock"),
        lambda: disk.replace_file(f"{missing}/checkpoint", b"x"),
        lambda: disk.sync_directory(missing),
        lambda: disk.free_bytes(missing),
        lambda: disk.modified_ms(missing),
    ):
        with pytest.raises(FileMissing):
            call()
    disk.remove(f"{missing}/log")
    disk.remove_tree(f"{missing}/below")
    assert not disk.exists(missing)


@conformance
async def test_a_path_may_be_written_in_several_ways(ports: RuntimePorts) -> None:
    ports.disk.replace_file(f"{ports.directory}/./file", b"x")
    assert ports.disk.read_file(f"{ports.directory}//file", SMALL_FILE_BYTES_MAX) == b"x"
    held = ports.disk.lock(f"{ports.directory}/.lock")
    with pytest.raises(LockHeld):
        ports.disk.lock(f"{ports.directory}/./.lock")
    held.release()


@conformance
async def test_a_file_remembers_when_it_was_changed(ports: RuntimePorts) -> None:
    path = f"{ports.directory}/log"
    file = ports.disk.open(path, create=True)
    created = ports.disk.modified_ms(path)
    await settle(0.05)
    file.append([b"x"])
    assert ports.disk.modified_ms(path) >= created + 40
    assert abs(ports.disk.modified_ms(path) - ports.runtime.clock.now_ms()) < 10_000
