"""Requests of administrators: topics, settings, and the state of cluster and replicas. Shapes and defaults.

Owns: CreateTopics, DeleteTopics, DescribeConfigs, IncrementalAlterConfigs, ElectLeaders, DescribeCluster,
DescribeEvents, DescribeReplicaState. Import from `messages`.
"""
# ruff: noqa: RUF012 - msgspec gives every struct its own copy of a default list or map

from enum import IntEnum
from typing import Annotated

from msgspec import Meta

from minibroker.protocol.wire.message_types import (
    BROKERS_MAX,
    I16,
    I32,
    I64,
    PARTITIONS_MAX,
    PRODUCER_NAMES_MAX,
    REPLICAS_MAX,
    TOPICS_MAX,
    Configs,
    Host,
    Message,
    Name,
    Replicas,
    Request,
    Response,
    Text,
    Topic,
)


# ---------------------------------------------------------------------------------------------- CreateTopics, Delete
class CreatableAssignment(Message, frozen=True, kw_only=True):
    partition_index: I32
    broker_ids: Replicas


class CreatableTopic(Message, frozen=True, kw_only=True):
    name: Topic
    num_partitions: I32 = -1  # about: -1: the broker's num.partitions
    replication_factor: I16 = -1  # about: -1: the broker's default.replication.factor
    assignments: Annotated[list[CreatableAssignment], Meta(max_length=PARTITIONS_MAX)] = []
    configs: Configs = {}


class CreateTopicsRequest(Request, frozen=True, kw_only=True):
    topics: Annotated[list[CreatableTopic], Meta(max_length=TOPICS_MAX)] = []
    timeout_ms: I32 = 30_000
    validate_only: bool = False


class CreatableTopicResult(Message, frozen=True, kw_only=True):
    name: Topic
    topic_id: Name = ""
    error_code: I16 = 0
    error_message: Text | None = None
    num_partitions: I32 = -1
    replication_factor: I16 = -1


class CreateTopicsResponse(Response, frozen=True, kw_only=True):
    topics: Annotated[list[CreatableTopicResult], Meta(max_length=TOPICS_MAX)] = []


class DeleteTopicsRequest(Request, frozen=True, kw_only=True):
    topic_names: Annotated[list[Topic], Meta(max_length=TOPICS_MAX)] = []
    timeout_ms: I32 = 30_000


class DeletableTopicResult(Message, frozen=True, kw_only=True):
    name: Topic
    error_code: I16 = 0
    error_message: Text | None = None


class DeleteTopicsResponse(Response, frozen=True, kw_only=True):
    responses: Annotated[list[DeletableTopicResult], Meta(max_length=TOPICS_MAX)] = []


# ---------------------------------------------------------------------------------------------------------- Configs
class ResourceType(IntEnum):
    TOPIC = 2
    BROKER = 4


