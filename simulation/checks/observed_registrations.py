"""Who was registered as far as a controller can know: what ZooKeeper told each machine, and when registrations ended.

Owns: the registrations that each machine was told, with their times. Refuses to judge what a controller makes of them.
"""

from msgspec import Struct

from minibroker.protocol.znodes import BROKER_IDS, CONTROLLER, BrokerRegistration, ControllerNode, broker_path
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.zookeeper import Answer, Link, ZooKeeperRequest

QUEUED_SECONDS = 1.0
"""A controller takes one thing after the other: between what it is told and what it does may lie writes that it has to
repeat because a connection broke."""


class RegistrationsSnapshot(Struct, frozen=True):
    """Incarnations by broker, as the server told them at a time."""

    at_seconds: float
    incarnations: dict[int, str]


class ObservedRegistrations:
    """Watches one run."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._loop = cluster.world.loop
        self._nodes = cluster.world.zookeeper.tree.nodes
        self._snapshots: dict[str, list[RegistrationsSnapshot]] = {}
        self._ended_at: dict[str, float] = {}
        self._wrap(cluster)

    def _wrap(self, cluster: SimulatedCluster) -> None:
        zookeeper, tree = cluster.world.zookeeper, cluster.world.zookeeper.tree
        receive, delete_ephemerals = zookeeper.receive, tree.delete_ephemerals

        def watched_receive(link: Link, request: ZooKeeperRequest, answer: Answer) -> None:
            if request.kind == "children" and request.path == BROKER_IDS:
                self._take_snapshot(link.process.name)
            receive(link, request, answer)

        def watched_delete(session_id: int):  # type: ignore[no-untyped-def]
            found = delete_ephemerals(session_id)
            self._ended_at.update(dict.fromkeys(found[0], self._loop.elapsed))
            return found

        zookeeper.receive = watched_receive  # type: ignore[method-assign]
        tree.delete_ephemerals = watched_delete  # type: ignore[method-assign]

    def _take_snapshot(self, host: str) -> None:
        told = {}
        for path, node in self._nodes.items():
            if path.startswith(f"{BROKER_IDS}/"):
                told[int(path.rsplit("/", 1)[1])] = BrokerRegistration.decode(node.data).incarnation_id
        self._snapshots.setdefault(host, []).append(RegistrationsSnapshot(self._loop.elapsed, told))

    def seconds_since_end(self, broker_id: int) -> float | None:
        """Since its session took its newest registration with it; None if no session did."""
        ended_at = self._ended_at.get(broker_path(broker_id))
        return None if ended_at is None else self._loop.elapsed - ended_at

    def may_be_believed(self, broker_id: int, incarnation: str | None) -> bool:
        """Whether the controller may still take it for registered: it was told so, and of nothing else long ago."""
        node = self._nodes.get(CONTROLLER)
        if node is None:
            return False
        since = self._loop.elapsed - QUEUED_SECONDS
        for telling in reversed(self._snapshots.get(f"broker-{ControllerNode.decode(node.data).brokerid}", [])):
            if incarnation is not None and telling.incarnations.get(broker_id) == incarnation:
                return True
            if telling.at_seconds < since:
                return False
        return False
