"""Notes about each log outside the brokers' disks: /witness/<broker>/<shard> in ZooKeeper. Pure.

Owns: the path and the JSON of a witness. Leaves to others: writing it (`broker/replicas/witness.py`) and comparing it
with the logs (`audit`).

A leader notes for each of its partitions how far it was committed and the digest of what was committed. If all replicas
are then cut, replaced by an older backup, renumbered or rewritten, they contradict the note.
"""

from typing import ClassVar
from zlib import crc32

import msgspec

from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import Znode

WITNESS = "/witness"
SHARDS = 16
"""Shards of one broker. A znode holds 1 MB, an entry takes 150 bytes with a usual name: 10,000 partitions led by one
broker take 100 KB in each shard. Only shards with a change are written."""
_HEX = frozenset("0123456789abcdef")


class PartitionWitness(msgspec.Struct, frozen=True, kw_only=True):
    """What one leader noted of one partition."""

    topic_id: str
    leader_epoch: int
    replicas: tuple[int, ...]
    """Assigned, the preferred leader first."""
    isr: tuple[int, ...]
    log_start_offset: int
    committed_offset: int
    """Everything below it was committed. It is the end of a batch."""
    digest: str
    """Of the batches that end beyond `log_start_offset` and at or below `committed_offset` (`log_digest`), as 32
    hexadecimal digits; empty where the leader did not know it yet."""
    noted_at_ms: int
    """Wall clock of the leader."""


class WitnessNode(Znode, frozen=True, kw_only=True):
    """One shard of one broker: the partitions that it leads, or has led. A note of a former leader stays, for the new
    one may have noted nothing yet; it is removed with its topic."""

    PATH: ClassVar[str] = "/witness/<broker>/<shard>"

    version: int = 1
    partitions: dict[str, PartitionWitness]
    """By `topic-partition`."""

    def problem(self) -> str | None:
        for name, each in self.partitions.items():
            if not 0 <= each.log_start_offset <= each.committed_offset or each.leader_epoch < 0:
                return f"{name!r:.300}: {each!r:.300}"
            if each.digest and (len(each.digest) != 32 or not set(each.digest) <= _HEX):
                return f"{name!r:.300}: digest {each.digest!r:.80}"
        return None


def broker_witness_path(broker_id: int) -> str:
    return f"{WITNESS}/{broker_id}"


def witness_path(broker_id: int, shard: int) -> str:
    return f"{WITNESS}/{broker_id}/{shard}"


def shard_of(partition: TopicPartition) -> int:
    """The shard of a partition: the same for every broker, and never changes."""
    return crc32(str(partition).encode()) % SHARDS


def newer(one: PartitionWitness, other: PartitionWitness) -> PartitionWitness:
    """The newer of two notes of one partition: by leader epoch, then by committed offset."""
    return max((one, other), key=lambda each: (each.leader_epoch, each.committed_offset, each.noted_at_ms))
