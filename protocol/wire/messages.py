"""Every request and response of the wire: Kafka's APIs and field names in snake_case, plus three APIs of our own.

Owns: the table of APIs with their access rights, and the one import path for all messages; their shapes are in
`client_messages`, `admin_messages`, `control_messages` and `authentication_messages`, their limits in `message_types`.
Leaves to others: how a message is framed (`framing`), packed (`codec`) and answered. docs/QUESTIONS.md lists the steps
that add an API.

In requests and responses -1 stands for 'none'. Fields that a sender leaves out take the defaults of the struct, unknown
fields are ignored. Where a message carries record batches the field is the last one, and so is each list on the way to
it: the codec then writes a frame front to back without copying the records.

All structs are msgspec structs, frozen, built with keywords.
"""

from enum import IntEnum

from msgspec import Struct

from minibroker.protocol.wire.admin_messages import (
    IGNORED_NODES_MAX,
    TOPIC_DELETIONS_MAX,
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResult,
    ConfigOperation,
    ConfigSource,
    ConfirmedElection,
    CreatableAssignment,
    CreatableTopic,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeletedProducerName,
    DeleteProducerNamesRequest,
    DeleteProducerNamesResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribedConfig,
    DescribedEpoch,
    DescribedReplicaTopic,
    DescribeEventsRequest,
    DescribeEventsResponse,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    ElectionCandidate,
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    IgnoredNode,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListedProducerName,
    ListProducerNamesRequest,
    ListProducerNamesResponse,
    RemoteReplicaState,
    ReplicaStateDescription,
    ReportedEvent,
    ResourceType,
    TopicDeletion,
    confirmation_of,
)
from minibroker.protocol.wire.authentication_messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from minibroker.protocol.wire.client_messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    CurrentLeader,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResponse,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from minibroker.protocol.wire.control_messages import (
    LEADER_DURING_DELETE,
    LEADER_EPOCH_DURING_DELETE,
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopic,
    AlterPartitionTopicResponse,
    BrokerEndpoint,
    BrokerState,
    ConfirmFailureRequest,
    ConfirmFailureResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    LiveBroker,
    PartitionError,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    TopicPartitions,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopic,
    grouped_by_topic,
    partitions_in,
)
from minibroker.protocol.wire.message_types import (
    BROKERS_MAX,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    TEXT_MAX,
    TOPICS_MAX,
    Message,
    Request,
    Response,
)

__all__ = [
    "APIS",
    "API_OF_REQUEST",
    "BROKERS_MAX",
    "EARLIEST_TIMESTAMP",
    "IGNORED_NODES_MAX",
    "KEY_OF_REQUEST",
    "LATEST_TIMESTAMP",
    "LEADER_DURING_DELETE",
    "LEADER_EPOCH_DURING_DELETE",
    "PARTITIONS_MAX",
    "REPLICAS_MAX",
    "TEXT_MAX",
    "TOPICS_MAX",
    "TOPIC_DELETIONS_MAX",
    "AlterConfigsResource",
    "AlterConfigsResult",
    "AlterPartitionData",
    "AlterPartitionRequest",
    "AlterPartitionResponse",
    "AlterPartitionResult",
    "AlterPartitionTopic",
    "AlterPartitionTopicResponse",
    "AlterableConfig",
    "Api",
    "ApiKey",
    "ApiVersion",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "BrokerEndpoint",
    "BrokerState",
    "ConfigOperation",
    "ConfigSource",
    "ConfirmFailureRequest",
    "ConfirmFailureResponse",
    "ConfirmedElection",
    "ControlledShutdownRequest",
    "ControlledShutdownResponse",
    "CreatableAssignment",
    "CreatableTopic",
    "CreatableTopicResult",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "CurrentLeader",
    "DeletableTopicResult",
    "DeleteProducerNamesRequest",
    "DeleteProducerNamesResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DeletedProducerName",
    "DescribeClusterBroker",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResource",
    "DescribeConfigsResponse",
    "DescribeConfigsResult",
    "DescribeEventsRequest",
    "DescribeEventsResponse",
    "DescribeReplicaStateRequest",
    "DescribeReplicaStateResponse",
    "DescribedConfig",
    "DescribedEpoch",
    "DescribedReplicaTopic",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "ElectLeadersTopic",
    "ElectionCandidate",
    "ElectionPreview",
    "EpochEndOffset",
    "FetchPartition",
    "FetchPartitionResponse",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchTopicResponse",
    "ForgottenTopic",
    "GetReplicaLogInfoRequest",
    "GetReplicaLogInfoResponse",
    "IgnoredNode",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "LeaderAndIsrPartition",
    "LeaderAndIsrRequest",
    "LeaderAndIsrResponse",
    "LeaderAndIsrTopic",
    "ListOffsetsPartition",
    "ListOffsetsPartitionResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListOffsetsTopic",
    "ListOffsetsTopicResponse",
    "ListProducerNamesRequest",
    "ListProducerNamesResponse",
    "ListedProducerName",
    "LiveBroker",
    "Message",
    "MetadataBroker",
    "MetadataPartition",
    "MetadataRequest",
    "MetadataRequestTopic",
    "MetadataResponse",
    "MetadataTopic",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "OffsetForLeaderPartition",
    "OffsetForLeaderPartitionResponse",
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResponse",
    "PartitionError",
    "ProducePartition",
    "ProducePartitionResponse",
    "ProduceRequest",
    "ProduceResponse",
    "ProduceTopic",
    "ProduceTopicResponse",
    "RemoteReplicaState",
    "ReplicaLogInfo",
    "ReplicaLogInfoTopic",
    "ReplicaStateDescription",
    "ReportedEvent",
    "Request",
    "ResourceType",
    "Response",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "StopReplicaPartition",
    "StopReplicaRequest",
    "StopReplicaResponse",
    "StopReplicaTopic",
    "TopicDeletion",
    "TopicPartitions",
    "UpdateMetadataPartition",
    "UpdateMetadataRequest",
    "UpdateMetadataResponse",
    "UpdateMetadataTopic",
    "confirmation_of",
    "grouped_by_topic",
    "partitions_in",
]


