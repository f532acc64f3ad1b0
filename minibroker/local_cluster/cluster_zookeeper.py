"""ZooKeeper of a local cluster: a background process of its own, or an external one that is left alone.

Owns: its process, and what it says of the cluster. Leaves to others: its configuration (`zookeeper_process`), and when
it runs.
"""

import signal
from collections.abc import Callable
from pathlib import Path

from minibroker.local_cluster.cluster_file import ClusterFailed, ZooKeeperRecord
from minibroker.local_cluster.cluster_snapshot import ask_zookeeper
from minibroker.local_cluster.processes import identify, wait_until
from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess, start_zookeeper
from minibroker.protocol.files.cluster_state import ClusterState

KILL_TIMEOUT_S = 10.0


class ClusterZooKeeper:
    """Changes the record that `record` returns; its owner saves that."""

    def __init__(self, directory: Path, record: Callable[[], ZooKeeperRecord]) -> None:
        self._directory = directory
        self._record = record
        self._child: ZooKeeperProcess | None = None

    def is_running(self) -> bool:
        """Does the cluster's own one run?"""
        process = self._record().process
        return process is not None and process.was_started_with(self._directory / "zoo.cfg")

    def require(self) -> None:
        """Raise ClusterFailed if the cluster's own ZooKeeper does not run: no broker would start."""
        if self.is_down():
            raise ClusterFailed(self.down_text())

    def is_down(self) -> bool:
        """Does the cluster's own one not run?"""
        return self._record().port is not None and not self.is_running()

    def down_text(self) -> str:
        """That it is down, with the cure."""
        return f"ZooKeeper at {self._record().connect} is down: `minibroker cluster start zookeeper` starts it"

    def refuse_running(self) -> None:
        """Raise ClusterFailed if there is nothing to start."""
        if self._record().port is None or self.is_running():
            state = "is external" if self._record().port is None else "is already running"
            raise ClusterFailed(f"ZooKeeper at {self._record().connect} {state}")

    def spawn(self) -> None:
        """Start it, unless it is external."""
        record = self._record()
        if record.port is not None:
            self._child = start_zookeeper(str(self._directory), record.port)  # kept, because it reaps the process
            record.process = identify(self._child.pid)

    async def wait_ready(self, timeout_s: float) -> None:
        """Wait until it answers, after `spawn`. Raises ZooKeeperFailed."""
        assert self._child is not None
        await self._child.wait_ready(timeout_s)

    async def kill(self) -> None:
        """SIGKILL: all that it has acknowledged is on its disk."""
        record = self._record()
        if record.process is None or not record.process.send(signal.SIGKILL):
            raise ClusterFailed(f"ZooKeeper at {record.connect} does not run, or is external")
        await wait_until(lambda: not self.is_running(), KILL_TIMEOUT_S)

    def send(self, number: signal.Signals) -> None:
        """A signal to its process, if it runs."""
        process = self._record().process
        if process is not None and self.is_running():
            process.send(number)

    async def stop(self) -> None:
        record = self._record()
        if record.process is not None and record.process.is_alive() and record.port is not None:
            log_file = str(self._directory / "zookeeper.log")
            await ZooKeeperProcess(record.process.pid, record.port, log_file).stop()
            await wait_until(lambda: not self.is_running(), KILL_TIMEOUT_S)
        record.process = None

    async def state(self) -> ClusterState | None:
        """The cluster's state as it has it now; None if it is the cluster's own and does not run."""
        record = self._record()
        if record.port is not None and not self.is_running():
            return None
        return await ask_zookeeper(record.connect)
