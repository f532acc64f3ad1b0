"""What the simulated disk keeps: one test per sentence of its model."""

import asyncio

import pytest

from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.runtime.ports import Disk, DiskError, DiskFull, FileMissing, SyncFailed
from minibroker.simulation.world.world import SimulatedWorld

PATH = "/data/log"


class Machine:
    """One machine in an otherwise idle world."""

    def __init__(self, seed: int = 0) -> None:
        self.world = SimulatedWorld(seed)
        self.storage = self.world.machine("broker-1").storage

    @property
    def disk(self) -> Disk:
        return self.world.runtime("broker-1").disk

    def kill(self) -> None:
        self.world.kill("broker-1")

    def power_loss(self, tear: bool = False) -> None:
        self.world.power_loss("broker-1", tear)


def test_kill_keeps_what_was_written() -> None:
    machine = Machine()
    machine.disk.open(PATH, create=True).append([b"written"])
    machine.kill()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"written"


def test_power_loss_keeps_the_synced_bytes_only() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    machine.disk.sync_directory("/data")
    file.append([b"synced "])
    file.sync()
    file.append([b"written"])
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"synced "


def test_power_loss_takes_a_new_file_whose_directory_was_not_synced() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    file.append([b"synced"])
    file.sync()
    machine.power_loss()
    assert not machine.disk.exists(PATH)


def test_power_loss_takes_a_new_directory_whose_parent_was_not_synced() -> None:
    machine = Machine()
    machine.disk.make_directory("/data/orders-0")
    machine.disk.replace_file("/data/orders-0/file", b"x")
    machine.power_loss()
    assert machine.disk.list_directory("/data") == []


def test_a_synced_directory_keeps_its_new_entries() -> None:
    machine = Machine()
    machine.disk.make_directory("/data/orders-0")
    machine.disk.replace_file("/data/orders-0/file", b"x")
    machine.disk.sync_directory("/data")
    machine.power_loss()
    assert machine.disk.read_file("/data/orders-0/file", SMALL_FILE_BYTES_MAX) == b"x"


def test_an_unsynced_rename_is_undone_by_power_loss() -> None:
    machine = Machine()
    machine.disk.replace_file("/data/old", b"x")
    machine.disk.rename("/data/old", "/data/new")
    machine.power_loss()
    assert machine.disk.list_directory("/data") == ["old"]


def test_an_unsynced_removal_is_undone_by_power_loss() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"x")
    machine.disk.remove(PATH)
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"x"


def test_a_replaced_file_is_old_or_new_never_mixed() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"old")
    machine.disk.replace_file(PATH, b"new version")
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"new version"
    machine.disk.replace_file(PATH, b"newest", sync=False)
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"new version"


def test_an_unsynced_truncation_is_undone_by_power_loss() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"0123456789")
    file = machine.disk.open(PATH)
    file.truncate(4)
    file.append([b"abc"])
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"0123456789"


def test_a_synced_truncation_stays() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"0123456789")
    file = machine.disk.open(PATH)
    file.truncate(4)
    file.append([b"abc"])
    file.sync()
    file.append([b"lost"])
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"0123abc"


def test_an_unsynced_overwrite_is_undone_by_power_loss() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"0123456789")
    machine.disk.open(PATH).write_at(2, b"xx")
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"0123456789"


def test_power_loss_may_leave_a_torn_piece_of_what_was_not_synced() -> None:
    lengths: set[int] = set()
    for seed in range(60):
        machine = Machine(seed)
        machine.disk.replace_file(PATH, b"synced")
        machine.disk.open(PATH).append([b"0123456789"])
        machine.power_loss(tear=True)
        left = machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX)
        assert left[:6] == b"synced"
        lengths.add(len(left) - 6)
    assert {0, 10} <= lengths
    assert len(lengths & set(range(1, 10))) > 3
    assert max(lengths) > 10, "sometimes garbage follows"


def test_boot_id_changes_with_the_power_only() -> None:
    machine = Machine()
    first = machine.disk.boot_id()
    machine.kill()
    assert machine.disk.boot_id() == first
    machine.power_loss()
    assert machine.disk.boot_id() != first