class ApiKey(IntEnum):
    """Number of an API: Kafka's where Kafka has the API, else minibroker's, from 1000 on. Number 127 is minibroker's,
    too: `runtime/server/heavy_requests` queues keys of more than one byte, and no request for brokers only may queue.
    """

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION = 56
    DESCRIBE_CLUSTER = 60
    GET_REPLICA_LOG_INFO = 93
    CONFIRM_FAILURE = 127
    DESCRIBE_REPLICA_STATE = 1000
    DESCRIBE_EVENTS = 1001
    LIST_PRODUCER_NAMES = 1002
    DELETE_PRODUCER_NAMES = 1003


class Api(Struct, frozen=True):
    """One row of the table of APIs; all of them are at version 0."""

    key: ApiKey
    request: type[Request]
    response: type[Response]
    is_cluster_action: bool = False
    """Only a broker may send it, over a connection on which it is authenticated (Kafka: ClusterAction)."""


APIS: dict[int, Api] = {
    api.key.value: api
    for api in (
        Api(ApiKey.PRODUCE, ProduceRequest, ProduceResponse),
        Api(ApiKey.FETCH, FetchRequest, FetchResponse),
        Api(ApiKey.LIST_OFFSETS, ListOffsetsRequest, ListOffsetsResponse),
        Api(ApiKey.METADATA, MetadataRequest, MetadataResponse),
        Api(ApiKey.LEADER_AND_ISR, LeaderAndIsrRequest, LeaderAndIsrResponse, is_cluster_action=True),
        Api(ApiKey.STOP_REPLICA, StopReplicaRequest, StopReplicaResponse, is_cluster_action=True),
        Api(ApiKey.UPDATE_METADATA, UpdateMetadataRequest, UpdateMetadataResponse, is_cluster_action=True),
        Api(ApiKey.CONTROLLED_SHUTDOWN, ControlledShutdownRequest, ControlledShutdownResponse, is_cluster_action=True),
        Api(ApiKey.SASL_HANDSHAKE, SaslHandshakeRequest, SaslHandshakeResponse),
        Api(ApiKey.SASL_AUTHENTICATE, SaslAuthenticateRequest, SaslAuthenticateResponse),
        Api(ApiKey.API_VERSIONS, ApiVersionsRequest, ApiVersionsResponse),
        Api(ApiKey.CREATE_TOPICS, CreateTopicsRequest, CreateTopicsResponse),
        Api(ApiKey.DELETE_TOPICS, DeleteTopicsRequest, DeleteTopicsResponse),
        Api(ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest, InitProducerIdResponse),
        Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        Api(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest, DescribeConfigsResponse),
        Api(ApiKey.ELECT_LEADERS, ElectLeadersRequest, ElectLeadersResponse),
        Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
        Api(ApiKey.ALTER_PARTITION, AlterPartitionRequest, AlterPartitionResponse, is_cluster_action=True),
        Api(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest, DescribeClusterResponse),
        Api(ApiKey.GET_REPLICA_LOG_INFO, GetReplicaLogInfoRequest, GetReplicaLogInfoResponse, is_cluster_action=True),
        Api(ApiKey.CONFIRM_FAILURE, ConfirmFailureRequest, ConfirmFailureResponse, is_cluster_action=True),
        Api(ApiKey.DESCRIBE_REPLICA_STATE, DescribeReplicaStateRequest, DescribeReplicaStateResponse),
        Api(ApiKey.DESCRIBE_EVENTS, DescribeEventsRequest, DescribeEventsResponse),
        Api(ApiKey.LIST_PRODUCER_NAMES, ListProducerNamesRequest, ListProducerNamesResponse),
        Api(ApiKey.DELETE_PRODUCER_NAMES, DeleteProducerNamesRequest, DeleteProducerNamesResponse),
    )
}
API_OF_REQUEST: dict[type[Request], Api] = {api.request: api for api in APIS.values()}
KEY_OF_REQUEST: dict[type[Request], int] = {api.request: api.key.value for api in APIS.values()}
"""The same, as plain numbers: an enumeration's `value` is a call."""
