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
from minibroker.local_cluster.zookeeper_process import CONFIGURATION, ZooKeeperProcess, start_zookeeper
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
        return process is not None and process.was_started_with(self._directory / CONFIGURATION)

    def require(self) -> None:
        """Raise ClusterFailed if the cluster's own ZooKeeper does not run, or is paused: no broker would start."""
        problem = self.problem()
        if problem is not None:
            raise ClusterFailed(problem)

    def is_down(self) -> bool:
        """Does the cluster's own one not run?"""
        return self._record().port is not None and not self.is_running()

    def is_paused(self) -> bool:
        process = self._record().process
        return process is not None and self.is_running() and process.is_paused()

    def state_text(self) -> str:
        """In one word: external, down, paused or running."""
        if self._record().port is None:
            return "external"
        return "down" if self.is_down() else "paused" if self.is_paused() else "running"

    def down_text(self) -> str:
        """That it is down, with the cure."""
        return f"ZooKeeper at {self._record().connect} is down: `minibroker cluster start zookeeper` starts it"

    def problem(self) -> str | None:
        """Why the cluster's own one does not answer, with the cure."""
        if self.is_paused():
            cure = "`minibroker cluster resume zookeeper` lets it go on"
            return f"ZooKeeper at {self._record().connect} is paused: {cure}"
        return self.down_text() if self.is_down() else None

    def refuse_running(self) -> None:
        """Raise ClusterFailed if there is nothing to start."""
        if self._record().port is None or self.is_running():
            state = "is external" if self._record().port is None else "is already running"
            raise ClusterFailed(self.problem() or f"ZooKeeper at {self._record().connect} {state}")

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

    def has_ended(self) -> bool:
        """Has the one that `spawn` started ended?"""
        return self._child is not None and not self._child.is_alive()

    def refuse_ended(self) -> None:
        """Raise ClusterFailed if it has: brokers would wait for it in vain."""
        if self._child is not None and self.has_ended():
            raise ClusterFailed(f"ZooKeeper has ended; {self._child.end_of_log()}")

    async def kill(self) -> None:
        """SIGKILL: all that it has acknowledged is on its disk."""
        self.require_own()
        self.send(signal.SIGKILL)
        if not await wait_until(lambda: not self.is_running(), KILL_TIMEOUT_S):
            raise ClusterFailed(f"ZooKeeper at {self._record().connect} survives SIGKILL: its disk hangs")

    async def pause(self) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        self.require_own()
        self.send(signal.SIGSTOP)
        if not await wait_until(self.is_paused, KILL_TIMEOUT_S):
            raise ClusterFailed(f"ZooKeeper at {self._record().connect} is not paused: it has ended, or its disk hangs")

    async def resume(self) -> None:
        """SIGCONT."""
        self.require_own()
        self.send(signal.SIGCONT)
        await wait_until(lambda: not self.is_paused(), KILL_TIMEOUT_S)

    def require_own(self) -> None:
        """Raise ClusterFailed unless the cluster's own one runs, or is paused."""
        connect = self._record().connect
        if self._record().port is None:
            raise ClusterFailed(
                f"ZooKeeper at {connect} is external: `cluster up` did not start it, so end it yourself"
            )
        if self.is_down():
            raise ClusterFailed(self.down_text())

    def send(self, number: signal.Signals) -> None:
        """A signal to its process, if it runs."""
        process = self._record().process
        if process is not None and self.is_running():
            process.send(number)

    async def stop(self) -> None:
        record = self._record()
        if record.process is not None and self.is_running() and record.port is not None:
            log_file = str(self._directory / "zookeeper.log")
            await ZooKeeperProcess(record.process.pid, record.port, log_file).stop()
            await wait_until(lambda: not self.is_running(), KILL_TIMEOUT_S)
        record.process = None

    async def state(self, *, brokers_told: bool = False) -> ClusterState | None:
        """The cluster's state as it has it now; None if it is the cluster's own and does not run. If it cannot be read,
        that is logged where the brokers told theirs."""
        record = self._record()
        if record.port is not None and not self.is_running():
            return None
        return await ask_zookeeper(record.connect, brokers_told=brokers_told)
