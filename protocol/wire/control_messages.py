"""Orders of the controller to brokers, and requests of brokers to the controller: shapes and defaults.

Owns: LeaderAndIsr, UpdateMetadata, StopReplica, GetReplicaLogInfo, ControlledShutdown, AlterPartition, and
ConfirmFailure, with which any broker asks another one to confirm a failure. Import from `messages`.
"""
# ruff: noqa: RUF012 - msgspec gives every struct its own copy of a default list or map

from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta

from minibroker.protocol.ids import MAX_INT32, TopicPartition
from minibroker.protocol.wire.message_types import (
    BROKERS_MAX,
    I16,
    I64,
    LISTENERS_MAX,
    PARTITIONS_MAX,
    REPLICAS_MAX,
    TOPICS_MAX,
    BrokerEpoch,
    BrokerEpochOrNone,
    BrokerId,
    BrokerIdOrNone,
    Configs,
    Epoch,
    EpochOrNone,
    Host,
    Identifier,
    Message,
    Name,
    Offset,
    OffsetOrNone,
    PartitionCount,
    PartitionIndex,
    Port,
    Replicas,
    Request,
    Response,
    Text,
    TopicName,
)

LEADER_EPOCH_DURING_DELETE = -2
"""leader_epoch of a StopReplica that deletes the topic: passes every epoch check (KIP-570)."""
LEADER_DURING_DELETE = -2


# ---------------------------------------------------------------------------------------- from controller to broker
class LeaderAndIsrPartition(Message, frozen=True, kw_only=True):
    partition_index: PartitionIndex
    controller_epoch: Epoch
    leader: BrokerIdOrNone
    leader_epoch: Epoch
    isr: Replicas
    partition_epoch: Epoch
    replicas: Replicas
    is_new: bool = False
    leader_recovery_state: I16 = 0  # about: 0 recovered, 1 recovering from an unclean election


