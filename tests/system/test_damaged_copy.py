"""A bit rots in the only copy of a partition: every command reports it, and no reader waits for ever."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.local_cluster.local_cluster import LocalCluster
from tests.system.conftest import CommandLine

pytestmark = pytest.mark.system

RECORDS = 3_000


@pytest.fixture
def rotten(tmp_path: Path) -> Iterator[CommandLine]:
    """One broker, one partition of several segments; a bit of the second one flips while the broker is down."""
    cluster = LocalCluster(tmp_path / "data", 1, settings={"log.segment.bytes": "20000"})
    asyncio.run(cluster.up())
    try:
        minibroker = CommandLine(cluster)
        minibroker.run("topic", "create", "-t", "t", "--partitions", "1")
        for first in range(0, RECORDS, 1_000):
            lines = b"".join(b"%09d\n" % number for number in range(first, first + 1_000))
            minibroker.run("produce", "-t", "t", stdin=lines)
        asyncio.run(cluster.stop(1))
        second = sorted((cluster.log_directory(1) / "t-0").glob("*.log"))[1]
        content = bytearray(second.read_bytes())
        content[len(content) // 2] ^= 1
        second.write_bytes(content)
        asyncio.run(cluster.start(1))
        yield minibroker
    finally:
        asyncio.run(LocalCluster.open(cluster.data_directory).down())  # the command line may have started it again


def test_every_command_names_the_damaged_range_of_an_only_copy(rotten: CommandLine) -> None:
    began = time.monotonic()
    reading = rotten.complete("consume", "-t", "t", "-e", "--timeout", "3")
    assert time.monotonic() - began < 12
    assert reading.returncode == 1
    assert reading.stdout.count(b"\n") == 1_000, "records before the damage"
    errors = reading.stderr.decode()
    assert errors.count("\n") == 1
    assert "t-0 gave only errors for 3 s; last error: CORRUPT_MESSAGE from broker 1 for t-0" in errors
    assert "damaged at offset 1000" in errors
    assert "start the brokers that hold a copy" in errors
    assert rotten.run("consume", "-t", "t", "-e", "-o", "2000").count(b"\n") == 1_000, "records after the damage"

    for command in (("cluster", "status"), ("replicas", "--check"), ("doctor",)):
        checked = rotten.complete(*command)
        assert checked.returncode == 10, command
        output = (checked.stdout + checked.stderr).decode()
        assert "t-0" in output, command
        assert "damaged" in output, command
        assert "minibroker log repair" in output, command
    waited = rotten.complete("cluster", "wait", "--timeout", "2")
    assert waited.returncode == 1
    assert "t-0: broker 1 leads with a damaged log" in waited.stderr.decode()


def test_a_cluster_with_a_damaged_copy_keeps_running_for_its_repair(rotten: CommandLine) -> None:
    """Once `cluster up` stopped an unhealthy cluster, so that no election could be ordered."""
    before = rotten.complete("cluster", "status", "--json").stdout  # exit code 10 once the scrubber has read it
    rotten.run("cluster", "down")
    log_directory = Path(rotten.environment["MINIBROKER_DATA_DIR"]) / "broker-1"
    rotten.run("log", "repair", log_directory, "--apply", code=10)
    started = rotten.complete("cluster", "up", "--timeout", "6")
    assert started.returncode == 1
    errors = started.stderr.decode()
    assert errors.startswith("kept from the former cluster in ")
    assert "--set log.segment.bytes=20000" in errors
    assert "t-0 has no leader" in errors
    assert "the cluster keeps running: see `minibroker cluster status`" in errors
    after = rotten.run("cluster", "status", "--json", code=10)
    assert json.loads(after)["bootstrap_servers"] == json.loads(before)["bootstrap_servers"], (
        "the ports have not changed"
    )
    rotten.run("partition", "elect", code=10)