class ConfigSource(IntEnum):
    """Where a value came from; Kafka's numbers."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigOperation(IntEnum):
    SET = 0
    DELETE = 1


class DescribeConfigsResource(Message, frozen=True, kw_only=True):
    resource_type: I16
    resource_name: Topic
    configuration_keys: Annotated[list[Name], Meta(max_length=500)] | None = None


class DescribeConfigsRequest(Request, frozen=True, kw_only=True):
    resources: Annotated[list[DescribeConfigsResource], Meta(max_length=TOPICS_MAX)] = []


class DescribedConfig(Message, frozen=True, kw_only=True):
    name: Name
    value: Text | None = None
    read_only: bool = False
    config_source: I16 = int(ConfigSource.DEFAULT)
    is_sensitive: bool = False
    documentation: Text = ""


class DescribeConfigsResult(Message, frozen=True, kw_only=True):
    error_code: I16 = 0
    error_message: Text | None = None
    resource_type: I16
    resource_name: Topic
    configs: Annotated[list[DescribedConfig], Meta(max_length=500)] = []


class DescribeConfigsResponse(Response, frozen=True, kw_only=True):
    results: Annotated[list[DescribeConfigsResult], Meta(max_length=TOPICS_MAX)] = []


class AlterableConfig(Message, frozen=True, kw_only=True):
    name: Name
    config_operation: I16 = int(ConfigOperation.SET)
    value: Text | None = None


class AlterConfigsResource(Message, frozen=True, kw_only=True):
    resource_type: I16
    resource_name: Topic
    configs: Annotated[list[AlterableConfig], Meta(max_length=500)] = []


class IncrementalAlterConfigsRequest(Request, frozen=True, kw_only=True):
    resources: Annotated[list[AlterConfigsResource], Meta(max_length=TOPICS_MAX)] = []
    validate_only: bool = False


class AlterConfigsResult(Message, frozen=True, kw_only=True):
    error_code: I16 = 0
    error_message: Text | None = None
    resource_type: I16
    resource_name: Topic


class IncrementalAlterConfigsResponse(Response, frozen=True, kw_only=True):
    responses: Annotated[list[AlterConfigsResult], Meta(max_length=TOPICS_MAX)] = []


# ----------------------------------------------------------------------------------------------------- ElectLeaders
class ElectLeadersTopic(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partitions: Annotated[list[I32], Meta(max_length=PARTITIONS_MAX)]


class ConfirmedElection(Message, frozen=True, kw_only=True):
    """The election of one partition that an operator accepts: the leader of a preview, and what it held."""

    topic_name: Topic
    partition_index: I32
    leader: I32
    leader_epoch: I32  # about: of the partition, without a leader
    log_end_offset: I64
    last_epoch: I32


class ElectLeadersRequest(Request, frozen=True, kw_only=True):
    """Only for partitions without a leader, and with a loss that an operator accepts."""

    topics: Annotated[list[ElectLeadersTopic], Meta(max_length=TOPICS_MAX)] | None = None  # about: None: all
    leader: I32 = -1  # about: ours: elect this broker; -1: the one with the largest log
    # about: ours: elect these, each only if the preview still holds; empty: elect no leader, answer with the preview
    confirmed: Annotated[list[ConfirmedElection], Meta(max_length=PARTITIONS_MAX)] = []
    timeout_ms: I32 = 30_000


class ElectionCandidate(Message, frozen=True, kw_only=True):
    """One replica of a partition without a leader."""

    broker_id: I32
    is_in_sync: bool = False  # about: a member of the last ISR: it held all acknowledged records
    is_on_its_directory: bool = True  # about: false: it has another log directory than when it was in sync
    problem: Text | None = None  # about: why it cannot lead now; nil: it can
    log_start_offset: I64 = 0
    log_end_offset: I64 = 0
    last_epoch: I32 = -1  # about: leader epoch of its last record


class ElectionPreview(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partition_index: I32
    error_code: I16 = 0
    error_message: Text | None = None
    leader_epoch: I32 = -1
    isr: Replicas = []
    waits_for: Replicas = []  # about: brokers that a clean election waits for
    reason: Text = ""  # about: why there is no leader
    candidates: Annotated[list[ElectionCandidate], Meta(max_length=REPLICAS_MAX)] = []
    chosen: I32 = -1  # about: the leader now, or the one to be; -1: none can lead


def confirmation_of(preview: ElectionPreview) -> ConfirmedElection:
    """The part that an order repeats of a preview in which a replica can be elected."""
    chosen = next(each for each in preview.candidates if each.broker_id == preview.chosen)
    return ConfirmedElection(
        topic_name=preview.topic_name,
        partition_index=preview.partition_index,
        leader=preview.chosen,
        leader_epoch=preview.leader_epoch,
        log_end_offset=chosen.log_end_offset,
        last_epoch=chosen.last_epoch,
    )


class ElectLeadersResponse(Response, frozen=True, kw_only=True):
    partitions: Annotated[list[ElectionPreview], Meta(max_length=PARTITIONS_MAX)] = []


# -------------------------------------------------------------------------------------------------- DescribeCluster
class DescribeClusterRequest(Request, frozen=True, kw_only=True):
    pass


class DescribeClusterBroker(Message, frozen=True, kw_only=True):
    broker_id: I32
    host: Host
    port: I32
    broker_epoch: I64 = -1


IGNORED_NODES_MAX = 100
"""Znodes in one answer. There may be any number of them, and an operator begins with the first."""


class IgnoredNode(Message, frozen=True, kw_only=True):
    """A znode that the controller cannot parse, or that holds impossible values."""

    path: Text
    reason: Text


TOPIC_DELETIONS_MAX = 1_000
"""Deletions in one answer: few wait at a time."""


class TopicDeletion(Message, frozen=True, kw_only=True):
    """A topic that is marked for deletion, and still there."""

    topic: Name
    reason: Text  # about: what the deletion waits for, as a sentence


class DescribeClusterResponse(Response, frozen=True, kw_only=True):
    cluster_id: Name = ""
    controller_id: I32 = -1
    controller_epoch: I32 = -1
    brokers: Annotated[list[DescribeClusterBroker], Meta(max_length=BROKERS_MAX)] = []
    # about: ours: znodes that count as missing; only the controller lists them
    ignored_nodes: Annotated[list[IgnoredNode], Meta(max_length=IGNORED_NODES_MAX)] = []
    # about: ours: topics that are marked for deletion; only the controller lists them
    topic_deletions: Annotated[list[TopicDeletion], Meta(max_length=TOPIC_DELETIONS_MAX)] = []


# --------------------------------------------------------------------------------------------------- DescribeEvents
class DescribeEventsRequest(Request, frozen=True, kw_only=True):
    first_number: I64 = 0
    max_events: I32 = 500


class ReportedEvent(Message, frozen=True, kw_only=True):
    """One event of `protocol/events/cluster_events.py`."""

    number: I64
    at_ms: I64
    content: Text  # about: a JSON object: 'event' (its name), its fields, 'level', 'text' (its sentence)


class DescribeEventsResponse(Response, frozen=True, kw_only=True):
    broker_id: I32 = -1
    incarnation_id: Name = ""  # about: another one: the broker was started again, and counts from 0
    first_number: I64 = 0  # about: of the oldest event that is kept
    next_number: I64 = 0  # about: to ask for next
    events: Annotated[list[ReportedEvent], Meta(max_length=1_000)] = []


# ---------------------------------------------------------------------------------------------------- Producer names
class ListedProducerName(Message, frozen=True, kw_only=True):
    """One name of a producer (`InitProducerIdRequest.transactional_id`)."""

    name: Name
    producer_id: I64 = -1
    producer_epoch: I16 = -1  # about: the newest of the name
    changed_ms: I64 = -1  # about: when it got this epoch: wall-clock ms of the broker that gave it
    error: Text | None = None  # about: its node in ZooKeeper cannot be read


class ListProducerNamesRequest(Request, frozen=True, kw_only=True):
    pass


class ListProducerNamesResponse(Response, frozen=True, kw_only=True):
    names: Annotated[list[ListedProducerName], Meta(max_length=PRODUCER_NAMES_MAX)] = []


class DeleteProducerNamesRequest(Request, frozen=True, kw_only=True):
    names: Annotated[list[Name], Meta(max_length=PRODUCER_NAMES_MAX)] = []


class DeletedProducerName(Message, frozen=True, kw_only=True):
    name: Name
    error_code: I16 = 0
    error_message: Text | None = None


class DeleteProducerNamesResponse(Response, frozen=True, kw_only=True):
    responses: Annotated[list[DeletedProducerName], Meta(max_length=PRODUCER_NAMES_MAX)] = []


# --------------------------------------------------------------------------------------------- DescribeReplicaState
class DescribeReplicaStateRequest(Request, frozen=True, kw_only=True):
    topics: Annotated[list[Topic], Meta(max_length=TOPICS_MAX)] | None = None  # about: None: all


class RemoteReplicaState(Message, frozen=True, kw_only=True):
    """What a leader knows of one follower."""

    replica_id: I32
    broker_epoch: I64 = -1
    log_end_offset: I64 = -1  # about: -1: has not fetched in this leader epoch
    lag: I64 = -1
    last_caught_up_ago_ms: I64 = -1


class DescribedEpoch(Message, frozen=True, kw_only=True):
    epoch: I32
    start_offset: I64


class ReplicaStateDescription(Message, frozen=True, kw_only=True):
    """One local replica, as this broker knows it at this moment."""

    partition: I32
    role: Name  # about: 'leader', 'follower', 'none' (no leader known), 'offline' (see why_offline)
    leader_id: I32 = -1
    leader_epoch: I32 = -1
    partition_epoch: I32 = -1
    log_start_offset: I64 = 0
    log_end_offset: I64 = 0
    synced_end_offset: I64 = 0  # about: survives power loss
    high_watermark: I64 = 0
    leader_epoch_start: I64 = -1
    epoch_history: Annotated[list[DescribedEpoch], Meta(max_length=100_000)] = []
    assignment: Replicas = []
    in_sync_replicas: Replicas = []
    maximal_in_sync_replicas: Replicas = []
    isr_state: Name = "committed"  # about: 'committed', 'pending-expand', 'pending-shrink'
    min_insync_replicas: I32 = 1
    remotes: Annotated[list[RemoteReplicaState], Meta(max_length=REPLICAS_MAX)] = []
    size_bytes: I64 = 0
    segment_count: I32 = 0
    waiting_produce_requests: I32 = 0
    why_offline: Text | None = None  # about: its log directory failed or is full, or its log is damaged
    damage: Text | None = None  # about: of its log; the only in-sync replica leads on, and refuses that range


class DescribedReplicaTopic(Message, frozen=True, kw_only=True):
    topic: Topic
    partitions: Annotated[list[ReplicaStateDescription], Meta(max_length=PARTITIONS_MAX)]


class DescribeReplicaStateResponse(Response, frozen=True, kw_only=True):
    broker_id: I32 = -1
    broker_epoch: I64 = -1
    incarnation_id: Name = ""
    fenced: bool = False  # about: past its ZooKeeper deadline (or not registered): it serves nothing
    controller_id: I32 = -1
    controller_epoch: I32 = -1
    topics: Annotated[list[DescribedReplicaTopic], Meta(max_length=TOPICS_MAX)] = []
    log_directory: Name = "online"  # about: 'online', 'full' (heals with room), 'offline' (until the broker restarts)
    log_directory_reason: Text | None = None
