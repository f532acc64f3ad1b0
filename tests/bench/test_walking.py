"""The plain walk over segment files."""

from pathlib import Path

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.load.plain_walk import walk as walk_here
from minibroker.bench.load.plain_walk import walk_batches
from minibroker.bench.walking import distribute, segment_files, walk
from minibroker.protocol.record_batch import build_batch

BATCH = bytes(build_batch([(None, b"value", 0, ())] * 3))


def test_every_whole_batch_is_walked_and_its_crc_checked() -> None:
    assert walk_batches(memoryview(BATCH * 4)) == (4, 4)


def test_a_flipped_bit_in_the_payload_is_counted() -> None:
    damaged = bytearray(BATCH * 2)
    damaged[len(BATCH) - 1] ^= 1
    assert walk_batches(memoryview(damaged)) == (2, 1)


def test_a_torn_tail_and_an_invalid_size_end_the_walk() -> None:
    assert walk_batches(memoryview(BATCH + BATCH[:-1])) == (1, 1)
    assert walk_batches(memoryview(BATCH + bytes(100))) == (1, 1)


def test_an_empty_segment_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "0.log").touch()
    assert walk_here([str(tmp_path / "0.log")])["bytes"] == 0


def test_files_are_distributed_evenly_over_processes() -> None:
    shares = distribute([("a", 10), ("b", 60), ("c", 50), ("d", 5)], 2)
    assert shares == [["b", "d"], ["c", "a"]]


def test_no_process_is_started_without_files() -> None:
    assert distribute([("a", 10)], 2) == [["a"]]


async def test_processes_walk_the_files_of_all_partitions(tmp_path: Path) -> None:
    for partition in ("t-0", "t-1"):
        (tmp_path / partition).mkdir()
        (tmp_path / partition / "00000000000000000000.log").write_bytes(BATCH * 5)
    found = await walk(segment_files([tmp_path]), 2)
    assert (found.bytes, found.batches) == (10 * len(BATCH), 10)


async def test_damaged_files_fail_the_walk(tmp_path: Path) -> None:
    (tmp_path / "0.log").write_bytes(BATCH[:-1] + bytes([BATCH[-1] ^ 1]))
    with pytest.raises(CaseFailed, match="wrong CRC of 1 batch, in 1 file"):
        await walk([tmp_path / "0.log"], 1)
