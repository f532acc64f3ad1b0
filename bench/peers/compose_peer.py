"""A minibroker cluster in containers: that of docker-compose.yml under its own name and on its own ports.

Owns: the container engine's commands. Client requests go to the cluster as to any other of minibroker
(minibroker_peer). Needs a Docker engine with docker-compose or `docker compose`; without one, `start` reports that.
"""

import asyncio
import os
import shutil
import signal
import time
from pathlib import Path

import minibroker
from minibroker.bench.peers.kafka_installation import ROOT
from minibroker.bench.peers.minibroker_peer import POLL_S, MinibrokerPeer
from minibroker.bench.peers.peer import BROKERS, PeerFailed
from minibroker.local_cluster.processes import free_ports
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.cluster_view import ClusterView, health_problems, view_cluster

BUILD_TIMEOUT_S = 900.0
COMMAND_TIMEOUT_S = 120.0
UP_TIMEOUT_S = 90.0


class ComposePeer(MinibrokerPeer):
    """Broker N is the service brokerN. Session timeout and tick are those of docker-compose.yml."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.version = minibroker.__version__
        self._ports = free_ports(BROKERS)
        self._compose: tuple[str, ...] = ()
        project = f"minibroker-bench-{os.getpid()}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MINIBROKER_")}
        ports = {f"BROKER{number}_PORT": str(port) for number, port in enumerate(self._ports, start=1)}
        log_format = {"MINIBROKER_LOG_FORMAT": "json"}
        images = {"BROKER_IMAGE": f"{project}-broker", "AUDIT_IMAGE": f"{project}-audit"}
        self._environment = {**kept, **ports, **images, **log_format, "COMPOSE_PROJECT_NAME": project}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    # ------------------------------------------------------------------------------------------------ all of it
    async def start(self) -> None:
        """Build the image and start everything. Raises PeerFailed, also if no engine answers."""
        self._compose = await self._find_engine()
        await self._run([*self._compose, "build", "broker1"], BUILD_TIMEOUT_S)
        services = [f"broker{number}" for number in range(1, BROKERS + 1)]
        await self._run([*self._compose, "up", "-d", "zookeeper", *services])
        await self.wait_in_sync(UP_TIMEOUT_S)

    async def _find_engine(self) -> tuple[str, ...]:
        if shutil.which("docker") is None or not await self._answers("docker", "info"):
            raise PeerFailed("no Docker engine answers `docker info`: start one, or leave the compose cases out")
        if await self._answers("docker", "compose", "version"):
            return ("docker", "compose")
        if shutil.which("docker-compose") is None:
            raise PeerFailed("neither `docker compose` nor `docker-compose` works: install one of them")
        self._environment["DOCKER_BUILDKIT"] = "0"  # docker-compose 1.29 with a newer client without buildx
        return ("docker-compose",)

    async def _answers(self, *command: str) -> bool:
        try:
            await self._run(list(command), 20.0)
        except PeerFailed:
            return False
        return True

    async def stop(self, *, wipe: bool = True) -> None:
        if not self._compose:
            return
        await self._run([*self._compose, "down", "-v", "--remove-orphans", "-t", "10"])
        if wipe:
            await self._answers("docker", "image", "rm", "-f", "--no-prune", self._environment["BROKER_IMAGE"])
        self._compose = ()

    def pids(self) -> dict[str, int]:
        """Containers' processes are not measured."""
        return {}

    def log_directory(self, broker_id: int) -> Path:
        raise PeerFailed("log directories of containers are not read")

    def configuration(self) -> dict[str, str]:
        return {"cluster": "docker-compose.yml"}

    # -------------------------------------------------------------------------------------------------- brokers
    async def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        await self._run(["docker", "kill", "-s", number.name, await self._container(broker_id)])

    async def start_broker(self, broker_id: int) -> None:
        container = await self._container(broker_id)
        await self._run(["docker", "wait", container])  # SIGTERM: until it has stopped
        await self._run(["docker", "start", container])

    async def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                reasons = health_problems(await self._look(), BROKERS)
            except PeerFailed as error:
                reasons = [str(error)]
            if not reasons:
                return
            if time.monotonic() > deadline:
                raise PeerFailed(f"the containers are not healthy after {timeout_s:g} s: {'; '.join(reasons[:3])}")
            await asyncio.sleep(POLL_S)

    async def read_broker_log(self, broker_id: int) -> str:
        return await self._run(["docker", "logs", await self._container(broker_id)])

    async def _look(self, topic: str | None = None) -> ClusterView:
        try:
            async with BrokerQueries("minibroker-bench") as queries:
                return await view_cluster(queries, self.bootstrap_servers, None if topic is None else [topic])
        except (NoAnswer, OSError) as error:
            raise PeerFailed(str(error)) from None

    async def _container(self, broker_id: int) -> str:
        return (await self._run([*self._compose, "ps", "-a", "-q", f"broker{broker_id}"])).split()[0]

    async def _run(self, command: list[str], within_s: float = COMMAND_TIMEOUT_S) -> str:
        """Its output, stderr included. Raises PeerFailed."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=ROOT,
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=pipe,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C ends it through `stop`, in order
        )
        try:
            output, _ = await asyncio.wait_for(process.communicate(), within_s)
        except TimeoutError:
            raise PeerFailed(f"`{' '.join(command)}` does not end within {within_s:g} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        text = output.decode(errors="replace")
        if process.returncode:
            raise PeerFailed(f"`{' '.join(command)}` ended with {process.returncode}: {text[-500:].strip()}")
        return text
