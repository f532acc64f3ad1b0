"""Waiting until a topic is known: what producer and consumer do before they can do anything with it."""

import logging

from minibroker.client.cluster import Cluster
from minibroker.client.errors import MinibrokerError, Where, broker_error
from minibroker.client.limits import UNKNOWN_TOPIC_GRACE_MS, Deadline
from minibroker.client.metadata_cache import TopicInfo
from minibroker.client.trouble import WAITING_TOLD_AFTER_MS
from minibroker.protocol.errors import ErrorCode

_log = logging.getLogger("minibroker.client")


async def known_topic(cluster: Cluster, name: str, deadline: Deadline) -> TopicInfo:
    """The topic, once its partitions are known.

    A topic that no broker knows is waited for a moment only (it may just have been created), then it is an
    UnknownTopicOrPartition. Raises CallTimedOut or ClusterUnreachable at the deadline.
    """
    cluster.want_topics([name])
    grace = Deadline(min(UNKNOWN_TOPIC_GRACE_MS, deadline.timeout_ms))
    quiet, is_told = Deadline(WAITING_TOLD_AFTER_MS), False
    while True:
        info = cluster.metadata.topics.get(name)
        if info is not None and info.partitions:
            return info
        if info is not None and info.error is not ErrorCode.NONE:
            error = broker_error(info.error, Where(topic=name))
            if not error.retriable or grace.passed:
                raise error
            if quiet.passed and not is_told:
                is_told = True
                _log.warning("waiting up to %g s for topic %r to appear: %s", grace.timeout_ms / 1000, name, error)
        try:
            await cluster.refresh(deadline)
        except MinibrokerError as failure:
            if not failure.retriable or deadline.passed:
                raise
