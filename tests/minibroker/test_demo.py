"""The parts of the demo."""

import sysconfig
from pathlib import Path

import pytest

from minibroker.demo.input_lines import BadInput, InputLines
from minibroker.demo.ledger import NOTHING, Ledger
from minibroker.demo.output import DemoOutput
from minibroker.demo.sabotage import SABOTAGES, plant
from minibroker.offline.segment_files import verify_segment
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch

PARTITION = TopicPartition("lines", 0)


def test_lines_repeat_until_there_are_enough_bytes() -> None:
    lines = InputLines([b"a", b"bc"], "test", 12)
    assert (lines.count, lines.total_bytes) == (5, 12)
    assert [lines[number] for number in range(lines.count)] == [b"a", b"bc", b"a", b"bc", b"a"]


def test_file_is_used_once(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"line\n" * 1_000)
    assert InputLines.load(str(tmp_path / "f")).count == 1_000


def test_file_that_is_too_short_or_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"line\n" * 999)
    for name in ("f", "g"):
        with pytest.raises(BadInput):
            InputLines.load(str(tmp_path / name))


def test_standard_library_is_read_as_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "other.py").write_bytes(b"not ours\n")
    (tmp_path / "b.py").write_bytes(b"\xff\r\n\n" * 500)
    (tmp_path / "a.py").write_bytes(b"first\nno newline")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    lines = InputLines.load(None)
    assert [lines[number] for number in range(4)] == [b"first", b"no newline", b"\xff\r", b""]
    assert lines.total_bytes >= 64_000_000


def test_ledger_keeps_the_line_at_each_offset() -> None:
    ledger = Ledger()
    ledger.acknowledged(PARTITION, 1, 0, 11)
    ledger.acknowledged(PARTITION, 0, 0, 10)
    ledger.acknowledged(PARTITION, 3, 1, 13)
    assert list(ledger.lines[PARTITION]) == [10, 11, NOTHING, 13]
    assert ledger.share_of_epoch_above(PARTITION, 0) == pytest.approx(1 / 3)
    assert ledger.conflicts == []
    ledger.acknowledged(PARTITION, 3, 1, 14)
    assert ledger.conflicts == ["lines-0 offset 3 was acknowledged for two records"]


@pytest.fixture
def log_directories(tmp_path: Path) -> list[Path]:
    batches = [
        bytes(build_batch([(None, b"v%d" % base, 1, ())] * 5, base_offset=base, leader_epoch=0))
        for base in (0, 5, 10, 15)
    ]
    for broker in (1, 2, 3):
        for partition in (0, 1, 2):
            directory = tmp_path / f"broker-{broker}" / f"lines-{partition}"
            directory.mkdir(parents=True)
            (directory / checkpoints.segment_file_name(0)).write_bytes(b"".join(batches))
    return [tmp_path / f"broker-{broker}" for broker in (1, 2, 3)]


def damaged(log_directories: list[Path]) -> list[str]:
    """Partitions with a damaged segment."""
    files = [path for directory in log_directories for path in sorted(directory.glob("*/*.log"))]
    whole = max(path.stat().st_size for path in files)
    return [
        f"{path.parent.parent.name}/{path.parent.name}"
        for path in files
        if path.stat().st_size != whole or verify_segment(path)[2]
    ]


@pytest.mark.parametrize(
    ("sabotage", "expected"),
    [
        ("drop-record", ["broker-1/lines-1", "broker-2/lines-1", "broker-3/lines-1"]),
        ("flip-bit", ["broker-2/lines-2"]),
        ("swap-batch", ["broker-3/lines-0"]),
    ],
)
def test_each_sabotage_damages_the_named_files(log_directories: list[Path], sabotage: str, expected: list[str]) -> None:
    assert sabotage in SABOTAGES
    assert damaged(log_directories) == []
    plant(sabotage, log_directories)
    assert damaged(log_directories) == expected


def test_swapped_batches_keep_all_bytes(log_directories: list[Path]) -> None:
    segment = log_directories[2] / "lines-0" / checkpoints.segment_file_name(0)
    before = segment.read_bytes()
    plant("swap-batch", log_directories)
    assert sorted(segment.read_bytes()) == sorted(before)
    assert len(verify_segment(segment)[2]) >= 1


def test_verdict_names_what_did_not_hold(capsys: pytest.CaptureFixture[str]) -> None:
    output = DemoOutput()
    output.check("this", True, "fine")
    output.check("that", False, "why")
    output.print_summary()
    assert not output.all_held
    assert "verdict: FAILED: that" in capsys.readouterr().out


def test_each_step_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary told the whole story again."""
    output = DemoOutput()
    output.tell("started")
    output.check("this", True, "fine")
    output.print_summary()
    assert capsys.readouterr().out.count("started") == 1


def test_story_that_was_stopped_is_failed(capsys: pytest.CaptureFixture[str]) -> None:
    output = DemoOutput()
    output.check("this", True, "fine")
    output.print_summary(OSError("disk"))
    assert "verdict: FAILED: it did not get to the end: disk" in capsys.readouterr().out
