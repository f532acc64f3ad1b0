"""`minibroker consume` while nothing comes, in simulated time."""

import asyncio
import os
import sys

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.commands.consume import _print, _print_values
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
            printed = _print_values(reader, None) if columns else _print(reader, None, lambda _: b"")
            with pytest.raises(BrokenPipeError):
                await asyncio.wait_for(printed, 5)

    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        os.close(reading)
        cluster.run(main)
