"""A simulated power loss leaves whole batches below the recovery point, and nothing else."""

from pathlib import Path

import pytest

from minibroker.local_cluster.power_loss import cut_unsynced_tails
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch

PARTITION = TopicPartition("t", 0)


def batch(base_offset: int, count: int = 10) -> bytes:
    return bytes(build_batch([(None, b"v", 1, ())] * count, base_offset=base_offset, leader_epoch=0))


@pytest.fixture
def log_directory(tmp_path: Path) -> Path:
    """Segments 0 (offsets 0 to 29), 30 (30 to 59) and 60 (60 to 69), ten records per batch."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    for base, batches in ((0, 3), (30, 3), (60, 1)):
        content = b"".join(batch(base + 10 * number) for number in range(batches))
        (directory / checkpoints.segment_file_name(base)).write_bytes(content)
        (directory / checkpoints.segment_file_name(base, ".index")).write_bytes(b"\0" * 8)
    return tmp_path


def set_recovery_point(log_directory: Path, offset: int) -> None:
    content = checkpoints.format_offset_checkpoint({PARTITION: offset})
    (log_directory / checkpoints.RECOVERY_POINT_CHECKPOINT).write_bytes(content)


def sizes(log_directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted((log_directory / "t-0").glob("*.log"))}


def name(base: int) -> str:
    return checkpoints.segment_file_name(base)


def test_batches_below_the_recovery_point_stay(log_directory: Path) -> None:
    set_recovery_point(log_directory, 40)
    (cut,) = cut_unsynced_tails(log_directory)
    assert sizes(log_directory) == {name(0): 3 * len(batch(0)), name(30): len(batch(30))}
    assert (cut.partition, cut.recovery_point, cut.bytes_lost) == (PARTITION, 40, 3 * len(batch(0)))


def test_everything_is_cut_without_a_recovery_point(log_directory: Path) -> None:
    cut_unsynced_tails(log_directory)
    assert sizes(log_directory) == {name(0): 0}
    assert not (log_directory / "t-0" / checkpoints.segment_file_name(30, ".index")).exists()


def test_synced_log_loses_nothing(log_directory: Path) -> None:
    set_recovery_point(log_directory, 70)
    before = sizes(log_directory)
    (cut,) = cut_unsynced_tails(log_directory)
    assert cut.bytes_lost == 0
    assert sizes(log_directory) == before


def test_torn_batch_above_the_recovery_point_is_cut(log_directory: Path) -> None:
    set_recovery_point(log_directory, 60)
    with (log_directory / "t-0" / name(60)).open("ab") as file:
        file.write(b"torn")
    cut_unsynced_tails(log_directory)
    assert sizes(log_directory) == {name(0): 3 * len(batch(0)), name(30): 3 * len(batch(30)), name(60): 0}


def test_other_directories_are_left_alone(log_directory: Path) -> None:
    other = log_directory / "not a partition"
    other.mkdir()
    (other / name(0)).write_bytes(b"x")
    cut_unsynced_tails(log_directory)
    assert (other / name(0)).read_bytes() == b"x"
