"""The back end of containers: the cluster of docker-compose.yml, driven from the host.

Owns: the verbs as commands of the container engine. Leaves to others: blocked links (packet_filters).
"""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from minibroker.harness.cluster import ZOOKEEPER, Condition, Link, NamedTimeout, Party, UnsupportedByBackend
from minibroker.harness.compose_project import BROKERS, ComposeProject, service_of
from minibroker.harness.container_engine import ComposeFailed
from minibroker.harness.container_files import LOG_DIRECTORY, ContainerFiles
from minibroker.harness.failing_disks import FailingDisks
from minibroker.harness.hardware import DiskFault
from minibroker.harness.packet_filters import PacketFilters, together
from minibroker.harness.wire_harness import ASK_SECONDS, LOG_LINES_SHOWN, POLL_SECONDS, WireHarness
from minibroker.local_cluster.cluster_file import write_cluster_state
from minibroker.local_cluster.cluster_snapshot import state_of_view
from minibroker.local_cluster.teardown import Ownership
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.cluster_view import ClusterView, health_problems, view_cluster
from minibroker.protocol.files.cluster_state import ClusterState

UP_SECONDS = 180.0
"""From started containers to a healthy cluster; about nine seconds on an idle machine, and over 90 at a load of 25."""
RUNNING: Condition = "running"
DOWN: Condition = "down"
ENGINE_STATES: Mapping[str, Condition] = {"running": "running", "paused": "paused"}
"""Of containers; in all others the broker is down."""
PAUSE_ATTEMPTS = 3
"""On a busy machine the engine now and then fails to freeze the processes of a container."""
STOP_SECONDS = 40
"""As stop_grace_period in docker-compose.yml."""
CLUSTERS = itertools.count(1)
"""Of this process, so that each has a project of its own."""


