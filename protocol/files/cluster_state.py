"""`cluster-state.json`: the state of a cluster when it was stopped, for the audit (docs/FORMATS.md). Pure.

Owns: the JSON of both versions. Leaves to others: writing it (`minibroker/local_cluster/`) and checking against
it (`audit`). Version 1 had no topic ids, assignments and witnesses; it is still read.
"""

import msgspec

from minibroker.protocol.files.checkpoints import CorruptCheckpoint, parse_partition_directory_name
from minibroker.protocol.ids import MAX_INT32, MAX_OFFSET
from minibroker.protocol.json_text import decode_json
from minibroker.protocol.witness import PartitionWitness, WitnessNode
from minibroker.protocol.znodes import CorruptZnode, parse_id

CLUSTER_STATE = "cluster-state.json"
VERSION = 2
BYTES_MAX = 64 * 1024 * 1024
"""Enough for 100,000 partitions with their witnesses."""


class PartitionSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, when the brokers were about to be stopped or after it."""

    leader: int | None = None
    """-1 or None: no leader."""
    leader_epoch: int
    isr: tuple[int, ...]
    """At the end, after leaders had moved away from brokers that stopped."""
    isr_before: tuple[int, ...] = ()
    """When all brokers still ran; empty where it was not queried then."""
    committed_before: int | None = None
    """How far it was committed just before `isr_before`: each of those members held all below it. None: not known."""
    replicas: tuple[int, ...] = ()
    """Assigned; empty where that is not known (version 1)."""
    topic_id: str | None = None


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    version: int = 1
    taken_at: float = 0.0
    """Wall clock in seconds."""
    cluster_id: str | None = None
    brokers: dict[str, str | None] = {}
    """Directory id of each known broker by its id; None where it is unknown."""
    stopped_cleanly: tuple[int, ...] = ()
    """Brokers that left the marker of a clean stop: it is there until their next start."""
    partitions: dict[str, PartitionSnapshot]
    """By `topic-partition`."""
    witnesses: dict[str, PartitionWitness] = {}
    """By `topic-partition`, the newest one of each."""


def format_cluster_state(state: ClusterState) -> bytes:
    return msgspec.json.encode(state)


def parse_cluster_state(content: bytes) -> ClusterState:
    """Raises CorruptCheckpoint."""
    state = decode_json(content, ClusterState, CLUSTER_STATE, CorruptCheckpoint, BYTES_MAX)
    if state.version not in (1, VERSION):
        raise CorruptCheckpoint(f"{CLUSTER_STATE} has version {state.version}, not 1 or {VERSION}")
    problem = _problem(state)
    if problem is not None:
        raise CorruptCheckpoint(f"{CLUSTER_STATE}: {problem}")
    return state


def _problem(state: ClusterState) -> str | None:
    """What stands in it that no cluster has; None: nothing. No check would look for a name that names no partition."""
    for name in (*state.partitions, *state.witnesses):
        if parse_partition_directory_name(name) is None:
            return f"{name!r:.300} does not name a partition"
    for name, each in state.partitions.items():
        numbers = (*each.isr, *each.isr_before, *each.replicas, each.leader_epoch)
        is_possible = all(0 <= number <= MAX_INT32 for number in numbers)
        if not is_possible or not 0 <= (each.committed_before or 0) < MAX_OFFSET:
            return f"{name} has a number that no cluster has: {each!r:.300}"
    try:
        for number in state.brokers:
            parse_id(number)
    except CorruptZnode as error:
        return f"broker {error}"
    return WitnessNode(partitions=state.witnesses).problem()
