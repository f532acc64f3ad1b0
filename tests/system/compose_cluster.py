"""The cluster of docker-compose.yml with its own name and ports, driven from the host as by a user."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from minibroker.harness.container_engine import (
    ComposeFailed,
    answers,
    compose_command,
    own_names,
    own_ports,
    remove_project,
)
from minibroker.local_cluster.processes import free_ports
from minibroker.observation.broker_queries import BrokerQueries
from minibroker.protocol.wire.messages import MetadataPartition

ROOT = Path(__file__).resolve().parents[2]


BASE_IMAGES = ("python:3.11-slim-bookworm", "zookeeper:3.9")
PULL_SECONDS = 600
REMOVAL_GRACE_S = 10


@functools.cache
def why_no_engine() -> str | None:
    """The reason to skip, or None if an engine answers."""
    try:
        compose_command()
    except ComposeFailed as error:
        return str(error)
    return None


@functools.cache
def why_no_images() -> str | None:
    """The reason to skip if an engine answers but a base image is missing and cannot be pulled."""
    for image in BASE_IMAGES:
        is_here = answers("docker", "image", "inspect", image)
        if not is_here and not answers("docker", "pull", "-q", image, within_s=PULL_SECONDS):
            return f"the image {image} is not here and cannot be pulled"
    return None


class Failed(AssertionError):
    """A command failed that should have succeeded; the message contains its output."""


class ComposeCluster:
    """docker-compose.yml's three brokers; broker N is the service brokerN."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self.compose_words = compose_command()
        ports = dict(enumerate(free_ports(3), start=1))
        self.servers = ",".join(f"127.0.0.1:{port}" for port in ports.values())
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MINIBROKER_")},
            **own_ports(ports),
            **own_names(f"minibroker-test-{os.getpid()}", self.compose_words),
        }

    def remove_everything(self) -> None:
        """Containers, volumes, networks and images; the build cache stays for the next run."""
        compose = [*self.compose_words, "-f", str(ROOT / "docker-compose.yml")]
        remove_project(compose, self.environment, REMOVAL_GRACE_S)

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
