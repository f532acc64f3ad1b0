"""Since when nothing but dead processes disturbs a cluster: only then do the rules promise that something happens soon.

Owns: which brokers are fit, and since when network, ZooKeeper and these brokers have been in order. Leaves to others:
what has to happen then, and how soon. Reads the world; draws nothing and sends nothing.
"""

from itertools import permutations

from minibroker.protocol.znodes import BrokerRegistration, broker_path
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.storage import CAPACITY_BYTES

OF_PROCESSES = ("kill", "power loss", "start", "restart", "repaired", "staged", "stays down", "address gone")
"""Faults that only end or start processes, and what is said of them."""


class Stability(Checker):
    """Reports nothing; subscribe it before those that ask it."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._since: float | None = None
        self._fit_since: dict[int, tuple[Process, float]] = {}

    def sample(self) -> None:
        now = self._cluster.world.loop.elapsed
        for broker_id in self._cluster.broker_ids:
            if self._is_fit(broker_id):
                process = self._cluster.world.process(f"broker-{broker_id}")
                known = self._fit_since.get(broker_id)
                self._fit_since[broker_id] = (process, now) if known is None or known[0] is not process else known
            else:
                self._fit_since.pop(broker_id, None)
        if not self._is_in_order():
            self._since = None
        elif self._since is None:
            self._since = now

    def note(self, line: str) -> None:
        """What the fault injector did: time, fault, facts. What a fault of a moment leaves behind, such as a lost
        reply, takes time."""
        if not line.split(maxsplit=1)[1].startswith(OF_PROCESSES):
            self._since = None

    @property
    def since(self) -> float | None:
        """Since when network and ZooKeeper have been in order; None: they are not."""
        return self._since

    def fit_since(self, broker_id: int) -> float | None:
        """Since when this broker has been up, registered, reachable and on a sound disk; None: it is not."""
        known = self._fit_since.get(broker_id)
        return None if known is None else known[1]

    @property
    def fit(self) -> set[int]:
        return set(self._fit_since)

    def _is_fit(self, broker_id: int) -> bool:
        cluster, name = self._cluster, f"broker-{broker_id}"
        if not cluster.world.is_alive(name) or broker_id in cluster.starting or cluster.is_stopping(broker_id):
            return False
        process, storage = cluster.world.process(name), cluster.world.machine(name).storage
        if process.paused or process.busy_until > cluster.world.loop.time() or broker_id in self._reference.faulty:
            return False
        if storage.faults or storage.hangs_for or storage.cost.append or storage.capacity_bytes != CAPACITY_BYTES:
            return False
        if storage.ignores_sync or storage.lacks_descriptors or storage.holds_forgotten:
            return False
        if cluster.has_offline_directory(broker_id):
            return False
        node = cluster.world.zookeeper.tree.nodes.get(broker_path(broker_id))
        incarnation = self._reference.incarnation(broker_id)
        return node is not None and BrokerRegistration.decode(node.data).incarnation_id == incarnation

    def _is_in_order(self) -> bool:
        network, zookeeper = self._cluster.world.network, self._cluster.world.zookeeper
        if not zookeeper.is_running or zookeeper.options.extra_delay or zookeeper.slow_hosts:
            return False
        if any(hold.is_active for hold in network.holds) or not all(hold.is_open for hold in zookeeper.holds):
            return False
        if network.slow_links or network.bandwidth or network.without_descriptors:
            return False
        alive = [f"broker-{b}" for b in self._cluster.alive()]
        return all(zookeeper.is_reachable(host) and zookeeper.is_reachable(host, True) for host in alive) and all(
            network.is_open(one, other) and not network.is_rejected(one, other)
            for one, other in permutations([*alive, "client"], 2)
        )
