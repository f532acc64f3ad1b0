"""A real cluster on this machine: ZooKeeper and brokers as background processes, and operations on them.

Owns: starting, watching, breaking and stopping the processes of one data directory (its layout: cluster_file). The
processes outlive this one; a later `LocalCluster.open` finds them again. Leaves to others: its ZooKeeper
(`cluster_zookeeper`), topics and records.

    async with LocalCluster("/tmp/data") as cluster:     # brokers 1, 2 and 3 on free ports
        await cluster.kill(1)
"""

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from minibroker.local_cluster import zookeeper_process
from minibroker.local_cluster.broker_process import configuration_file, ended_brokers, ended_problems, start_broker
from minibroker.local_cluster.cluster_file import (
    PRIVATE_DIRECTORY,
    START_CURE,
    ClusterFailed,
    ClusterMissing,
    ClusterRecord,
    NotWritten,
    RequestedCluster,
    already_runs,
    cluster_lock,
    continued,
    forget_cluster_state,
    forget_failed_start,
    has_cluster_state,
    is_unused,
    new_record,
    read_cluster_file,
    refuse_fewer_brokers,
    refuse_foreign_directory,
    refuse_used,
    remove_cluster_files,
    why_not_written,
    write_cluster_file,
    write_cluster_state,
)
from minibroker.local_cluster.cluster_snapshot import NO_STATE, joined, state_of_view
from minibroker.local_cluster.cluster_zookeeper import ClusterZooKeeper
from minibroker.local_cluster.power_loss import CutTail, cut_unsynced_tails
from minibroker.local_cluster.processes import ProcessIdentity, wait_until
from minibroker.local_cluster.teardown import Ownership, signals_held
from minibroker.local_cluster.unrecorded_processes import add_unrecorded, refuse_unrecorded
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.cluster_view import ClusterView, health_problems, view_cluster
from minibroker.protocol.counted import some_of
from minibroker.protocol.files.checkpoints import CLEAN_SHUTDOWN

CLIENT_ID = "minibroker-cluster"
UP_TIMEOUT_S = 40.0  # a start takes 3 to 5 s; a busy machine needs longer
STOP_TIMEOUT_S = 30.0  # a clean stop hands over leadership and syncs every log
KILL_TIMEOUT_S = 10.0
SETTLE_S, POLL_S = 5.0, 0.1
Tell = Callable[[str], None]
STATUS = "until the next start `minibroker cluster status` says that"
RUNS_ON = "the cluster keeps running"


