"""A local minibroker cluster as `minibroker cluster up` starts it, with Kafka's session timeout."""

import asyncio
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import minibroker
from minibroker import AdminClient, MinibrokerError, TopicPartition
from minibroker.bench.peers.peer import (
    FILE_DELETE_DELAY_MS,
    MIN_INSYNC_REPLICAS,
    REPLICATION_FACTOR,
    SESSION_TIMEOUT_MS,
    TICK_MS,
    PeerFailed,
)
from minibroker.local_cluster import zookeeper_jars, zookeeper_process
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.cluster_view import ClusterView

CLUSTER_ERRORS = (
    ClusterFailed,
    MinibrokerError,
    zookeeper_process.MissingJava,
    zookeeper_jars.MissingZooKeeper,
    zookeeper_process.PortTaken,
    zookeeper_process.ZooKeeperFailed,
)
"""Errors of a minibroker cluster; each message states the remedy."""
READY_TIMEOUT_S = 60.0
"""For a topic of 1,000 partitions on a busy machine: it takes some seconds."""
POLL_S = 0.1


class MinibrokerPeer:
    """Three brokers and a ZooKeeper of minibroker."""

    name = "minibroker"

    def __init__(self, directory: Path, settings: dict[str, str] | None = None) -> None:
        self.version = minibroker.__version__
        self.directory = directory
        self._settings = {
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "log.segment.delete.delay.ms": str(FILE_DELETE_DELAY_MS),
        } | (settings or {})
        self._cluster: LocalCluster | None = None

    @property
    def cluster(self) -> LocalCluster:
        """The cluster itself, for cases that only minibroker has. Raises PeerFailed if none was started."""
        if self._cluster is None:
            raise PeerFailed("the cluster was not started")
        return self._cluster

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    async def start(self) -> None:
        """A cluster on free ports; restarts what `stop(wipe=False)` left."""
        if self._cluster is None:
            self._cluster = LocalCluster(self.directory, settings=self._settings, log_format="json")
            self._cluster.ownership.__enter__()  # until it is wiped
        assert zookeeper_process.TICK_MS == TICK_MS
        try:
            await self._cluster.up()
        except CLUSTER_ERRORS as error:
            raise PeerFailed(str(error)) from None

    async def stop(self, *, wipe: bool = True) -> None:
        if self._cluster is None:
            return
        try:
            await self._cluster.ownership.finish(self._cluster.down(wipe=wipe))
        except CLUSTER_ERRORS as error:
            raise PeerFailed(str(error)) from None
        if wipe:
            self._cluster.ownership.__exit__()
            shutil.rmtree(self.directory, ignore_errors=True)
            self._cluster = None

    def pids(self) -> dict[str, int]:
        record = self.cluster.record
        running = {
            f"broker-{broker_id}": broker.process.pid
            for broker_id, broker in sorted(record.brokers.items())
            if broker.process is not None and broker.process.is_alive()
        }
        zookeeper = record.zookeeper.process
        return running | ({"zookeeper": zookeeper.pid} if zookeeper is not None and zookeeper.is_alive() else {})

    def log_directory(self, broker_id: int) -> Path:
        return self.cluster.log_directory(broker_id)

    async def read_broker_log(self, broker_id: int) -> str:
        """The output of its process, over all its starts."""
        path = self.cluster.process_log(broker_id)
        return path.read_text(errors="replace") if path.exists() else ""

    def configuration(self) -> dict[str, str]:
        python = f"{sys.implementation.name} {'.'.join(map(str, sys.version_info[:3]))}"
        return self._settings | {"python": python, "zookeeper.tickTime": str(TICK_MS)}

    # --------------------------------------------------------------------------------------------------- topics
    async def make_topic(self, topic: str, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        try:
            async with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
                wanted = {"min.insync.replicas": str(MIN_INSYNC_REPLICAS)} | (settings or {})
                await admin.create_topic(topic, partitions, REPLICATION_FACTOR, configs=wanted)
        except CLUSTER_ERRORS as error:
            raise PeerFailed(f"topic {topic} was not created: {error}") from None
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._is_ready(await self._look(topic), topic, partitions):
            if time.monotonic() > deadline:
                raise PeerFailed(f"topic {topic} is not ready after {READY_TIMEOUT_S:g} s: see {self.directory}")
            await asyncio.sleep(POLL_S)

    @staticmethod
    def _is_ready(view: ClusterView, topic: str, partitions: int) -> bool:
        found = [partition for name, partition in view.partitions.items() if name.topic == topic]
        ready = [each for each in found if each.leader_id > 0 and len(each.isr_nodes) == REPLICATION_FACTOR]
        return len(ready) == partitions

    async def delete_topic(self, topic: str) -> None:
        try:
            async with AdminClient(bootstrap_servers=self.bootstrap_servers) as admin:
                await admin.delete_topic(topic)
        except CLUSTER_ERRORS as error:
            raise PeerFailed(f"topic {topic} was not deleted: {error}") from None

    async def leader_of(self, topic: str, partition: int = 0) -> int:
        found = (await self._look(topic)).partitions.get(TopicPartition(topic, partition))
        if found is None or found.leader_id < 1:
            raise PeerFailed(f"{topic}-{partition} has no leader")
        return int(found.leader_id)

    async def controller(self) -> int:
        return (await self._look()).controller_id

    async def _look(self, topic: str | None = None) -> ClusterView:
        try:
            return await self.cluster.look(None if topic is None else [topic])
        except (ClusterFailed, OSError) as error:
            raise PeerFailed(str(error)) from None

    # -------------------------------------------------------------------------------------------------- brokers
    async def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        process = self.cluster.record.brokers[broker_id].process
        if process is None or not process.send(number):
            raise PeerFailed(f"broker {broker_id} is not running")

    async def start_broker(self, broker_id: int) -> None:
        try:
            await self.cluster.start(broker_id)
        except CLUSTER_ERRORS as error:
            raise PeerFailed(str(error)) from None

    async def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        try:
            await self.cluster.wait_healthy(timeout_s)
        except CLUSTER_ERRORS as error:
            raise PeerFailed(str(error)) from None

    # ------------------------------------------------------------------------------------------------------ load
    def load_command(self, load: str, arguments: dict[str, Any]) -> list[str]:
        parameters = json.dumps({"bootstrap_servers": self.bootstrap_servers} | arguments)
        return [sys.executable, "-m", "minibroker.bench.load.minibroker_load", load, parameters]

    def load_environment(self) -> dict[str, str]:
        """Makes this minibroker importable from any folder."""
        root = str(Path(minibroker.__file__).resolve().parent.parent)
        return os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
