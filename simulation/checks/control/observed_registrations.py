"""The registrations that a controller can know: ZooKeeper's answers to each machine, and ends of registrations.

Owns: the registrations that each machine received, with their times. Leaves to others: what a
controller makes of them.
"""

from msgspec import Struct

from minibroker.protocol.znodes import BROKER_IDS, CONTROLLER, BrokerRegistration, ControllerNode, broker_path
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.observations import RequestReceived, SessionEnded

QUEUED_SECONDS = 1.0
"""A controller handles one event after the other: between an answer of ZooKeeper and the controller's reaction there
may be writes that it has to repeat because a connection broke."""


class RegistrationsSnapshot(Struct, frozen=True):
    """Incarnations by broker, as the server answered at a time."""

    at_seconds: float
    incarnations: dict[int, str]


class ObservedRegistrations:
    """Records the registrations of one run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._loop = cluster.world.loop
        self._nodes = cluster.world.zookeeper.tree.nodes
        self._snapshots: dict[str, list[RegistrationsSnapshot]] = {}
        self._ended_at: dict[str, float] = {}
        cluster.world.world_observers.subscribe(RequestReceived, self._on_request)
        cluster.world.world_observers.subscribe(SessionEnded, self._on_session_ended)

    def _on_request(self, event: RequestReceived) -> None:
        if event.kind == "children" and event.path == BROKER_IDS:
            self._take_snapshot(event.host)

    def _on_session_ended(self, event: SessionEnded) -> None:
        self._ended_at.update(dict.fromkeys(event.deleted_paths, self._loop.elapsed))

    def _take_snapshot(self, host: str) -> None:
        incarnations = {}
        for path, node in self._nodes.items():
            if path.startswith(f"{BROKER_IDS}/"):
                incarnations[int(path.rsplit("/", 1)[1])] = BrokerRegistration.decode(node.data).incarnation_id
        self._snapshots.setdefault(host, []).append(RegistrationsSnapshot(self._loop.elapsed, incarnations))

    def seconds_since_end(self, broker_id: int) -> float | None:
        """Seconds since the end of its session removed its newest registration; None if no session end did."""
        ended_at = self._ended_at.get(broker_path(broker_id))
        return None if ended_at is None else self._loop.elapsed - ended_at

    def may_seem_registered(self, broker_id: int, incarnation: str | None) -> bool:
        """Whether the controller may still take it for registered: its recent answers from ZooKeeper list that
        incarnation."""
        node = self._nodes.get(CONTROLLER)
        if node is None:
            return False
        since = self._loop.elapsed - QUEUED_SECONDS
        for snapshot in reversed(self._snapshots.get(f"broker-{ControllerNode.decode(node.data).brokerid}", [])):
            if incarnation is not None and snapshot.incarnations.get(broker_id) == incarnation:
                return True
            if snapshot.at_seconds < since:
                return False
        return False
