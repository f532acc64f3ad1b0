"""The interface of every measured cluster: three brokers and a ZooKeeper, with a folder and free ports of its own.

Owns: the interface only. A peer is used by one task at a time.
"""

import signal
from pathlib import Path
from typing import Any, Protocol

BROKERS = 3
REPLICATION_FACTOR = 3
MIN_INSYNC_REPLICAS = 2
SESSION_TIMEOUT_MS = 6_000
"""Of the brokers' ZooKeeper sessions, on every peer."""
FILE_DELETE_DELAY_MS = 100
"""Of every peer: a round's gigabytes must be deleted before the next one begins, and rounds wait for that."""
TICK_MS = 500
"""Of every peer's ZooKeeper. With it sessions may last 1 to 10 s and end at most half a second late."""


class PeerFailed(Exception):
    """The cluster failed to do something, or cannot run here. One sentence with the remedy."""


class Peer(Protocol):
    """A cluster to measure. Every method raises PeerFailed."""

    name: str
    version: str
    directory: Path
    """Holds everything of it: log directories, ZooKeeper's data, the output of its processes."""

    @property
    def bootstrap_servers(self) -> str: ...

    async def start(self) -> None:
        """Start ZooKeeper and all brokers; returns when every broker takes part and a topic can be created."""

    async def stop(self, *, wipe: bool = True) -> None:
        """Terminate every process, cleanly if the data stays. Does nothing if none runs."""

    def pids(self) -> dict[str, int]:
        """Of running processes, by role: 'broker-1', .., 'zookeeper'."""
        ...

    def log_directory(self, broker_id: int) -> Path:
        """Where the broker keeps its segment files; a partition's are in <topic>-<partition>/."""
        ...

    def configuration(self) -> dict[str, str]:
        """What a reader of the figures must know: settings that differ from the defaults, JVM options, versions."""
        ...

    # --------------------------------------------------------------------------------------------------- topics
    async def make_topic(self, topic: str, partitions: int = 1, settings: dict[str, str] | None = None) -> None:
        """RF 3, min ISR 2; returns when every partition has a leader and three in-sync replicas."""

    async def delete_topic(self, topic: str) -> None: ...

    async def leader_of(self, topic: str, partition: int = 0) -> int: ...

    async def controller(self) -> int: ...

    # -------------------------------------------------------------------------------------------------- brokers
    async def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        """SIGKILL, SIGTERM, SIGSTOP, SIGCONT; does not wait for the consequences."""

    async def start_broker(self, broker_id: int) -> None:
        """Start a broker that ended, and wait until it takes part again (every replica in sync: `wait_in_sync`)."""

    async def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        """Wait until every broker is registered and every partition has three in-sync replicas."""

    # ------------------------------------------------------------------------------------------------------ load
    def load_command(self, load: str, arguments: dict[str, Any]) -> list[str]:
        """The command line of a load generator of this peer (bench/load/): it prints one JSON object when it is done.

        `load` names it (produce, latency, consume, failover, ..); `arguments` are its parameters; bootstrap servers are
        added.
        """
        ...

    def load_environment(self) -> dict[str, str]: ...
