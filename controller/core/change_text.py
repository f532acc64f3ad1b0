"""The events of the controller's decisions: each change of a partition with before, after, and why. Pure."""

from minibroker.controller.core.controller_state import ControllerState, Leadership
from minibroker.controller.core.election import PartitionChange
from minibroker.protocol.events.controller_events import ControllerElected, LeadershipChanged, PartitionStateReread
from minibroker.protocol.ids import TopicPartition

MIN_ISR_CONFIG = "min.insync.replicas"


def leadership_changed(change: PartitionChange, min_in_sync: int) -> LeadershipChanged:
    """`lines-0: leader 1 -> 2, epoch 3 -> 4, ISR [1, 2, 3] -> [2, 3]: broker 1 is gone`. It is bad where writes stop or
    records may be lost."""
    before, after = change.before, change.after
    leader = _arrow("leader", None if before is None else before.leader, after.leader)
    epoch = _arrow("epoch", None if before is None else before.leader_epoch, after.leader_epoch)
    isr = _arrow("ISR", None if before is None else list(before.in_sync_replicas), list(after.in_sync_replicas))
    topic, partition = change.partition
    return LeadershipChanged(
        topic=topic,
        partition=partition,
        change=f"{leader}, {epoch}, {isr}",
        leader=after.leader,
        leader_before=None if before is None else before.leader,
        leader_epoch=after.leader_epoch,
        isr=list(after.in_sync_replicas),
        isr_before=[] if before is None else list(before.in_sync_replicas),
        reason=change.reason,
        is_election=before is not None and change.is_election,
        is_bad=after.leader is None or after.is_recovering or len(after.in_sync_replicas) < min_in_sync,
    )


def state_reread(partition: TopicPartition, found: Leadership | None) -> PartitionStateReread:
    """What another client wrote instead of this controller's decision."""
    return PartitionStateReread(topic=partition.topic, partition=partition.partition, found=str(found))


def controller_elected(state: ControllerState, deletions: int) -> ControllerElected:
    """What the new controller has read."""
    return ControllerElected(
        controller_epoch=state.controller_epoch,
        brokers=sorted(state.brokers),
        topics=len(state.topics),
        partitions=len(state.partitions()),
        deletions=deletions,
    )


def min_insync_replicas(state: ControllerState, partition: TopicPartition, default: int) -> int:
    """The effective minimum: at most the number of replicas."""
    topic = state.topics.get(partition.topic)
    configured = "" if topic is None else topic.configs.get(MIN_ISR_CONFIG, "")
    return min(int(configured) if configured.isdigit() else default, len(state.assignment(partition)))


def _arrow(name: str, before: object, after: object) -> str:
    return f"{name} {after}" if before == after else f"{name} {before} -> {after}"