class ComposeHarness(WireHarness):
    """The verbs on containers. Broker N is the service brokerN."""

    def __init__(
        self,
        brokers: int = BROKERS,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "minibroker-harness",
        log_format: str = "text",
    ) -> None:
        if brokers != BROKERS:
            raise UnsupportedByBackend(f"docker-compose.yml has {BROKERS} brokers: other numbers need another back end")
        self._directory = Path(tempfile.mkdtemp(prefix="minibroker-harness-"))
        own_name = f"{name}-{os.getpid()}-{next(CLUSTERS)}"
        self.project = ComposeProject(own_name, self._directory, settings, log_format=log_format)
        self.broker_ids = tuple(self.project.ports)
        self._states = dict.fromkeys(self.broker_ids, DOWN)
        self._filters = PacketFilters(self.project)
        self._noted: ClusterState | None = None
        self._disks = FailingDisks()
        self._files = ContainerFiles(self.project)
        self.ownership = Ownership(self._remove_now)

    async def _down(self) -> None:
        await self.down(remove_image=True)

    def _remove_now(self) -> None:
        self._disks.end_now()
        self.project.remove_now()
        shutil.rmtree(self._directory, ignore_errors=True)

    async def up(self) -> None:
        """Build, start, and wait until the cluster is healthy. Raises ComposeFailed."""
        await self.project.up()
        self._states = dict.fromkeys(self.broker_ids, RUNNING)
        await self.wait_healthy(UP_SECONDS)

    async def down(self, *, remove_image: bool) -> None:
        """Remove everything that `up` made; layers of the image stay in the engine's cache."""
        self._disks.end_now()
        try:
            await self.project.down(remove_image=remove_image)
        finally:
            self._states = dict.fromkeys(self.broker_ids, DOWN)
            shutil.rmtree(self._directory, ignore_errors=True)

    async def wait_healthy(self, timeout_s: float) -> ClusterView:
        """Wait until all brokers are registered and all replicas in sync. Raises ComposeFailed."""
        reasons = ["not asked yet"]
        deadline = asyncio.get_running_loop().time() + timeout_s
        while reasons:
            await self._refuse_dead(*self.broker_ids)
            try:
                view = await self.look()
                reasons = health_problems(view, BROKERS)
            except ComposeFailed as error:
                reasons = [str(error)]
            if reasons and asyncio.get_running_loop().time() > deadline:
                raise ComposeFailed(f"the containers are not healthy after {timeout_s:g} s: {'; '.join(reasons[:3])}")
            if reasons:
                await asyncio.sleep(POLL_SECONDS)
        return view

    async def _refuse_dead(self, *broker_ids: int) -> None:
        """Raises ComposeFailed if one of them has ended though nothing ended it."""
        for broker_id in broker_ids:
            if self._states[broker_id] != DOWN and await self._condition(broker_id) == DOWN:
                last = await asyncio.to_thread(self.project.last_log_lines, service_of(broker_id), 1)
                raise ComposeFailed(f"broker {broker_id} has ended by itself: {' '.join(last)}")

    async def look(self, topics: list[str] | None = None) -> ClusterView:
        """The whole cluster as its brokers describe it. Raises ComposeFailed if none answers."""
        async with BrokerQueries("minibroker-harness") as queries:
            try:
                return await view_cluster(queries, self.bootstrap_servers, topics)
            except (NoAnswer, OSError) as error:
                raise ComposeFailed(str(error)) from None

    # ---------------------------------------------------------------------------------------------------- questions
    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.project.ports.values())

    async def _running_servers(self) -> dict[int, str]:
        ports = self.project.ports
        return {b: f"127.0.0.1:{ports[b]}" for b in self.broker_ids if self._states[b] == "running"}

    def _is_running(self, broker_id: int) -> bool:
        return self._states[broker_id] != "down"

    async def _condition(self, broker_id: int) -> Condition:
        """As the engine knows it: a broker may have ended by itself."""
        state = await self.project.inspect(service_of(broker_id), "{{.State.Status}}")
        self._states[broker_id] = ENGINE_STATES.get(state, "down")
        return self._states[broker_id]

    def describe(self) -> list[str]:
        states = ", ".join(f"{b} {self._states[b]}" for b in self.broker_ids)
        lines = [f"minibroker: containers of {self.project.name}, brokers {states}"]
        for broker_id in self.broker_ids:
            last = self.project.last_log_lines(service_of(broker_id), LOG_LINES_SHOWN)
            lines += [f"minibroker: broker {broker_id} logged: {line}" for line in last]
        return lines

    async def read_log(self, broker_id: int) -> str:
        return await self.project.run("docker", "logs", await self.project.container(service_of(broker_id)))

    # ------------------------------------------------------------------------------------------------------- faults
    async def signal(self, broker_id: int, number: signal.Signals) -> None:
        """Send a signal to the broker, and do not wait for its consequences."""
        container = await self.project.container(service_of(broker_id))
        await self.project.run("docker", "kill", "-s", number.name, container)

    async def wait_ended(self, broker_id: int) -> None:
        """Wait until its container has ended after a signal."""
        await self.project.run("docker", "wait", await self.project.container(service_of(broker_id)))
        self._states[broker_id] = "down"

    async def _kill(self, broker_id: int) -> None:
        await self.signal(broker_id, signal.SIGKILL)
        await self.wait_ended(broker_id)

    async def _power_loss(self, broker_id: int) -> None:
        await self._kill(broker_id)
        await self._files.cut_unsynced(broker_id)

    async def _stop(self, broker_id: int) -> None:
        container = await self.project.container(service_of(broker_id))
        await self.project.run("docker", "stop", "-t", str(STOP_SECONDS), container)
        self._states[broker_id] = "down"

    async def _start(self, broker_id: int) -> None:
        await self.project.run("docker", "start", await self.project.container(service_of(broker_id)))
        self._states[broker_id] = "running"
        await self._filters.renew(broker_id)
        server = f"127.0.0.1:{self.project.ports[broker_id]}"
        async with (
            NamedTimeout(UP_SECONDS, lambda: f"broker {broker_id} does not serve"),
            BrokerQueries("minibroker-harness") as queries,
        ):
            while True:
                await self._refuse_dead(broker_id)
                (answer,) = await queries.replica_states([server], timeout_s=ASK_SECONDS)
                if not isinstance(answer, NoAnswer) and not answer.fenced:
                    return
                await asyncio.sleep(POLL_SECONDS)

    async def _pause(self, broker_id: int) -> None:
        await self._pause_service(service_of(broker_id))
        self._states[broker_id] = "paused"

    async def _pause_service(self, service: str) -> None:
        for attempts_left in reversed(range(PAUSE_ATTEMPTS)):
            try:
                await self.project.run("docker", "pause", await self.project.container(service))
                return
            except ComposeFailed:
                if not attempts_left:
                    raise
                await asyncio.sleep(POLL_SECONDS)

    async def _resume(self, broker_id: int) -> None:
        await self.project.run("docker", "unpause", await self.project.container(service_of(broker_id)))
        self._states[broker_id] = "running"

    async def _block(self, links: Sequence[Link]) -> None:
        await together(self._filters.block(source, target) for source, target in links)

    async def _unblock(self, source: Party, target: Party) -> None:
        await self._filters.unblock(source, target)

    async def heal(self) -> None:
        await self._filters.heal()

    # ----------------------------------------------------------------------------------------------------- hardware
    async def lose_packets(self, source: Party, target: Party, share: float) -> None:
        await self._filters.lose(*self._link(source, target), share)

    async def reset(self, one: Party, other: Party) -> None:
        await self._filters.reset(*self._link(one, other))

    async def fail_disk(self, broker_id: int, fault: DiskFault) -> None:
        await self._require_up(broker_id)
        process_id = await self.project.inspect(service_of(broker_id), "{{.State.Pid}}")
        names = [name for name in await self._files.names(broker_id) if name.endswith(".log")]
        segments = [f"{LOG_DIRECTORY}/{name}" for name in names]
        await self._disks.fail_calls(broker_id, int(process_id), segments, fault)

    async def mend_disk(self, broker_id: int) -> None:
        await self._disks.mend(self._known(broker_id))

    async def pause_zookeeper(self) -> None:
        if await self.project.inspect(ZOOKEEPER, "{{.State.Paused}}") == "false":
            await self._pause_service(ZOOKEEPER)

    async def resume_zookeeper(self) -> None:
        if await self.project.inspect(ZOOKEEPER, "{{.State.Paused}}") == "true":
            await self.project.run("docker", "unpause", await self.project.container(ZOOKEEPER))

    async def _zookeeper_runs(self) -> bool:
        return await self.project.inspect(ZOOKEEPER, "{{.State.Running}}") == "true"

    async def _stop_zookeeper(self) -> None:
        await self.project.run("docker", "kill", await self.project.container(ZOOKEEPER))

    async def _start_zookeeper(self) -> None:
        await self.project.run("docker", "start", await self.project.container(ZOOKEEPER))
        async with NamedTimeout(UP_SECONDS, lambda: "ZooKeeper does not serve"):
            while await self.project.inspect(ZOOKEEPER, "{{.State.Health.Status}}") != "healthy":  # noqa: ASYNC110
                await asyncio.sleep(POLL_SECONDS)
        await self._filters.renew(ZOOKEEPER)

    # -------------------------------------------------------------------------------------------------------- files
    async def list_files(self, broker_id: int) -> list[str]:
        return await self._files.names(self._known(broker_id))

    async def read_file(self, broker_id: int, name: str) -> bytes:
        return await self._files.read(self._known(broker_id), name)

    async def replace_disk(self, broker_id: int) -> None:
        await self._require_down(broker_id)
        await self._files.remove_all(broker_id)

    async def write_file(self, broker_id: int, name: str, content: bytes | None) -> None:
        await self._require_down(broker_id)
        await self._files.write(broker_id, name, content)

    async def _files_for_audit(self, scratch: Path) -> Path:
        directory = scratch / "brokers"
        for broker_id in tuple(self.broker_ids):
            files = directory / f"broker-{broker_id}"
            files.mkdir(parents=True)
            container = await self.project.container(service_of(broker_id))
            await self.project.run("docker", "cp", f"{container}:{LOG_DIRECTORY}/.", str(files))
            (directory / f"broker-{broker_id}.log").write_text(await self.read_log(broker_id))
        with contextlib.suppress(ComposeFailed):  # no broker answers: audit with the last note, if there is one
            await self.note_state()
        if self._noted is not None:
            write_cluster_state(directory, self._noted)
        return directory

    async def note_state(self) -> None:
        self._noted = state_of_view(await self.look())
