"""Waiting until a topic is known, as producer and consumer must before they use it."""

import logging

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.partition_watch import LOG_WAIT_AFTER_MS
from minibroker.client.errors import MinibrokerError, Where, broker_error
from minibroker.client.limits import UNKNOWN_TOPIC_GRACE_MS, Deadline
from minibroker.client.metadata_cache import CachedTopic
from minibroker.protocol.errors import ErrorCode

_log = logging.getLogger("minibroker.client")


async def known_topic(cluster: Cluster, name: str, deadline: Deadline) -> CachedTopic:
    """The topic, once its partitions are known.

    Waits only a moment for a topic that no broker knows (it may just have been created), then raises
    UnknownTopicOrPartition. Raises CallTimedOut or ClusterUnreachable at the deadline.
    """
    cluster.want_topics([name])
    grace = Deadline(min(UNKNOWN_TOPIC_GRACE_MS, deadline.timeout_ms))
    quiet, is_logged = Deadline(LOG_WAIT_AFTER_MS), False
    while True:
        info = cluster.metadata.topics.get(name)
        if info is not None and info.partitions:
            return info
        if info is not None and info.error is not ErrorCode.NONE:
            error = broker_error(info.error, Where(topic=name))
            if not error.retriable or grace.passed:
                raise error
            if quiet.passed and not is_logged:
                is_logged = True
                _log.warning("waiting up to %g s for topic %r to appear: %s", grace.timeout_ms / 1000, name, error)
        try:
            await cluster.refresh(deadline)
        except MinibrokerError as failure:
            if not failure.retriable or deadline.passed:
                raise
