"""The table of replicas, one row per replica of each partition: `replicas` prints it, `top` updates it.

Owns: the columns and the meaning of lag. Leaves to others: queries and printing.
"""

import msgspec

from minibroker.observation.cluster_view import ClusterView
from minibroker.protocol.wire.messages import MetadataPartition, ReplicaStateDescription

HEADER = ("PARTITION", "BROKER", "ROLE", "EPOCH", "START", "LEO", "HW", "LAG", "IN SYNC", "ISR")


class ReplicaTableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One replica. None where no broker reported a value."""

    partition: str
    broker: int
    role: str
    leader_epoch: int | None = None
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    high_watermark: int | None = None
    lag: int | None = None
    lag_at_least: int | None = None
    """Where the lag is unknown: a replica that has not fetched in the leader's epoch lacks all records of it."""
    in_sync: bool
    isr: list[int]
    isr_state: str | None = None
    size_bytes: int | None = None
    epoch_history: list[tuple[int, int]] = []

    def cells(self) -> tuple[object, ...]:
        isr = ",".join(map(str, self.isr)) + (
            f" ({self.isr_state})" if self.isr_state not in (None, "committed") else ""
        )
        offsets = (self.log_start_offset, self.log_end_offset, self.high_watermark)
        sync = "yes" if self.in_sync else "NO"
        lag = f"{self.lag_at_least}+" if self.lag_at_least is not None else self.lag
        return (self.partition, self.broker, self.role, self.leader_epoch, *offsets, lag, sync, isr)


def replica_rows(view: ClusterView) -> list[ReplicaTableRow]:
    """Rows in order of partitions, each partition's replicas in order of its assignment."""
    described = view.replicas()
    rows = []
    for name, partition in view.partitions.items():
        replicas = described.get(name, {})
        leader = replicas.get(partition.leader_id)
        for broker_id in partition.replica_nodes:
            rows.append(_row(str(name), broker_id, partition, replicas.get(broker_id), leader))
    return rows


def _row(
    name: str,
    broker_id: int,
    partition: MetadataPartition,
    replica: ReplicaStateDescription | None,
    leader: ReplicaStateDescription | None,
) -> ReplicaTableRow:
    in_sync, isr = broker_id in partition.isr_nodes, list(partition.isr_nodes)
    if replica is None:
        lag = _lag_known_to(leader, broker_id)
        least = None if leader is None or lag is not None else _lag_at_least(leader)
        return ReplicaTableRow(
            partition=name, broker=broker_id, role="no answer", lag=lag, lag_at_least=least, in_sync=in_sync, isr=isr
        )
    lag = None
    if leader is not None:
        lag = 0 if replica is leader else max(0, leader.log_end_offset - replica.log_end_offset)
    return ReplicaTableRow(
        partition=name,
        broker=broker_id,
        role=replica.role,
        leader_epoch=replica.leader_epoch,
        log_start_offset=replica.log_start_offset,
        log_end_offset=replica.log_end_offset,
        high_watermark=replica.high_watermark,
        lag=lag,
        in_sync=in_sync,
        isr=isr,
        isr_state=replica.isr_state if replica is leader else None,
        size_bytes=replica.size_bytes,
        epoch_history=[(entry.epoch, entry.start_offset) for entry in replica.epoch_history],
    )


def _lag_known_to(leader: ReplicaStateDescription | None, broker_id: int) -> int | None:
    """The lag of a silent follower, as its leader knows it."""
    if leader is None:
        return None
    known = next((remote for remote in leader.remotes if remote.replica_id == broker_id), None)
    return None if known is None or known.log_end_offset < 0 else max(0, leader.log_end_offset - known.log_end_offset)


def _lag_at_least(leader: ReplicaStateDescription) -> int | None:
    """The records of the leader's epoch; None if that says nothing."""
    start = next((each.start_offset for each in leader.epoch_history if each.epoch == leader.leader_epoch), None)
    return None if start is None or leader.log_end_offset <= start else leader.log_end_offset - start
