"""Every request and response of the wire: Kafka's APIs and field names in snake_case, plus one API of our own.

Owns: shapes, defaults and limits of messages. Each list, string and map has a maximum, because decoded msgpack may grow
seventy-fold (docs/FORMATS.md, Wire). Refuses to know how a message is framed (`session`), packed (`codec`) or answered.

In requests and responses -1 stands for 'none'. Fields that a sender leaves out take the defaults below, unknown fields
are ignored. Where a message carries record batches the field is the last one, and so is each list on the way to it:
the codec then writes a frame front to back without copying the records.

All structs are msgspec structs, frozen, built with keywords.
"""

from enum import IntEnum
from typing import Annotated

from msgspec import Meta, Struct

I16 = Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)]
I32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

TOPIC_NAME_MAX_LENGTH = 249
"""As in Kafka: the name must fit in a directory name beside '-' and the partition number."""
TOPICS_MAX = 10_000
"""Topics in one message. A broker of this size holds thousands of partitions, not millions."""
PARTITIONS_MAX = 10_000
"""Partitions of one topic in one message."""
REPLICAS_MAX = 100
BROKERS_MAX = 1_000
TEXT_MAX = 32_768
"""Longest free text (error messages, configuration values)."""

Topic = Annotated[str, Meta(max_length=TOPIC_NAME_MAX_LENGTH)]
Name = Annotated[str, Meta(max_length=512)]
Host = Annotated[str, Meta(max_length=255)]
Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Replicas = Annotated[list[I32], Meta(max_length=REPLICAS_MAX)]
Configs = Annotated[dict[Name, Text], Meta(max_length=500)]


