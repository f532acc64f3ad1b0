"""The cluster of docker-compose.yml under a name and on ports of its own, driven from the host as a user would."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from minibroker.asking import Asker
from minibroker.protocol.messages import MetadataPartition
from tests.system.engine import compose_command

ROOT = Path(__file__).resolve().parents[2]


class Failed(AssertionError):
    """A command that should have succeeded; the message holds all it said."""


class ComposeCluster:
    """docker-compose.yml's three brokers; broker N is the service brokerN."""

    def __init__(self) -> None:
        command = compose_command()
        assert command is not None
        self.compose_words = command
        self.ports = _free_ports(3)
        self.servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MINIBROKER_")},
            **{f"BROKER{number}_PORT": str(port) for number, port in enumerate(self.ports, start=1)},
            "COMPOSE_PROJECT_NAME": f"minibroker-test-{os.getpid()}",
        }
        if command == ("docker-compose",):  # 1.29 with a newer client that has no buildx
            self.environment |= {"DOCKER_BUILDKIT": "0", "COMPOSE_DOCKER_CLI_BUILD": "0"}

    def compose(self, *words: str, within_s: float = 120) -> str:
        return self._run([*self.compose_words, *words], within_s)

    def minibroker(self, *words: str, within_s: float = 60) -> str:
        return self._run([sys.executable, "-m", "minibroker", *words], within_s)

    async def partition(self, topic: str) -> MetadataPartition:
        """What the cluster says of the topic's only partition."""
        async with Asker() as asker:
            return (await asker.metadata(self.servers, [topic])).topics[0].partitions[0]

    async def until_partition(self, topic: str, holds: Callable[[MetadataPartition], bool], within_s: float) -> None:
        async with asyncio.timeout(within_s):
            while not holds(partition := await self.partition(topic)):
                await asyncio.sleep(0.2)
        assert partition.leader_id > 0

    def start_producer(self, topic: str, report: Path) -> subprocess.Popen[bytes]:
        """A producer that reads lines from its standard input until that ends."""
        words = ["produce", "-b", self.servers, "-t", topic, "--report", str(report), "-"]
        return subprocess.Popen(
            [sys.executable, "-m", "minibroker", *words],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def kill(self, broker_id: int) -> None:
        self._run(["docker", "kill", self.container(f"broker{broker_id}")], 30)

    def logs(self) -> str:
        return self.compose("logs", "--no-color", "--tail", "40")

    def container(self, service: str) -> str:
        return self.compose("ps", "-q", service).strip()

    def health(self, service: str) -> str:
        form = "{{.State.Health.Status}}"
        return self._run(["docker", "inspect", "-f", form, self.container(service)], 20).strip()

    def _run(self, words: list[str], within_s: float) -> str:
        ended = subprocess.run(
            words,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=within_s,
            text=True,
            errors="replace",
        )
        if ended.returncode != 0:
            raise Failed(
                f"{' '.join(words)}: exit code {ended.returncode}\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
            )
        return ended.stdout


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