def test_full_disk_refuses_an_append_whole_and_heals() -> None:
    machine = Machine()
    machine.storage.capacity_bytes = 10
    file = machine.disk.open(PATH, create=True)
    file.append([b"12345678"])
    assert machine.disk.free_bytes("/data") == 2
    with pytest.raises(DiskFull):
        file.append([b"90", b"1"])
    assert file.size == 8
    machine.storage.capacity_bytes = 100
    file.append([b"901"])
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"12345678901"


def test_removed_and_truncated_bytes_are_free_again() -> None:
    machine = Machine()
    machine.storage.capacity_bytes = 100
    file = machine.disk.open(PATH, create=True)
    file.append([b"x" * 60])
    file.truncate(50)
    machine.disk.replace_file("/data/other", b"x" * 40)
    machine.disk.replace_file("/data/other", b"x" * 10)
    machine.disk.remove(PATH)
    assert machine.disk.free_bytes("/data") == 90


def test_injected_errors_hit_what_they_name() -> None:
    machine = Machine()
    machine.storage.fail("sync", "/data/bad", times=1)
    good, bad = (machine.disk.open(f"/data/{name}", create=True) for name in ("good", "bad"))
    good.sync()
    with pytest.raises(DiskError) as caught:
        bad.sync()
    assert not isinstance(caught.value, (DiskFull, FileMissing))
    bad.sync()
    machine.storage.fail("append", is_full=True)
    with pytest.raises(DiskFull):
        good.append([b"x"])
    machine.storage.heal()
    good.append([b"x"])


def test_a_failed_sync_makes_nothing_stable() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"")
    file = machine.disk.open(PATH)
    file.append([b"x"])
    machine.storage.fail("sync")
    with pytest.raises(DiskError):
        file.sync()
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b""


def test_bit_rot_survives_a_crash() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"\0\0")
    machine.storage.flip_bit(PATH, 1, bit=3)
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"\0\x08"


def test_blank_disk_holds_nothing() -> None:
    machine = Machine()
    machine.disk.replace_file(PATH, b"x")
    machine.kill()
    machine.storage.wipe()
    assert not machine.disk.exists(PATH)


def test_background_sync_covers_what_was_written_before_it_ran() -> None:
    """A crash may find it not begun, or done and not yet reported, but never reported and not done."""
    outcomes: set[tuple[bool, bytes]] = set()

    async def main(machine: Machine, delay: float) -> None:
        machine.disk.replace_file(PATH, b"")
        file, reported = machine.disk.open(PATH), []

        async def sync() -> None:
            await machine.world.runtime("broker-1").disk.in_background(file.sync)
            reported.append(True)

        file.append([b"x"])
        machine.world.spawn("broker-1", sync())
        await asyncio.sleep(delay)
        machine.power_loss()
        outcomes.add((bool(reported), machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX)))

    for seed in range(60):
        machine = Machine(seed)
        machine.world.run(main(machine, 0.0001 * seed))
    assert outcomes == {(False, b""), (False, b"x"), (True, b"x")}


def test_a_torn_piece_may_have_a_hole_of_zeros_but_synced_bytes_never() -> None:
    holes = 0
    for seed in range(300):
        machine = Machine(seed)
        file = machine.disk.open(PATH, create=True)
        machine.disk.sync_directory("/data")
        file.append([b"s" * 700])
        file.sync()
        file.append([b"w" * 3_000])
        machine.power_loss(tear=True)
        found = machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX)
        assert found[:700] == b"s" * 700
        holes += bytes(8) in found[700:]
    assert 0 < holes < 100


def test_a_failed_sync_may_forget_while_later_ones_succeed_for_later_writes() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    machine.disk.sync_directory("/data")
    file.append([b"first "])
    file.sync()
    machine.storage.fail("sync", times=1, forgets=True)
    file.append([b"second "])
    with pytest.raises(DiskError):
        file.sync()
    file.append([b"third"])
    file.sync()
    machine.kill()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"first second third"
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"first \0\0\0\0\0\0\0third"


