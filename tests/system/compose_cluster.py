"""The cluster of docker-compose.yml with its own name and ports, driven from the host as by a user."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from minibroker.observation.broker_queries import BrokerQueries
from minibroker.protocol.wire.messages import MetadataPartition
from tests.system.engine import compose_command

ROOT = Path(__file__).resolve().parents[2]


def own_names(name: str) -> dict[str, str]:
    """An environment in which docker-compose touches only its own containers, volumes and images."""
    own = {"COMPOSE_PROJECT_NAME": name, "BROKER_IMAGE": f"{name}-broker", "AUDIT_IMAGE": f"{name}-audit"}
    if compose_command() == ("docker-compose",):  # 1.29 with a newer client without buildx
        own["DOCKER_BUILDKIT"] = "0"
    return own


def remove_everything(environment: dict[str, str]) -> None:
    """Containers, volumes, networks and images of `own_names`; the build cache stays for the next run."""
    command = compose_command()
    assert command is not None
    down = [*command, "--profile", "audit", "down", "-v", "--remove-orphans", "-t", "10"]
    images = ["docker", "image", "rm", "-f", "--no-prune", environment["BROKER_IMAGE"], environment["AUDIT_IMAGE"]]
    for words in (down, images):
        subprocess.run(words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=180)


class Failed(AssertionError):
    """A command failed that should have succeeded; the message contains its output."""


class ComposeCluster:
    """docker-compose.yml's three brokers; broker N is the service brokerN."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        command = compose_command()
        assert command is not None
        self.compose_words = command
        self.ports = _free_ports(3)
        self.servers = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MINIBROKER_")},
            **{f"BROKER{number}_PORT": str(port) for number, port in enumerate(self.ports, start=1)},
            **own_names(f"minibroker-test-{os.getpid()}"),
        }

    def compose(self, *words: str, within_s: float = 120) -> str:
        return self._run([*self.compose_words, *words], within_s)

    def minibroker(self, *words: str, within_s: float = 60) -> str:
        """A command of the host."""
        return self._run([sys.executable, "-m", "minibroker", *words], within_s)

    def inside(self, service: str, *words: str) -> str:
        """A command in a running container."""
        return self.compose("exec", "-T", service, *words)

    def exit_code(self, *words: str, within_s: float = 120) -> tuple[int, str]:
        """The exit code and output of a docker-compose command that may fail."""
        ended = self._end([*self.compose_words, *words], within_s)
        return ended.returncode, ended.stdout + ended.stderr

    def partition(self, topic: str) -> MetadataPartition:
        """The topic's only partition in the cluster's metadata."""

        async def ask() -> MetadataPartition:
            async with BrokerQueries() as queries:
                return (await queries.metadata(self.servers, [topic])).topics[0].partitions[0]

        return asyncio.run(ask())

    def until(self, what: str, holds: Callable[[], bool], within_s: float) -> float:
        """Poll until it holds; returns the seconds that it took."""
        started = time.monotonic()
        while not holds():
            if time.monotonic() - started > within_s:
                raise Failed(f"not within {within_s:g} s: {what}\n{self.logs()}")
            time.sleep(0.2)
        return time.monotonic() - started

    def print(self, text: str) -> None:
        """Print an event for readers of the test's output (pytest -s, or after a failure)."""
        print(f"{time.monotonic() - self._started:6.1f} s  {text}")

    def start_producer(self, topic: str, report: Path) -> subprocess.Popen[bytes]:
        """A producer that reads lines from its standard input until the end."""
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
        return self.compose("ps", "-a", "-q", service).split()[0]

    def inspect(self, service: str, form: str) -> str:
        return self._run(["docker", "inspect", "-f", form, self.container(service)], 20).strip()

    def _run(self, words: list[str], within_s: float) -> str:
        ended = self._end(words, within_s)
        if ended.returncode != 0:
            output = f"{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}"
            raise Failed(f"{' '.join(words)}: exit code {ended.returncode}\n{output}")
        return ended.stdout

    def _end(self, words: list[str], within_s: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=within_s,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired as error:
            output = b"".join(part for part in (error.stdout, error.stderr) if isinstance(part, bytes))
            raise Failed(f"{' '.join(words)}: no end within {within_s:g} s\n{output[-4000:].decode()}") from None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
