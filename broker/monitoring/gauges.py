"""Reads the state of a running broker for metrics and readiness. Changes nothing."""

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.registration import Registration
from minibroker.broker.monitoring.metrics import BrokerGauges, Readiness
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication.state import ReplicaState, Role
from minibroker.protocol.ids import to_wire
from minibroker.runtime.ports import Disk, DiskError
from minibroker.runtime.server.server import RpcServer


def readiness(registration: Registration, image: MetadataImage) -> Readiness:
    """Ready: registered, and the controller has sent the metadata of the cluster to this registration."""
    if registration.is_fenced():
        return Readiness(False, "ZooKeeper session not confirmed alive")
    if not image.has_been_updated:
        return Readiness(False, "registered, but no metadata received from the controller yet")
    if image.is_of_an_earlier_registration(registration.broker_epoch):
        return Readiness(False, "registered again, but nothing received from the controller since")
    return Readiness(True, f"registered under broker epoch {registration.broker_epoch}")


def read_gauges(
    manager: ReplicaManager, server: RpcServer, disk: Disk, is_controller: bool, witness_age_ms: int
) -> BrokerGauges:
    """Count now; called for each scrape of the metrics."""
    registration, image = manager.registration, manager.image
    states = list(manager.states().values())
    led = [s for s in states if s.is_leader]
    sizes = [len(s.in_sync_replicas) - s.effective_min_insync_replicas for s in led]
    try:
        free_bytes = disk.free_bytes(manager.log_directory.path)
    except DiskError:
        free_bytes = 0
    return BrokerGauges(
        partitions=len(states),
        leaders=len(led),
        under_replicated_partitions=sum(len(s.in_sync_replicas) < len(s.assignment) for s in led),
        under_min_isr_partitions=sum(size < 0 for size in sizes),
        at_min_isr_partitions=sum(size == 0 for size in sizes),
        offline_replicas=sum(s.role is Role.OFFLINE for s in states),
        damaged_replicas=sum(s.damage is not None for s in states),
        waiting_produce_requests=sum(len(s.waiters) for s in led),
        waiting_fetch_requests=manager.fetches.delayed_count(),
        max_lag=max((lag_of(s, remote.log_end_offset) for s in led for remote in s.remotes.values()), default=0),
        is_controller=int(is_controller),
        offline_partitions=sum(info.leader is None for _, info in image.all_partitions()),
        live_brokers=len(image.live_broker_ids()),
        topics=len(image.topics),
        is_fenced=int(registration.is_fenced()),
        broker_epoch=to_wire(registration.broker_epoch),
        connections=len(server.connections),
        log_bytes=sum(log.size_bytes for log in manager.log_directory.logs.values()),
        disk_free_bytes=free_bytes,
        witness_age_seconds=witness_age_ms // 1000,
    )


def lag_of(leader: ReplicaState, follower_end: int | None) -> int:
    """Records that a follower lacks. One that has fetched nothing in this leader epoch may lack all that there are."""
    return max(0, leader.log_end_offset - (leader.log_start_offset if follower_end is None else follower_end))
