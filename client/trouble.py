"""Says aloud that a partition gives nothing, and why: a reader who waits cannot tell an error from a quiet topic.

Owns: after how long a trouble is said, how often again, and the words. Refuses to know what is done about it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping

from minibroker.client.connection_state import ConnectionState
from minibroker.client.cursor import Cursor
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition

TOLD_AFTER_MS = 3_000.0
"""Trouble that lasts this long is said: most elections and restarts are over by then, and nobody has given up yet."""
WAITING_TOLD_AFTER_MS = 1_000.0
"""A call that still waits says for what: nobody knows yet whether the name is wrong or the cluster slow."""
TOLD_AGAIN_AFTER_MS = 60_000.0
"""And said again: often enough to be found at the end of a log, too seldom to fill it."""
LOOK_EVERY_MS = 1_000.0
NAMED_MAX = 3
"""So many partitions in the same trouble are named, the others counted."""

_log = logging.getLogger("minibroker.client")


class Troubles:
    """Since when which partitions are in trouble, and what was said of it. Pure."""

    def __init__(self) -> None:
        self._since_ms: dict[TopicPartition, float] = {}
        self._told_ms: dict[TopicPartition, float] = {}

    def look(self, bad: Iterable[TopicPartition], now_ms: float) -> tuple[dict[TopicPartition, float], list[str]]:
        """For how many seconds which of them have been bad, where that is to be said now; and who is well again."""
        now_bad = set(bad)
        over = [
            f"{each} is read again, after {(now_ms - self._since_ms[each]) / 1000:.0f} s"
            for each in sorted(self._told_ms.keys() - now_bad)
        ]
        self._since_ms = {each: self._since_ms.get(each, now_ms) for each in sorted(now_bad)}
        self._told_ms = {each: at for each, at in self._told_ms.items() if each in now_bad}
        due = {}
        for each, since_ms in self._since_ms.items():
            told_ms = self._told_ms.get(each)
            at_ms = since_ms + TOLD_AFTER_MS if told_ms is None else told_ms + TOLD_AGAIN_AFTER_MS
            if now_ms >= at_ms:
                self._told_ms[each] = now_ms
                due[each] = (now_ms - since_ms) / 1000
        return due, over


def words(cursors: list[Cursor], seconds: float, error: MinibrokerError | None) -> str:
    """One sentence for the partitions that are in the same trouble."""
    first, *others = cursors
    names = ", ".join(str(cursor.topic_partition) for cursor in others[: NAMED_MAX - 1])
    more = f" (and {names}{' and others' if len(others) >= NAMED_MAX else ''})" if others else ""
    why = "nobody has answered yet" if error is None else str(error)
    return f"no records of {first.topic_partition}{more} from {first.place} on for {seconds:.0f} s, still trying: {why}"


class TroubleWatch:
    """Looks at a consumer's partitions every second, for as long as the consumer is open."""

    def __init__(
        self, cursors: Callable[[], Mapping[TopicPartition, Cursor]], state: Callable[[Cursor], ConnectionState]
    ) -> None:
        self._cursors = cursors
        self._state = state
        self._troubles = Troubles()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = self._loop.call_later(LOOK_EVERY_MS / 1000, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self.start()
        cursors = self._cursors()
        full = {cursor.leader for cursor in cursors.values() if not cursor.has_room}
        bad: dict[TopicPartition, ConnectionState] = {}
        for partition, cursor in cursors.items():
            if cursor.leader in full and cursor.error is None:
                continue  # its leader is not asked until the user has read on
            state = self._state(cursor)
            if not state.healthy and state.state not in ("paused", "halted"):
                bad[partition] = state
        due, over = self._troubles.look(bad, self._loop.time() * 1000)
        for line in over:
            _log.info("%s", line)
        groups: dict[tuple[object, ...], list[TopicPartition]] = {}
        for partition in due:
            error, leader = bad[partition].error, bad[partition].leader
            groups.setdefault((leader, type(error), None if error is None else error.code), []).append(partition)
        for group in groups.values():
            members = [cursors[partition] for partition in group]
            _log.warning("%s", words(members, due[group[0]], bad[group[0]].error))
