"""Paths and JSON of all znodes but `/witness` (Kafka's, with additional fields of our own).

Owns: where a fact is in ZooKeeper and how it is written. Leaves to others: reading and writing, sessions, and versions.
Unknown fields are ignored, so that a newer broker can add some; a znode that does not fit is a CorruptZnode with its
path. In ZooKeeper -1 means none, as in Kafka; `PartitionState.leader` keeps it so that the struct is the JSON.

A znode may hold only what the controller's orders can carry (`message_types`): every broker would refuse any other
order for ever, and that order would block all orders behind it.

    /controller                         ephemeral   ControllerNode
    /controller_epoch                   integer text; its version fences every write of a controller
    /cluster/id                         ClusterId
    /cluster/secret                     ClusterSecret; only for brokers where ZooKeeper authenticates them
    /brokers/ids/<id>                   ephemeral   BrokerRegistration; its czxid is the broker epoch
    /brokers/topics/<t>                 TopicAssignment
    /brokers/topics/<t>/partitions/<p>/state        PartitionState
    /brokers/seqid                      counter for generated ids
    /brokers/noted_changes/<id>         NotedChangesNode
    /config/topics/<t>, /config/brokers/<id>        ConfigNode
    /config/changes/config_change_<n>   ConfigChange
    /admin/delete_topics/<t>            marker: the topic is to be deleted; with content: its deletion has begun
    /latest_producer_id_block           ProducerIdBlock
    /producer_names/<name>              ProducerNameNode
    /isr_change_notification            kept for Kafka's tools
    /witness/<broker>/<shard>           see `protocol/witness.py`
"""

from typing import Any, ClassVar, TypeVar

import msgspec

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.ids import MAX_INT32, MAX_OFFSET, PRODUCER_EPOCH_MAX, TopicPartition, is_host, is_identifier
from minibroker.protocol.json_text import decode_json
from minibroker.protocol.wire.broker_authentication import SECRET_BYTES
from minibroker.protocol.wire.message_types import (
    CONFIGS_MAX,
    LISTENERS_MAX,
    NAME_MAX_LENGTH,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    TEXT_MAX,
)


class CorruptZnode(ProtocolError):
    """A znode with a content that does not match its format."""


CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CLUSTER_ID = "/cluster/id"
CLUSTER_SECRET = "/cluster/secret"  # noqa: S105 - its path, not the secret
BROKER_IDS = "/brokers/ids"
BROKER_TOPICS = "/brokers/topics"
NOTED_CHANGES = "/brokers/noted_changes"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
DELETE_TOPICS = "/admin/delete_topics"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
PRODUCER_NAMES = "/producer_names"
"""Created with the first name."""

PERSISTENT_PATHS = (
    "/brokers",
    BROKER_IDS,
    BROKER_TOPICS,
    "/brokers/seqid",
    NOTED_CHANGES,
    "/cluster",
    "/config",
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    CONFIG_CHANGES,
    "/admin",
    DELETE_TOPICS,
    "/isr_change_notification",
)
"""Created by any broker at its start, parents first. Znodes with content are not among them."""

DELETION_BEGUN = b"begun"
"""Content of a marker under /admin/delete_topics once orders to delete may have been sent."""
NO_LEADER = -1
EPOCH_MAX = MAX_INT32 - 1_000_000
"""A larger epoch was not counted up but written by another client: a million elections must still fit in a message."""


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def noted_changes_path(broker_id: int) -> str:
    return f"{NOTED_CHANGES}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{BROKER_TOPICS}/{topic}/partitions"


def partition_path(partition: TopicPartition) -> str:
    return f"{BROKER_TOPICS}/{partition.topic}/partitions/{partition.partition}"


def partition_state_path(partition: TopicPartition) -> str:
    return f"{partition_path(partition)}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(broker_id: int) -> str:
    return f"{BROKER_CONFIGS}/{broker_id}"


def producer_name_path(name: str) -> str:
    return f"{PRODUCER_NAMES}/{name}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def parse_id(name: str) -> int:
    """The number in the name of a child of /brokers/ids or .../partitions. `01` is no second name of 1."""
    if not (name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name):
        raise CorruptZnode(f"{name!r:.80} is not a number")
    if int(name) > MAX_INT32:
        raise CorruptZnode(f"{name} is above {MAX_INT32}")
    return int(name)


def format_number(number: int) -> bytes:
    """Content of /controller_epoch."""
    return str(number).encode()


def parse_number(content: bytes, path: str = CONTROLLER_EPOCH) -> int:
    if not (content.isdigit() and len(content) <= 19):
        raise CorruptZnode(f"{path}: {content!r:.80} is not a number")
    if int(content) > EPOCH_MAX:
        raise CorruptZnode(
            f"{path}: {int(content)} is above {EPOCH_MAX}: write the last epoch that a broker has logged"
        )
    return int(content)


Z = TypeVar("Z", bound="Znode")


