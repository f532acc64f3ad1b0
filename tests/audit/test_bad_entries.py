"""Anything in place of a log directory's file is named, and neither blocks the audit nor fills its memory."""

import os
import re
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from minibroker.audit.checks.findings import Kind, PartitionResult, PartitionVerdict
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading import segment_reader
from minibroker.audit.reading.acked_file import open_acked
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reading.ranges import plan_ranges
from minibroker.audit.reading.replica import RangeScan
from minibroker.audit.reading.segment_reader import RangeTask, scan_range
from minibroker.protocol.ids import TopicPartition
from tests.audit.damage import ENCODED
from tests.audit.planted_cluster import PlantedCluster

LINES = TopicPartition("lines", 0)
HUGE = 300 << 20
"""Sparse; larger than any limit."""


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    cluster.replica(1, LINES).write_metadata()
    cluster.replica(1, LINES).write_log_start(0)
    return cluster


def audited_partition(cluster: PlantedCluster) -> tuple[PartitionResult, list[str]]:
    inventory = discover([str(cluster.root)])
    (result,) = compare_locally(inventory, None, with_values=False)
    return result, [f"{item.file} {item.reason}" for item in inventory.damage]


def as_pipe(path: Path) -> None:
    os.mkfifo(path)


def as_directory(path: Path) -> None:
    path.mkdir()


def as_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def as_loop(path: Path) -> None:
    path.symlink_to(path.name)


def as_dangling_link(path: Path) -> None:
    path.symlink_to("nowhere")


def as_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK)  # by `bind` its path could be 107 bytes long


def as_huge_file(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


OTHERS: dict[Callable[[Path], None], str] = {
    as_pipe: "it is a named pipe (FIFO), not a regular file",
    as_socket: "it is a socket, not a regular file",
    as_device: "it is a device, not a regular file",
    as_directory: "it is a directory, not a regular file",
    as_loop: "Too many levels of symbolic links",
    as_dangling_link: "it is a link to nothing",
}
ALL = (as_pipe, as_directory, as_device, as_loop, as_huge_file)


@pytest.mark.parametrize("name", ["log-start", "partition.metadata", "leader-epoch-checkpoint"])
@pytest.mark.parametrize("put", ALL)
def test_an_entry_in_place_of_a_replicas_file_is_named(
    cluster: PlantedCluster, name: str, put: Callable[[Path], None]
) -> None:
    file = cluster.replica(1, LINES).directory / name
    file.unlink(missing_ok=True)
    put(file)
    tracemalloc.start()
    result, _ = audited_partition(cluster)
    assert tracemalloc.get_traced_memory()[1] < HUGE // 4
    tracemalloc.stop()
    assert any(name in str(finding) for finding in result.findings)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("put", OTHERS)
def test_an_entry_in_place_of_a_segment_is_named(
    cluster: PlantedCluster, suffix: str, put: Callable[[Path], None]
) -> None:
    file = cluster.replica(1, LINES).file(0, suffix)
    file.unlink(missing_ok=True)
    put(file)
    result, _ = audited_partition(cluster)
    found = [item for item in result.findings if item.file == str(file)]
    assert f"cannot be read: {OTHERS[put]}" in found[0].message
    assert found[0].kind is (Kind.CORRUPT_BATCH if suffix == ".log" else Kind.INDEX_UNREADABLE)
    assert (result.verdict is PartitionVerdict.IDENTICAL) is (suffix != ".log"), result.findings


def test_a_file_that_is_too_large_to_be_a_segment_is_not_read(cluster: PlantedCluster) -> None:
    """A damaged inode claims terabytes. The audit read their zeros until its timeout, and then gave no verdict. Spark
    was to plan a range for each 64 MiB of them."""
    file = cluster.replica(1, LINES).file(0)
    size = segment_reader.SEGMENT_BYTES_MAX + 1
    os.truncate(file, size)
    result, _ = audited_partition(cluster)
    found = [item for item in result.findings if item.file == str(file)]
    assert (found[0].kind, "no segment more than 4294967296" in found[0].message) == (Kind.CORRUPT_BATCH, True)
    assert [(task.start, task.end) for task in plan_ranges("d", [(0, size)], HUGE)] == [(0, size)]


@pytest.mark.parametrize("put", [*OTHERS, as_huge_file])
def test_a_scan_of_a_bad_entry_survives_encoding(cluster: PlantedCluster, put: Callable[[Path], None]) -> None:
    """As Spark sends it."""
    replica = cluster.replica(1, LINES)
    replica.file(0, ".index").unlink()
    put(replica.file(0, ".index"))
    size = replica.file(0).stat().st_size
    task = RangeTask(directory=str(replica.directory), segment=0, size=size, start=0, end=size)
    scan = scan_range(task, with_values=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(scan), type=RangeScan) == scan


@pytest.mark.parametrize("put", [as_pipe, as_device])
def test_a_list_of_acknowledged_records_that_is_not_a_file_does_not_block(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "acked.tsv")
    with pytest.raises(AuditError, match=f"cannot be read: {re.escape(OTHERS[put])}"):
        open_acked(str(tmp_path / "acked.tsv"))


@pytest.mark.parametrize("name", ["meta.properties", ".clean_shutdown", "replication-offset-checkpoint"])
@pytest.mark.parametrize("put", ALL)
def test_an_entry_in_place_of_a_log_directorys_file_is_named(
    cluster: PlantedCluster, name: str, put: Callable[[Path], None]
) -> None:
    file = cluster.log_directory(1) / name
    file.unlink(missing_ok=True)
    put(file)
    _, damage = audited_partition(cluster)
    assert [each for each in damage if each.startswith(str(file))]
