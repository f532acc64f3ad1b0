"""One project of docker-compose: the cluster of docker-compose.yml under a name and on ports of its own.

Owns: the commands on this project. Leaves to others: what they are used for, and the engine (`container_engine`).
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import minibroker
from minibroker.harness.container_engine import (
    COMMAND_SECONDS,
    ENGINE_SECONDS,
    ComposeFailed,
    compose_command,
    own_names,
    own_ports,
    remove_project,
)
from minibroker.local_cluster.processes import free_ports

BROKERS = 3
"""docker-compose.yml has as many."""
BUILD_SECONDS = 900.0
"""On a machine that has none of the layers yet."""
ERROR_CHARACTERS = 500


class ComposeProject:
    """`settings`: of every broker, by their dotted names. `directory` holds the file that passes them on."""

    def __init__(
        self, name: str, directory: Path, settings: Mapping[str, str] | None = None, *, log_format: str = "text"
    ) -> None:
        self.name = name
        self.ports = dict(enumerate(free_ports(BROKERS), start=1))
        self.image = f"{name}-broker"
        self._settings = dict(settings or {})
        self._directory = directory
        self._compose: tuple[str, ...] = ()
        self._containers: dict[str, str] = {}
        """Ids by service. The engine answers in hundredths of a second, docker-compose in one or two."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("MINIBROKER_")}
        own = own_names(name) | own_ports(self.ports)
        self._environment = kept | own | {"MINIBROKER_LOG_FORMAT": log_format}

    # ------------------------------------------------------------------------------------------------- all services
    async def up(self) -> None:
        """Build the image and start ZooKeeper and all brokers. Raises ComposeFailed."""
        command = await asyncio.to_thread(compose_command)
        self._environment |= own_names(self.name, command)
        self._compose = (*command, *self._files())
        await self.compose("build", "broker1", within_s=BUILD_SECONDS)
        await self.compose("up", "-d", "zookeeper", *(f"broker{number}" for number in self.ports))
        await self.container("zookeeper")  # `last_log_lines` needs the ids

    async def down(self, *, remove_image: bool = False) -> None:
        """Remove containers, volumes and networks. Does nothing if nothing was started."""
        if not self._compose:
            return
        try:
            await self._resume_paused()
            await self.compose("down", "-v", "--remove-orphans", "-t", "10")
        finally:
            if remove_image:
                await self._works("docker", "image", "rm", "-f", "--no-prune", self.image)
        self._compose = ()
        self._containers = {}

    def remove_now(self) -> None:
        """Kill and remove all, for the end of the program: without an event loop, and without errors. Blocks."""
        if self._compose:
            remove_project(self._compose, self._environment, grace_s=0)
        self._compose = ()
        self._containers = {}

    async def _resume_paused(self) -> None:
        """The engine cannot stop a paused container. If this fails, `down` says what is left."""
        with contextlib.suppress(ComposeFailed):
            for container in (await self.run("docker", "ps", "-q", "--filter", "status=paused", *self._own())).split():
                await self._works("docker", "unpause", container)

    def _files(self) -> list[str]:
        """The project's file, and one with the settings of this cluster (JSON is YAML)."""
        root = Path(str(minibroker.__file__)).resolve().parent.parent
        if not (root / "docker-compose.yml").is_file():
            raise ComposeFailed("docker-compose.yml is not part of the installed package: run this in a clone")
        variables = {f"MINIBROKER_{key.upper().replace('.', '_')}": value for key, value in self._settings.items()}
        services = {f"broker{number}": {"environment": variables} for number in self.ports}
        self._directory.mkdir(parents=True, exist_ok=True)
        own = self._directory / "settings.yml"
        own.write_text(json.dumps({"services": services}))
        return ["--project-directory", str(root), "-f", str(root / "docker-compose.yml"), "-f", str(own)]

    async def _works(self, *command: str) -> bool:
        try:
            await self.run(*command, within_s=ENGINE_SECONDS)
        except ComposeFailed:
            return False
        return True

    # ------------------------------------------------------------------------------------------------- one service
    async def container(self, service: str) -> str:
        """The container's id, also of one that has ended. A container stays for the life of the project."""
        if service not in self._containers:
            form = '{{.Label "com.docker.compose.service"}} {{.ID}}'
            listed = await self.run("docker", "ps", "-a", *self._own(), "--format", form)
            self._containers = dict(line.split() for line in listed.splitlines())
        if service not in self._containers:
            raise ComposeFailed(f"{self.name} has no container of {service}")
        return self._containers[service]

    def last_log_lines(self, service: str, count: int) -> list[str]:
        """Of its container's output; empty without a container or an engine. Blocks: for reports of failures only."""
        command = ("docker", "logs", "--tail", str(count), self._containers.get(service, ""))
        if not command[-1]:
            return []
        try:
            shown = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ENGINE_SECONDS, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return []
        return shown.stdout.decode(errors="replace").splitlines()

    def _own(self) -> tuple[str, str]:
        """Restricts a list of containers to those of this project."""
        return "--filter", f"label=com.docker.compose.project={self.name}"

    async def inspect(self, service: str, form: str) -> str:
        """One fact about a container, as `docker inspect -f FORM` prints it."""
        return (await self.run("docker", "inspect", "-f", form, await self.container(service))).strip()

    async def compose(self, *words: str, within_s: float = COMMAND_SECONDS) -> str:
        """The output of a command of docker-compose. Raises ComposeFailed."""
        return await self.run(*self._compose, *words, within_s=within_s)

    async def run(self, *command: str, within_s: float = COMMAND_SECONDS, given: bytes = b"") -> str:
        """Its output, stderr included. `given`: its input. Raises ComposeFailed."""
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *command,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C ends it through `down`, in order
            )
        )
        try:
            process = await asyncio.shield(starting)
            output, _ = await asyncio.wait_for(process.communicate(given), within_s)
        except TimeoutError:
            raise ComposeFailed(f"`{' '.join(command)}` does not end within {within_s:g} s") from None
        finally:
            process = await starting  # a cancelled start would end the command, but not what it has started by then
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # docker-compose and the `docker build` that it started
                await process.wait()
        text = output.decode(errors="replace")
        if process.returncode:
            last = text[-ERROR_CHARACTERS:].strip()
            raise ComposeFailed(f"`{' '.join(command)}` ended with {process.returncode}: {last}")
        return text


def service_of(party: int | str) -> str:
    """The service of docker-compose.yml: broker N is brokerN."""
    return f"broker{party}" if isinstance(party, int) else party
