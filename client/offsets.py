"""Asking leaders for offsets: the earliest, the latest, or the first from a timestamp on.

Owns: ListOffsets with its retries, for consumer and admin. A request carries the leader epoch that the client knows; a
leader that does not know its end yet (OFFSET_NOT_AVAILABLE) is asked again until the deadline.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from minibroker.client.cluster import Cluster
from minibroker.client.errors import CallTimedOut, MinibrokerError, broker_error
from minibroker.client.limits import LOG_WAIT_AFTER_MS, UNKNOWN_TOPIC_GRACE_MS, Deadline, check_partition
from minibroker.client.topics import with_similar_topic
from minibroker.protocol.counted import some_of
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition, from_wire, to_wire
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

NO_OFFSET = "the answer to ListOffsets names no offset"


class OffsetAndTimestamp(msgspec.Struct, frozen=True):
    """An answer of ListOffsets."""

    offset: Offset | None
    """None: every record is older."""
    timestamp_ms: int | None
    leader_epoch: LeaderEpoch | None


async def list_offsets(
    cluster: Cluster, wanted: dict[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The offset for each partition's timestamp (or EARLIEST_TIMESTAMP, LATEST_TIMESTAMP).

    Raises CallTimedOut with the last error of a partition that got no answer in time, or at once an error that waiting
    does not end.
    """
    cluster.want_topics({check_partition(partition).topic: None for partition in wanted})
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    grace = Deadline(min(UNKNOWN_TOPIC_GRACE_MS, deadline.timeout_ms))
    quiet, is_logged = Deadline(LOG_WAIT_AFTER_MS), False
    while True:
        missing = {partition: at for partition, at in wanted.items() if partition not in found}
        errors: dict[TopicPartition, MinibrokerError] = {}
        for partition, answer in (await ask_offsets(cluster, missing, deadline)).items():
            if isinstance(answer, MinibrokerError):
                errors[partition] = cluster.explained(answer)
            else:
                found[partition] = answer
        if not errors:
            return {partition: found[partition] for partition in wanted}
        for error in errors.values():
            unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and grace.passed
            if not error.retriable or unknown:
                raise await with_similar_topic(cluster, error)
        last = next(iter(errors.values()))
        names = some_of(sorted(errors))
        if quiet.passed and not is_logged:
            is_logged = True
            are_unknown = all(error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in errors.values())
            seconds = (grace if are_unknown else deadline).timeout_ms / 1000
            cluster.log.warning("waiting up to %g s for the offsets of %s: %s", seconds, names, last)
        cluster.request_refresh()
        if not await cluster.pause(deadline):
            raise CallTimedOut(f"offsets of {names} are not known after {round(deadline.timeout_ms)} ms", last)


async def list_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], end: int, deadline: Deadline
) -> dict[TopicPartition, Offset]:
    """The offset at one end of each partition (EARLIEST_TIMESTAMP or LATEST_TIMESTAMP). Raises what `list_offsets`
    raises."""
    offsets: dict[TopicPartition, Offset] = {}
    for partition, answer in (await list_offsets(cluster, dict.fromkeys(partitions, end), deadline)).items():
        assert answer.offset is not None, "each log has a beginning and an end"
        offsets[partition] = answer.offset
    return offsets


async def ask_offsets(
    cluster: Cluster, wanted: dict[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, OffsetAndTimestamp | MinibrokerError]:
    """One round: ask every leader once, all at the same time."""
    answers: dict[TopicPartition, OffsetAndTimestamp | MinibrokerError] = {}
    by_leader: dict[BrokerId, dict[TopicPartition, int]] = {}
    for partition, timestamp in wanted.items():
        leader = cluster.metadata.partition(partition).leader
        if leader is None:
            answers[partition] = cluster.leader_problem(partition)
        else:
            by_leader.setdefault(leader, {})[partition] = timestamp
    asked = (_ask_leader(cluster, leader, part, deadline) for leader, part in by_leader.items())
    for part in await asyncio.gather(*asked):
        answers.update(part)
    return answers


async def _ask_leader(
    cluster: Cluster, leader: BrokerId, wanted: dict[TopicPartition, int], deadline: Deadline
) -> dict[TopicPartition, OffsetAndTimestamp | MinibrokerError]:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for partition, timestamp in wanted.items():
        epoch = to_wire(cluster.metadata.partition(partition).leader_epoch)
        query = ListOffsetsPartition(
            partition_index=partition.partition, current_leader_epoch=epoch, timestamp=timestamp
        )
        topics.setdefault(partition.topic, []).append(query)
    request = ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(name=name, topic_id=cluster.metadata.topic_id(name) or "", partitions=partitions)
            for name, partitions in topics.items()
        ]
    )
    try:
        reply = await cluster.ask(leader, request, ListOffsetsResponse, deadline)
    except MinibrokerError as error:
        return dict.fromkeys(wanted, error)
    answers: dict[TopicPartition, OffsetAndTimestamp | MinibrokerError] = {}
    for topic in reply.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if partition in wanted:
                answers[partition] = _read_answer(cluster, leader, partition, wanted[partition], answer)
    for partition in wanted:
        answers.setdefault(partition, broker_error(ErrorCode.LEADER_NOT_AVAILABLE, cluster.where(partition, leader)))
    return answers


def _read_answer(
    cluster: Cluster, leader: BrokerId, partition: TopicPartition, timestamp: int, answer: ListOffsetsPartitionResponse
) -> OffsetAndTimestamp | MinibrokerError:
    if answer.error_code:
        error = broker_error(answer.error_code, cluster.where(partition, leader), answer.error_message)
        if error.refreshes_metadata:  # the answer's hint may be of a deleted topic of this name
            cluster.request_refresh()
        return error
    offset = from_wire(answer.offset)
    if offset is None and timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
        # each log has a beginning and an end: the broker is broken, and another may lead soon
        return broker_error(ErrorCode.LEADER_NOT_AVAILABLE, cluster.where(partition, leader), NO_OFFSET)
    return OffsetAndTimestamp(offset, from_wire(answer.timestamp), from_wire(answer.leader_epoch))