class LocalCluster:
    """The cluster of one data directory. With `port` 0 brokers use free ports, else port, port + 1, .."""

    def __init__(
        self,
        data_directory: str | Path,
        brokers: int = 3,
        *,
        port: int = 0,
        zookeeper_port: int = 0,
        zookeeper: str | None = None,
        settings: Mapping[str, str] | None = None,
        log_format: str | None = None,
    ) -> None:
        assert brokers >= 1
        self._log_format = log_format
        self.program: Callable[[int], Sequence[str]] = lambda _: ["minibroker"]  # what `python -m` runs
        self.data_directory = Path(data_directory).absolute()
        self.record = new_record(brokers, port, zookeeper_port, zookeeper, settings or {})
        self.zookeeper = ClusterZooKeeper(self.data_directory / "zookeeper", lambda: self.record.zookeeper)
        self._started: list[ProcessIdentity] = []
        self._earlier: ClusterRecord | None = None  # what `up` found in the directory
        self.warnings: list[str] = []
        """What could not be written down, and what that means: a full disk keeps no process running."""
        self.ownership = Ownership(self.kill_all)
        """For a cluster that must not outlive this program."""

    @classmethod
    def open(cls, data_directory: str | Path) -> "LocalCluster":
        """The cluster that an earlier process started there. Raises ClusterMissing."""
        cluster = cls(data_directory, 1)
        cluster.record = read_cluster_file(cluster.data_directory)
        add_unrecorded(cluster.data_directory, cluster.record)
        return cluster

    @classmethod
    def resumed(cls, data_directory: str | Path, requested: RequestedCluster) -> "LocalCluster":
        """The stopped cluster in the directory, as it was except for what is requested. Raises ClusterMissing."""
        cluster = cls.open(data_directory)
        cluster.record = continued(cluster.record, requested)
        return cluster

    # ------------------------------------------------------------------------------------------------ what it is
    @property
    def bootstrap_servers(self) -> str:
        return self.record.bootstrap_servers

    @property
    def broker_ids(self) -> list[int]:
        return sorted(self.record.brokers)

    def server(self, broker_id: int) -> str:
        return f"127.0.0.1:{self.record.brokers[broker_id].port}"

    def log_directory(self, broker_id: int) -> Path:
        return self.data_directory / f"broker-{broker_id}"

    def process_log(self, broker_id: int) -> Path:
        """The output of the broker's process."""
        return self.data_directory / f"broker-{broker_id}.log"

    def process_state(self, broker_id: int) -> str:
        """'running', 'paused', 'down' (a command ended it) or 'dead' (it ended by itself)."""
        broker = self.record.brokers[broker_id]
        if broker.process is not None and broker.process.was_started_with(
            configuration_file(self.data_directory, broker_id)
        ):
            return "paused" if broker.process.is_paused() else "running"
        return "dead" if broker.process is not None and broker.ended_by is None else "down"

    def is_running(self) -> bool:
        """Is any of its processes alive?"""
        return bool(self.running_brokers()) or self.zookeeper.is_running()

    def running_brokers(self) -> list[int]:
        return [each for each in self.broker_ids if self.process_state(each) in ("running", "paused")]

    def answering_servers(self) -> str:
        """Addresses of the brokers that run now."""
        ids = [broker_id for broker_id in self.broker_ids if self.process_state(broker_id) == "running"]
        if not ids:
            raise ClusterFailed(
                f"no broker runs in {self.data_directory}: start them with `minibroker cluster up`, or give the right"
                " --data-dir"
            )
        return ",".join(self.server(broker_id) for broker_id in ids)

    # ---------------------------------------------------------------------------------------------- all of it
    async def up(
        self,
        timeout_s: float = UP_TIMEOUT_S,
        *,
        first: int | None = None,
        keep_running: bool = False,
        tell: Tell = lambda _: None,
    ) -> ClusterView:
        """Start ZooKeeper and all brokers at once, and wait until the cluster is healthy. Broker `first` starts before
        the others, and so becomes controller. The cluster's own ZooKeeper is used if it still runs.

        A cluster that is not healthy in time is stopped; with `keep_running` only if no broker runs, because damage in
        old data is repaired in a running cluster. An interrupted start is undone, too, and `tell` is told so."""
        with self.ownership:
            return await self._up(timeout_s, first, keep_running, tell)

    async def _up(self, timeout_s: float, first: int | None, keep_running: bool, tell: Tell) -> ClusterView:
        was_unused = is_unused(self.data_directory)
        self._begin([] if first is not None else self.broker_ids)
        try:
            if first is not None:
                await self.start(first, timeout_s)
                for broker_id in self.broker_ids:
                    if broker_id != first:
                        self._spawn(broker_id)
            return await self._wait_healthy_or_settled(timeout_s)
        except ClusterFailed as error:
            ended = "; ".join(self.ended_by_themselves(*self.broker_ids))
            if keep_running and self.running_brokers() and not self.zookeeper.has_ended():
                rest = f"the other brokers keep running; after a repair, {START_CURE}" if ended else RUNS_ON
                raise ClusterFailed(f"{ended or error}; {rest}: see `minibroker cluster status`") from None
            await self.ownership.finish(self._undo(was_unused))
            raise ClusterFailed(ended or str(error)) from None
        except asyncio.CancelledError:
            tell(f"interrupted: stopping the brokers and ZooKeeper in {self.data_directory}")
            await self.ownership.finish(self._undo(was_unused))
            raise

    async def _wait_healthy_or_settled(self, timeout_s: float) -> ClusterView:
        """Where one broker refuses to start, each has ended or serves: others may refuse the same a moment later."""
        try:
            return await self.wait_healthy(timeout_s)
        except ClusterFailed:
            async with BrokerQueries(CLIENT_ID) as queries:
                await queries.wait_serving(lambda: [self.server(each) for each in self.running_brokers()], SETTLE_S)
            raise

    async def _undo(self, was_unused: bool) -> None:
        """Stop everything. The directory then binds the next start as it did before the failed one."""
        await self._stop_all(5.0)
        self._forget_start(was_unused)

    def _forget_start(self, was_unused: bool) -> None:
        self.record = self._earlier or self.record
        why_not_written(self._save, "")  # why the start failed says more
        if was_unused:
            forget_failed_start(self.data_directory)

    def _begin(self, broker_ids: list[int]) -> None:
        """Start ZooKeeper and these brokers, unless another command does so or has done so."""
        was_unused = is_unused(self.data_directory)
        refuse_foreign_directory(self.data_directory)
        self.data_directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        with cluster_lock(self.data_directory):
            self._refuse_if_running()
            for broker in self.record.brokers.values():
                zookeeper_process.refuse_taken_port(broker.port)
            try:
                if not self.zookeeper.is_running():
                    self._spawn_zookeeper()
                self._save()
                for broker_id in broker_ids:
                    self._spawn(broker_id)
            except (NotWritten, OSError):
                self.kill_all()
                self._forget_start(was_unused)
                raise

    def _refuse_if_running(self) -> None:
        try:
            earlier = LocalCluster.open(self.data_directory)
        except ClusterMissing:
            refuse_unrecorded(self.data_directory)
            return
        self._earlier = earlier.record
        zookeeper = earlier.record.zookeeper
        is_used = zookeeper.connect == self.record.zookeeper.connect
        if earlier.running_brokers() or (earlier.zookeeper.is_running() and not is_used):
            down = [f"broker {each}" for each in earlier.broker_ids if each not in earlier.running_brokers()]
            down += ["ZooKeeper"] if earlier.zookeeper.is_down() else []
            raise already_runs(self.data_directory, earlier.record, self.record, down)
        if is_used:
            self.record.zookeeper.process = zookeeper.process
        refuse_fewer_brokers(self.data_directory, earlier.record, self.record)

    async def down(self, *, timeout_s: float = STOP_TIMEOUT_S, wipe: bool = False) -> list[str]:
        """Stop everything, brokers first, and write `cluster-state.json`; returns what did not work."""
        view = None
        with contextlib.suppress(ClusterFailed, NoAnswer):  # no broker answers
            view = await self.look()
        before = None if view is None else state_of_view(view)
        self.zookeeper.send(signal.SIGCONT)  # brokers hand over through it, and it is read at the end
        asks = not wipe and ((has_brokers := self.running_brokers()) or not has_cluster_state(self.data_directory))
        connected = await self.zookeeper.state() if asks else None
        problems = await self._stop_brokers(timeout_s, None if view is None else view.controller_id)
        state, after = before, await self.zookeeper.state(brokers_told=before is not None) if asks else None
        if after is not None:
            clean = [each for each in self.broker_ids if (self.log_directory(each) / CLEAN_SHUTDOWN).exists()]
            state = joined(before, connected, after, clean)
        # Not before all have stopped: what runs on would contradict it. Nor what another stop, which knew more, wrote.
        if state is not None and asks and (has_brokers or not has_cluster_state(self.data_directory)):
            problems.append(why_not_written(partial(write_cluster_state, self.data_directory, state), NO_STATE))
        await self.zookeeper.stop()
        unsaved = why_not_written(self._save, f"{STATUS} brokers ended by themselves")
        refuse_used(self.data_directory)
        self.warnings.clear()  # they say the same of single brokers
        problems += [remove_cluster_files(self.data_directory, self.record)] if wipe else [unsaved]
        return [problem for problem in problems if problem is not None]

    async def _stop_brokers(self, timeout_s: float, controller_id: int | None) -> list[str | None]:
        running = self.running_brokers()
        others = [broker_id for broker_id in running if broker_id != controller_id]
        problems = await asyncio.gather(*(self._end(broker_id, timeout_s) for broker_id in others))
        if controller_id in running:  # last, because the others ask it to move their leaderships
            problems.append(await self._end(controller_id, timeout_s))
        return problems

    async def _stop_all(self, timeout_s: float) -> None:
        await self._stop_brokers(timeout_s, None)
        await self.zookeeper.stop()

    async def _end(self, broker_id: int, timeout_s: float) -> str | None:
        try:
            await self.stop(broker_id, timeout_s)
        except ClusterFailed as error:
            if broker_id not in self.running_brokers():  # it has ended meanwhile
                return "; ".join(self.ended_by_themselves(broker_id)) or None
            await self.kill(broker_id)
            return f"{error}; it was killed"
        return None

    def kill_all(self) -> None:
        """SIGKILL to all that this object started, without waiting: for the end of the program."""
        for process in self._started:
            process.send(signal.SIGKILL)

    def _spawn_zookeeper(self) -> None:
        with signals_held():
            self.zookeeper.spawn()
            self._started += [self.record.zookeeper.process] if self.record.zookeeper.process is not None else []
            try:
                self._save()
            except NotWritten:  # what runs without a record is harder to find
                self.zookeeper.send(signal.SIGKILL)
                raise

    async def start_zookeeper(self, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Start the cluster's own ZooKeeper again over its data, and wait until it answers. Raises ZooKeeperFailed."""
        self.zookeeper.refuse_running()
        self._spawn_zookeeper()
        await self.zookeeper.wait_ready(timeout_s)

    async def save_state(self) -> ClusterView:
        """Write `cluster-state.json`: leaders, epochs and in-sync replicas now, for the audit."""
        view = await self.look()
        write_cluster_state(self.data_directory, state_of_view(view))
        return view

    async def look(self, topics: list[str] | None = None, timeout_s: float = 3.0) -> ClusterView:
        """The cluster as the running brokers describe it. Raises NoAnswer, ClusterFailed."""
        async with BrokerQueries(CLIENT_ID) as queries:
            return await view_cluster(queries, self.answering_servers(), topics, timeout_s)

    async def wait_healthy(self, timeout_s: float = UP_TIMEOUT_S, tell: Tell = lambda why: None) -> ClusterView:
        """Wait until all brokers are registered, all partitions led and all replicas in sync. Raises ClusterFailed."""
        deadline = time.monotonic() + timeout_s
        while True:
            self.zookeeper.refuse_ended()
            self._refuse_dead(*self.broker_ids)
            try:
                view = await self.look(timeout_s=1.0)
                reasons = health_problems(view, len(self.record.brokers))
            except NoAnswer as error:
                output = self.process_log(self.broker_ids[0])
                view, reasons = None, [f"{error.fact}; a longer --timeout may be enough, else see {output}"]
            if view is not None and not reasons:
                return view
            if time.monotonic() > deadline:
                raise ClusterFailed(f"not healthy after {timeout_s:g} s: {some_of(reasons, '; ')}")
            tell(reasons[0])
            await asyncio.sleep(POLL_S)

    def _refuse_running(self, broker_id: int) -> None:
        if self.process_state(broker_id) in ("running", "paused"):
            stop, start = (f"`minibroker cluster {verb} {broker_id}`" for verb in ("stop", "start"))
            running = f"broker {broker_id} is already running: {stop} and then {start} restart it"
            raise ClusterFailed("; ".join(self.paused(broker_id)) or running)

    def _refuse_dead(self, *broker_ids: int) -> None:
        if ended := self.ended_by_themselves(*broker_ids):
            raise ClusterFailed("; ".join(ended))

    def process_problems(self) -> list[str]:
        """Processes that are paused or down while others run, or ended by themselves, each with its cure."""
        found = ended_problems(self._logs_of_dead(self.broker_ids)) + self.paused(*self.broker_ids)
        down = [each for each in self.broker_ids if self.process_state(each) == "down" and self.running_brokers()]
        found += [f"broker {each} is down: `minibroker cluster start {each}` starts it" for each in down]
        zookeeper = self.zookeeper.problem()
        return found if zookeeper is None else [*found, zookeeper]

    def ended_by_themselves(self, *broker_ids: int) -> list[str]:
        """Which of these brokers ended by themselves, with the end of their logs."""
        return ended_brokers(self._logs_of_dead(broker_ids))

    def _logs_of_dead(self, broker_ids: Sequence[int]) -> dict[int, Path]:
        return {each: self.process_log(each) for each in broker_ids if self.process_state(each) == "dead"}

    def paused(self, *broker_ids: int) -> list[str]:
        """Which of these brokers are paused, with the cure."""
        paused = [each for each in broker_ids if self.process_state(each) == "paused"]
        return [f"broker {each} is paused: `minibroker cluster resume {each}` lets it go on" for each in paused]

    # ------------------------------------------------------------------------------------------------ one broker
    async def start(self, broker_id: int, timeout_s: float = UP_TIMEOUT_S) -> None:
        """Start a broker that is down, and wait until it is registered and serves."""
        self._refuse_running(broker_id)
        await zookeeper_process.wait_for_port(self.record.brokers[broker_id].port)
        self._spawn(broker_id)
        deadline = time.monotonic() + timeout_s
        while True:
            self._refuse_dead(broker_id)
            async with BrokerQueries(CLIENT_ID) as queries:
                missing = await queries.why_not_serving(self.server(broker_id), 1.0)
            if missing is None:
                return
            if time.monotonic() > deadline:
                raise ClusterFailed(f"broker {broker_id} does not serve after {timeout_s:g} s: {missing}")
            await asyncio.sleep(POLL_S)

    async def stop(self, broker_id: int, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """A clean stop (SIGTERM): leadership is handed over, logs are synced."""
        process = self._running(broker_id)
        process.send(signal.SIGTERM)
        process.send(signal.SIGCONT)
        self._ended(broker_id, process, "stop")
        if not await wait_until(lambda: not process.is_alive(), timeout_s):
            raise ClusterFailed(
                f"broker {broker_id} (pid {process.pid}) has not stopped within {timeout_s:g} s:"
                f" see {self.process_log(broker_id)}, or `minibroker cluster kill {broker_id}`"
            )

    async def kill(self, broker_id: int) -> None:
        """SIGKILL: what it wrote stays in the page cache, and it hands nothing over."""
        await self._kill(broker_id, "kill")

    async def lose_power(self, broker_id: int) -> list[CutTail]:
        """SIGKILL, then cut off what was written but not synced, as a power loss might."""
        await self._kill(broker_id, "power loss")
        return self.cut_unsynced(broker_id)

    def cut_unsynced(self, broker_id: int) -> list[CutTail]:
        """Cut off what a power loss might take from a broker that is down."""
        return cut_unsynced_tails(self.log_directory(broker_id))

    async def pause(self, broker_id: int) -> None:
        """SIGSTOP: it hangs, and its connections stay open."""
        process = self._running(broker_id)
        process.send(signal.SIGSTOP)
        if not await wait_until(process.is_paused, KILL_TIMEOUT_S):
            raise ClusterFailed(f"broker {broker_id} is not paused: it has ended, or its disk hangs")

    async def resume(self, broker_id: int) -> None:
        process = self._running(broker_id)
        process.send(signal.SIGCONT)
        await wait_until(lambda: not process.is_paused(), KILL_TIMEOUT_S)

    async def _kill(self, broker_id: int, how: str) -> None:
        process = self._running(broker_id)
        process.send(signal.SIGKILL)
        self._ended(broker_id, process, how)
        if not await wait_until(lambda: not process.is_alive(), KILL_TIMEOUT_S):
            raise ClusterFailed(f"broker {broker_id} (pid {process.pid}) survives SIGKILL: its disk hangs")

    def _running(self, broker_id: int) -> ProcessIdentity:
        process = self.record.brokers[broker_id].process
        if process is None or self.process_state(broker_id) not in ("running", "paused"):
            start = f"`minibroker cluster start {broker_id}`"
            raise ClusterFailed(f"broker {broker_id} does not run: start it with {start}")
        return process

    def _ended(self, broker_id: int, process: ProcessIdentity, how: str) -> None:
        """Write down how a command ended it. Its signal has been sent: it must end even if this fails."""

        def write() -> None:
            with cluster_lock(self.data_directory):
                self._read_again()
                broker = self.record.brokers[broker_id]
                known = broker.process
                if known is None or known == process or not known.is_alive():  # else it was started again meanwhile
                    broker.process, broker.ended_by = process, how
                self._save()

        self.warnings += filter(None, [why_not_written(write, f"{STATUS} broker {broker_id} ended by itself")])

    def _spawn(self, broker_id: int) -> None:
        with signals_held(), cluster_lock(self.data_directory):
            self._read_again()
            self._refuse_running(broker_id)
            before = self.record.brokers[broker_id]
            program = self.program(broker_id)
            forget_cluster_state(self.data_directory)  # it is of a cluster that is down
            broker = start_broker(self.data_directory, self.record, broker_id, self._log_format, program)
            assert broker.process is not None
            self.record.brokers[broker_id] = broker
            self._started.append(broker.process)
            try:
                self._save()
            except NotWritten as error:  # what runs without a record is harder to find
                broker.process.send(signal.SIGKILL)
                self.record.brokers[broker_id] = before
                raise NotWritten(f"broker {broker_id} was not started: {error}") from None

    # ------------------------------------------------------------------------------------------------- bookkeeping
    def _read_again(self) -> None:
        """Take over what other commands have changed; keep the current record if the file cannot be read."""
        with contextlib.suppress(ClusterMissing):
            self.record = read_cluster_file(self.data_directory)
        add_unrecorded(self.data_directory, self.record)

    def _save(self) -> None:
        """Raises NotWritten, ClusterBusy."""
        if self.data_directory.exists():
            with cluster_lock(self.data_directory):
                write_cluster_file(self.data_directory, self.record)

    async def __aenter__(self) -> "LocalCluster":
        with self.ownership:
            await self.up()
            self.ownership.__enter__()  # until __aexit__
        return self

    async def __aexit__(self, *details: object) -> None:
        try:
            await self.ownership.finish(self.down())
        finally:
            self.ownership.__exit__()
