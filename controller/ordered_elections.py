"""ElectLeaders: what an operator is told of partitions without a leader, and the elections that it orders.

Owns: this request from question to answer: the logs of all live replicas are asked for anew, the outlook is told, and
only what was told is elected. Refuses to judge (`accepted_loss`).
"""

import asyncio
import contextlib

from minibroker.controller.accepted_loss import Logs, outlook
from minibroker.controller.cluster_state import LossChoice
from minibroker.controller.events import LossAccepted
from minibroker.controller.term import Term
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, TopicPartition, from_wire
from minibroker.protocol.messages import (
    PARTITIONS_MAX,
    ElectionOutlook,
    ElectLeadersRequest,
    ElectLeadersResponse,
    Response,
)

ANSWER_SECONDS_MAX = 3.0
"""A broker that has not said by then what it holds is no candidate."""


async def elect_leaders(term: Term, request: ElectLeadersRequest) -> Response:
    """Answers with the outlook, and after an election with who leads."""
    await term.gathered()
    partitions = _asked_about(term, request)
    logs = await _logs(term, partitions)
    wanted = from_wire(request.leader)
    outlooks = [outlook(term.state, each, logs, wanted) for each in partitions]
    if request.validate_only:
        return ElectLeadersResponse(partitions=outlooks)
    choices = tuple(
        LossChoice(
            partition=TopicPartition(each.topic_name, each.partition_index),
            leader=each.chosen,
            leader_epoch=each.leader_epoch,
        )
        for each in outlooks
        if not each.error_code
    )

    async def elect() -> Response:
        await term.happen(LossAccepted(choices=choices))
        return ElectLeadersResponse(partitions=[_outcome(term, each) for each in outlooks])

    return await term.in_turn(elect)


def _asked_about(term: Term, request: ElectLeadersRequest) -> list[TopicPartition]:
    if request.topics is not None:
        named = [TopicPartition(topic.topic_name, number) for topic in request.topics for number in topic.partitions]
        return list(dict.fromkeys(named))[:PARTITIONS_MAX]
    found = term.state.leaderships
    return [each for each in sorted(found) if found[each].leader is None][:PARTITIONS_MAX]


async def _logs(term: Term, partitions: list[TopicPartition]) -> Logs:
    """Of those live replicas that answer in time."""
    state = term.state

    async def ask(broker_id: BrokerId) -> Logs:
        held = [each for each in partitions if broker_id in state.assignment(each)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                return await term.logs_of(state.brokers[broker_id], held) if held else {}
        return {}

    answers = await asyncio.gather(*(ask(each) for each in sorted(state.brokers)))
    return {broker_id: logs for answer in answers for broker_id, logs in answer.items()}


def _outcome(term: Term, told: ElectionOutlook) -> ElectionOutlook:
    """NEW_LEADER_ELECTED would be a lie where something had changed meanwhile: nobody was elected then."""
    partition = TopicPartition(told.topic_name, told.partition_index)
    leadership = term.state.leaderships.get(partition)
    if told.error_code or (leadership is not None and leadership.leader == told.chosen):
        return told
    return ElectionOutlook(
        topic_name=told.topic_name,
        partition_index=told.partition_index,
        error_code=ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        error_message=f"{partition} has changed since you were told: ask again",
    )
