"""`minibroker consume` while nothing comes, in simulated time."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from click import UsageError

from minibroker.client.consumer.consumer import Consumer
from minibroker.commands.consume import _print, _print_values, _printer, _Progress
from minibroker.records.record_reader import RecordReader
from minibroker.records.starting_point import parse_start
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import fill


@pytest.mark.parametrize("columns", [False, True])
def test_a_closed_pipe_ends_it_before_the_next_record(monkeypatch: pytest.MonkeyPatch, *, columns: bool) -> None:
    """Once `minibroker consume -t T | head -1` waited for one more record."""
    cluster = FakeCluster(SimulatedWorld(seed=1))
    cluster.add_topic("t", 1)
    fill(cluster, 3)

    async def main(runtime: Runtime) -> None:
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none", runtime=runtime) as consumer:
            reader = RecordReader(consumer, ["t"], (), parse_start("end"), 8_000)
            await reader.start()
            printed = (
                _print_values(reader, None, _Progress())
                if columns
                else _print(reader, None, lambda _: b"", _Progress())
            )
            with pytest.raises(BrokenPipeError):
                await asyncio.wait_for(printed, 5)

    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        os.close(reading)
        cluster.run(main)


@pytest.mark.parametrize(
    ("format_text", "options"),
    [
        ("%q", (True, False, False)),
        ("%s", (True, False, False)),
        ("%s", (False, True, False)),
        (None, (False, True, True)),
        (None, (True, True, True)),
    ],
)
def test_formats_that_exclude_each_other_are_refused(format_text: str | None, options: tuple[bool, bool, bool]) -> None:
    """-J ignored -f, even one that is none."""
    with pytest.raises(UsageError, match="exclude each other: give one"):
        _printer(format_text, *options)


@pytest.mark.parametrize("options", [(True, True, False), (True, False, True), (False, False, True)])
def test_j_beside_a_variant_of_itself_is_fine(options: tuple[bool, bool, bool]) -> None:
    assert _printer(None, *options) is not None


@pytest.mark.parametrize("into_file", [True, False])
def test_progress_is_shown_while_the_records_go_into_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, into_file: bool
) -> None:
    """The terminal stood still; with a pipe or without, the line would come between the records."""
    reading, terminal = os.openpty()
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(terminal, "w") as stderr, (tmp_path / "records").open("w") as file:
        monkeypatch.setattr(sys, "stderr", stderr)
        monkeypatch.setattr(sys, "stdout", file if into_file else stderr)
        with _Progress() as progress:
            progress.add(1, 500)
            now[0] += 2
            progress.add(1, 1_500)
        stderr.write("end")
        stderr.flush()
        shown = b"\r\x1b[K2 records, 2.0 kB, 1.0 kB/s, 2 s\r\x1b[K" if into_file else b""
        got = b""
        while not got.endswith(b"end"):  # the kernel passes a terminal's bytes on in pieces
            got += os.read(reading, 200)
        assert got == shown + b"end"
    os.close(reading)
