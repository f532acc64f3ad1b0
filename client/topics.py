"""Whether a topic is known: producer and consumer wait for that before they use it. And whether it is to be deleted."""

import asyncio
from collections.abc import Sequence

from minibroker.client.cluster import Cluster
from minibroker.client.errors import MinibrokerError, UnknownTopicOrPartition, Where, broker_error
from minibroker.client.limits import LOG_WAIT_AFTER_MS, METADATA_TIMEOUT_MS, UNKNOWN_TOPIC_GRACE_MS, Deadline
from minibroker.client.metadata_cache import CachedTopic
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId
from minibroker.protocol.similar_names import suggestion
from minibroker.protocol.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataRequest,
    MetadataResponse,
)

DELETIONS_TIMEOUT_MS = 500
"""A controller answers in milliseconds. One that hangs must not hold up a command, which can do its work without."""
SIMILAR_TIMEOUT_MS = 500
"""The names of all topics come in milliseconds. An error is not held up for them by a broker that hangs."""


async def known_topic(cluster: Cluster, name: str, deadline: Deadline) -> CachedTopic:
    """The topic, once its partitions are known.

    Waits only a moment for a topic that no broker knows (it may just have been created), then raises
    UnknownTopicOrPartition, which names a similar topic. Raises CallTimedOut or ClusterUnreachable at the deadline.
    """
    cluster.want_topics([name])
    grace = Deadline(min(UNKNOWN_TOPIC_GRACE_MS, deadline.timeout_ms))
    quiet, is_logged = Deadline(LOG_WAIT_AFTER_MS), False
    while True:
        info = cluster.metadata.topics.get(name)
        if info is not None and info.partitions:
            return info
        if info is not None and info.error is not ErrorCode.NONE:
            error: MinibrokerError = broker_error(info.error, Where(topic=name))
            if not error.retriable or grace.passed:
                raise await with_similar_topic(cluster, error)
            if quiet.passed and not is_logged:
                is_logged = True
                told = await with_similar_topic(cluster, error)
                cluster.log.warning(
                    "waiting up to %g s for topic %r to appear: %s", grace.timeout_ms / 1000, name, told
                )
        try:
            await cluster.refresh(deadline)
        except MinibrokerError as failure:
            if not failure.retriable or deadline.passed:
                raise


async def with_similar_topic(cluster: Cluster, error: MinibrokerError) -> MinibrokerError:
    """The error; if it says that a topic does not exist, one that also names a similar topic, where there is one.
    Delays the error by the time in which a healthy broker answers, at most."""
    if not isinstance(error, UnknownTopicOrPartition):
        return error
    where = error.where
    name = where.topic if where.topic_partition is None else where.topic_partition.topic
    if name is None:
        return error
    try:
        reply = await cluster.ask_any(MetadataRequest(topics=None), MetadataResponse, Deadline(SIMILAR_TIMEOUT_MS))
    except MinibrokerError:
        return error
    known = [topic.name for topic in reply.topics if not topic.error_code]
    meant = "" if name in known else suggestion(name, known)
    told = [text for text in (error.broker_message, meant) if text]
    return broker_error(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, where, "; ".join(told)) if meant else error


async def unknown_topics(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> tuple[list[str], list[str]]:
    """The topics among `names` that no broker knows, and if there are any, the names of all topics.

    For commands, which must not wait for a misspelt topic to appear. A broker that has just started may not know a
    topic yet, so a topic that one broker does not know is looked for at all of them. Raises MinibrokerError.
    """
    cluster.want_topics(names)
    await cluster.refresh(deadline)
    topics = cluster.metadata.topics
    unknown = [name for name in names if name in topics and topics[name].error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if not unknown:
        return [], []

    async def topics_of(broker_id: BrokerId) -> set[str]:
        limit = Deadline(deadline.at_most(METADATA_TIMEOUT_MS))
        try:
            reply = await cluster.ask(broker_id, MetadataRequest(topics=None), MetadataResponse, limit)
        except MinibrokerError:
            return set()
        return {topic.name for topic in reply.topics if not topic.error_code}

    known = set[str]().union(*await asyncio.gather(*map(topics_of, sorted(cluster.metadata.brokers))))
    return [name for name in unknown if name not in known], sorted(known)


async def topic_deletions(cluster: Cluster) -> dict[str, str]:
    """The topics that are marked for deletion, each with the controller's sentence about that. None if it does not
    answer at once: a deletion is told of where it is known, and delays nothing."""
    controller = cluster.metadata.controller_id
    if controller is None:
        return {}
    try:
        limit = Deadline(DELETIONS_TIMEOUT_MS)
        reply = await cluster.ask(controller, DescribeClusterRequest(), DescribeClusterResponse, limit)
    except MinibrokerError:
        return {}
    return {each.topic: each.reason for each in reply.topic_deletions}
