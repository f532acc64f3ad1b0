"""`minibroker bench`: its cases, its report of earlier runs, its usage."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.bench.cases.catalogue import CASES, choose
from minibroker.bench.document import encode
from minibroker.bench.page import BEGIN, END
from minibroker.command_line import EXIT_COULD_NOT, EXIT_FINE, EXIT_USAGE
from tests.bench.documents import case, document

PRODUCE = document(case("produce-1kb-128kib", [30.0, 32.0], [10.0, 10.0]))
CONSUME = document(case("consume-1kb", [300.0], [400.0]))


def test_cases_are_listed() -> None:
    result = CliRunner().invoke(minibroker, ["bench", "list", "--json"])
    names = [json.loads(line)["name"] for line in result.output.splitlines()]
    assert result.exit_code == EXIT_FINE
    assert "produce-1kb-128kib" in names


def test_the_list_shows_how_long_a_case_takes_with_and_without_kafka() -> None:
    case = next(case for case in CASES if case.name == "produce-1kb-128kib")
    assert case.about_minutes(2, 7) == 2 * case.about_minutes(1, 7) == 2 * 7 * case.about_s / 60
    (paused,) = choose(["failover-leader-paused"])
    assert paused.about_minutes(2, 7) == paused.about_s / 60


def test_long_cases_run_only_when_named() -> None:
    assert "memory" not in [case.name for case in choose([])]
    assert [case.name for case in choose(["memory"])] == ["memory"]
    assert tuple(choose(["*"])) == CASES


def test_an_unknown_case_lists_the_existing_ones() -> None:
    result = CliRunner().invoke(minibroker, ["bench", "--cases", "zzz"])
    assert result.exit_code == EXIT_USAGE
    assert "there is no case 'zzz': there are " in result.output
    assert "produce-1kb-128kib" in result.output


def test_a_case_like_an_existing_one_names_that_one() -> None:
    """It listed all 34."""
    result = CliRunner().invoke(minibroker, ["bench", "--cases", "produce-1KB-16KiB"])
    assert result.exit_code == EXIT_USAGE
    assert "'produce-1KB-16KiB'; did you mean 'produce-1kb-16kib'? `minibroker bench list` prints all" in result.output
    assert "memory" not in result.output


@pytest.mark.parametrize("cases", ["", " , "])
def test_an_empty_list_of_cases_is_refused(cases: str) -> None:
    """An unset variable of a script began half an hour of measuring."""
    result = CliRunner().invoke(minibroker, ["bench", "--cases", cases])
    assert result.exit_code == EXIT_USAGE
    assert "--cases names none: give NAME,.., or leave the option out" in result.output


@pytest.mark.parametrize("arguments", [["--rate", "5"], ["-t", "t"], ["--rate", "5", "-t", "t", "--cases", "memory"]])
def test_a_rate_goes_with_a_topic_and_without_cases(arguments: list[str]) -> None:
    result = CliRunner().invoke(minibroker, ["bench", *arguments])
    assert result.exit_code == EXIT_USAGE
    assert "give it with -t TOPIC" in result.output


def test_a_case_for_kafka_only_requires_kafka() -> None:
    result = CliRunner().invoke(minibroker, ["bench", "--cases", "produce-100b-aiokafka"])
    assert result.exit_code == EXIT_USAGE
    assert "--peer kafka" in result.output


def test_parts_of_a_run_are_reported_together_and_written_into_a_page(tmp_path: Path) -> None:
    parts = [tmp_path / "one.json", tmp_path / "two.json"]
    for path, part in zip(parts, (PRODUCE, CONSUME), strict=True):
        path.write_bytes(encode(part))
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n{BEGIN}{END}")
    files = [str(path) for path in parts]
    result = CliRunner().invoke(
        minibroker, ["bench", "report", *files, "--write", str(page), "--svg", str(tmp_path / "chart.svg")]
    )
    assert result.exit_code == EXIT_FINE, result.output
    assert "title of consume-1kb" in result.output
    assert "title of consume-1kb" in page.read_text()
    assert "title of produce-1kb-128kib" in (tmp_path / "chart.svg").read_text()


def test_a_file_that_is_not_a_document_is_named(tmp_path: Path) -> None:
    odd = tmp_path / "odd.json"
    odd.write_text("[]")
    result = CliRunner().invoke(minibroker, ["bench", "report", str(odd)])
    assert result.exit_code == EXIT_COULD_NOT
    assert "odd.json" in result.output


@pytest.mark.timeout(20)
@pytest.mark.parametrize("arguments", [["odd"], ["sound", "--write", "odd"]], ids=["document", "page"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_refused_and_not_read(
    kind: str, arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sound").write_bytes(encode(PRODUCE))
    if kind == "pipe":
        os.mkfifo("odd")
    else:
        Path("odd").symlink_to("/dev/zero")  # it has no end
    result = CliRunner().invoke(minibroker, ["bench", "report", *arguments])
    assert isinstance(result.exception, OSError)
    assert "not a regular file" in str(result.exception)


def test_a_page_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "sound").write_bytes(encode(PRODUCE))
    page = tmp_path / "page"
    page.write_bytes(BEGIN.encode() + b"\xff" + END.encode())
    result = CliRunner().invoke(minibroker, ["bench", "report", str(tmp_path / "sound"), "--write", str(page)])
    assert (result.exit_code, "is not UTF-8" in result.output) == (EXIT_COULD_NOT, True)
