"""Requests of producers, consumers and followers, which fetch as consumers do: shapes and defaults.

Owns: Produce, Fetch, ListOffsets, Metadata, ApiVersions, OffsetForLeaderEpoch, InitProducerId. Import from `messages`.
"""
# ruff: noqa: RUF012 - msgspec gives every struct its own copy of a default list or map

from typing import Annotated

from msgspec import Meta

from minibroker.protocol.wire.message_types import (
    BROKERS_MAX,
    I16,
    I32,
    I64,
    PARTITIONS_MAX,
    TOPICS_MAX,
    Host,
    Identifier,
    Message,
    Name,
    Replicas,
    Request,
    Response,
    Snapshot,
    Text,
    Topic,
)


class CurrentLeader(Message, frozen=True, kw_only=True):
    """The leader to ask instead (KIP-951)."""

    leader_id: I32 = -1
    leader_epoch: I32 = -1


# ---------------------------------------------------------------------------------------------------------- Produce
class ProducePartition(Message, frozen=True, kw_only=True, omit_defaults=True):
    index: I32
    retry: bool = False  # about: ours: an earlier attempt went unanswered, the batch may have been written
    records: bytearray  # about: one record batch, stamped in place; entries of a partition are answered in order


class ProduceTopic(Message, frozen=True, kw_only=True):
    name: Topic
    topic_id: Name = ""  # about: of the topic that the records are for; "": any topic of this name (KIP-516)
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
    leader_epoch: I32 = -1  # about: ours: the leader's at its answer; a duplicate may be of an earlier one


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
    log_start_offset: I64 = -1  # about: a follower's, as far as it is durably recorded
    partition_max_bytes: I32 = 1_048_576


class FetchTopic(Message, frozen=True, kw_only=True):
    topic: Topic
    topic_id: Name = ""  # about: of the topic that the positions belong to; "": any topic of this name (KIP-516)
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
    # about: 0 with epoch -1: no session; 0 with epoch 0: open one; else only what changed is listed
    session_id: I32 = 0
    session_epoch: I32 = -1
    forgotten_topics_data: Annotated[list[ForgottenTopic], Meta(max_length=TOPICS_MAX)] = []
    topics: Annotated[list[FetchTopic], Meta(max_length=TOPICS_MAX)] = []


class EpochEndOffset(Message, frozen=True, kw_only=True):
    """The largest known epoch not above the requested one, and its exclusive end (KIP-279)."""

    epoch: I32 = -1
    end_offset: I64 = -1


class FetchPartitionResponse(Message, frozen=True, kw_only=True):
    partition_index: I32
    error_code: I16 = 0
    high_watermark: I64 = -1
    last_stable_offset: I64 = -1
    log_start_offset: I64 = -1
    low_watermark: I64 = -1  # about: ours: all in-sync replicas have recorded a log start at or above it
    diverging_epoch: EpochEndOffset | None = None
    current_leader: CurrentLeader | None = None
    records: memoryview = memoryview(b"")


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

    @property
    def is_by_time(self) -> bool:
        """Not an end of the log: the look-up may decode a whole batch, which takes tens of milliseconds."""
        return self.timestamp not in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)


class ListOffsetsTopic(Message, frozen=True, kw_only=True):
    name: Topic
    topic_id: Name = ""  # about: of the topic that is asked about; "": any topic of this name (KIP-516)
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
    producers: Snapshot = (
        b""  # about: to a follower that asks for the earliest: a `.snapshot`, its place nil, of the producers below it
    )
    low_watermark: I64 = -1  # about: likewise: below it no in-sync replica guarantees records


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
    fenced: bool = False  # about: ours: the broker that answers has lost ZooKeeper
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
    leader_epoch: I32  # about: the epoch of which the end is requested


class OffsetForLeaderTopic(Message, frozen=True, kw_only=True):
    topic: Topic
    topic_id: Name = ""  # about: of the topic that the epochs belong to; "": any topic of this name (KIP-516)
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


# --------------------------------------------------------------------------------------------------- InitProducerId
class InitProducerIdRequest(Request, frozen=True, kw_only=True):
    transactional_id: Name | None = None  # about: the name of a producer; each start under it raises the epoch
    producer_id: I64 = -1  # about: with producer_epoch: the same producer asks for its next epoch (KIP-360)
    producer_epoch: I16 = -1
    process_token: Identifier = ""  # about: with a name: drawn at random by the process, the same in all its requests
    newest_id: I64 = -1  # about: of a start with a name and a token: the identity that it replaces; -1: none
    newest_epoch: I16 = -1


class InitProducerIdResponse(Response, frozen=True, kw_only=True):
    producer_id: I64 = -1  # about: -1: nothing was granted, because the start did not name the newest identity
    producer_epoch: I16 = -1
    newest_id: I64 = -1  # about: with producer_id -1: the newest identity of the name, for the next attempt; -1: none
    newest_epoch: I16 = -1
