"""Segment files are read and checked offline."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.offline.segment_files import find_segments, verify_segment
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStart, LogStartReason
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch

SEGMENT = checkpoints.segment_file_name(0)


def batch(base_offset: int, epoch: int = 0) -> bytes:
    records = [(b"key", b"value %d" % (base_offset + number), 1000, ()) for number in range(3)]
    return bytes(build_batch(records, base_offset=base_offset, leader_epoch=epoch))


@pytest.fixture
def data_directory(tmp_path: Path) -> Path:
    partition = tmp_path / "broker-1" / "t-0"
    partition.mkdir(parents=True)
    (tmp_path / "broker-1" / checkpoints.META_PROPERTIES).write_text("")
    (partition / SEGMENT).write_bytes(batch(0) + batch(3, 1))
    index = checkpoints.encode_index_entry(5, len(batch(0)))
    (partition / checkpoints.segment_file_name(0, checkpoints.INDEX_SUFFIX)).write_bytes(index)
    return tmp_path


def problems(data_directory: Path) -> list[str]:
    (segment,) = find_segments(data_directory)
    return [f"{problem.position}: {problem.what}" for problem in verify_segment(segment)[2]]


def rewrite(data_directory: Path, content: bytes) -> None:
    (data_directory / "broker-1" / "t-0" / SEGMENT).write_bytes(content)


@pytest.mark.parametrize("below", ["", "broker-1", "broker-1/t-0", f"broker-1/t-0/{SEGMENT}"])
def test_segments_are_found_from_any_level(data_directory: Path, below: str) -> None:
    assert [path.name for path in find_segments(data_directory / below)] == [SEGMENT]


def test_sound_segment_has_no_problem(data_directory: Path) -> None:
    assert problems(data_directory) == []


def test_flipped_bit_is_named_with_its_offsets(data_directory: Path) -> None:
    content = bytearray(batch(0) + batch(3, 1))
    content[-1] ^= 1
    rewrite(data_directory, bytes(content))
    assert problems(data_directory) == [f"{len(batch(0))}: offsets 3 to 5: CRC does not match"]


def test_gap_is_named(data_directory: Path) -> None:
    rewrite(data_directory, batch(0) + batch(4, 1))
    assert f"{len(batch(0))}: the batch begins at offset 4, expected 3" in problems(data_directory)


def test_falling_epoch_is_named(data_directory: Path) -> None:
    rewrite(data_directory, batch(0, 2) + batch(3, 1))
    assert problems(data_directory) == [f"{len(batch(0))}: leader epoch 1 after 2"]


def test_torn_tail_is_named(data_directory: Path) -> None:
    rewrite(data_directory, batch(0) + batch(3, 1) + batch(6)[:70])
    assert problems(data_directory) == [f"{2 * len(batch(0))}: a batch of {len(batch(6))} bytes is cut at 70"]


def test_index_that_points_elsewhere_is_named(data_directory: Path) -> None:
    index = data_directory / "broker-1" / "t-0" / checkpoints.segment_file_name(0, checkpoints.INDEX_SUFFIX)
    index.write_bytes(checkpoints.encode_index_entry(5, 1))
    assert problems(data_directory) == ["0: entry 0 has offset 5, but at 1 no batch begins"]


def add_segment(data_directory: Path, base_offset: int) -> Path:
    path = data_directory / "broker-1" / "t-0" / checkpoints.segment_file_name(base_offset)
    path.write_bytes(batch(base_offset, 1))
    return path


def verified(path: Path) -> tuple[int, str]:
    result = CliRunner().invoke(minibroker, ["log", "verify", str(path)])
    return result.exit_code, result.stdout


def record_start(data_directory: Path, offset: int) -> None:
    start = LogStart(topic_id="id", partition=0, offset=offset, reason=LogStartReason.RETENTION)
    (data_directory / "broker-1" / "t-0" / checkpoints.LOG_START).write_bytes(checkpoints.format_log_start(start))


@pytest.mark.parametrize("below", ["", "broker-1", "broker-1/t-0"])
def test_a_segment_that_is_gone_from_the_middle_is_named(data_directory: Path, below: str) -> None:
    """It was called fine: each segment was checked alone."""
    last = add_segment(data_directory, 9)
    code, output = verified(data_directory / below)
    assert (code, output.splitlines()[0]) == (
        10,
        f"{last}: position 0: it begins at offset 9, but the log before it ends at 6",
    )
    add_segment(data_directory, 6)
    assert verified(data_directory / below)[0] == 0
    assert verified(last)[0] == 0


def test_a_gap_that_an_interrupted_deletion_left_is_fine(data_directory: Path) -> None:
    add_segment(data_directory, 9)
    record_start(data_directory, 9)
    assert verified(data_directory)[0] == 0


def test_the_first_segment_that_is_gone_is_named(data_directory: Path) -> None:
    second = add_segment(data_directory, 6)
    record_start(data_directory, 0)
    assert verified(data_directory)[0] == 0
    for suffix in (checkpoints.LOG_SUFFIX, checkpoints.INDEX_SUFFIX):
        (second.parent / checkpoints.segment_file_name(0, suffix)).unlink()
    assert verified(data_directory) == (
        10,
        f"{second}: position 0: the log begins at 6, its log-start file explains only 0\n"
        "1 problem: 1 file, 1 batch, 3 records\n",
    )


@pytest.mark.parametrize("broker", ["broker-1", "broker-2"])
def test_a_log_without_any_segment_that_had_records_is_named(data_directory: Path, broker: str) -> None:
    """It was passed over, and the rest called fine. Broker 2 has no other log."""
    (data_directory / broker / "u-1").mkdir(parents=True)
    (data_directory / broker / checkpoints.META_PROPERTIES).write_text("")
    assert verified(data_directory)[0] == 0
    points = checkpoints.format_offset_checkpoint({TopicPartition("u", 1): 5})
    (data_directory / broker / checkpoints.RECOVERY_POINT_CHECKPOINT).write_bytes(points)
    file = data_directory / broker / "u-1" / SEGMENT
    code, output = verified(data_directory)
    assert (code, output.splitlines()[0]) == (
        10,
        f"{file}: position 0: there is no segment, but the log once reached 5",
    )


def test_the_logs_of_a_broker_that_lost_its_meta_properties_are_read_too(data_directory: Path) -> None:
    """They were passed over, and the rest called fine."""
    other = data_directory / "broker-2" / "t-0"
    other.mkdir(parents=True)
    (other / SEGMENT).write_bytes(batch(0) + b"x")
    code, output = verified(data_directory)
    assert (code, output.splitlines()[-1]) == (10, "1 problem: 2 files, 3 batches, 9 records")


def test_verify_exits_with_10_when_something_is_wrong(data_directory: Path) -> None:
    assert CliRunner().invoke(minibroker, ["log", "verify", str(data_directory)]).exit_code == 0
    rewrite(data_directory, batch(0) + b"x")
    result = CliRunner().invoke(minibroker, ["log", "verify", str(data_directory)])
    assert result.exit_code == 10
    assert result.stdout.endswith("2 problems: 1 file, 1 batch, 3 records\n")


@pytest.mark.parametrize("command", ["verify", "dump"])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (format_partition_metadata(PartitionMetadata(topic_id="id", partition=0)), None),
        (format_partition_metadata(PartitionMetadata(topic_id="id", partition=1)), "is of partition 1 of topic id id"),
        (b"version: 0\ntopic_id: id\n", "has version 0, not 1: another version of minibroker wrote it"),
        (b"rot", "the last line does not end"),
    ],
)
@pytest.mark.parametrize("below", ["", f"broker-1/t-0/{SEGMENT}"])
def test_a_wrong_owner_of_a_log_is_named(
    data_directory: Path, command: str, content: bytes, what: str, below: str
) -> None:
    file = data_directory / "broker-1" / "t-0" / checkpoints.PARTITION_METADATA
    file.write_bytes(content)
    result = CliRunner().invoke(minibroker, ["log", command, str(data_directory / below)])
    assert result.exit_code == (10 if what else 0)
    if what:
        assert result.stdout.startswith(f"{file}: ")
        assert what in result.stdout


def test_dump_prints_batches_and_records(data_directory: Path) -> None:
    result = CliRunner().invoke(minibroker, ["log", "dump", str(data_directory), "--records"])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[1].startswith("position: 0 baseOffset: 0 lastOffset: 2 count: 3 partitionLeaderEpoch: 0 ")
    assert lines[2] == "| offset: 0 CreateTime: 1000 key: 'key' payload: 'value 0'"
    assert len(lines) == 1 + 2 * 4


def test_dump_as_json_is_one_object_per_line(data_directory: Path) -> None:
    result = CliRunner().invoke(minibroker, ["log", "dump", str(data_directory), "--json"])
    batches = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(batch["baseOffset"], batch["isvalid"]) for batch in batches] == [(0, True), (3, True)]


def _one_tebibyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("put", "what"),
    [
        (os.mkfifo, "is not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
        (Path.mkdir, "Is a directory"),
        (_one_tebibyte, "is 1099511627776 bytes long"),
    ],
)
def test_dump_does_not_read_what_cannot_be_an_epoch_checkpoint(
    data_directory: Path, put: Callable[[Path], None], what: str
) -> None:
    """It waited for the writer of a pipe, and read a device until no memory was left."""
    path = data_directory / "broker-1" / "t-0" / checkpoints.EPOCH_CHECKPOINT
    put(path)
    result = CliRunner().invoke(minibroker, ["log", "dump", str(data_directory)])
    assert (result.exit_code, result.exception.__class__) == (10, SystemExit)
    assert f"{path}: position 0: " in result.stdout
    assert what in result.stdout


def test_directory_without_segments_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(minibroker, ["log", "dump", str(tmp_path)])
    assert result.exit_code == 1
    assert "holds no segment files" in result.output


@pytest.mark.parametrize("command", ["verify", "dump"])
@pytest.mark.parametrize("put", [Path.mkdir, lambda path: path.symlink_to(path.name), os.mkfifo])
def test_an_entry_that_is_not_a_file_is_a_problem_and_no_traceback(
    data_directory: Path, command: str, put: Callable[[Path], None]
) -> None:
    path = data_directory / "broker-1" / "t-0" / checkpoints.segment_file_name(6)
    put(path)
    result = CliRunner().invoke(minibroker, ["log", command, str(data_directory)])
    assert (result.exit_code, result.exception.__class__) == (10, SystemExit)
    assert f"{path}: position 0: cannot be read" in result.stdout


@pytest.mark.parametrize("name", [checkpoints.segment_file_name(0, checkpoints.INDEX_SUFFIX), checkpoints.LOG_START])
def test_a_directory_in_place_of_a_file_next_to_a_segment_is_a_problem(data_directory: Path, name: str) -> None:
    path = data_directory / "broker-1" / "t-0" / name
    path.unlink(missing_ok=True)
    path.mkdir()
    result = CliRunner().invoke(minibroker, ["log", "verify", str(data_directory)])
    assert (result.exit_code, result.exception.__class__) == (10, SystemExit)
    assert f"{path}: position 0: cannot be read" in result.stdout


def test_an_epoch_that_the_history_contradicts_is_named(data_directory: Path) -> None:
    history = data_directory / "broker-1" / "t-0" / checkpoints.EPOCH_CHECKPOINT
    history.write_bytes(checkpoints.format_epoch_checkpoint([(0, 0), (1, 3)]))
    assert problems(data_directory) == []
    rewrite(data_directory, batch(0) + batch(3, 5))
    assert problems(data_directory) == [f"{len(batch(0))}: leader epoch 5, but 1 in the epoch checkpoint"]
