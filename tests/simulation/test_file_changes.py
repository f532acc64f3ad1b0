"""Files of one disk that are gone, cut, emptied, zeroed, or older: each change does what its name says."""

import random

import pytest

from minibroker.protocol.record_batch import build_batch
from minibroker.simulation.swarm.faults.disk_options import FILE_CHANGES, NOTES, OLDER, SHORTENED
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.file_changes import FileChanges, directory_id, logs_of, put_file
from minibroker.simulation.swarm.faults.rot_places import LOG_DIRECTORY, RotPlaces, batches_of
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.storage import SimulatedStorage
from minibroker.simulation.world.trace import Trace
from tests.simulation.test_disk_faults import whole
from tests.simulation.test_promise import under_faults

PARTITION = f"{LOG_DIRECTORY}/a-0"
FIRST, LAST = f"{PARTITION}/{0:020d}", f"{PARTITION}/{4:020d}"
BATCH = bytes(build_batch([(None, b"value", 0, ())]))
META = b"version=1\ndirectory.id=%s\n"


def storage() -> SimulatedStorage:
    """The disk of a broker with one log of two segments."""
    loop = VirtualLoop()
    disk = SimulatedStorage("broker-1", loop, random.Random(1), Trace(loop))
    disk.provision(PARTITION)
    put_file(disk, f"{LOG_DIRECTORY}/meta.properties", META % b"mine")
    put_file(disk, f"{LOG_DIRECTORY}/whole-since", b"since\n")
    for name, content in ((".log", 4 * BATCH), (".index", b"index"), (".snapshot", b"producers")):
        put_file(disk, FIRST + name, content)
        put_file(disk, LAST + name, content)
    put_file(disk, f"{PARTITION}/leader-epoch-checkpoint", b"epochs")
    put_file(disk, f"{PARTITION}/log-start", b"start".ljust(100, b"\n"))
    loop.close()
    return disk


def contents(disk: SimulatedStorage) -> dict[str, bytes]:
    return {path: bytes(file.content) for path, file in disk.files("/")}


def aged(disk: SimulatedStorage, changes: FileChanges) -> None:
    """Take a copy, then write on."""
    changes.copies.take(disk)
    put_file(disk, f"{LAST}.log", 6 * BATCH)
    put_file(disk, f"{PARTITION}/leader-epoch-checkpoint", b"later epochs")


@pytest.mark.parametrize("kind", FILE_CHANGES)
def test_change_of_files_survives_a_power_cut_and_its_space_is_counted(kind: str) -> None:
    disk, changes = storage(), FileChanges(random.Random(1))
    aged(disk, changes)
    before = contents(disk)
    assert changes.act(kind)(disk) is not None
    after = contents(disk)
    assert after != before
    assert disk.used_bytes == sum(map(len, after.values()))
    disk.lose_power(tear=False)
    assert contents(disk) == after


@pytest.mark.parametrize("kind", FILE_CHANGES)
def test_change_of_files_leaves_a_blank_disk_alone(kind: str) -> None:
    disk, changes = storage(), FileChanges(random.Random(1))
    aged(disk, changes)
    disk.wipe()
    disk.provision("/data")
    assert changes.act(kind)(disk) is None


def gone(disk: SimulatedStorage) -> set[str]:
    return {path.rpartition("/")[2] for path in contents(storage()).keys() - contents(disk).keys()}


def shortened(kind: str) -> SimulatedStorage:
    disk = storage()
    assert kind in SHORTENED
    assert FileChanges(random.Random(1)).act(kind)(disk) is not None
    return disk


def test_cut_log_ends_with_a_whole_batch() -> None:
    disk = shortened("cut_at_batch")
    content = disk.find_file(f"{LAST}.log").content
    assert 0 < len(content) < 4 * len(BATCH)
    assert sum(size for _, size in batches_of(content)) == len(content)


def test_emptied_segment_is_the_last_one_and_keeps_its_name() -> None:
    assert [len(file.content) for _, file in logs_of(shortened("emptied_segment"))[PARTITION]] == [4 * len(BATCH), 0]


def test_zeroed_segment_keeps_its_length() -> None:
    found = [bytes(file.content) for _, file in logs_of(shortened("zeroed_segment"))[PARTITION]]
    assert sorted(found) == [bytes(4 * len(BATCH)), 4 * BATCH]


def test_newest_segments_go_with_their_indexes_and_later_snapshots() -> None:
    last = f"{4:020d}"
    assert gone(shortened("newest_segments_gone")) == {f"{last}.log", f"{last}.index"}


def test_all_segments_go_and_the_notes_stay() -> None:
    disk = shortened("all_segments_gone")
    assert logs_of(disk) == {}
    assert disk.find_file(f"{PARTITION}/log-start").content


def test_removed_directory_holds_all_of_a_partition_and_nothing_else() -> None:
    disk = shortened("directory_gone")
    assert set(contents(disk)) == {f"{LOG_DIRECTORY}/meta.properties", f"{LOG_DIRECTORY}/whole-since"}


@pytest.mark.parametrize("kind", NOTES)
def test_changes_of_notes_reach_every_kind(kind: str) -> None:
    changed = {FileChanges(random.Random(seed)).act(kind)(storage()) or "" for seed in range(40)}
    names = {path.rpartition("/")[2] for path in changed}
    assert names >= {"whole-since", "log-start", "leader-epoch-checkpoint", f"{4:020d}.snapshot"}


def test_notes_rot_where_something_is_written() -> None:
    for seed in range(20):
        disk = storage()
        place = RotPlaces(random.Random(seed)).rot_notes(disk)
        assert place is not None
        assert disk.find_file(place[0]).content[place[1]] != ord("\n")


@pytest.mark.parametrize("kind", OLDER)
def test_older_copy_never_comes_from_an_earlier_disk(kind: str) -> None:
    disk, changes = storage(), FileChanges(random.Random(1))
    aged(disk, changes)
    put_file(disk, f"{LOG_DIRECTORY}/meta.properties", META % b"another")
    assert directory_id(disk.root) == b"directory.id=another"
    assert changes.act(kind)(disk) is None


def test_older_directory_holds_its_old_content_and_its_neighbours_stay() -> None:
    disk, changes = storage(), FileChanges(random.Random(1))
    before = contents(disk)
    aged(disk, changes)
    put_file(disk, f"{LOG_DIRECTORY}/whole-since", b"later\n")
    assert changes.act("older_directory")(disk) == PARTITION
    assert contents(disk) == {**before, f"{LOG_DIRECTORY}/whole-since": b"later\n"}


def test_notes_of_a_real_broker_are_found() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        kinds = {str(FileChanges(random.Random(seed)).missing_note(injector.storage(1))) for seed in range(10)}
        assert any(path.endswith("/log-start") for path in kinds)
        assert any(path.endswith("/partition.metadata") for path in kinds)

    under_faults(case)
