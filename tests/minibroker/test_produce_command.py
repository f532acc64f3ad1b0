"""`minibroker produce`: which line an error names, and what was written before it, in simulated time."""

import errno
import io
import json
import os
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
from click.testing import CliRunner

from minibroker.client.producer.producer import Producer
from minibroker.command_line import EXIT_COULD_NOT, EXIT_FINE, EXIT_INTERRUPTED, EXIT_USAGE, CommandFailed
from minibroker.commands.produce import _conclude, _Options, _send_all, _topic_and_file, produce
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import ProduceRequest
from minibroker.records.produce_outputs import OffsetLines, ReportFile, opened_report
from minibroker.records.record_sender import RecordSender, Tally
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import refusal


class Run:
    """Sends `content` to topic t, which has one partition."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self.path = path
        self.cluster = FakeCluster(SimulatedWorld(seed=1))
        self.cluster.add_topic("t")
        self.cluster.add_topic("u")
        self.required: list[str] = []
        self.options = _Options()
        self.options.topic = "t"
        self.options.is_json = self.options.empty_is_null = False
        self.options.delimiter = self.options.key = self.options.partition = self.options.show_offset = None
        self.options.headers = ()

    def send(self) -> Tally:
        async def require(topic: str) -> None:
            self.required.append(topic)
            if topic == "missing":
                raise CommandFailed("there is no topic 'missing'")

        async def main(runtime: Runtime) -> Tally:
            async with Producer(
                bootstrap_servers=self.cluster.bootstrap, max_request_size=1_024, runtime=runtime
            ) as producer:
                sender = self.sender = RecordSender(
                    producer, self.options.topic, report=self.options.report, on_acknowledged=self.options.show_offset
                )
                descriptor = os.open(self.path, os.O_RDONLY)
                try:
                    await _send_all(sender, descriptor, self.options, require)
                finally:
                    os.close(descriptor)
                    await sender.finish()
                return sender.tally

        return self.cluster.run(main)

    @property
    def values(self) -> list[bytes | None]:
        return self.cluster.partition("t").values()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input"


def test_a_record_that_is_too_large_names_its_line_and_the_lines_before_it_are_written(path: Path) -> None:
    """Once it named no line, and did not say what was written."""
    run = Run(path, b"a\nb\n" + b"x" * 2_000 + b"\nc\n")
    with pytest.raises(CommandFailed, match=r"^line 3: .* takes 2.* \[raise --max-request-size"):
        run.send()
    assert run.values == [b"a", b"b"]


def test_a_line_that_is_no_json_names_its_number_and_the_lines_before_it_are_written(path: Path) -> None:
    run = Run(path, b'{"value": "a", "key": "k", "timestamp": 5}\n{"vale": 1}\n')
    run.options.is_json = True
    with pytest.raises(CommandFailed, match=r"^line 2 has an unknown field 'vale' "):
        run.send()
    assert run.values == [b"a"]


def test_a_line_that_would_fill_the_memory_names_its_number(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.records.line_source.LINE_BYTES_MAX", 100_000)
    run = Run(path, b"first\n" + bytes(300_000))
    with pytest.raises(CommandFailed, match="line 2 is longer than 100000 bytes"):
        run.send()
    assert run.values == [b"first"]


def test_each_object_may_name_its_topic(path: Path) -> None:
    run = Run(path, b'{"topic":"t","value":"a"}\n{"topic":"u","value":"b"}\n{"topic":"t","value":"c"}\n{"value":"d"}\n')
    run.options.topic, run.options.is_json = None, True
    with pytest.raises(CommandFailed, match=r"^line 4 names no topic \(give -t TOPIC\)"):
        run.send()
    assert (run.values, run.cluster.partition("u").values()) == ([b"a", b"c"], [b"b"])
    assert run.required == ["t", "u"]


def test_an_object_with_an_unknown_topic_names_its_line(path: Path) -> None:
    run = Run(path, b'{"topic":"t","value":"a"}\n{"topic":"missing","value":"b"}\n')
    run.options.topic, run.options.is_json = None, True
    with pytest.raises(CommandFailed, match=r"^line 2: there is no topic 'missing'"):
        run.send()
    assert run.values == [b"a"]


def test_a_topic_given_for_all_wins_over_that_of_an_object(path: Path) -> None:
    run = Run(path, b'{"topic":"u","value":"a"}\n')
    run.options.is_json = True
    run.send()
    assert run.values == [b"a"]


@pytest.mark.parametrize(
    ("topics", "words", "names_its_own", "expected"),
    [
        (("t",), (), False, ("t", "-")),
        (("t", "t"), ("f",), False, ("t", "f")),
        ((), ("t",), False, ("t", "-")),
        ((), ("t", "f"), False, ("t", "f")),
        ((), ("f",), True, (None, "f")),
        ((), (), True, (None, "-")),
        ((), ("t", "f"), True, ("t", "f")),
        (("t",), ("f",), True, ("t", "f")),
    ],
)
def test_a_topic_is_named_with_and_without_its_option(
    topics: tuple[str, ...], words: tuple[str, ...], expected: tuple[str | None, str], *, names_its_own: bool
) -> None:
    assert _topic_and_file(topics, words, names_its_own=names_its_own) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which topic? Give -t TOPIC"),
        (["-t", "a", "-t", "b"], "a, b: give one, or the field `topic`"),
        (["a", "b", "c"], "b, c: give one FILE"),
        (["a", "-H", "name"], "'name' is not NAME=VALUE: give name= for an empty value"),
        (["--input", "jsonl", "--report", "r"], "--report lists the records of one topic"),
    ],
)
def test_a_wrong_number_of_topics_or_a_header_without_value_is_a_usage_error(
    arguments: list[str], message: str
) -> None:
    """Once `-t a -t b` ignored the first."""
    result = CliRunner().invoke(produce, arguments)
    assert (result.exit_code, message in result.output) == (EXIT_USAGE, True)


def test_empty_values_are_null_on_request(path: Path) -> None:
    run = Run(path, b"a\n\nk:\n")
    run.options.empty_is_null, run.options.delimiter = True, b":"
    tally = run.send()
    assert run.values == [b"a", None, None]
    assert (tally.acknowledged, tally.acknowledged_bytes) == (3, 1)


def test_offsets_are_printed_on_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(path, b"a\nb\n")
    run.options.show_offset = OffsetLines(as_json=False)
    run.send()
    assert capsys.readouterr().out == "t\t0\t0\nt\t0\t1\n"


class FailingFile(io.RawIOBase):
    """Takes some bytes, then fails as a full disk or a closed pipe does."""

    def __init__(self, limit: int, error: int) -> None:
        self.content = b""
        self._limit = limit
        self._error = error

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if len(self.content) + len(content) > self._limit:
            raise OSError(self._error, os.strerror(self._error))
        self.content += bytes(content)
        return len(content)


def test_a_report_on_a_full_disk_stops_the_sending_and_keeps_the_counts(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once the message named no file, and neither how many records were written nor from which line on none was."""
    run = Run(path, b"a\n" * 200_000)
    run.options.report = ReportFile("r.tsv", cast("BinaryIO", FailingFile(1_000, errno.ENOSPC)))
    run.options.show_offset = OffsetLines(as_json=False)  # it waits for each chunk
    with pytest.raises(CommandFailed, match=r"^the report r\.tsv could not be written to its end.*: No space left"):
        run.send()
    assert 0 < run.sender.tally.sent < 200_000
    assert run.sender.tally.acknowledged == run.sender.tally.sent == len(run.values)
    _conclude(run.sender.tally, 1.0, as_json=False)
    assert f"\nlines from line {run.sender.tally.sent + 1} on were not sent\n" in capsys.readouterr().err


