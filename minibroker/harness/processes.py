"""The back end of processes: ZooKeeper and brokers on this machine, with proxies in between.

Owns: a data directory that exists as long as the harness, unless the caller gives one, and the proxies. Leaves to
others: starting and breaking processes (local_cluster). All listening sockets are on the loopback interface. Every
process is stopped by its own number at the end.
"""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from minibroker.harness.cluster import CLIENTS, Condition, Link, Misuse, Party
from minibroker.harness.failing_disks import FailingDisks
from minibroker.harness.hardware import DiskFault
from minibroker.harness.moved_clocks import MovedClocks
from minibroker.harness.wire_harness import LOG_LINES_SHOWN, WireHarness
from minibroker.local_cluster import blank_disk, network_proxies
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.network_proxies import LOOPBACK, TASK_NAME, NetworkProxies, broker_name
from minibroker.local_cluster.teardown import Ownership
from minibroker.observation.broker_queries import NoAnswer
from minibroker.observation.event_stream import BrokerEvent

DOWN_SECONDS = 10.0
"""For a clean stop at the end; then processes are killed."""


class ProcessHarness(WireHarness):
    """The verbs on processes. `log_format` is that of the brokers' logs: text or json."""

    def __init__(
        self,
        brokers: int,
        settings: Mapping[str, str],
        *,
        directory: Path | None = None,
        log_format: str = "text",
        own_disks: bool = False,
    ) -> None:
        """`own_disks`: each broker gets a file system of its own, which can be filled, where this user may mount."""
        self._own_directory = Path(tempfile.mkdtemp(prefix="minibroker-harness-")) if directory is None else None
        data = directory or Path(str(self._own_directory)) / "cluster"
        self.local = LocalCluster(data, brokers, settings=settings, log_format=log_format)
        self.broker_ids = tuple(self.local.broker_ids)
        self.proxies = NetworkProxies()
        self._own_disks = own_disks
        self._disks = FailingDisks()
        self._clocks = MovedClocks(data.with_name(f"{data.name}-clocks"), self.broker_ids)
        self.local.program = self._clocks.program
        self._ports: dict[int, int] = {}
        self.ownership = Ownership(self._kill_all)

    async def up(self, first: int | None = None) -> None:
        """Start everything; broker `first` before the others, so that it becomes the controller."""
        await self.proxies.surround(self.local, self._ports)
        self._clocks.set_right()
        for broker_id in self.broker_ids if self._own_disks else ():
            self._disks.mount(broker_id, self.local.log_directory(broker_id))
        await self.local.up(first=first)

    async def _down(self) -> None:
        try:
            await self.heal()
            await self.resume_zookeeper()
            self._disks.end_now()
            await self.local.down(timeout_s=DOWN_SECONDS)
        finally:
            await self.close_surroundings()
            self._remove_own_directory()

    async def close_surroundings(self) -> None:
        """End what stands beside the processes, which must be down: proxies, own file systems, files of clocks."""
        await self.proxies.close()
        self._disks.unmount()
        self._clocks.close()

    def _kill_all(self) -> None:
        self.local.kill_all()
        self._disks.unmount()
        self._clocks.close()
        self._remove_own_directory()

    def _remove_own_directory(self) -> None:
        if self._own_directory is not None:
            shutil.rmtree(self._own_directory, ignore_errors=True)

    def _is_the_tests(self, task: "asyncio.Task[Any]") -> bool:
        return super()._is_the_tests(task) and task.get_name() != TASK_NAME

    # ---------------------------------------------------------------------------------------------------- questions
    @property
    def bootstrap_servers(self) -> str:
        return ",".join(map(self.client_server, self.broker_ids))

    def client_server(self, broker_id: int) -> str:
        """The address at which clients reach a broker: that of its proxy."""
        return f"{LOOPBACK}:{self._ports[broker_id]}"

    async def _running_servers(self) -> dict[int, str]:
        return {b: self.local.server(b) for b in self.broker_ids if self.local.process_state(b) == "running"}

    def _is_running(self, broker_id: int) -> bool:
        return self._condition_of(broker_id) != "down"

    async def _condition(self, broker_id: int) -> Condition:
        return self._condition_of(broker_id)

    def _condition_of(self, broker_id: int) -> Condition:
        match self.local.process_state(broker_id):
            case "running":
                return "running"
            case "paused":
                return "paused"
        return "down"

    def describe(self) -> list[str]:
        states = ", ".join(f"{b} {self.local.process_state(b)}" for b in self.broker_ids)
        lines = [f"minibroker: real processes, brokers {states}"]
        for broker_id in self.broker_ids:
            log = self.local.process_log(broker_id)
            last = log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:] if log.exists() else []
            lines += [f"minibroker: broker {broker_id} logged: {line}" for line in last]
        return lines

    async def read_log(self, broker_id: int) -> str:
        log = self.local.process_log(broker_id)
        older = sorted(log.parent.glob(f"{log.name}.[0-9]*"), reverse=True)
        return "".join(file.read_text(errors="replace") for file in (*older, log) if file.exists())

    # ------------------------------------------------------------------------------------------------------- faults
    async def _kill(self, broker_id: int) -> None:
        await self.local.kill(broker_id)
        self.proxies.forget(broker_name(broker_id))

    async def _power_loss(self, broker_id: int) -> None:
        await self.local.lose_power(broker_id)
        self.proxies.forget(broker_name(broker_id))

    async def _stop(self, broker_id: int) -> None:
        await self.local.stop(broker_id)

    async def _start(self, broker_id: int) -> None:
        await self.proxies.listen(broker_name(broker_id))
        await self.local.start(broker_id)

    async def _pause(self, broker_id: int) -> None:
        await self.local.pause(broker_id)

    async def _resume(self, broker_id: int) -> None:
        await self.local.resume(broker_id)

    async def _block(self, links: Sequence[Link]) -> None:
        for source, target in links:
            self.proxies.hold(_proxy_name(source), _proxy_name(target))

    async def _unblock(self, source: Party, target: Party) -> None:
        self.proxies.release(_proxy_name(source), _proxy_name(target))

    async def heal(self) -> None:
        self.proxies.release_all()
        await asyncio.sleep(0)

    # ----------------------------------------------------------------------------------------------------- hardware
    async def slow(self, source: Party, target: Party, delay_s: float) -> None:
        self._link(source, target)
        self.proxies.slow(_proxy_name(source), _proxy_name(target), delay_s)

    async def reset(self, one: Party, other: Party) -> None:
        self._link(one, other)
        self.proxies.reset(_proxy_name(one), _proxy_name(other))

    async def pause_zookeeper(self) -> None:
        self.local.zookeeper.send(signal.SIGSTOP)

    async def resume_zookeeper(self) -> None:
        self.local.zookeeper.send(signal.SIGCONT)

    async def fail_disk(self, broker_id: int, fault: DiskFault) -> None:
        process = self.local.record.brokers[self._known(broker_id)].process
        if process is None or await self._require_up(broker_id) != "running":
            raise Misuse(f"broker {broker_id} does not run: `await c.start({broker_id})` starts it")
        await self._disks.fail(broker_id, process.pid, self.local.log_directory(broker_id), fault)

    async def mend_disk(self, broker_id: int) -> None:
        await self._disks.mend(self._known(broker_id))

    async def move_clock(self, broker_id: int, seconds: float) -> None:
        self._clocks.move(self._known(broker_id), seconds)

    async def reported_events(self) -> list[BrokerEvent]:
        shown = await super().reported_events()
        found = [replace(event, at_ms=self._clocks.true_ms(event.reported_by, event.at_ms)) for event in shown]
        return sorted(found, key=lambda event: event.at_ms)

    async def list_files(self, broker_id: int) -> list[str]:
        root = self.local.log_directory(self._known(broker_id))
        return sorted(file.relative_to(root).as_posix() for file in root.rglob("*") if file.is_file())

    async def read_file(self, broker_id: int, name: str) -> bytes:
        return (self.local.log_directory(self._known(broker_id)) / name).read_bytes()

    async def replace_disk(self, broker_id: int) -> None:
        await self._require_down(broker_id)
        blank_disk.remove_everything(self.local.log_directory(broker_id))

    async def write_file(self, broker_id: int, name: str, content: bytes | None) -> None:
        await self._require_down(broker_id)
        file = self.local.log_directory(broker_id) / name
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)

    async def _zookeeper_runs(self) -> bool:
        return self.local.zookeeper.is_running()

    async def _stop_zookeeper(self) -> None:
        await self.local.zookeeper.kill()

    async def _start_zookeeper(self) -> None:
        await self.local.start_zookeeper()

    async def note_state(self) -> None:
        await self.local.save_state()

    async def _files_for_audit(self, scratch: Path) -> Path:
        try:
            await self.local.save_state()
        except (NoAnswer, ClusterFailed):
            return self.local.data_directory  # no broker answers: audit with the last snapshot, if there is one
        return self.local.data_directory


def _proxy_name(party: Party) -> str:
    if isinstance(party, int):
        return broker_name(party)
    return network_proxies.CLIENTS if party == CLIENTS else network_proxies.ZOOKEEPER