def test_what_a_failed_sync_forgot_is_stable_once_it_was_written_again() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    machine.disk.sync_directory("/data")
    file.append([b"first "])
    machine.storage.fail("sync", times=1, forgets=True)
    with pytest.raises(DiskError):
        file.sync()
    file.truncate(0)
    file.append([b"again"])
    file.sync()
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"again"


def test_a_failed_sync_of_a_directory_may_forget_names() -> None:
    machine = Machine()
    machine.disk.open("/data/kept", create=True)
    machine.disk.sync_directory("/data")
    machine.disk.rename("/data/kept", "/data/renamed")
    machine.storage.fail("sync_directory", times=1, forgets=True)
    with pytest.raises(SyncFailed):
        machine.disk.sync_directory("/data")
    machine.disk.open("/data/later", create=True)
    machine.disk.sync_directory("/data")
    machine.kill()
    assert machine.disk.list_directory("/data") == ["later", "renamed"]
    machine.power_loss()
    assert machine.disk.list_directory("/data") == ["kept", "later"]


def test_a_failed_sync_is_not_a_full_disk_even_for_lack_of_space() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    for call, sync in (("sync", file.sync), ("sync_directory", lambda: machine.disk.sync_directory("/data"))):
        machine.storage.fail(call, times=1, is_full=True)
        with pytest.raises(SyncFailed, match="no space left"):
            sync()


def test_a_lying_disk_loses_what_it_reported_as_synced() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    machine.disk.sync_directory("/data")
    machine.storage.ignores_sync = True
    file.append([b"x"])
    file.sync()
    machine.power_loss()
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b""


def test_a_misdirected_write_lands_in_another_file_and_leaves_zeros() -> None:
    machine = Machine()
    machine.disk.replace_file("/data/other", b"o" * 10)
    file = machine.disk.open(PATH, create=True)
    machine.storage.misdirect_next_append(PATH)
    file.append([b"abc"])
    file.append([b"def"])
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"\0\0\0def"
    machine.power_loss()
    other = machine.disk.read_file("/data/other", SMALL_FILE_BYTES_MAX)
    assert len(other) == 10
    assert b"a" in other


def test_rot_flips_one_bit_somewhere_below_a_path() -> None:
    machine = Machine()
    machine.disk.replace_file("/data/spared", b"\0" * 10)
    machine.disk.replace_file(PATH, b"\0" * 10)
    found = machine.storage.rot(PATH)
    assert found is not None
    assert found[0] == PATH
    machine.power_loss()
    assert sum(byte.bit_count() for byte in machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX)) == 1
    assert machine.disk.read_file("/data/spared", SMALL_FILE_BYTES_MAX) == b"\0" * 10
    assert machine.storage.rot("/nowhere") is None


def test_a_full_disk_leaves_the_given_room_until_it_heals() -> None:
    machine = Machine()
    file = machine.disk.open(PATH, create=True)
    machine.storage.fill(free_bytes=2)
    file.append([b"ab"])
    with pytest.raises(DiskFull):
        file.append([b"c"])
    machine.storage.heal()
    file.append([b"c"])
    assert machine.disk.read_file(PATH, SMALL_FILE_BYTES_MAX) == b"abc"


def test_a_disk_that_hangs_holds_synchronous_calls_and_background_work_until_it_answers() -> None:
    machine = Machine()
    ended: list[float] = []

    async def work() -> None:
        file = machine.disk.open(PATH, create=True)
        machine.storage.hang(2.0)
        began = asyncio.get_running_loop().time()
        await machine.disk.in_background(file.sync)
        ended.append(asyncio.get_running_loop().time() - began)
        machine.storage.hang(3.0)
        began = asyncio.get_running_loop().time()
        file.append([b"x"])
        ended.append(asyncio.get_running_loop().time() - began)

    async def main() -> None:
        await machine.world.spawn("broker-1", work())

    machine.world.run(main())
    assert 2.0 <= ended[0] < 2.1
    assert 3.0 <= ended[1] < 3.1