def test_a_report_whose_last_bytes_find_no_space_has_a_problem() -> None:
    file = FailingFile(0, errno.ENOSPC)
    report = ReportFile("r.tsv", cast("BinaryIO", io.BufferedWriter(file)))
    report.write(b"some")
    assert report.problem is None
    report.close()
    assert report.problem is not None


@pytest.mark.parametrize("as_json", [False, True])
def test_records_are_written_on_when_the_reader_of_the_offsets_has_ended(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    """Once `produce --offsets | head -1` stopped in the middle, silently and with exit code 0."""
    output = FailingFile(100, errno.EPIPE)
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(cast("BinaryIO", output), write_through=True))
    run = Run(path, b"a\n" * 5_000)
    run.options.show_offset = OffsetLines(as_json=as_json)
    tally = run.send()
    assert (tally.acknowledged, tally.has_stopped, len(run.values)) == (5_000, False, 5_000)
    assert output.content.count(b"\n") >= 1
    assert run.options.output_problem is None


def test_a_summary_that_cannot_be_written_hides_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --json a closed stdout ended the command with 0, before it told of records without acknowledgement."""
    failed = Tally(sent=1, failed=1, first_failure=ValueError("no"), first_failed=1)
    for error in (errno.EPIPE, errno.ENOSPC):
        closed = io.TextIOWrapper(cast("BinaryIO", FailingFile(0, error)), write_through=True)
        monkeypatch.setattr("sys.stdout", closed)
        assert _conclude(failed, 1.0, as_json=True) == EXIT_COULD_NOT
        assert "1 record was not acknowledged; the first is line 1: no" in capsys.readouterr().err


def test_one_record_is_not_records(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Tally(sent=1, failed=1, first_failure=ValueError("no"), first_failed=1)
    assert _conclude(failed, 1.0, as_json=False) == EXIT_COULD_NOT
    assert capsys.readouterr().err.endswith("error: 1 record was not acknowledged; the first is line 1: no\n")
    some = Tally(sent=9, acknowledged=7, failed=2, first_failure=ValueError("no"), first_failed=4)
    assert _conclude(some, 1.0, as_json=False) == EXIT_COULD_NOT
    assert "error: 2 of 9 records were not acknowledged; the first is line 4: no" in capsys.readouterr().err
    assert _conclude(Tally(sent=1, acknowledged=1, acknowledged_bytes=1), 1.0, as_json=False) == EXIT_FINE
    assert capsys.readouterr().err.startswith("1 record, 1 byte acknowledged in 1.00 s")


def test_records_that_were_not_acknowledged_are_an_error_object_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Once it was plain text."""
    failed = Tally(sent=1, failed=1, first_failure=ValueError("no"), first_failed=1)
    for interrupted, code in ((False, EXIT_COULD_NOT), (True, EXIT_INTERRUPTED)):
        assert _conclude(failed, 1.0, as_json=True, interrupted=interrupted) == code
        text = "1 record was not acknowledged; the first is line 1: no"
        assert json.loads(capsys.readouterr().err) == {"error": text, "exit_code": code}


