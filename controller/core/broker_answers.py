"""Brokers' answers about single partitions, as events. Pure.

Owns: which of their error codes matter to a controller: a replica in a failed log directory is offline, a deleted
replica is gone. Whatever else a broker refuses is older than what it knows already.
"""

from minibroker.controller.core.controller_state import RegisteredBroker
from minibroker.controller.core.events import ControllerEvent, LeaderCutOff, ReplicasErased, ReplicasFailed
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    Request,
    Response,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
    UpdateMetadataResponse,
    partitions_in,
)

GONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
"""A replica that the broker does not know is gone, too."""


def events_of(
    broker: RegisteredBroker, request: Request, response: Response, *, is_overtaken: bool = False
) -> list[ControllerEvent]:
    """Events that follow from an answer of this registration of a broker; `is_overtaken`: see `ReplicasFailed`."""
    if isinstance(request, LeaderAndIsrRequest) and isinstance(response, LeaderAndIsrResponse):
        failed = tuple(
            TopicPartition(each.topic_name, each.partition_index)
            for each in response.partition_errors
            if each.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        )
        event = ReplicasFailed(
            broker_id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            partitions=failed,
            is_overtaken=is_overtaken,
        )
        return [event] if failed else []
    if isinstance(response, UpdateMetadataResponse) and response.controller_unreachable_ms > 0:
        seconds = response.controller_unreachable_ms / 1000
        return [LeaderCutOff(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, seconds=seconds)]
    if isinstance(request, StopReplicaRequest) and isinstance(response, StopReplicaResponse):
        answers = [_erased_by(broker.broker_id, topic, response) for topic in request.topic_states]
        return [each for each in answers if each.erased or each.failed]
    return []


def offline_in(broker: RegisteredBroker, response: UpdateMetadataResponse) -> list[ControllerEvent]:
    """The replicas of this registration that the answer says are offline. This controller may not know of them: it has
    just taken over, or the broker reported them under an earlier registration."""
    offline = tuple(partitions_in(response.offline_partitions))
    event = ReplicasFailed(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, partitions=offline)
    return [event] if offline else []


def _erased_by(broker_id: int, topic: StopReplicaTopic, response: StopReplicaResponse) -> ReplicasErased:
    refused = {
        each.partition_index
        for each in response.partition_errors
        if each.topic_name == topic.topic_name and each.error_code not in GONE
    }
    asked = [each.partition_index for each in topic.partition_states if each.delete_partition]
    return ReplicasErased(
        broker_id=broker_id,
        topic=topic.topic_name,
        topic_id=topic.topic_id,
        erased=tuple(each for each in asked if each not in refused),
        failed=tuple(each for each in asked if each in refused),
    )
