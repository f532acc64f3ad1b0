"""A real Apache Kafka in ZooKeeper mode: three brokers and a ZooKeeper as Java processes, in a folder of their own.

Owns: their configuration, start and stop. Settings are Kafka's defaults, except for what the comparison needs, and the
JVM options are those of Kafka's own start script. Requests about topics go through a small extra process
(load/kafka_admin), because Kafka's clients run in a separate Python.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from minibroker.bench.load.kafka_settings import CONSUMER, PRODUCER
from minibroker.bench.peers.kafka_installation import KAFKA_VERSION, ROOT, KafkaInstallation
from minibroker.bench.peers.peer import (
    BROKERS,
    FILE_DELETE_DELAY_MS,
    MIN_INSYNC_REPLICAS,
    REPLICATION_FACTOR,
    SESSION_TIMEOUT_MS,
    TICK_MS,
    PeerFailed,
)
from minibroker.local_cluster.processes import ProcessIdentity, free_ports, identify
from minibroker.local_cluster.zookeeper_process import ask_zookeeper, find_java, zookeeper_configuration

HEAP = "1g"
"""Kafka's start script gives a broker 1 GB."""
JVM_OPTIONS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""Those of kafka-run-class.sh."""
ZOOKEEPER_HEAP = "256m"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
ANSWER_TIMEOUT_S = 300.0
"""Longer than any wait of the admin process itself."""
ZOOKEEPER_POLL_S = 0.05
"""The same as for minibroker: it counts when starts are measured."""
POLL_S = 0.02
LOG4J = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""


class KafkaPeer:
    """Three Kafka brokers. `heap` is a broker's -Xmx and -Xms."""

    name = "kafka"
    version = KAFKA_VERSION

    def __init__(
        self,
        directory: Path,
        settings: dict[str, str] | None = None,
        *,
        heap: str = HEAP,
        installation: KafkaInstallation | None = None,
    ) -> None:
        self.directory = directory
        self.heap = heap
        self._installation = installation or KafkaInstallation()
        self._settings = {
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "min.insync.replicas": str(MIN_INSYNC_REPLICAS),
            "default.replication.factor": str(REPLICATION_FACTOR),
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": "1",  # no client commits: fifty idle partitions would only slow it down
            "log.segment.delete.delay.ms": str(FILE_DELETE_DELAY_MS),
        } | (settings or {})
        numbers = free_ports(BROKERS + 1)
        self._ports = {broker_id: numbers[broker_id] for broker_id in range(1, BROKERS + 1)}
        self._zookeeper_port = numbers[0]
        self._processes: dict[str, ProcessIdentity] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._admin: _AdminProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports.values())

    # ------------------------------------------------------------------------------------------------ all of it
    async def start(self) -> None:
        missing = self._installation.what_is_missing()
        if missing is not None:
            raise PeerFailed(missing)
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "log4j.properties").write_text(LOG4J)
        await self._start_zookeeper()
        for broker_id in self._ports:
            self._spawn_broker(broker_id)
        await self.wait_in_sync(START_TIMEOUT_S)

    async def _start_zookeeper(self) -> None:
        (self.directory / "data").mkdir(exist_ok=True)  # where its configuration has it
        configuration = self.directory / "zookeeper.cfg"
        configuration.write_text(zookeeper_configuration(self._zookeeper_port, TICK_MS))
        main = ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]
        self._spawn("zookeeper", [f"-Xmx{ZOOKEEPER_HEAP}"], main)
        deadline = time.monotonic() + START_TIMEOUT_S
        while "Mode:" not in await ask_zookeeper(self._zookeeper_port, "srvr"):
            self._refuse_dead("zookeeper")
            if time.monotonic() > deadline:
                raise PeerFailed(f"Kafka's ZooKeeper is not ready after {START_TIMEOUT_S:g} s: see {self.directory}")
            await asyncio.sleep(ZOOKEEPER_POLL_S)

    async def stop(self, *, wipe: bool = True) -> None:
        if self._admin is not None:
            await self._admin.close()
            self._admin = None
        # Three brokers that stop at once cannot hand over and wait in vain: pointless where the data is removed, too.
        number = signal.SIGKILL if wipe else signal.SIGTERM
        brokers = [role for role in self._processes if role != "zookeeper"]
        for role in brokers:
            self._processes[role].send(number)
            self._processes[role].send(signal.SIGCONT)
        await asyncio.gather(*(self._wait_ended(role) for role in brokers))
        if "zookeeper" in self._processes:
            self._processes["zookeeper"].send(number)
            await self._wait_ended("zookeeper")
        self._processes.clear()
        if wipe:
            shutil.rmtree(self.directory, ignore_errors=True)

    async def _wait_ended(self, role: str) -> None:
        process = self._processes[role]
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while process.is_alive():
            if time.monotonic() > deadline:
                process.send(signal.SIGKILL)
            await asyncio.sleep(POLL_S)
        self._children[role].poll()

    def pids(self) -> dict[str, int]:
        return {role: process.pid for role, process in sorted(self._processes.items()) if process.is_alive()}

    def log_directory(self, broker_id: int) -> Path:
        return self.directory / f"broker-{broker_id}"

    def configuration(self) -> dict[str, str]:
        java = find_java()
        options = " ".join([f"-Xms{self.heap} -Xmx{self.heap}", *JVM_OPTIONS])
        return self._settings | {
            "java": str(java.version),
            "broker JVM": options,
            "zookeeper.tickTime": str(TICK_MS),
            "librdkafka": ", ".join(f"{key}={value}" for key, value in (PRODUCER | CONSUMER).items()),
        }

    # --------------------------------------------------------------------------------------------------- topics
    async def make_topic(self, topic: str, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        wanted = {"min.insync.replicas": str(MIN_INSYNC_REPLICAS)} | (settings or {})
        await self._ask("make_topic", topic=topic, partitions=partitions, settings=wanted)

    async def delete_topic(self, topic: str) -> None:
        await self._ask("delete_topic", topic=topic)

    async def leader_of(self, topic: str, partition: int = 0) -> int:
        return int((await self._ask("leader", topic=topic, partition=partition))["broker"])

    async def controller(self) -> int:
        return int((await self._ask("controller"))["broker"])

    async def _ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        if self._admin is None:
            self._admin = await _AdminProcess.start(self.load_command("admin", {}), self.load_environment())
        return await self._admin.ask({"what": what} | arguments)

    # -------------------------------------------------------------------------------------------------- brokers
    async def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        process = self._processes.get(f"broker-{broker_id}")
        if process is None or not process.send(number):
            raise PeerFailed(f"Kafka's broker {broker_id} does not run")

    async def start_broker(self, broker_id: int) -> None:
        role = f"broker-{broker_id}"
        if role in self._processes:
            await self._wait_ended(role)
        self._spawn_broker(broker_id)
        await self.wait_in_sync(START_TIMEOUT_S)

    async def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        for role in self.pids():
            self._refuse_dead(role)
        await self._ask("wait_in_sync", brokers=BROKERS, timeout_s=timeout_s)

    def _spawn_broker(self, broker_id: int) -> None:
        values = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[broker_id]}",
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "log.dirs": str(self.log_directory(broker_id)),
        } | self._settings
        configuration = self.directory / f"broker-{broker_id}.properties"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        options = [f"-Xms{self.heap}", f"-Xmx{self.heap}", *JVM_OPTIONS]
        self._spawn(f"broker-{broker_id}", options, ["kafka.Kafka", str(configuration)])

    def _spawn(self, role: str, options: list[str], main: list[str]) -> None:
        log4j = f"-Dlog4j.configuration=file:{self.directory / 'log4j.properties'}"
        command = [find_java().path, *options, log4j, "-cp", f"{self._installation.jars}/*", *main]
        with (self.directory / f"{role}.log").open("ab") as log:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,  # Ctrl-C ends it through `stop`, in order
            )
        self._children[role] = child
        self._processes[role] = identify(child.pid) or ProcessIdentity(child.pid, "ended at once")

    def _refuse_dead(self, role: str) -> None:
        if not self._processes[role].is_alive():
            raise PeerFailed(f"Kafka's {role} has ended: see {self.directory / f'{role}.log'}")

    # ------------------------------------------------------------------------------------------------------ load
    def load_command(self, load: str, arguments: dict[str, Any]) -> list[str]:
        parameters = json.dumps({"bootstrap_servers": self.bootstrap_servers} | arguments)
        module = "kafka_admin" if load == "admin" else "kafka_load"
        return [str(self._installation.python), "-m", f"minibroker.bench.load.{module}", load, parameters]

    def load_environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT)}


class _AdminProcess:
    """The process that talks to Kafka: one JSON object per line, one answer per line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: list[str], environment: dict[str, str]) -> "_AdminProcess":
        pipe = asyncio.subprocess.PIPE
        return cls(
            await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=asyncio.subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
        )

    async def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        try:
            limit_s = float(request.get("timeout_s", 0)) + ANSWER_TIMEOUT_S
            line = await asyncio.wait_for(self._process.stdout.readline(), limit_s)
        except TimeoutError:
            raise PeerFailed(f"Kafka does not answer '{request['what']}' within {limit_s:g} s") from None
        answer = json.loads(line) if line else {"error": "the admin process has ended"}
        assert isinstance(answer, dict)
        if "error" in answer:
            raise PeerFailed(f"Kafka answered '{request['what']}' with: {answer['error']}")
        return answer

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