def test_the_lines_behind_one_that_failed_are_reported_as_not_sent(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(path, b"a\nb\n")
    assert not run.send().has_stopped
    run = Run(path, b"a\n" * 200_000)  # more than is read at once
    run.options.show_offset = OffsetLines(as_json=False)  # it waits for each chunk
    run.cluster.intercept = lambda broker, request: (
        refusal(request, ErrorCode.INVALID_RECORD) if isinstance(request.body, ProduceRequest) else None
    )
    tally = run.send()
    assert tally.has_stopped
    assert tally.sent < 200_000
    _conclude(tally, 1.0, as_json=False)
    assert f"\nlines from line {tally.sent + 1} on were not sent\n" in capsys.readouterr().err
    _conclude(tally, 1.0, as_json=True)
    assert json.loads(capsys.readouterr().out)["not_sent_from_line"] == tally.sent + 1


@pytest.mark.parametrize("option", [["-K", ":"], ["-k", "k"], ["-H", "h=1"], ["-Z"]])
def test_options_for_lines_are_refused_for_json(option: list[str]) -> None:
    result = CliRunner().invoke(produce, ["-t", "t", "--input", "jsonl", *option])
    assert (result.exit_code, "are for --input lines" in result.output) == (EXIT_USAGE, True)


def test_a_list_of_acknowledged_records_is_not_overwritten(tmp_path: Path) -> None:
    """It is what the audit needs, and a second `produce` of a script replaced it."""
    report, lines = tmp_path / "acknowledged.tsv", tmp_path / "lines"
    lines.touch()
    report.write_text("a list")
    arguments = ["-t", "t", "-b", "127.0.0.1:1", "--report", str(report), str(lines)]
    result = CliRunner().invoke(produce, arguments)
    assert result.exit_code == EXIT_COULD_NOT
    assert f"{report} has content already: name another file for --report, or remove this one" in result.output
    assert report.read_text() == "a list"
    report.write_text("")  # of mktemp
    assert "has content" not in CliRunner().invoke(produce, arguments).output
    arguments[arguments.index(str(report))] = "/dev/null"
    assert "has content" not in CliRunner().invoke(produce, arguments).output


def test_a_list_that_another_command_is_about_to_write_is_not_taken(tmp_path: Path) -> None:
    """It was empty until the first records were acknowledged. The second `produce` took it, and the records that it
    listed were overwritten."""
    first = opened_report(str(tmp_path / "acknowledged.tsv"))
    with pytest.raises(BlockingIOError):
        opened_report(str(tmp_path / "acknowledged.tsv"))
    arguments = ["-t", "t", "-b", "127.0.0.1:1", "--report", str(tmp_path / "acknowledged.tsv")]
    result = CliRunner().invoke(produce, [*arguments, "/dev/null"])
    assert result.exit_code == EXIT_COULD_NOT
    assert (
        result.output == f"error: {arguments[-1]} is being written by another command: name another file for --report\n"
    )
    first.write(b"a list")
    first.close()
    with pytest.raises(FileExistsError):
        opened_report(str(tmp_path / "acknowledged.tsv"))
    for device in [opened_report("/dev/null"), opened_report("/dev/null")]:  # is no list
        device.close()


def test_a_word_that_is_no_file_may_have_been_meant_as_a_topic() -> None:
    result = CliRunner().invoke(produce, ["lines", "--input", "jsonl"])
    assert result.output == ("error: lines cannot be read: No such file or directory; a topic is named with -t lines\n")
