"""Errors that a consumer raises instead of waiting any longer. Part of the consumer.

Owns: when a cursor's error is raised to the caller. Leaves to others: the cause of the error.
"""

from collections.abc import Iterable

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.connection_state import describe_connection
from minibroker.client.consumer.cursor import Cursor
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.errors import CallTimedOut, CorruptRecords, InvalidCall, MinibrokerError

UNFIT_FETCHES_MAX = 3
"""After this many consecutive replies without the requested batches, an error is raised; and after as many again."""
UNREACHABLE_AFTER_MS = 60_000
"""`async for` raises when for this long no leader of any partition has answered, or the leader of one has answered with
errors only; iterating again continues to wait."""


def raise_halted(cursors: Iterable[Cursor]) -> None:
    """Raise an error that only the user can end; or, once per UNFIT_FETCHES_MAX failed attempts, that a leader's log is
    damaged."""
    for cursor in cursors:
        if cursor.halted is not None:
            raise cursor.halted
        if cursor.unfit_fetches >= UNFIT_FETCHES_MAX and isinstance(cursor.error, CorruptRecords):
            cursor.unfit_fetches = 0
            raise cursor.error


def raise_refused(cursors: Iterable[Cursor], now_ms: float) -> None:
    """Raise an error for a partition whose leader answers with errors only: other partitions may bring records
    meanwhile, but the user must learn that this one does not."""
    for cursor in cursors:
        since_ms = cursor.refused_since_ms
        if since_ms is None or cursor.paused or cursor.leader is None or now_ms - since_ms < UNREACHABLE_AFTER_MS:
            continue
        cursor.refused_since_ms = now_ms  # a caller that continues to wait gets the error again after as long
        raise CallTimedOut(
            f"{cursor.topic_partition} gave nothing but errors at {cursor.place} for {round(now_ms - since_ms)} ms",
            cursor.error,
        )


def first_problem(cursors: Iterable[Cursor], cluster: Cluster, fetcher: Fetcher) -> MinibrokerError | None:
    """The error of the first partition that has one. Of paused ones none is fetched, and none has one."""
    cursors = [cursor for cursor in cursors if not cursor.paused]
    if not cursors:
        return InvalidCall("all assigned partitions are paused: resume(..)")
    for cursor in cursors:
        if cursor.error is not None:
            return cursor.error
        if not describe_connection(cursor, cluster, fetcher).healthy:
            return cluster.leader_problem(cursor.topic_partition)
    return None
