"""`minibroker produce`: which line an error names, and what was written before it, in simulated time."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from minibroker.client.producer.producer import Producer
from minibroker.command_line import EXIT_COULD_NOT, EXIT_FINE, EXIT_USAGE, CommandFailed
from minibroker.commands.produce import _conclude, _Options, _print_offset, _send_all, produce
from minibroker.records.record_sender import RecordSender, Tally
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster


class Run:
    """Sends `content` to topic t, which has one partition."""

    def __init__(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        self.path = path
        self.cluster = FakeCluster(SimulatedWorld(seed=1))
        self.cluster.add_topic("t")
        self.options = _Options()
        self.options.is_json = self.options.empty_is_null = False
        self.options.delimiter = self.options.key = self.options.partition = self.options.show_offset = None
        self.options.headers = ()

    def send(self) -> Tally:
        async def main(runtime: Runtime) -> Tally:
            async with Producer(
                bootstrap_servers=self.cluster.bootstrap, max_request_size=1_024, runtime=runtime
            ) as producer:
                sender = RecordSender(producer, "t", on_acknowledged=self.options.show_offset)
                descriptor = os.open(self.path, os.O_RDONLY)
                try:
                    await _send_all(sender, descriptor, self.options)
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
    with pytest.raises(CommandFailed, match=r"^line 2 is not a record: .*`vale`"):
        run.send()
    assert run.values == [b"a"]


def test_empty_values_are_null_on_request(path: Path) -> None:
    run = Run(path, b"a\n\nk:\n")
    run.options.empty_is_null, run.options.delimiter = True, b":"
    tally = run.send()
    assert run.values == [b"a", None, None]
    assert (tally.acknowledged, tally.acknowledged_bytes) == (3, 1)


def test_offsets_are_printed_on_request(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run(path, b"a\nb\n")
    run.options.show_offset = _print_offset
    run.send()
    assert capsys.readouterr().out == "t\t0\t0\nt\t0\t1\n"


def test_one_record_is_not_records(capsys: pytest.CaptureFixture[str]) -> None:
    failed = Tally(sent=1, failed=1, first_failure=ValueError("no"), first_failed=1)
    assert _conclude(failed, 1.0, as_json=False) == EXIT_COULD_NOT
    assert capsys.readouterr().err.endswith("error: 1 record was not acknowledged; the first is line 1: no\n")
    some = Tally(sent=9, acknowledged=7, failed=2, first_failure=ValueError("no"), first_failed=4)
    assert _conclude(some, 1.0, as_json=False) == EXIT_COULD_NOT
    assert "error: 2 of 9 records were not acknowledged; the first is line 4: no" in capsys.readouterr().err
    assert _conclude(Tally(sent=1, acknowledged=1, acknowledged_bytes=1), 1.0, as_json=False) == EXIT_FINE
    assert capsys.readouterr().err.startswith("1 record, 1 byte acknowledged in 1.00 s")


@pytest.mark.parametrize("option", [["-K", ":"], ["-k", "k"], ["-H", "h=1"], ["-Z"]])
def test_options_for_lines_are_refused_for_json(option: list[str]) -> None:
    result = CliRunner().invoke(produce, ["-t", "t", "--input", "jsonl", *option])
    assert (result.exit_code, "are for --input lines" in result.output) == (EXIT_USAGE, True)
