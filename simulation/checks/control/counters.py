"""A broker's counters are what happened (I47): what an operator's graphs and alerts rest on.

Owns: its own counts of each process: the records that it appended as leader, the changes of ISRs that it learnt as
leader, the elections that made it a leader. Elections are counted from what the process did and from what stands in
ZooKeeper, because a broker may learn of one that it never carries out. Leaves to others: counters of requests, and
those that stand right next to the event that they count.
"""

from msgspec import Struct, field

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.observations import BatchesLogged
from minibroker.protocol.events.replica_events import IsrChanged, ReplicaRoleChanged
from minibroker.protocol.znodes import PartitionState
from minibroker.runtime.observer import Handlers
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import STATE_SUFFIX, ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS, Process
from minibroker.simulation.world.observations import NodesWritten


class Happened(Struct):
    """What one process did."""

    batches_in: int = 0
    records_in: int = 0
    bytes_in: int = 0
    isr_shrinks: int = 0
    isr_expands: int = 0
    led: set[tuple[str, int, int | None]] = field(default_factory=set)
    """Topic, partition and leader epoch."""


EXACT = ("batches_in", "records_in", "bytes_in", "isr_shrinks", "isr_expands")


class CounterChecker(Checker):
    """Of one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._happened: dict[Process, Happened] = {}
        self._elected: dict[int, set[tuple[str, int, int]]] = {}
        """By broker: partition state, its creation, and the leader epoch, as ZooKeeper had them."""
        self._found: set[tuple[Process, str]] = set()

    def replica_events(self) -> Handlers:
        return {BatchesLogged: self._on_logged, IsrChanged: self._on_isr_changed, ReplicaRoleChanged: self._on_role}

    def world_events(self) -> Handlers:
        return {NodesWritten: self._on_nodes_written}

    def _acting(self) -> Happened:
        process = PROCESS.get()
        assert process is not None, "replicas act in the process of a broker"
        return self._happened.setdefault(process, Happened())

    def _on_logged(self, event: BatchesLogged) -> None:
        if not event.replica.state.is_leader:
            return
        happened = self._acting()
        happened.batches_in += len(event.batches)
        happened.records_in += sum(header.record_count for header, _ in event.batches)
        happened.bytes_in += sum(header.size_bytes for header, _ in event.batches)

    def _on_isr_changed(self, event: IsrChanged) -> None:
        happened, is_shrink = self._acting(), len(event.after) < len(event.before)
        happened.isr_shrinks += is_shrink
        happened.isr_expands += not is_shrink

    def _on_role(self, event: ReplicaRoleChanged) -> None:
        if event.role == "leader":
            self._acting().led.add((event.topic, event.partition, event.leader_epoch))

    def _on_nodes_written(self, event: NodesWritten) -> None:
        nodes = self._cluster.world.zookeeper.tree.nodes
        for path in sorted({each.path for each in event.operations if each.path.endswith(STATE_SUFFIX)}):
            if (node := nodes.get(path)) is not None:
                state = PartitionState.decode(node.data)
                self._elected.setdefault(state.leader, set()).add((path, node.czxid, state.leader_epoch))

    def sample(self) -> None:
        for broker_id in self._cluster.alive():
            manager, process = self._cluster.manager(broker_id), self._cluster.world.process(f"broker-{broker_id}")
            happened = self._happened.get(process)
            if manager is not None and happened is not None and broker_id not in self._cluster.starting:
                self._compare(broker_id, process, manager.counters, happened)

    def _compare(self, broker_id: int, process: Process, counters: BrokerCounters, happened: Happened) -> None:
        for name in EXACT:
            if getattr(counters, name) != getattr(happened, name):
                self._find(broker_id, process, name, f"{getattr(counters, name)}, not {getattr(happened, name)}")
        least, most = len(happened.led), len(self._elected.get(broker_id, ()))
        if not least <= counters.leader_elections <= most:
            text = f"{counters.leader_elections}: it led under {least} epochs, ZooKeeper named it in {most}"
            self._find(broker_id, process, "leader_elections", text)

    def _find(self, broker_id: int, process: Process, name: str, text: str) -> None:
        if (process, name) not in self._found:
            self._found.add((process, name))
            self._reference.find("I47", f"broker {broker_id} counts {name} as {text}")