class Znode(msgspec.Struct, frozen=True, kw_only=True):
    """JSON of one kind of znode."""

    PATH: ClassVar[str] = ""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls: type[Z], content: bytes) -> Z:
        znode = decode_json(content, cls, cls.PATH, CorruptZnode)
        reason = znode.problem()
        if reason is not None:
            raise CorruptZnode(f"{cls.PATH}: {reason}")
        return znode

    def problem(self) -> str | None:
        """An error that the types alone do not exclude, in words."""
        return None


class BrokerRegistration(Znode, frozen=True, kw_only=True):
    """Identity and listeners of a live broker."""

    PATH: ClassVar[str] = "/brokers/ids/<id>"

    version: int = 5
    host: str
    port: int
    endpoints: list[str]
    """`NAME://host:port`, one per listener."""
    listener_security_protocol_map: dict[str, str]
    timestamp: str
    """Wall-clock ms of the registration, as text."""
    incarnation_id: str
    """Drawn at random by each start of the process (hardening rule 1)."""
    directory_id: str
    """Of the broker's log directory: reveals a wiped disk."""
    cluster_id: str = ""
    rack: str | None = None
    features: dict[str, Any] = {}
    jmx_port: int = -1

    def problem(self) -> str | None:
        if not 0 <= self.port <= 65535:
            return f"port {self.port}"
        if len(self.endpoints) > LISTENERS_MAX:
            return f"{len(self.endpoints)} endpoints, the limit is {LISTENERS_MAX}"
        for endpoint in self.endpoints:
            if parse_endpoint(endpoint) is None:
                return f"endpoint {endpoint!r:.200} is not NAME://host:port"
        for name in (self.incarnation_id, self.directory_id):
            if not name or not is_identifier(name):
                return f"id {name!r:.80}"
        return None

    def listeners(self) -> dict[str, tuple[str, int]]:
        """Host and port by listener name, in the order of `endpoints`."""
        found = (parse_endpoint(endpoint) for endpoint in self.endpoints)
        return {name: (host, port) for name, host, port in (each for each in found if each is not None)}


def format_endpoint(name: str, host: str, port: int) -> str:
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"


def parse_endpoint(endpoint: str) -> tuple[str, str, int] | None:
    """(listener, host, port) of `NAME://host:port` or `NAME://[v6]:port`; None when it is neither."""
    name, separator, address = endpoint.partition("://")
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    valid_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not (separator and colon and name and len(name) <= NAME_MAX_LENGTH and is_host(host) and valid_port):
        return None
    return name, host, int(port)


def _are_brokers(ids: list[int]) -> bool:
    """Whether these are legal broker ids, each once, and not more than a message can carry."""
    return 0 < len(ids) <= REPLICAS_MAX and len(set(ids)) == len(ids) and min(ids) >= 0 and max(ids) <= MAX_INT32


class TopicAssignment(Znode, frozen=True, kw_only=True):
    """The brokers that hold replicas of each partition, in order of preference."""

    PATH: ClassVar[str] = "/brokers/topics/<topic>"

    version: int = 3
    topic_id: str
    partitions: dict[str, list[int]]
    adding_replicas: dict[str, list[int]] = {}
    removing_replicas: dict[str, list[int]] = {}

    def problem(self) -> str | None:
        if not self.topic_id or not is_identifier(self.topic_id):
            return f"topic id {self.topic_id!r:.80}"
        if len(self.partitions) > PARTITIONS_MAX:
            return f"{len(self.partitions)} partitions, the limit is {PARTITIONS_MAX}"
        for partition, replicas in self.partitions.items():
            try:
                parse_id(partition)
            except CorruptZnode as error:
                return f"partition {error}"
            if not _are_brokers(replicas):
                return f"replicas {replicas!r:.200} of partition {partition}"
        return None

    def replicas(self) -> dict[int, tuple[int, ...]]:
        """Replicas by partition number, in order of number."""
        return {number: tuple(self.partitions[str(number)]) for number in sorted(map(int, self.partitions))}

    @classmethod
    def of(cls, topic_id: str, replicas: dict[int, tuple[int, ...]]) -> "TopicAssignment":
        return cls(topic_id=topic_id, partitions={str(number): list(replicas[number]) for number in sorted(replicas)})


class PartitionState(Znode, frozen=True, kw_only=True):
    """Leader, leader epoch and ISR of a partition. The znode's version is the partition epoch."""

    PATH: ClassVar[str] = "/brokers/topics/<topic>/partitions/<partition>/state"

    version: int = 1
    leader: int
    """-1: none."""
    leader_epoch: int
    controller_epoch: int
    isr: list[int]
    isr_incarnations: dict[str, str] = {}
    """Incarnation of each ISR member when it was last known to be in sync (hardening rule 1)."""
    isr_directories: dict[str, str] = {}
    """Log directory of each ISR member then: another one holds nothing of this partition (hardening rule 15)."""
    leader_recovery_state: int = 0
    """1 after an unclean election, until the leader reports that it has recovered."""
    topic_id: str = ""
    """Id of the partition's topic; empty: written by an earlier version."""

    def problem(self) -> str | None:
        epochs = (self.leader_epoch, self.controller_epoch)
        if self.leader < NO_LEADER or min(epochs) < 0 or max(epochs) > EPOCH_MAX:
            return f"leader {self.leader}, leader epoch {self.leader_epoch}, controller epoch {self.controller_epoch}"
        if not _are_brokers(self.isr):
            return f"ISR {self.isr!r:.200}"
        if self.leader != NO_LEADER and self.leader not in self.isr:
            return f"leader {self.leader} is not in the ISR {self.isr!r:.200}"
        return None


