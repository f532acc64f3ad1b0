"""Asks a broker until it answers what its files hold of some partitions.

Owns: the requests, of bounded size, and their repetition; if an answer cannot be decoded, finding the partition that
causes it. Leaves to others: why the broker is asked (`restarted_members`), and when the inquiry is obsolete: the owner
cancels it together with the channel to that registration.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from minibroker.controller.core.controller_state import ReplicaLog
from minibroker.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from minibroker.protocol.wire.messages import GetReplicaLogInfoRequest, GetReplicaLogInfoResponse, grouped_by_topic
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.request_channel import RequestChannel, RequestFailed, UnreadableAnswer

PARTITIONS_MAX = 2_000
"""In one request: the answer stays below a megabyte."""
CONNECT_TIMEOUT_MS = 1_000
ANSWER_TIMEOUT_MS = 3_000
"""A broker answers from memory; one that takes longer is asked again, on a new connection."""
RETRY_SECONDS_MIN = 0.1
RETRY_SECONDS_MAX = 1.0
"""Pause between two attempts; it doubles from the minimum. Partitions without a leader wait for the answer."""
UNREADABLE_MAX = 3
"""Attempts for one partition after an answer that cannot be decoded: bytes may be corrupted on their way."""
logger = logging.getLogger(__name__)


async def ask_logs(
    dialer: BrokerDialer,
    client_id: str,
    broker_id: BrokerId,
    address: tuple[str, int],
    broker_epoch: BrokerEpoch,
    partitions: Sequence[TopicPartition],
) -> dict[TopicPartition, ReplicaLog]:
    """What this registration of a broker answers, however long it takes. If an answer does not decode, each partition
    is asked about alone, so that one does not spoil the others: it alone counts as unavailable."""
    found: dict[TopicPartition, ReplicaLog] = {}
    pause = RETRY_SECONDS_MIN
    at_once, unreadable = PARTITIONS_MAX, 0
    dial = partial(dialer.connect, broker_id, address, client_id=client_id, timeout_ms=CONNECT_TIMEOUT_MS)
    with RequestChannel(dial) as channel:
        while left := [each for each in partitions if each not in found][:at_once]:
            try:
                found.update(await _ask(channel, broker_epoch, left))
                unreadable = 0
            except UnreadableAnswer as error:
                logger.warning("what %s:%d says of the logs of %s cannot be read: %s", *address, _named(left), error)
                unreadable = unreadable + 1 if at_once == 1 else 0
                at_once = 1
                if unreadable == UNREADABLE_MAX:
                    found[left[0]] = ReplicaLog(exists=True, unavailable=f"its answer cannot be read: {error}")
                    unreadable = 0
            except RequestFailed:
                channel.hang_up()
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_SECONDS_MAX)
    return found


def _named(partitions: Sequence[TopicPartition]) -> str:
    return str(partitions[0]) if len(partitions) == 1 else f"{partitions[0]} and {len(partitions) - 1} others"


async def _ask(
    channel: RequestChannel, broker_epoch: BrokerEpoch, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, ReplicaLog]:
    """Raises RequestFailed also when the answer leaves out a partition, or is of another registration."""
    request = GetReplicaLogInfoRequest(topics=grouped_by_topic(partitions))
    response = await channel.ask(request, GetReplicaLogInfoResponse, ANSWER_TIMEOUT_MS)
    if response.broker_epoch != broker_epoch:
        raise RequestFailed(f"answered under broker epoch {response.broker_epoch}, not {broker_epoch}")
    whole_since, undisturbed_since = frozenset(response.whole_since), frozenset(response.undisturbed_since)
    found = {
        TopicPartition(topic.topic_name, each.partition): ReplicaLog(
            whole_since=whole_since,
            undisturbed_since=undisturbed_since,
            exists=each.exists,
            topic_id=each.topic_id,
            damage=each.damage,
            unavailable=each.unavailable,
            log_start_offset=each.log_start_offset,
            log_end_offset=each.log_end_offset,
            last_epoch=each.last_epoch,
            high_watermark=each.high_watermark,
        )
        for topic in response.topics
        for each in topic.partitions
    }
    if not set(partitions) <= set(found):
        raise RequestFailed("the answer leaves partitions out")
    return found
