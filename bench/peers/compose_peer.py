"""A minibroker cluster in containers: that of docker-compose.yml, through the harness.

Client requests go to the cluster as to any other of minibroker (minibroker_peer). Needs a Docker engine with
docker-compose or `docker compose`; without one, `start` reports that.
"""

import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import TypeVar

from minibroker.bench.peers.minibroker_peer import MinibrokerPeer
from minibroker.bench.peers.peer import PeerFailed
from minibroker.harness.compose import ComposeHarness
from minibroker.harness.container_engine import ComposeFailed
from minibroker.observation.cluster_view import ClusterView

T = TypeVar("T")


class ComposePeer(MinibrokerPeer):
    """Broker N is the service brokerN. Session timeout and tick are those of docker-compose.yml."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.harness = ComposeHarness(name="minibroker-bench", log_format="json")

    @property
    def bootstrap_servers(self) -> str:
        return self.harness.bootstrap_servers

    async def start(self) -> None:
        """Build the image and start everything. Raises PeerFailed, also if no engine answers."""
        await _or_peer_failed(self.harness.up())

    async def stop(self, *, wipe: bool = True) -> None:
        await _or_peer_failed(self.harness.ownership.finish(self.harness.down(remove_image=wipe)))

    def pids(self) -> dict[str, int]:
        """Containers' processes are not measured."""
        return {}

    def log_directory(self, broker_id: int) -> Path:
        raise PeerFailed("log directories of containers are not read")

    def configuration(self) -> dict[str, str]:
        return {"cluster": "docker-compose.yml"}

    async def signal_broker(self, broker_id: int, number: signal.Signals) -> None:
        await _or_peer_failed(self.harness.signal(broker_id, number))

    async def start_broker(self, broker_id: int) -> None:
        await _or_peer_failed(self.harness.wait_ended(broker_id))  # after a SIGTERM, until it has stopped
        await _or_peer_failed(self.harness.start(broker_id))

    async def wait_in_sync(self, timeout_s: float = 60.0) -> None:
        await _or_peer_failed(self.harness.wait_healthy(timeout_s))

    async def read_broker_log(self, broker_id: int) -> str:
        return await _or_peer_failed(self.harness.read_log(broker_id))

    async def _look(self, topic: str | None = None) -> ClusterView:
        return await _or_peer_failed(self.harness.look(None if topic is None else [topic]))


async def _or_peer_failed(verb: Awaitable[T]) -> T:
    try:
        return await verb
    except (ComposeFailed, AssertionError) as error:
        raise PeerFailed(str(error)) from None
