"""A bit rots in the only copy of a partition: everybody who asks is told, and nobody waits for ever."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.local_cluster import LocalCluster
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
        asyncio.run(LocalCluster.open(cluster.data_directory).down())  # perhaps the command line has started it anew


def test_the_damaged_range_of_an_only_copy_is_named_by_everybody(rotten: CommandLine) -> None:
    began = time.monotonic()
    reading = rotten.complete("consume", "-t", "t", "-e", "--timeout", "3")
    assert time.monotonic() - began < 12
    assert reading.returncode == 1
    assert reading.stdout.count(b"\n") == 1_000, "what lies in front of the damage"
    said = reading.stderr.decode()
    assert said.count("\n") == 1
    assert "t-0 gave only errors for 3 s; last error: CORRUPT_MESSAGE from broker 1 for t-0" in said
    assert "damaged at offset 1000" in said
    assert "start the brokers that hold a copy" in said
    assert rotten.run("consume", "-t", "t", "-e", "-o", "2000").count(b"\n") == 1_000, "and what lies behind it"

    for command in (("cluster", "status"), ("replicas", "--check"), ("doctor",)):
        looked = rotten.complete(*command)
        assert looked.returncode == 10, command
        words = (looked.stdout + looked.stderr).decode()
        assert "t-0" in words, command
        assert "damaged" in words, command
        assert "minibroker log repair" in words, command
    waited = rotten.complete("cluster", "wait", "--timeout", "2")
    assert waited.returncode == 1
    assert "t-0: broker 1 leads with a damaged log" in waited.stderr.decode()


def test_a_cluster_with_a_damaged_copy_can_be_started_again_to_mend_it(rotten: CommandLine) -> None:
    """`cluster up` ended what it had started, for it was not healthy: nobody could order an election."""
    before = rotten.complete("cluster", "status", "--json").stdout  # 10 as soon as the scrubber has been there
    rotten.run("cluster", "down")
    log_directory = Path(rotten.environment["MINIBROKER_DATA_DIR"]) / "broker-1"
    rotten.run("log", "repair", log_directory, "--apply", code=10)
    started = rotten.complete("cluster", "up", "--timeout", "6")
    assert started.returncode == 1
    said = started.stderr.decode()
    assert said.startswith("kept from the former cluster in ")
    assert "--set log.segment.bytes=20000" in said
    assert "t-0 has no leader" in said
    assert "it keeps running: see `minibroker cluster status`" in said
    after = rotten.run("cluster", "status", "--json", code=10)
    assert json.loads(after)["bootstrap_servers"] == json.loads(before)["bootstrap_servers"], (
        "the ports are what they were"
    )
    rotten.run("partition", "elect", code=10)
