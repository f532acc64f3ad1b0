"""A real broker on a small file system that fills up: it reports that, and the documented cures work."""

import asyncio
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.cluster_view import health_problems

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system"),
]

SIZE_MB = 24
SMALL = 1
"""The broker on the small file system."""
TOPIC_CONFIGS = {"segment.bytes": "1048576", "min.insync.replicas": "1"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers, one of them with little disk space."""
    small = tmp_path / "data" / f"broker-{SMALL}"
    small.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", str(small)], check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        cluster = LocalCluster(tmp_path / "data", settings={"log.retention.check.interval.ms": "500"})
        asyncio.run(cluster.up())
        try:
            yield cluster
        finally:
            asyncio.run(cluster.down())
    finally:
        subprocess.run(["umount", "-l", str(small)], check=False)


async def fill(cluster: LocalCluster, topic: str) -> None:
    """Produce until the small broker reports that it is full."""
    value = b"x" * 100_000
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=20_000, linger_ms=0
    ) as producer:
        for _ in range(100):
            with contextlib.suppress(MinibrokerError):
                await asyncio.gather(*(producer.send_and_wait(topic, value) for _ in range(10)))
            if await problems_with(cluster, "is full"):
                return
    raise AssertionError("it never was full")


async def problems_with(cluster: LocalCluster, part: str) -> list[str]:
    return [each for each in health_problems(await cluster.look(), 3) if part in each]


async def test_a_full_broker_is_reported_and_recovers_after_a_deletion(cluster: LocalCluster) -> None:
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        for topic in ("large", "other"):
            await admin.create_topic(topic, partitions=1, replication_factor=3, configs=TOPIC_CONFIGS)
        await fill(cluster, "large")
        assert await problems_with(cluster, f"log directory of broker {SMALL} is full: cannot append")
        await admin.delete_topic("large")
        await cluster.wait_healthy(30)


async def test_a_full_broker_recovers_by_retention(cluster: LocalCluster) -> None:
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topic("large", partitions=1, replication_factor=3, configs=TOPIC_CONFIGS)
        await fill(cluster, "large")
        await admin.alter_configs({"retention.bytes": "2097152"}, topic="large")
        await cluster.wait_healthy(40)
