"""A real Kafka and its Python clients, fetched once into a cache folder.

Owns: what is needed, where it is, and fetching it: Kafka's jars by their Maven coordinates (kafka_pom.xml), the clients
from a lock file with hashes into a separate virtual environment, so that users of minibroker do not get them. Whatever
is missing is reported in one sentence with the remedy.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from minibroker.bench.peers.peer import PeerFailed
from minibroker.local_cluster.zookeeper_jars import cache_directory
from minibroker.local_cluster.zookeeper_process import MissingJava, find_java

KAFKA_VERSION = "3.9.1"
FETCH_TIMEOUT_S = 900.0
"""About 100 MB of jars over a slow connection."""
POM = Path(__file__).with_name("kafka_pom.xml")
ROOT = Path(__file__).resolve().parents[2]
CLIENTS_LOCK = ROOT / "requirements" / "kafka-clients.lock"
CURE = "run `make bench-kafka` once with mvn, Java 17 and the network at hand"


class KafkaInstallation:
    """Where Kafka and its clients are on this machine."""

    def __init__(self, cache: Path | None = None) -> None:
        self.cache = cache or cache_directory()
        self.directory = self.cache / f"kafka-{KAFKA_VERSION}"
        self.jars = self.directory / "jars"
        self.python = self.directory / "clients" / "bin" / "python"

    def what_is_missing(self) -> str | None:
        """One sentence, or None if Kafka can be started and loaded."""
        try:
            find_java()
        except MissingJava as error:
            return str(error)
        if not self._has_jars():
            return f"Kafka {KAFKA_VERSION} is not in {self.jars}: {CURE}"
        if not self._has_clients():
            return f"Kafka's Python clients are not in {self.directory / 'clients'}: {CURE}"
        return None

    def install(self, progress: Callable[[str], None]) -> None:
        """Fetch what is missing. Raises PeerFailed."""
        try:
            find_java()
        except MissingJava as error:
            raise PeerFailed(str(error)) from None
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self._has_jars():
            progress(f"fetching Kafka {KAFKA_VERSION} by Maven into {self.jars}")
            self._fetch_jars()
        if not self._has_clients():
            progress(f"installing confluent-kafka and aiokafka into {self.directory / 'clients'}")
            self._install_clients()

    def _has_jars(self) -> bool:
        return any(self.jars.glob(f"kafka_*-{KAFKA_VERSION}.jar")) and any(self.jars.glob("zookeeper-3*.jar"))

    def _has_clients(self) -> bool:
        return self.python.exists() and self._stamp().exists() and self._stamp().read_bytes() == _lock()

    def _stamp(self) -> Path:
        return self.directory / "clients" / "installed.lock"

    def _fetch_jars(self) -> None:
        maven = find_maven()
        if maven is None:
            raise PeerFailed("mvn, which fetches Kafka, is not on PATH: apt-get install -y maven")
        fresh = self.directory / "jars.fresh"
        shutil.rmtree(fresh, ignore_errors=True)
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fresh}", "-DincludeScope=runtime"]
        _run([maven, "-q", "-B", "-f", str(POM), *goal], "mvn cannot fetch Kafka")
        shutil.rmtree(self.jars, ignore_errors=True)
        fresh.rename(self.jars)  # atomically: an interrupted fetch leaves no partial folder

    def _install_clients(self) -> None:
        place = self.directory / "clients"
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)], "no virtual environment for Kafka's clients")
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "install"]
        _run([*pip, "--require-hashes", "-r", str(CLIENTS_LOCK)], "pip cannot install Kafka's clients")
        self._stamp().write_bytes(_lock())


def find_maven() -> str | None:
    return shutil.which("mvn")


def _lock() -> bytes:
    if not CLIENTS_LOCK.exists():
        raise PeerFailed(f"{CLIENTS_LOCK} is missing: a bench against Kafka needs a checkout of minibroker")
    return CLIENTS_LOCK.read_bytes()


def _run(command: list[str], what_failed: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PeerFailed(f"{what_failed}: {error}; check the network, then run it again") from None
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        reason = next((line for line in lines if "ERROR" in line.upper()), lines[-1] if lines else "no reason given")
        raise PeerFailed(f"{what_failed} ({reason[:300]}): check the network, then run it again")
