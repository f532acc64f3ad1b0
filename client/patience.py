"""What a consumer waits for no longer: errors that waiting does not end. Part of the consumer.

Owns: when a cursor's trouble becomes the caller's to hear of. Refuses to know how the trouble came about.
"""

from collections.abc import Iterable

from minibroker.client.cluster import Cluster
from minibroker.client.connection_state import describe_connection
from minibroker.client.cursor import Cursor
from minibroker.client.errors import CallTimedOut, CorruptRecords, MinibrokerError
from minibroker.client.fetcher import Fetcher

UNFIT_FETCHES_MAX = 3
"""So many replies in a row that do not bring what was asked for are the user's to hear of, and so many again."""
UNREACHABLE_AFTER_MS = 60_000
"""`async for` raises when for this long no leader of any partition has answered, or the leader of one has answered with
nothing but errors; iterating again goes on waiting."""


def raise_halted(cursors: Iterable[Cursor]) -> None:
    """What only the user can end; and, once for each so many attempts in vain, that a leader's log is damaged."""
    for cursor in cursors:
        if cursor.halted is not None:
            raise cursor.halted
        if cursor.unfit_fetches >= UNFIT_FETCHES_MAX and isinstance(cursor.error, CorruptRecords):
            cursor.unfit_fetches = 0
            raise cursor.error


def raise_refused(cursors: Iterable[Cursor], now_ms: float) -> None:
    """A partition whose leader answers, and refuses for ever: others may bring records meanwhile, this one must not be
    missing without a word."""
    for cursor in cursors:
        since_ms = cursor.refused_since_ms
        if since_ms is None or cursor.paused or cursor.leader is None or now_ms - since_ms < UNREACHABLE_AFTER_MS:
            continue
        cursor.refused_since_ms = now_ms  # who goes on waiting is told again after as long
        raise CallTimedOut(
            f"{cursor.topic_partition} gave nothing but errors at {cursor.place} for {round(now_ms - since_ms)} ms",
            cursor.error,
        )


def first_problem(cursors: Iterable[Cursor], cluster: Cluster, fetcher: Fetcher) -> MinibrokerError | None:
    """What stands in the way of the first partition that is in trouble."""
    for cursor in cursors:
        if cursor.error is not None:
            return cursor.error
        if not describe_connection(cursor, cluster, fetcher).healthy:
            return cluster.leader_problem(cursor.topic_partition)
    return None