class ControllerNode(Znode, frozen=True, kw_only=True):
    """The broker that is the active controller."""

    PATH: ClassVar[str] = CONTROLLER

    version: int = 2
    brokerid: int
    timestamp: str
    incarnation_id: str = ""


class ClusterId(Znode, frozen=True, kw_only=True):
    """The id of this cluster, drawn at random once."""

    PATH: ClassVar[str] = CLUSTER_ID

    version: str = "1"
    id: str


class NotedChangesNode(Znode, frozen=True, kw_only=True):
    """How many changes of the cluster a broker has noted; its disk has the same count. Only that broker raises it."""

    PATH: ClassVar[str] = f"{NOTED_CHANGES}/<id>"

    version: int = 1
    changes: int

    def problem(self) -> str | None:
        return None if 0 <= self.changes < MAX_OFFSET else f"changes is {self.changes}"


class ClusterSecret(Znode, frozen=True, kw_only=True):
    """The secret with which brokers authenticate to each other, drawn at random once (`broker_authentication`)."""

    PATH: ClassVar[str] = CLUSTER_SECRET

    version: int = 1
    secret: str
    """32 bytes in hexadecimal."""

    def problem(self) -> str | None:
        is_hexadecimal = len(self.secret) == 2 * SECRET_BYTES and set(self.secret) <= set("0123456789abcdef")
        return None if is_hexadecimal else f"not {SECRET_BYTES} bytes in hexadecimal"

    def key(self) -> bytes:
        """The secret itself."""
        return bytes.fromhex(self.secret)


class ConfigNode(Znode, frozen=True, kw_only=True):
    """Settings of one topic or broker that differ from the defaults."""

    PATH: ClassVar[str] = "/config/<kind>/<name>"

    version: int = 1
    config: dict[str, str]

    def problem(self) -> str | None:
        if len(self.config) > CONFIGS_MAX:
            return f"{len(self.config)} settings, the limit is {CONFIGS_MAX}"
        for name, value in self.config.items():
            if len(name) > NAME_MAX_LENGTH or len(value) > TEXT_MAX:
                return f"setting {name!r:.80} is longer than a message can carry"
        return None


class ConfigChange(Znode, frozen=True, kw_only=True):
    """Notifies every broker of changed settings: of `topics/<t>` or `brokers/<id>`."""

    PATH: ClassVar[str] = "/config/changes/config_change_<n>"

    version: int = 2
    entity_path: str


class ProducerIdBlock(Znode, frozen=True, kw_only=True):
    """The last block of producer ids that was allocated; both ends are included, as text."""

    PATH: ClassVar[str] = PRODUCER_ID_BLOCK

    version: int = 1
    broker: int
    block_start: str
    block_end: str

    def problem(self) -> str | None:
        for text in (self.block_start, self.block_end):
            if not (text.isascii() and text.isdigit() and len(text) <= 19):
                return f"{text!r:.80} is not a number"
        if int(self.block_start) > int(self.block_end):
            return f"block {self.block_start} to {self.block_end}"
        return None


NO_PRODUCER = (-1, -1)
"""Neither id nor epoch."""


class ProducerNameNode(Znode, frozen=True, kw_only=True):
    """The producer id of a name, and its newest epoch."""

    PATH: ClassVar[str] = PRODUCER_NAMES

    version: int = 1
    producer_id: int
    producer_epoch: int
    replaced_id: int = -1
    """The identity that this epoch replaced, as the request named it: that of the process itself, or of the one before
    its start; -1: none, or the start of a client that names none."""
    replaced_epoch: int = -1
    process_token: str = ""
    """Of the process that has this epoch; empty: its client is of an earlier version, and names none."""
    changed_ms: int
    """Wall-clock ms of this epoch."""

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.producer_epoch

    @property
    def replaced(self) -> tuple[int, int]:
        return self.replaced_id, self.replaced_epoch

    def problem(self) -> str | None:
        if not (0 <= self.producer_id <= MAX_OFFSET and 0 <= self.producer_epoch <= PRODUCER_EPOCH_MAX):
            return f"producer {self.producer_id}, epoch {self.producer_epoch}"
        if not is_identifier(self.process_token):
            return f"process token {self.process_token!r:.80}"
        if not 0 <= self.changed_ms <= MAX_OFFSET:
            return f"changed_ms {self.changed_ms}"
        return None