class ApiKey(IntEnum):
    """What a request asks for; Kafka's numbers, ours from 1000 on."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION = 56
    DESCRIBE_CLUSTER = 60
    DESCRIBE_REPLICA_STATE = 1000


class Message(Struct, frozen=True, kw_only=True):
    """Base of everything that travels."""


class Request(Message, frozen=True, kw_only=True):
    """Body of a request."""


class Response(Message, frozen=True, kw_only=True):
    """Body of a response. A request that failed as a whole is answered with these two fields alone."""

    error_code: I16 = 0
    error_message: Text | None = None


class CurrentLeader(Message, frozen=True, kw_only=True):
    """Whom to ask instead (KIP-951)."""

    leader_id: I32 = -1
    leader_epoch: I32 = -1


# ---------------------------------------------------------------------------------------------------------- Produce
class ProducePartition(Message, frozen=True, kw_only=True):
    index: I32
    records: bytearray  # about: exactly one record batch; mutable, because the leader stamps offset and epoch in place


class ProduceTopic(Message, frozen=True, kw_only=True):
    name: Topic
    partition_data: Annotated[list[ProducePartition], Meta(max_length=PARTITIONS_MAX)]


class ProduceRequest(Request, frozen=True, kw_only=True):
    transactional_id: Name | None = None
    acks: I16 = -1  # about: -1 all in-sync replicas, 1 the leader, 0 no reply at all
    timeout_ms: I32 = 30_000  # about: how long the broker may wait for the in-sync replicas
    topic_data: Annotated[list[ProduceTopic], Meta(max_length=TOPICS_MAX)] = []


class ProducePartitionResponse(Message, frozen=True, kw_only=True):
    index: I32
    error_code: I16 = 0
    base_offset: I64 = -1
    log_append_time_ms: I64 = -1
    log_start_offset: I64 = -1
    error_message: Text | None = None
    current_leader: CurrentLeader | None = None
    leader_epoch: I32 = -1  # about: ours: the epoch the batch was stamped with


class ProduceTopicResponse(Message, frozen=True, kw_only=True):
    name: Topic
    partition_responses: Annotated[list[ProducePartitionResponse], Meta(max_length=PARTITIONS_MAX)]


class ProduceResponse(Response, frozen=True, kw_only=True):
    responses: Annotated[list[ProduceTopicResponse], Meta(max_length=TOPICS_MAX)] = []


# ------------------------------------------------------------------------------------------------------------ Fetch
class FetchPartition(Message, frozen=True, kw_only=True):
    partition: I32
    current_leader_epoch: I32 = -1  # about: the fence (KIP-320); -1 only from clients that do not know it
    fetch_offset: I64
    last_fetched_epoch: I32 = -1  # about: epoch of the last record held; the divergence check (KIP-595)
    log_start_offset: I64 = -1
    partition_max_bytes: I32 = 1_048_576


class FetchTopic(Message, frozen=True, kw_only=True):
    topic: Topic
    partitions: Annotated[list[FetchPartition], Meta(max_length=PARTITIONS_MAX)]


class ForgottenTopic(Message, frozen=True, kw_only=True):
    topic: Topic
    partitions: Annotated[list[I32], Meta(max_length=PARTITIONS_MAX)]


class FetchRequest(Request, frozen=True, kw_only=True):
    replica_id: I32 = -1  # about: -1 a consumer
    replica_epoch: I64 = -1  # about: broker epoch of the follower (KIP-903)
    max_wait_ms: I32 = 500
    min_bytes: I32 = 1
    max_bytes: I32 = 10_485_760
    isolation_level: I16 = 0
    session_id: I32 = (
        0  # about: 0 with epoch -1: no session; 0 with epoch 0: open one; else only what changed is listed
    )
    session_epoch: I32 = -1
    forgotten_topics_data: Annotated[list[ForgottenTopic], Meta(max_length=TOPICS_MAX)] = []
    topics: Annotated[list[FetchTopic], Meta(max_length=TOPICS_MAX)] = []


class EpochEndOffset(Message, frozen=True, kw_only=True):
    """The largest epoch known that is not above the asked one, and its exclusive end (KIP-279)."""

    epoch: I32 = -1
    end_offset: I64 = -1


class FetchPartitionResponse(Message, frozen=True, kw_only=True):
    partition_index: I32
    error_code: I16 = 0
    high_watermark: I64 = -1
    last_stable_offset: I64 = -1
    log_start_offset: I64 = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: CurrentLeader | None = None
    records: bytes = b""


class FetchTopicResponse(Message, frozen=True, kw_only=True):
    topic: Topic
    partitions: Annotated[list[FetchPartitionResponse], Meta(max_length=PARTITIONS_MAX)]


class FetchResponse(Response, frozen=True, kw_only=True):
    session_id: I32 = 0
    responses: Annotated[list[FetchTopicResponse], Meta(max_length=TOPICS_MAX)] = []


# ------------------------------------------------------------------------------------------------------ ListOffsets
LATEST_TIMESTAMP = -1
EARLIEST_TIMESTAMP = -2


class ListOffsetsPartition(Message, frozen=True, kw_only=True):
    partition_index: I32
    current_leader_epoch: I32 = -1
    timestamp: I64 = LATEST_TIMESTAMP  # about: -1 latest (the high watermark), -2 earliest, else first record not older


class ListOffsetsTopic(Message, frozen=True, kw_only=True):
    name: Topic
    partitions: Annotated[list[ListOffsetsPartition], Meta(max_length=PARTITIONS_MAX)]


class ListOffsetsRequest(Request, frozen=True, kw_only=True):
    replica_id: I32 = -1  # about: a follower's 'latest' is the log end offset, a consumer's the high watermark
    isolation_level: I16 = 0
    topics: Annotated[list[ListOffsetsTopic], Meta(max_length=TOPICS_MAX)] = []


class ListOffsetsPartitionResponse(Message, frozen=True, kw_only=True):
    partition_index: I32
    error_code: I16 = 0
    error_message: Text | None = None
    timestamp: I64 = -1
    offset: I64 = -1  # about: -1 with no error: no record is that young
    leader_epoch: I32 = -1
    current_leader: CurrentLeader | None = None


class ListOffsetsTopicResponse(Message, frozen=True, kw_only=True):
    name: Topic
    partitions: Annotated[list[ListOffsetsPartitionResponse], Meta(max_length=PARTITIONS_MAX)]


class ListOffsetsResponse(Response, frozen=True, kw_only=True):
    topics: Annotated[list[ListOffsetsTopicResponse], Meta(max_length=TOPICS_MAX)] = []


# --------------------------------------------------------------------------------------------------------- Metadata
class MetadataRequestTopic(Message, frozen=True, kw_only=True):
    name: Topic


class MetadataRequest(Request, frozen=True, kw_only=True):
    topics: Annotated[list[MetadataRequestTopic], Meta(max_length=TOPICS_MAX)] | None = None  # about: None: all


class MetadataBroker(Message, frozen=True, kw_only=True):
    node_id: I32
    host: Host
    port: I32


class MetadataPartition(Message, frozen=True, kw_only=True):
    error_code: I16 = 0
    partition_index: I32
    leader_id: I32 = -1
    leader_epoch: I32 = -1
    replica_nodes: Replicas = []
    isr_nodes: Replicas = []
    offline_replicas: Replicas = []


class MetadataTopic(Message, frozen=True, kw_only=True):
    error_code: I16 = 0
    name: Topic
    topic_id: Name = ""
    partitions: Annotated[list[MetadataPartition], Meta(max_length=PARTITIONS_MAX)] = []


class MetadataResponse(Response, frozen=True, kw_only=True):
    brokers: Annotated[list[MetadataBroker], Meta(max_length=BROKERS_MAX)] = []
    cluster_id: Name = ""
    controller_id: I32 = -1
    topics: Annotated[list[MetadataTopic], Meta(max_length=TOPICS_MAX)] = []


# ------------------------------------------------------------------------------------------------------ ApiVersions
class ApiVersionsRequest(Request, frozen=True, kw_only=True):
    client_software_name: Name = ""
    client_software_version: Name = ""


class ApiVersion(Message, frozen=True, kw_only=True):
    api_key: I16
    min_version: I16 = 0
    max_version: I16 = 0


class ApiVersionsResponse(Response, frozen=True, kw_only=True):
    api_keys: Annotated[list[ApiVersion], Meta(max_length=200)] = []
    broker_software_version: Name = ""  # about: ours


# --------------------------------------------------------------------------------------------- OffsetForLeaderEpoch
class OffsetForLeaderPartition(Message, frozen=True, kw_only=True):
    partition: I32
    current_leader_epoch: I32 = -1
    leader_epoch: I32  # about: the epoch whose end is asked


class OffsetForLeaderTopic(Message, frozen=True, kw_only=True):
    topic: Topic
    partitions: Annotated[list[OffsetForLeaderPartition], Meta(max_length=PARTITIONS_MAX)]


class OffsetForLeaderEpochRequest(Request, frozen=True, kw_only=True):
    replica_id: I32 = -1
    topics: Annotated[list[OffsetForLeaderTopic], Meta(max_length=TOPICS_MAX)] = []


class OffsetForLeaderPartitionResponse(Message, frozen=True, kw_only=True):
    error_code: I16 = 0
    partition: I32
    leader_epoch: I32 = -1
    end_offset: I64 = -1


class OffsetForLeaderTopicResponse(Message, frozen=True, kw_only=True):
    topic: Topic
    partitions: Annotated[list[OffsetForLeaderPartitionResponse], Meta(max_length=PARTITIONS_MAX)]


class OffsetForLeaderEpochResponse(Response, frozen=True, kw_only=True):
    topics: Annotated[list[OffsetForLeaderTopicResponse], Meta(max_length=TOPICS_MAX)] = []


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


# --------------------------------------------------------------------------------------------------- InitProducerId
class InitProducerIdRequest(Request, frozen=True, kw_only=True):
    transactional_id: Name | None = None
    producer_id: I64 = -1  # about: with producer_epoch: the same producer asks for its next epoch (KIP-360)
    producer_epoch: I16 = -1


class InitProducerIdResponse(Response, frozen=True, kw_only=True):
    producer_id: I64 = -1
    producer_epoch: I16 = -1


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


# -------------------------------------------------------------------------------------------------- DescribeCluster
class DescribeClusterRequest(Request, frozen=True, kw_only=True):
    pass


class DescribeClusterBroker(Message, frozen=True, kw_only=True):
    broker_id: I32
    host: Host
    port: I32
    broker_epoch: I64 = -1


class DescribeClusterResponse(Response, frozen=True, kw_only=True):
    cluster_id: Name = ""
    controller_id: I32 = -1
    controller_epoch: I32 = -1
    brokers: Annotated[list[DescribeClusterBroker], Meta(max_length=BROKERS_MAX)] = []


# ---------------------------------------------------------------------------------------- from controller to broker
class LeaderAndIsrPartition(Message, frozen=True, kw_only=True):
    partition_index: I32
    controller_epoch: I32
    leader: I32
    leader_epoch: I32
    isr: Replicas
    partition_epoch: I32
    replicas: Replicas
    is_new: bool = False
    leader_recovery_state: I16 = 0  # about: 0 recovered, 1 recovering from an unclean election


class LeaderAndIsrTopic(Message, frozen=True, kw_only=True):
    topic_name: Topic
    topic_id: Name
    configs: Configs = {}  # about: ours: the topic's own settings, so that a new log never starts with the wrong ones
    partition_states: Annotated[list[LeaderAndIsrPartition], Meta(max_length=PARTITIONS_MAX)]


class BrokerEndpoint(Message, frozen=True, kw_only=True):
    listener: Name
    host: Host
    port: I32


class LiveBroker(Message, frozen=True, kw_only=True):
    id: I32
    broker_epoch: I64
    shutting_down: bool = False  # about: in a controlled shutdown: must not join an ISR (KIP-841)
    endpoints: Annotated[list[BrokerEndpoint], Meta(max_length=16)] = []


class LeaderAndIsrRequest(Request, frozen=True, kw_only=True):
    controller_id: I32
    controller_epoch: I32
    broker_epoch: I64
    live_brokers: Annotated[list[LiveBroker], Meta(max_length=BROKERS_MAX)] = []
    topic_states: Annotated[list[LeaderAndIsrTopic], Meta(max_length=TOPICS_MAX)] = []


class PartitionError(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partition_index: I32
    error_code: I16 = 0


class LeaderAndIsrResponse(Response, frozen=True, kw_only=True):
    partition_errors: Annotated[list[PartitionError], Meta(max_length=PARTITIONS_MAX)] = []


class UpdateMetadataPartition(Message, frozen=True, kw_only=True):
    partition_index: I32
    controller_epoch: I32
    leader: I32  # about: -1 none, -2 the partition is being deleted
    leader_epoch: I32
    isr: Replicas
    partition_epoch: I32
    replicas: Replicas
    offline_replicas: Replicas = []


class UpdateMetadataTopic(Message, frozen=True, kw_only=True):
    topic_name: Topic
    topic_id: Name
    configs: Configs = {}
    partition_states: Annotated[list[UpdateMetadataPartition], Meta(max_length=PARTITIONS_MAX)]


class UpdateMetadataRequest(Request, frozen=True, kw_only=True):
    controller_id: I32
    controller_epoch: I32
    broker_epoch: I64
    live_brokers: Annotated[list[LiveBroker], Meta(max_length=BROKERS_MAX)] = []
    topic_states: Annotated[list[UpdateMetadataTopic], Meta(max_length=TOPICS_MAX)] = []


class UpdateMetadataResponse(Response, frozen=True, kw_only=True):
    pass


LEADER_EPOCH_DURING_DELETE = -2
"""leader_epoch of a StopReplica that deletes the topic: above every check (KIP-570)."""
LEADER_DURING_DELETE = -2


class StopReplicaPartition(Message, frozen=True, kw_only=True):
    partition_index: I32
    leader_epoch: I32
    delete_partition: bool = False


class StopReplicaTopic(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partition_states: Annotated[list[StopReplicaPartition], Meta(max_length=PARTITIONS_MAX)]


class StopReplicaRequest(Request, frozen=True, kw_only=True):
    controller_id: I32
    controller_epoch: I32
    broker_epoch: I64
    topic_states: Annotated[list[StopReplicaTopic], Meta(max_length=TOPICS_MAX)] = []


class StopReplicaResponse(Response, frozen=True, kw_only=True):
    partition_errors: Annotated[list[PartitionError], Meta(max_length=PARTITIONS_MAX)] = []


# ---------------------------------------------------------------------------------------- from broker to controller
class TopicPartitions(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partitions: Annotated[list[I32], Meta(max_length=PARTITIONS_MAX)]


class ControlledShutdownRequest(Request, frozen=True, kw_only=True):
    broker_id: I32
    broker_epoch: I64
    # about: None: the broker stops. Else the whole set of its replicas that are offline now (a failed or full log
    # directory); an empty list offers all of them again (hardening rule 13).
    offline_partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_MAX)] | None = None


class ControlledShutdownResponse(Response, frozen=True, kw_only=True):
    remaining_partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_MAX)] = []


class BrokerState(Message, frozen=True, kw_only=True):
    broker_id: I32
    broker_epoch: I64


class AlterPartitionData(Message, frozen=True, kw_only=True):
    partition_index: I32
    leader_epoch: I32
    new_isr_with_epochs: Annotated[list[BrokerState], Meta(max_length=REPLICAS_MAX)]
    leader_recovery_state: I16 = 0
    partition_epoch: I32


class AlterPartitionTopic(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partitions: Annotated[list[AlterPartitionData], Meta(max_length=PARTITIONS_MAX)]


class AlterPartitionRequest(Request, frozen=True, kw_only=True):
    broker_id: I32
    broker_epoch: I64
    topics: Annotated[list[AlterPartitionTopic], Meta(max_length=TOPICS_MAX)] = []


class AlterPartitionResult(Message, frozen=True, kw_only=True):
    partition_index: I32
    error_code: I16 = 0
    leader_id: I32 = -1
    leader_epoch: I32 = -1
    isr: Replicas = []
    leader_recovery_state: I16 = 0
    partition_epoch: I32 = -1


class AlterPartitionTopicResponse(Message, frozen=True, kw_only=True):
    topic_name: Topic
    partitions: Annotated[list[AlterPartitionResult], Meta(max_length=PARTITIONS_MAX)]


class AlterPartitionResponse(Response, frozen=True, kw_only=True):
    topics: Annotated[list[AlterPartitionTopicResponse], Meta(max_length=TOPICS_MAX)] = []


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


class EpochEntry(Message, frozen=True, kw_only=True):
    epoch: I32
    start_offset: I64


class ReplicaStateDescription(Message, frozen=True, kw_only=True):
    """One local replica, as this broker sees it at this moment."""

    partition: I32
    role: Name  # about: 'leader', 'follower', 'none' (no leader known), 'offline' (its log directory failed)
    leader_id: I32 = -1
    leader_epoch: I32 = -1
    partition_epoch: I32 = -1
    log_start_offset: I64 = 0
    log_end_offset: I64 = 0
    synced_end_offset: I64 = 0  # about: survives power loss
    high_watermark: I64 = 0
    leader_epoch_start: I64 = -1
    epoch_history: Annotated[list[EpochEntry], Meta(max_length=100_000)] = []
    assignment: Replicas = []
    in_sync_replicas: Replicas = []
    maximal_in_sync_replicas: Replicas = []
    isr_state: Name = "committed"  # about: 'committed', 'pending-expand', 'pending-shrink'
    min_insync_replicas: I32 = 1
    remotes: Annotated[list[RemoteReplicaState], Meta(max_length=REPLICAS_MAX)] = []
    size_bytes: I64 = 0
    segment_count: I32 = 0
    waiting_produce_requests: I32 = 0


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


class Api(Struct, frozen=True):
    """One row of the table of APIs; all of them are at version 0."""

    key: ApiKey
    request: type[Request]
    response: type[Response]


APIS: dict[int, Api] = {
    api.key.value: api
    for api in (
        Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse),
        Api(ApiKey.FETCH, FetchRequest, FetchResponse),
        Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
        Api(ApiKey.METADATA, MetadataRequest, MetadataResponse),
        Api(ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest, LeaderAndIsrResponse),
        Api(ApiKey.STOP_REPLICA, StopReplicaRequest, StopReplicaResponse),
        Api(ApiKey.UPDATE_METADATA, UpdateMetadataRequest, UpdateMetadataResponse),
        Api(ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownRequest, ControlledShutdownResponse),
        Api(ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse),
        Api(ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
        Api(ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
        Api(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        Api(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
        Api(ApiKey.ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse),
        Api(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest, DescribeClusterResponse),
        Api(ApiKey.DESCRIBE_REPLICA_STATE, DescribeReplicaStateRequest, DescribeReplicaStateResponse),
    )
}
API_OF_REQUEST: dict[type[Request], Api] = {api.request: api for api in APIS.values()}
