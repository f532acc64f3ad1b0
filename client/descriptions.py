"""The administration client's arguments and results: plain values, and their conversion to and from messages. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from minibroker.client.errors import InvalidCall, MinibrokerError
from minibroker.client.limits import check_at_least
from minibroker.client.metadata_cache import Address
from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.ids import BrokerId, LeaderEpoch, TopicPartition, from_wire, to_wire
from minibroker.protocol.wire.messages import (
    ConfigSource,
    CreatableAssignment,
    CreatableTopic,
    DescribedConfig,
    DescribeReplicaStateResponse,
    ListedProducerName,
    MetadataTopic,
    ReplicaStateDescription,
    ResourceType,
)


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to be created. None: the cluster's default."""

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] = {}
    assignment: Mapping[int, Sequence[BrokerId]] | None = None
    """Instead of the two numbers: partition -> brokers, the preferred leader first."""


class CreatedTopic(msgspec.Struct, frozen=True):
    name: str
    topic_id: str
    partitions: int
    replication_factor: int


class PartitionDescription(msgspec.Struct, frozen=True):
    partition: int
    leader: BrokerId | None
    leader_epoch: LeaderEpoch | None
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline: tuple[BrokerId, ...]
    error: ErrorCode


class TopicDescription(msgspec.Struct, frozen=True):
    name: str
    topic_id: str
    partitions: list[PartitionDescription]

    @property
    def replication_factor(self) -> int:
        """The most replicas of a partition."""
        return max((len(partition.replicas) for partition in self.partitions), default=0)


class ProducerNameDescription(msgspec.Struct, frozen=True):
    """A name that producers were given."""

    name: str
    producer_id: int | None
    producer_epoch: int | None
    """The newest: of the process that started last under this name."""
    changed_ms: int | None
    """Wall-clock ms at which it got this epoch: of its start, mostly."""
    error: str | None = None
    """Why its node in ZooKeeper cannot be read; the other fields are None then."""


class BrokerDescription(msgspec.Struct, frozen=True):
    broker_id: BrokerId
    address: Address
    broker_epoch: int | None


class ClusterDescription(msgspec.Struct, frozen=True):
    cluster_id: str
    controller_id: BrokerId | None
    controller_epoch: int | None
    brokers: list[BrokerDescription]


class ConfigEntry(msgspec.Struct, frozen=True):
    name: str
    value: str | None
    source: str
    read_only: bool
    sensitive: bool
    documentation: str


class BrokerReplicas(msgspec.Struct, frozen=True):
    """One broker's report on its replicas; `error` instead if it did not answer."""

    broker_id: BrokerId
    error: MinibrokerError | None = None
    broker_epoch: int | None = None
    incarnation_id: str = ""
    fenced: bool = False
    controller_id: BrokerId | None = None
    controller_epoch: int | None = None
    replicas: dict[TopicPartition, ReplicaStateDescription] = {}


def creatable(topic: NewTopic) -> CreatableTopic:
    """Raises InvalidCall."""
    if not isinstance(topic, NewTopic):
        raise InvalidCall(f"{topic!r:.80} is no topic to create: give NewTopic(name, partitions, replication_factor)")
    for name, number in (("partitions", topic.partitions), ("replication_factor", topic.replication_factor)):
        if number is not None:
            check_at_least(1, **{name: number})
            if topic.assignment is not None:
                raise InvalidCall(f"topic {topic.name!r}: give {name} or an assignment, not both")
    assignments = [
        CreatableAssignment(partition_index=partition, broker_ids=list(brokers))
        for partition, brokers in sorted((topic.assignment or {}).items())
    ]
    return CreatableTopic(
        name=topic.name,
        num_partitions=to_wire(topic.partitions),
        replication_factor=to_wire(topic.replication_factor),
        assignments=assignments,
        configs={str(key): setting_text(value) for key, value in topic.configs.items()},
    )


def setting_text(value: object) -> str:
    """A setting's value as brokers read it. Numbers and truth values are understood, too."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def resource_of(topic: str | None, broker_id: BrokerId | None) -> tuple[ResourceType, str]:
    if topic is not None and broker_id is None:
        return ResourceType.TOPIC, topic
    if broker_id is not None and topic is None:
        return ResourceType.BROKER, str(broker_id)
    raise InvalidCall("give topic= or broker_id=, one of them")


def _source_name(source: int) -> str:
    try:
        return ConfigSource(source).name.lower().replace("_", "-")
    except ValueError:
        return f"source-{source}"


def topic_description(topic: MetadataTopic) -> TopicDescription:
    """From a Metadata answer."""
    partitions = [
        PartitionDescription(
            partition.partition_index,
            from_wire(partition.leader_id),
            from_wire(partition.leader_epoch),
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
            tuple(partition.offline_replicas),
            error_code(partition.error_code),
        )
        for partition in sorted(topic.partitions, key=lambda partition: partition.partition_index)
    ]
    return TopicDescription(topic.name, topic.topic_id, partitions)


def producer_name_description(listed: ListedProducerName) -> ProducerNameDescription:
    """From a ListProducerNames answer."""
    return ProducerNameDescription(
        listed.name,
        from_wire(listed.producer_id),
        from_wire(listed.producer_epoch),
        from_wire(listed.changed_ms),
        listed.error,
    )


def config_entry(config: DescribedConfig) -> ConfigEntry:
    """From a DescribeConfigs answer."""
    return ConfigEntry(
        config.name,
        config.value,
        _source_name(config.config_source),
        config.read_only,
        config.is_sensitive,
        config.documentation,
    )


def broker_replicas(broker_id: BrokerId, reply: DescribeReplicaStateResponse) -> BrokerReplicas:
    """From a DescribeReplicaState answer."""
    return BrokerReplicas(
        broker_id,
        broker_epoch=from_wire(reply.broker_epoch),
        incarnation_id=reply.incarnation_id,
        fenced=reply.fenced,
        controller_id=from_wire(reply.controller_id),
        controller_epoch=from_wire(reply.controller_epoch),
        replicas={
            TopicPartition(topic.topic, replica.partition): replica
            for topic in reply.topics
            for replica in topic.partitions
        },
    )
