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
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
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
