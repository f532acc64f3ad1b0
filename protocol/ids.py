"""The identifiers of replication, one name each, and their legal spellings.

Owns: the names of the numbers that travel between parts, the topic-partition pair, and the spelling of topic names,
identifiers and hosts: they become paths, lines of files and addresses, so one rule holds for configuration, ZooKeeper,
messages and disks. Leaves to others: where any of them is stored. Inside the program None means absent; on the wire and
in files -1 does, as in Kafka.
"""

import re
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

MAX_INT32 = 2**31 - 1
"""The largest broker id and epoch: a message carries no larger one."""

MAX_PARTITION = MAX_INT32
"""The largest partition number."""

TOPIC_NAME_MAX_LENGTH = 249
"""As in Kafka: the name must fit in a directory name beside '-' and the partition number."""
TOPIC_NAME_PATTERN = r"\A(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}\Z"
"""As in Kafka (Topic.validate): such a name is a legal directory name everywhere and never escapes its parent."""
PRODUCER_NAME_MAX_LENGTH = 100
PRODUCER_NAME_PATTERN = r"\A(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,100}\Z"
"""It is the name of a node in ZooKeeper, too."""
PRODUCER_EPOCH_MAX = 2**15 - 1
"""The largest that a batch can hold."""
IDENTIFIER_MAX_LENGTH = 64
IDENTIFIER_PATTERN = r"\A[a-zA-Z0-9_-]{0,64}\Z"
"""Of topics, log directories and process starts: usually base64url; one word in a line of a checkpoint."""
HOST_MAX_LENGTH = 253
HOST_PATTERN = (
    r"\A(?:(?=.{1,253}\Z)[a-zA-Z0-9_](?:[a-zA-Z0-9_-]{0,62})(?:\.[a-zA-Z0-9_][a-zA-Z0-9_-]{0,62})*\.?"
    r"|(?=.{2,71}\Z)[0-9a-fA-F.]*:[0-9a-fA-F:.]*(?:%[a-zA-Z0-9_.-]{1,31})?)\Z"
)
"""A name of labels of 1 to 63 characters (RFC 1123, and the underscore that Docker uses), an IPv4 or an IPv6 address.
For any other text `getaddrinfo` may raise a UnicodeError instead of an OSError."""

_is_topic_name = re.compile(TOPIC_NAME_PATTERN).match
_is_producer_name = re.compile(PRODUCER_NAME_PATTERN).match
_is_identifier = re.compile(IDENTIFIER_PATTERN).match
_is_host = re.compile(HOST_PATTERN).match


def is_topic_name(text: str) -> bool:
    """Whether a topic may have this name."""
    return _is_topic_name(text) is not None


def is_identifier(text: str) -> bool:
    """Whether this may be the id of a topic, of a log directory or of a process's start; the empty text names none."""
    return _is_identifier(text) is not None


def is_producer_name(text: str) -> bool:
    """Whether this may be the name of a producer."""
    return _is_producer_name(text) is not None


def is_host(text: str) -> bool:
    """Whether this may be looked up as a host's name or address. The host need not exist."""
    return _is_host(text) is not None


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