class LeaderAndIsrTopic(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    topic_id: Identifier
    configs: Configs = {}  # about: ours: the topic's own settings, so that a new log never starts with the wrong ones
    partition_count: PartitionCount = 0  # about: ours: of the topic, of which a request names a part; 0: not told
    partition_states: Annotated[list[LeaderAndIsrPartition], Meta(max_length=PARTITIONS_MAX)]


class BrokerEndpoint(Message, frozen=True, kw_only=True):
    listener: Name
    host: Host
    port: Port


class LiveBroker(Message, frozen=True, kw_only=True):
    id: BrokerId
    broker_epoch: BrokerEpoch
    shutting_down: bool = False  # about: in a controlled shutdown: must not join an ISR (KIP-841)
    endpoints: Annotated[list[BrokerEndpoint], Meta(max_length=LISTENERS_MAX)] = []


class LeaderAndIsrRequest(Request, frozen=True, kw_only=True):
    controller_id: BrokerId
    controller_epoch: Epoch
    broker_epoch: BrokerEpoch
    live_brokers: Annotated[list[LiveBroker], Meta(max_length=BROKERS_MAX)] = []
    topic_states: Annotated[list[LeaderAndIsrTopic], Meta(max_length=TOPICS_MAX)] = []
    # about: ours: rises with each request of this controller epoch, and stays when it is sent again; one that comes
    # behind a later one is refused; 0: not numbered
    order_number: I64 = 0


class PartitionError(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    partition_index: PartitionIndex
    error_code: I16 = 0


class LeaderAndIsrResponse(Response, frozen=True, kw_only=True):
    partition_errors: Annotated[list[PartitionError], Meta(max_length=PARTITIONS_MAX)] = []


class UpdateMetadataPartition(Message, frozen=True, kw_only=True):
    partition_index: PartitionIndex
    controller_epoch: Epoch
    # about: -1 none, -2 the partition is being deleted
    leader: Annotated[int, Meta(ge=LEADER_DURING_DELETE, le=MAX_INT32)]
    leader_epoch: Epoch
    isr: Replicas
    partition_epoch: Epoch
    replicas: Replicas
    offline_replicas: Replicas = []


class UpdateMetadataTopic(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    topic_id: Identifier
    configs: Configs = {}
    partition_count: PartitionCount = 0  # about: ours: as in LeaderAndIsr
    partition_states: Annotated[list[UpdateMetadataPartition], Meta(max_length=PARTITIONS_MAX)]


class UpdateMetadataRequest(Request, frozen=True, kw_only=True):
    controller_id: BrokerId
    controller_epoch: Epoch
    broker_epoch: BrokerEpoch
    live_brokers: Annotated[list[LiveBroker], Meta(max_length=BROKERS_MAX)] = []
    topic_states: Annotated[list[UpdateMetadataTopic], Meta(max_length=TOPICS_MAX)] = []
    order_number: I64 = 0  # about: ours: as in LeaderAndIsr


class TopicPartitions(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    partitions: Annotated[list[PartitionIndex], Meta(max_length=PARTITIONS_MAX)]


def grouped_by_topic(partitions: Iterable[TopicPartition]) -> list[TopicPartitions]:
    """As messages name them: topics and their partitions in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return [TopicPartitions(topic_name=name, partitions=numbers) for name, numbers in topics.items()]


def partitions_in(topics: Iterable[TopicPartitions]) -> Iterator[TopicPartition]:
    """The partitions that a message names, in its order."""
    return (TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions)


class UpdateMetadataResponse(Response, frozen=True, kw_only=True):
    controller_unreachable_ms: I64 = 0  # about: ours: how long this leader's AlterPartition requests have got no answer
    # about: ours: the replicas of this broker that are offline now: a new controller, or one that hears from this
    # registration for the first time, knows of none
    offline_partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_MAX)] = []


class StopReplicaPartition(Message, frozen=True, kw_only=True):
    partition_index: PartitionIndex
    leader_epoch: Annotated[int, Meta(ge=LEADER_EPOCH_DURING_DELETE, le=MAX_INT32)]
    delete_partition: bool = False


class StopReplicaTopic(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    topic_id: Identifier = ""  # about: a late order to delete must not hit a topic that was created again
    partition_states: Annotated[list[StopReplicaPartition], Meta(max_length=PARTITIONS_MAX)]


class StopReplicaRequest(Request, frozen=True, kw_only=True):
    controller_id: BrokerId
    controller_epoch: Epoch
    broker_epoch: BrokerEpoch
    topic_states: Annotated[list[StopReplicaTopic], Meta(max_length=TOPICS_MAX)] = []
    order_number: I64 = 0  # about: ours: as in LeaderAndIsr


class StopReplicaResponse(Response, frozen=True, kw_only=True):
    partition_errors: Annotated[list[PartitionError], Meta(max_length=PARTITIONS_MAX)] = []


# ---------------------------------------------------------------------------------------- from broker to controller
class ControlledShutdownRequest(Request, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    # about: None: the broker stops. Else the whole set of its replicas that are offline now (a failed or full log
    # directory); an empty list offers all of them again (hardening rule 13).
    offline_partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_MAX)] | None = None
    # about: ours: rises with each report of offline replicas by this process; one that comes behind a later one is
    # refused
    report_number: I64 = 0


class ControlledShutdownResponse(Response, frozen=True, kw_only=True):
    remaining_partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_MAX)] = []


class BrokerState(Message, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: BrokerEpochOrNone  # about: -1: of a member that has not fetched from this leader yet


class AlterPartitionData(Message, frozen=True, kw_only=True):
    partition_index: PartitionIndex
    leader_epoch: Epoch
    new_isr_with_epochs: Annotated[list[BrokerState], Meta(max_length=REPLICAS_MAX)]
    leader_recovery_state: I16 = 0
    partition_epoch: Epoch


class AlterPartitionTopic(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    topic_id: Identifier = ""  # about: a late proposal must not change the ISR of a topic that was created again
    partitions: Annotated[list[AlterPartitionData], Meta(max_length=PARTITIONS_MAX)]


class AlterPartitionRequest(Request, frozen=True, kw_only=True):
    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    topics: Annotated[list[AlterPartitionTopic], Meta(max_length=TOPICS_MAX)] = []


class AlterPartitionResult(Message, frozen=True, kw_only=True):
    partition_index: PartitionIndex
    error_code: I16 = 0
    leader_id: BrokerIdOrNone = -1
    leader_epoch: EpochOrNone = -1
    isr: Replicas = []
    leader_recovery_state: I16 = 0
    partition_epoch: EpochOrNone = -1


class AlterPartitionTopicResponse(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    partitions: Annotated[list[AlterPartitionResult], Meta(max_length=PARTITIONS_MAX)]


class AlterPartitionResponse(Response, frozen=True, kw_only=True):
    topics: Annotated[list[AlterPartitionTopicResponse], Meta(max_length=TOPICS_MAX)] = []


# ------------------------------------------------------------------------- before an election among restarted brokers
class GetReplicaLogInfoRequest(Request, frozen=True, kw_only=True):
    topics: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_MAX)] = []


class ReplicaLogInfo(Message, frozen=True, kw_only=True):
    """What one broker holds of one partition, according to its files."""

    partition: PartitionIndex
    topic_id: Identifier = ""  # about: of the log; empty: there is no log, or its owner is unknown
    exists: bool = False  # about: false: there is no log here, and as far as is known there never was
    damage: Text | None = None  # about: why the log must not be trusted; nil: it is sound
    unavailable: Text | None = None  # about: why it cannot be used now, though it may be sound; nil: it can be
    log_start_offset: Offset = 0
    log_end_offset: Offset = 0
    last_epoch: EpochOrNone = -1  # about: leader epoch of the last record (KIP-966: LastWrittenLeaderEpoch)
    high_watermark: OffsetOrNone = (
        -1
    )  # about: everything below it was committed, as far as this replica knows; -1: it knows nothing


class ReplicaLogInfoTopic(Message, frozen=True, kw_only=True):
    topic_name: TopicName
    partitions: Annotated[list[ReplicaLogInfo], Meta(max_length=PARTITIONS_MAX)]


class GetReplicaLogInfoResponse(Response, frozen=True, kw_only=True):
    # about: registration of the broker that answers; the answer is void for any other
    broker_epoch: BrokerEpochOrNone = -1
    # about: ours: the incarnations of this broker since which its logs are proven whole by clean stops, oldest first
    whole_since: Annotated[list[Identifier], Meta(max_length=1_000)] = []
    # about: ours: those since which no loss was observed (its machine ran on); includes the above
    undisturbed_since: Annotated[list[Identifier], Meta(max_length=1_000)] = []
    topics: Annotated[list[ReplicaLogInfoTopic], Meta(max_length=TOPICS_MAX)] = []


# ------------------------------------------------------------------------------------------------- between brokers
class ConfirmFailureRequest(Request, frozen=True, kw_only=True):
    broker_id: BrokerId  # about: the broker that the sender lost its connection to, and that refuses a new one
    broker_epoch: BrokerEpoch  # about: its registration at that time; the receiver dials the address that it knows


class ConfirmFailureResponse(Response, frozen=True, kw_only=True):
    refused: bool = False  # about: true: it refuses the receiver, too. False: anything else
