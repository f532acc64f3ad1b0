"""Requests to change an ISR, for tests of the controller, and views of the result."""

from __future__ import annotations

from minibroker.protocol.wire.messages import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopic,
    BrokerState,
)
from minibroker.protocol.znodes import PartitionState
from tests.controller.cluster import Candidate, Cluster


def alter_partition(
    cluster: Cluster, leader: int, *isr: int, epoch: int = 0, version: int = 0
) -> AlterPartitionRequest:
    members = [BrokerState(broker_id=each, broker_epoch=cluster.brokers[each].broker_epoch) for each in isr]
    proposal = AlterPartitionData(
        partition_index=0, leader_epoch=epoch, partition_epoch=version, new_isr_with_epochs=members
    )
    return AlterPartitionRequest(
        broker_id=leader,
        broker_epoch=cluster.brokers[leader].broker_epoch,
        topics=[AlterPartitionTopic(topic_name="lines", partitions=[proposal])],
    )


async def altered(cluster: Cluster, controller: Candidate, request: AlterPartitionRequest) -> AlterPartitionResult:
    response = await cluster.ask(controller, request)
    assert isinstance(response, AlterPartitionResponse), response
    return response.topics[0].partitions[0]


def is_led(state: PartitionState) -> tuple[int, int, list[int]]:
    return state.leader, state.leader_epoch, state.isr
