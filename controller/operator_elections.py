"""ElectLeaders: the preview for partitions without a leader, and the elections that an operator orders.

Owns: this request from start to answer: it asks all live replicas for their logs again, answers with the preview, and
elects only what the order confirms of an earlier preview. Leaves to others: the checks (`accepted_loss`).
"""

import asyncio
import contextlib
from collections.abc import Mapping

from msgspec.structs import replace

from minibroker.controller.active_controller import ActiveController
from minibroker.controller.core.accepted_loss import Logs, choice_of, preview
from minibroker.controller.core.controller_state import LossChoice, RegisteredBroker, ReplicaLog
from minibroker.controller.core.events import LossAccepted
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import NONE, BrokerEpoch, BrokerId, TopicPartition, from_wire
from minibroker.protocol.wire.messages import (
    PARTITIONS_MAX,
    ConfirmedElection,
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Response,
)

ANSWER_SECONDS_MAX = 3.0
"""A broker that has not answered by then is no candidate."""


async def elect_leaders(active: ActiveController, request: ElectLeadersRequest) -> Response:
    """Answer with the preview, and after an election with the leaders."""
    await active.gathered()
    partitions = _asked_about(active, request)
    logs = await _logs(active, partitions)
    wanted = from_wire(request.leader)
    previews = {each: preview(active.state, each, logs, wanted) for each in partitions}
    if not request.confirmed:
        return ElectLeadersResponse(partitions=list(previews.values()))
    chosen = {
        partition: choice_of(active.state, confirmed, previews[partition])
        for partition, confirmed in _confirmed(request).items()
        if partition in previews
    }

    async def elect() -> Response:
        choices = tuple(each for each in chosen.values() if isinstance(each, LossChoice))
        await active.process(LossAccepted(choices=choices))
        return ElectLeadersResponse(
            partitions=[_result(active, previews[partition], each) for partition, each in chosen.items()]
        )

    return await active.run_queued(elect)


def _confirmed(request: ElectLeadersRequest) -> dict[TopicPartition, ConfirmedElection]:
    return {TopicPartition(each.topic_name, each.partition_index): each for each in request.confirmed}


def _asked_about(active: ActiveController, request: ElectLeadersRequest) -> list[TopicPartition]:
    if request.confirmed:
        return list(_confirmed(request))[:PARTITIONS_MAX]
    if request.topics is not None:
        named = [TopicPartition(topic.topic_name, number) for topic in request.topics for number in topic.partitions]
        return list(dict.fromkeys(named))[:PARTITIONS_MAX]
    state = active.state
    present = [each for each in state.partitions() if not state.is_being_deleted(each.topic)]
    led = {each for each, leadership in state.leaderships.items() if leadership.leader is not None}
    return [each for each in present if each not in led][:PARTITIONS_MAX]


async def _logs(active: ActiveController, partitions: list[TopicPartition]) -> Logs:
    """The logs of those live replicas that answer in time. A broker that registers meanwhile is asked, too: it may be
    the one whose records the operator gives up for lost."""
    found: dict[BrokerId, Mapping[TopicPartition, ReplicaLog]] = {}
    asked: set[BrokerEpoch] = set()
    while new := [each for each in active.state.live_brokers() if each.broker_epoch not in asked]:
        asked |= {each.broker_epoch for each in new}
        for each in new:
            found.pop(each.broker_id, None)
        for answer in await asyncio.gather(*(_logs_of(active, each, partitions) for each in new)):
            found.update(answer)
    return found


async def _logs_of(active: ActiveController, broker: RegisteredBroker, partitions: list[TopicPartition]) -> Logs:
    held = [each for each in partitions if broker.broker_id in active.state.assignment(each)]
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            return await active.channels.logs_of(broker, held) if held else {}
    return {}


def _result(active: ActiveController, present: ElectionPreview, choice: LossChoice | str) -> ElectionPreview:
    """The preview; as an error if the cluster has changed since and no leader was elected."""
    partition = TopicPartition(present.topic_name, present.partition_index)
    leadership = active.state.leaderships.get(partition)
    if isinstance(choice, LossChoice) and leadership is not None and leadership.leader == choice.leader:
        return present
    if present.error_code == ErrorCode.ELECTION_NOT_NEEDED:
        return present
    what = f": {choice}" if isinstance(choice, str) else ""
    return replace(
        present,
        error_code=present.error_code or ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        error_message=f"{partition} has changed since it was shown to you{what}; no leader is elected, ask again",
        chosen=NONE,
    )
