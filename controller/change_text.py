"""One log line about each change of a partition: before, after, and why. Pure."""

from minibroker.controller.controller_state import ControllerState
from minibroker.controller.election import PartitionChange
from minibroker.protocol.ids import TopicPartition

INFO, WARNING = 20, 30
"""Levels of the standard library's logging."""
MIN_ISR_CONFIG = "min.insync.replicas"


def describe(change: PartitionChange) -> str:
    """`lines-0: leader 1 -> 2, epoch 3 -> 4, ISR [1, 2, 3] -> [2, 3]: broker 1 is gone`."""
    before, after = change.before, change.after
    leader = _arrow("leader", None if before is None else before.leader, after.leader)
    epoch = _arrow("epoch", None if before is None else before.leader_epoch, after.leader_epoch)
    isr = _arrow("ISR", None if before is None else list(before.in_sync_replicas), list(after.in_sync_replicas))
    return f"{change.partition}: {leader}, {epoch}, {isr}: {change.reason}"


def level_of(change: PartitionChange, min_in_sync: int) -> int:
    """A warning where writes stop or records may be lost."""
    after = change.after
    is_bad = after.leader is None or after.is_recovering or len(after.in_sync_replicas) < min_in_sync
    return WARNING if is_bad else INFO


def min_insync_replicas(state: ControllerState, partition: TopicPartition, default: int) -> int:
    """The effective minimum: at most the number of replicas."""
    topic = state.topics.get(partition.topic)
    configured = "" if topic is None else topic.configs.get(MIN_ISR_CONFIG, "")
    return min(int(configured) if configured.isdigit() else default, len(state.assignment(partition)))


def _arrow(name: str, before: object, after: object) -> str:
    return f"{name} {after}" if before == after else f"{name} {before} -> {after}"
