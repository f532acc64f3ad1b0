"""One real ZooKeeper for the whole test run, for tests marked `system`."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess, start_zookeeper


def free_port() -> int:
    """A port that no process listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    """A ready ZooKeeper on a free port (`.servers`), with ticks of 500 ms. Without Java the test fails by name."""
    process = start_zookeeper(str(tmp_path_factory.mktemp("zookeeper")), free_port())
    try:
        asyncio.run(process.wait_ready(30))
        yield process
    finally:
        asyncio.run(process.stop())
