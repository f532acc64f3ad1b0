"""A cluster of real processes for the tests that need one: ZooKeeper and three brokers, as `minibroker cluster up`."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.local_cluster.local_cluster import LocalCluster

COMMAND_TIMEOUT_S = 90.0


class CommandLine:
    """Runs `minibroker ..` against one cluster, as a user does."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.environment = {
            **os.environ,
            "MINIBROKER_BOOTSTRAP_SERVERS": cluster.bootstrap_servers,
            "MINIBROKER_DATA_DIR": str(cluster.data_directory),
        }

    def run(self, *arguments: str | Path, stdin: bytes = b"", code: int = 0) -> bytes:
        """Standard output; the exit code must be `code`."""
        run = self.complete(*arguments, stdin=stdin)
        assert run.returncode == code, f"{arguments}: exit {run.returncode}: {run.stderr.decode()}"
        return run.stdout

    def complete(self, *arguments: str | Path, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            env=self.environment,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )

    def start(self, *arguments: str | Path) -> "subprocess.Popen[bytes]":
        """For commands that run until they are interrupted."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )

    @staticmethod
    def command(*arguments: str | Path) -> list[str]:
        return [sys.executable, "-m", "minibroker", *map(str, arguments)]


def running(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster, from its start to its end."""
    with cluster.ownership:
        asyncio.run(cluster.up())
        try:
            yield cluster
        finally:
            asyncio.run(cluster.ownership.finish(cluster.down()))


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three healthy brokers. Tests that break something use `own_cluster`."""
    yield from running(LocalCluster(tmp_path_factory.mktemp("shared-cluster")))


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three brokers that a test may kill."""
    yield from running(LocalCluster(tmp_path / "data"))


@pytest.fixture
def minibroker(shared_cluster: LocalCluster) -> CommandLine:
    return CommandLine(shared_cluster)
