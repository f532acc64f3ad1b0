"""The real ZooKeeper as a background process.

Owns: which Java, the configuration of a local ZooKeeper, and what 'ready' means. Leaves to others: its jars
(`zookeeper_jars`), the cluster around it; the launcher and the tests share this module. A ZooKeeper is identified by
its pid, so that a later command can stop one that an earlier command started.
"""

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from minibroker.local_cluster.cluster_file import PRIVATE_DIRECTORY, PRIVATE_UMASK, written
from minibroker.local_cluster.zookeeper_jars import zookeeper_jars

JAVA_VERSION_MIN = 17
"""PySpark 4 needs 17, too: one Java serves ZooKeeper and the audit."""

JAVA_CURE = "apt-get install -y default-jre-headless"

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CONFIGURATION = "zoo.cfg"

JVM_OPTIONS = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=ERROR")
"""80 MB resident and up in a second, instead of 300 MB and four."""

TICK_MS = 500
"""Sessions may last 2 to 20 ticks: 1 to 10 s. Kafka's usual 2 s per tick would not allow a session of 3 s."""

PORT_TIMEOUT_S = 5.0
OTHER_PORTS = "choose other ports (--port, --zookeeper-port)"
READY_POLL_SECONDS = 0.05
ANSWER_SECONDS = 1.0
STOP_SECONDS = 5.0

LOG_LINES_SHOWN = 3
"""An entry, its exception and `Exiting JVM`: what ZooKeeper writes when it cannot start."""

LOG_ENTRY = re.compile(r"\d{4}-\d\d-\d\dT\S+ (?P<thread>\S+) [A-Z]+ ")
"""How each entry of its log begins: time, thread, level. Other lines continue an entry."""


class MissingJava(Exception):
    """There is no Java that ZooKeeper and Spark can use. The message is one sentence with the cure."""


class PortTaken(Exception):
    """Another process listens on the port; the message names it."""


class ZooKeeperFailed(Exception):
    """ZooKeeper ended, or did not become ready; the message contains the end of its log."""


class Java(msgspec.Struct, frozen=True):
    """A Java that is new enough."""

    path: str
    version: int


class PortOwner(msgspec.Struct, frozen=True):
    """The process that listens on a port. `pid` is None if its files may not be read."""

    pid: int | None
    command: str


# ---------------------------------------------------------------------------------------------- what is needed
def find_java(environment: Mapping[str, str] = os.environ) -> Java:
    """The Java that Spark would use: JAVA_HOME if it is set, else PATH. Raises MissingJava."""
    home = environment.get("JAVA_HOME")
    if home:
        path = os.path.join(home, "bin", "java")
        if not os.access(path, os.X_OK):
            raise MissingJava(f"JAVA_HOME is {home}, but there is no bin/java in it: unset it, or {JAVA_CURE}")
    else:
        found = shutil.which("java", path=environment.get("PATH"))
        if found is None:
            raise MissingJava(f"no Java found in JAVA_HOME or PATH: {JAVA_CURE}")
        path = found
    version = java_version(path)
    if version is None:
        raise MissingJava(f"{path} does not say its version: {JAVA_CURE}")
    if version < JAVA_VERSION_MIN:
        raise MissingJava(f"{path} is Java {version}, but {JAVA_VERSION_MIN} or newer is needed: {JAVA_CURE}")
    return Java(path, version)


def java_version(path: str) -> int | None:
    command = [path, "-version"]
    try:  # in a session of its own: after Ctrl-C, which its parent handles, it would seem to be broken
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False, start_new_session=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(found.group(1)) if found else None


# ------------------------------------------------------------------------------------------------------- ports
def find_port_owner(port: int) -> PortOwner | None:
    """The process that listens on a TCP port of this machine, from /proc; None if there is none."""
    inodes = listening_inodes(port)
    if not inodes:
        return None
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in os.listdir(f"/proc/{name}/fd"):
                with contextlib.suppress(OSError):
                    target = os.readlink(f"/proc/{name}/fd/{descriptor}")
                    if target.startswith("socket:[") and target[8:-1] in inodes:
                        return PortOwner(int(name), command_of(int(name)))
    return PortOwner(None, "a process of another user")


def listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    inodes.add(fields[9])
    return inodes


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown"
    text = " ".join(b" ".join(words).decode(errors="replace").split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def refuse_taken_port(port: int, host: str = "127.0.0.1") -> None:
    """Raise PortTaken, naming the owner, unless a process could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            return
        except OSError as error:
            reason = error.strerror
    owner = find_port_owner(port)
    if owner is None:
        raise PortTaken(f"port {port} cannot be used: {reason}")
    by = owner.command if owner.pid is None else f"pid {owner.pid} ({owner.command})"
    raise PortTaken(f"port {port} is taken by {by}: end it, or {OTHER_PORTS}")


async def wait_for_port(port: int) -> None:
    """Wait for a port that a process just killed may hold until its last thread ends. Raises PortTaken."""
    deadline = time.monotonic() + PORT_TIMEOUT_S
    while True:
        try:
            return refuse_taken_port(port)
        except PortTaken:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)


# ------------------------------------------------------------------------------------------------- the process
class ZooKeeperProcess:
    """A ZooKeeper in the background, started by this or by an earlier process."""

    def __init__(self, pid: int, port: int, log_file: str, child: "subprocess.Popen[bytes] | None" = None) -> None:
        self.pid = pid
        self.port = port
        self.log_file = log_file
        self._child = child

    @property
    def servers(self) -> str:
        """For clients: HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None  # reaps it, too
        try:
            state = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return state.rpartition(")")[2].split()[0] != "Z" and MAIN_CLASS in Path(
            f"/proc/{self.pid}/cmdline"
        ).read_bytes().decode(errors="replace")

    async def wait_ready(self, timeout: float) -> None:
        """Return when this process, not another one on its port, serves clients. Raises ZooKeeperFailed."""
        deadline = time.monotonic() + timeout
        while True:
            if not self.is_alive():
                raise ZooKeeperFailed(f"ZooKeeper has ended at start; {self.end_of_log()}")
            if "Mode:" in await ask_zookeeper(self.port, "srvr") and self._owns_port():
                return
            if time.monotonic() > deadline:
                raise ZooKeeperFailed(f"ZooKeeper is not ready after {timeout:g} s; {self.end_of_log()}")
            await asyncio.sleep(READY_POLL_SECONDS)

    def _owns_port(self) -> bool:
        owner = find_port_owner(self.port)
        return owner is None or owner.pid is None or owner.pid == self.pid

    def end_of_log(self) -> str:
        """What its log tells last, as a part of a sentence."""
        try:
            lines = Path(self.log_file).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return f"{self.log_file} ends with: {' | '.join(last_reasons(lines)) or '(nothing)'}"

    async def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop it with SIGTERM, then with SIGKILL. It may have ended already."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.is_alive():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)
                os.kill(self.pid, signal.SIGCONT)  # a paused process ignores SIGTERM
            for _ in range(round(timeout / READY_POLL_SECONDS)):
                if not self.is_alive():
                    return
                await asyncio.sleep(READY_POLL_SECONDS)
        if self.is_alive():
            raise ZooKeeperFailed(f"ZooKeeper (pid {self.pid}) does not end")


def last_reasons(lines: Sequence[str]) -> list[str]:
    """The last lines of ZooKeeper's log that tell why it ended, without stack traces.

    Its thread `main` starts it and tells why it cannot. Other threads may write after that, for instance about our own
    question whether it is ready: their entries count only if there is none of `main`.
    """
    of_main: list[str] = []
    of_all: list[str] = []
    is_of_main = True  # what the JVM writes before the first entry is about the start, too
    for line in lines:
        if (entry := LOG_ENTRY.match(line)) is not None:
            is_of_main = entry["thread"] == "main"
        if not line.strip() or line.startswith("\tat "):
            continue
        of_all.append(line.strip())
        if is_of_main:
            of_main.append(line.strip())
    return (of_main or of_all)[-LOG_LINES_SHOWN:]


async def ask_zookeeper(port: int, word: str, host: str = "127.0.0.1") -> str:
    """The answer to a four-letter command; empty if there is none."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(word.encode())
                return (await reader.read(65_536)).decode(errors="replace")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return ""


def start_zookeeper(data_directory: str, port: int, *, tick_ms: int = TICK_MS) -> ZooKeeperProcess:
    """Start one in the background; it outlives this process. Raises MissingJava, MissingZooKeeper, PortTaken,
    NotWritten."""
    java = find_java()
    jars = zookeeper_jars()
    refuse_taken_port(port)
    directory = Path(data_directory).absolute()
    configuration = directory / CONFIGURATION
    with written(configuration):
        directory.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        (directory / "data").mkdir(exist_ok=True)
        configuration.write_text(zookeeper_configuration(port, tick_ms), encoding="utf-8")
    log_file = directory / "zookeeper.log"
    command = [java.path, *JVM_OPTIONS, "-Dzookeeper.preAllocSize=4096", "-cp", ":".join(jars), MAIN_CLASS]
    with open(log_file, "ab") as log:
        child = subprocess.Popen(
            [*command, str(configuration)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory,
            umask=PRIVATE_UMASK,
            start_new_session=True,  # Ctrl-C of the command line must not reach ZooKeeper
        )
    return ZooKeeperProcess(child.pid, port, str(log_file), child)


def zookeeper_configuration(port: int, tick_ms: int) -> str:
    """Its data directory counts from the working directory. Java would read a path as ISO-8859-1 with escapes, so with
    an umlaut or a backslash in it the data would be elsewhere."""
    lines = [
        "dataDir=./data",
        f"clientPort={port}",
        "clientPortAddress=127.0.0.1",
        f"tickTime={tick_ms}",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr,ruok,mntr",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
    ]
    return "\n".join(lines) + "\n"
