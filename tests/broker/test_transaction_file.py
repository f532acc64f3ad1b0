"""The newest transaction of ZooKeeper that a broker has seen, on its disk."""

from collections.abc import Callable

import pytest

from minibroker.broker.membership.registration import OlderCopy
from minibroker.broker.membership.transaction_file import TransactionFile
from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.newest_transaction import (
    NewestTransaction,
    format_newest_transaction,
    parse_newest_transaction,
)
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import DiskFull, FileMissing


class StandInDisk:
    """One file in memory."""

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.writes = 0
        self.is_full = False
        self.meanwhile: Callable[[], None] = lambda: None

    def read_file(self, path: str, bytes_max: int) -> bytes:
        if self.content is None:
            raise FileMissing(path)
        return self.content

    def replace_file(self, path: str, content: bytes) -> None:
        if self.is_full:
            raise DiskFull(path)
        self.writes += 1
        self.content = content

    async def in_background(self, work: Callable[[], None]) -> None:
        self.meanwhile()
        work()


class Answers:
    """A session with this newest transaction."""

    def __init__(self, newest_transaction: int) -> None:
        self.newest_transaction = newest_transaction


def opened(disk: StandInDisk) -> tuple[TransactionFile, list[object]]:
    events: list[object] = []
    return TransactionFile(disk, "/log", Observers(events.append)), events  # type: ignore[arg-type]


async def keep(file: TransactionFile, transaction: int) -> None:
    await file.conclude(Answers(transaction))  # type: ignore[arg-type]


@pytest.mark.parametrize("newest", [NewestTransaction(seen=2**62), NewestTransaction(seen=7, found=3)])
def test_the_file_is_read_as_it_was_written(newest: NewestTransaction) -> None:
    assert parse_newest_transaction(format_newest_transaction(newest)) == newest


def test_any_flipped_bit_is_found() -> None:
    content = format_newest_transaction(NewestTransaction(seen=12_345, found=6))
    for position in range(8 * len(content)):
        broken = bytearray(content)
        broken[position // 8] ^= 1 << position % 8
        with pytest.raises(CorruptCheckpoint):
            parse_newest_transaction(bytes(broken))


async def test_what_was_kept_is_read_and_only_what_is_newer_is_written() -> None:
    disk = StandInDisk()
    file, _ = opened(disk)
    assert file.read() == 0
    for transaction in (5, 5, 4, 9):
        await keep(file, transaction)
    assert disk.writes == 2
    again, events = opened(disk)
    assert again.read() == 9
    await keep(again, 9)
    assert (disk.writes, events) == (2, [])


async def test_a_refusal_is_kept_until_the_file_is_removed() -> None:
    disk = StandInDisk()
    file, _ = opened(disk)
    file.note_older_copy(9, 3)
    await keep(file, 20)
    again, _ = opened(disk)
    with pytest.raises(OlderCopy, match="was 9, and only 3 was found"):
        again.read()
    disk.content = None
    assert opened(disk)[0].read() == 0


async def test_a_refusal_outlasts_a_write_that_was_under_way() -> None:
    disk = StandInDisk()
    file, _ = opened(disk)
    disk.meanwhile = lambda: file.note_older_copy(9, 3)
    await keep(file, 8)
    assert parse_newest_transaction(disk.content or b"") == NewestTransaction(seen=9, found=3)


async def test_a_full_disk_ends_neither_a_stop_nor_a_refusal() -> None:
    disk = StandInDisk()
    file, _ = opened(disk)
    disk.is_full = True
    await keep(file, 5)
    file.note_older_copy(9, 3)
    disk.is_full = False
    await keep(file, 20)
    assert disk.content is None, "this process was refused"
