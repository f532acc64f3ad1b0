"""The identifiers of the field, one name each.

Owns: the names of the numbers that travel between parts, and the topic-partition pair. Refuses to know where any of
them is stored. Inside the program None means absent; on the wire and in files -1 does, as in Kafka.
"""

from typing import NamedTuple, TypeAlias

BrokerId: TypeAlias = int
"""Number of a broker, chosen by its operator; never negative."""
Offset: TypeAlias = int
"""Position of a record in a partition. Every *end* offset is exclusive."""
LeaderEpoch: TypeAlias = int
"""Generation of leadership of one partition (KIP-101); starts at 0."""
BrokerEpoch: TypeAlias = int
"""Incarnation of a broker: the czxid of its registration in ZooKeeper (KIP-380)."""
PartitionEpoch: TypeAlias = int
"""Version of the partition's state znode."""
ControllerEpoch: TypeAlias = int
"""Generation of the controller; the first is 1."""
ProducerId: TypeAlias = int
"""Identity of an idempotent producer (KIP-98)."""

NONE = -1
"""How 'absent' is written on the wire and in files. Never used inside the program."""

DEBUG_REPLICA_ID = -1
"""replica_id of a consumer: it reads, and its reads prove nothing about replication."""

MAX_OFFSET = 2**63 - 1

MAX_PARTITION = 2**31 - 1
"""What a message can carry."""


class TopicPartition(NamedTuple):
    """One partition of one topic; prints as `orders-0`, the name of its directory."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def from_wire(value: int) -> int | None:
    """Turn the wire's -1 into None."""
    return None if value < 0 else value


def to_wire(value: int | None) -> int:
    """Turn None into the wire's -1."""
    return NONE if value is None else value
