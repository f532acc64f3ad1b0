"""Reads the state of a running broker for metrics and readiness. Changes nothing."""

from typing import TYPE_CHECKING

from minibroker.broker.monitoring.metrics import BrokerGauges, Readiness
from minibroker.broker.replication.state import Role
from minibroker.protocol.ids import to_wire
from minibroker.runtime.ports import DiskError

if TYPE_CHECKING:
    from minibroker.broker.broker import Broker


def readiness(broker: "Broker") -> Readiness:
    """Ready: registered, and the controller has sent the metadata of the cluster."""
    if broker.registration.is_fenced():
        return Readiness(False, "ZooKeeper session not confirmed alive")
    if not broker.image.has_been_updated:
        return Readiness(False, "registered, but no metadata received from the controller yet")
    return Readiness(True, f"registered under broker epoch {broker.registration.broker_epoch}")


def read_gauges(broker: "Broker") -> BrokerGauges:
    """Count now; called for each scrape of the metrics."""
    states = list(broker.manager.states().values())
    led = [s for s in states if s.is_leader]
    sizes = [len(s.in_sync_replicas) - s.effective_min_insync_replicas for s in led]
    try:
        free_bytes = broker.runtime.disk.free_bytes(broker.log_directory.path)
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
        waiting_fetch_requests=broker.manager.fetches.delayed_count(),
        max_lag=max((_lag(s.log_end_offset, r.log_end_offset) for s in led for r in s.remotes.values()), default=0),
        is_controller=int(broker.controller.is_active),
        offline_partitions=sum(info.leader is None for _, info in broker.image.all_partitions()),
        live_brokers=len(broker.image.live_broker_ids()),
        topics=len(broker.image.topics),
        is_fenced=int(broker.registration.is_fenced()),
        broker_epoch=to_wire(broker.registration.broker_epoch),
        connections=len(broker.server.connections),
        log_bytes=sum(log.size_bytes for log in broker.log_directory.logs.values()),
        disk_free_bytes=free_bytes,
        witness_age_seconds=broker.witness.age_ms // 1000,
    )


def _lag(leader_end: int, follower_end: int | None) -> int:
    return leader_end if follower_end is None else max(0, leader_end - follower_end)
