"""Logs that no records come from a partition, and why: a waiting consumer cannot tell an error from a quiet topic.

Owns: after how long a problem is logged, how often again, and the wording. Leaves to others: what is done about it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from minibroker.client.client_log import ClientLog
from minibroker.client.consumer.connection_state import ConnectionState
from minibroker.client.consumer.cursor import Cursor
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.deadline import DeadlineTimer

LOG_AFTER_MS = 3_000.0
"""A problem that lasts this long is logged: most elections and restarts are over by then, and users still wait."""
LOG_AGAIN_MAX_MS = 60_000.0
"""The longest interval of repetition: often enough to be found at the end of a log, too seldom to fill it."""
LOOK_EVERY_MS = 1_000.0
NAMED_MAX = 3
"""At most this many partitions with the same problem are named."""


def log_again_after_ms(waited_ms: float) -> float:
    """The interval until the next message about a problem that has lasted this long: a user who waits for a command is
    told often at first."""
    return min(waited_ms, LOG_AGAIN_MAX_MS)


class ProblemLog:
    """Which partitions have had a problem since when, and when it was logged. Pure."""

    def __init__(self) -> None:
        self._since_ms: dict[TopicPartition, float] = {}
        self._logged_ms: dict[TopicPartition, float] = {}

    def look(self, bad: Iterable[TopicPartition], now_ms: float) -> tuple[dict[TopicPartition, float], list[str]]:
        """(seconds of each problem that is to be logged now, messages on partitions that have recovered)."""
        now_bad = set(bad)
        over = [
            f"{each} is read again, after {(now_ms - self._since_ms[each]) / 1000:.0f} s"
            for each in sorted(self._logged_ms.keys() - now_bad)
        ]
        self._since_ms = {each: self._since_ms.get(each, now_ms) for each in sorted(now_bad)}
        self._logged_ms = {each: at for each, at in self._logged_ms.items() if each in now_bad}
        due = {}
        for each, since_ms in self._since_ms.items():
            logged_ms = self._logged_ms.get(each)
            at_ms = (
                since_ms + LOG_AFTER_MS if logged_ms is None else logged_ms + log_again_after_ms(logged_ms - since_ms)
            )
            if now_ms >= at_ms:
                self._logged_ms[each] = now_ms
                due[each] = (now_ms - since_ms) / 1000
        return due, over


def describe_problem(cursors: list[Cursor], seconds: float, error: MinibrokerError | None) -> str:
    """One sentence for the partitions with the same problem."""
    first, *others = cursors
    names = ", ".join(str(cursor.topic_partition) for cursor in others[: NAMED_MAX - 1])
    more = f" (and {names}{' and others' if len(others) >= NAMED_MAX else ''})" if others else ""
    why = "no broker has answered yet" if error is None else str(error)
    return f"no records of {first.topic_partition}{more} from {first.place} on for {seconds:.0f} s, still trying: {why}"


class PartitionWatch:
    """Checks a consumer's partitions every second, as long as the consumer is open."""

    def __init__(
        self,
        cursors: Callable[[], Mapping[TopicPartition, Cursor]],
        state: Callable[[Cursor], ConnectionState],
        log: ClientLog,
    ) -> None:
        self._cursors = cursors
        self._state = state
        self._log = log
        self._problems = ProblemLog()
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._look)

    def start(self) -> None:
        self._timer.set_after(LOOK_EVERY_MS / 1000)

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self.start()
        cursors = self._cursors()
        full = {cursor.leader for cursor in cursors.values() if not cursor.has_room}
        bad: dict[TopicPartition, ConnectionState] = {}
        for partition, cursor in cursors.items():
            if cursor.leader in full and cursor.error is None:
                continue  # its leader gets no fetch until the user has read on
            state = self._state(cursor)
            if not state.healthy and state.state not in ("paused", "halted"):
                bad[partition] = state
        due, over = self._problems.look(bad, self._loop.time() * 1000)
        for line in over:
            self._log.info("%s", line)
        groups: dict[tuple[object, ...], list[TopicPartition]] = {}
        for partition in due:
            error, leader = bad[partition].error, bad[partition].leader
            groups.setdefault((leader, type(error), None if error is None else error.code), []).append(partition)
        for group in groups.values():
            members = [cursors[partition] for partition in group]
            self._log.warning("%s", describe_problem(members, due[group[0]], bad[group[0]].error))
