"""Fetches that wait: which wake together, which get a turn of their own, and that each one ends once."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.requests.delayed_fetches import (
    FEW_PARTITIONS,
    MAX_WAIT_MS,
    WATERMARK_DELAY_MS,
    DelayedFetch,
    DelayedFetches,
)
from minibroker.protocol.wire.messages import FetchPartition, FetchRequest, FetchTopic
from minibroker.simulation.world.world import SimulatedWorld

MANY = FEW_PARTITIONS + 1
FOLLOWER = cast(Any, SimpleNamespace(delayed=None))


class Waiting:
    """The delayed fetches of a broker whose answers are noted: each fetch, and whether it had to be answered."""

    def __init__(self) -> None:
        self.answered: list[tuple[DelayedFetch, bool]] = []
        self.unanswered: list[object] = []
        self.has_something_to_send = True
        self.fetches = DelayedFetches(self._answer)
        self.now = asyncio.get_running_loop().time

    def _answer(self, delayed: DelayedFetch, force: bool) -> bool:
        assert not delayed.done
        if not force and not self.has_something_to_send:
            return False
        self.fetches.answered(delayed)
        self.answered.append((delayed, force))
        return True

    def add_of(self, session: Any, max_wait_ms: int) -> DelayedFetch:
        """The next fetch of a follower's session waits."""
        request = SimpleNamespace(connection=object(), is_handling_read=False)
        delayed = session.delayed = DelayedFetch(cast(Any, request), body_of(1, max_wait_ms=max_wait_ms), session)
        self.fetches.delay_of_follower(delayed, session)
        return delayed

    def add(self, listed: int = 1, max_wait_ms: int = 1_000, connection: object = None, **fields: Any) -> DelayedFetch:
        """One more fetch that waits."""
        request = SimpleNamespace(connection=connection or object(), is_handling_read=False, delay=lambda _: True)
        for name, value in fields.items():
            setattr(request, name, value)
        request.finish_without_reply = lambda: self.unanswered.append(request)
        delayed = DelayedFetch(cast(Any, request), body_of(listed, max_wait_ms=max_wait_ms), None)
        self.fetches.delay(delayed)
        return delayed


def body_of(listed: int, **fields: Any) -> FetchRequest:
    """A fetch of so many partitions, of two topics."""
    partitions = [FetchPartition(partition=number, fetch_offset=0) for number in range(listed)]
    topics = [FetchTopic(topic="a", partitions=partitions[:1]), FetchTopic(topic="b", partitions=partitions[1:])]
    return FetchRequest(topics=topics, **fields)


def on_a_loop(case: Callable[[Waiting], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        async def play() -> None:
            await case(Waiting())

        SimulatedWorld().run(play())

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


# ----------------------------------------------------------------------------------------------------------- one fetch
@pytest.mark.parametrize(
    ("session", "listed", "is_large", "min_bytes"),
    [
        (None, FEW_PARTITIONS, False, 500),
        (None, MANY, True, 1),
        (FOLLOWER, FEW_PARTITIONS, False, 500),
        (FOLLOWER, MANY, False, 500),
    ],
)
def test_a_fetch_is_large_if_it_lists_many_partitions_and_has_no_session(
    session: Any, listed: int, is_large: bool, min_bytes: int
) -> None:
    """A session's answer reads only what changed, so a follower never waits for a turn."""
    delayed = DelayedFetch(cast(Any, None), body_of(listed, min_bytes=500), session)
    assert (delayed.is_large, delayed.min_bytes) == (is_large, min_bytes)


@pytest.mark.parametrize(
    ("max_wait_ms", "seconds"), [(-1, 0), (0, 0), (1, 0.001), (MAX_WAIT_MS, 30), (MAX_WAIT_MS + 1, 30)]
)
def test_a_fetch_waits_as_long_as_it_asks_within_the_limit(max_wait_ms: int, seconds: float) -> None:
    assert DelayedFetch(cast(Any, None), body_of(1, max_wait_ms=max_wait_ms), None).wait_seconds == seconds


def test_a_fetch_that_ended_leaves_every_partition_and_only_its_own_session() -> None:
    partitions = [cast(Any, SimpleNamespace(waiting_fetches={})) for _ in range(2)]
    session = SimpleNamespace(delayed=None)
    first, second = (DelayedFetch(cast(Any, None), body_of(1), cast(Any, session)) for _ in range(2))
    for delayed in (first, second):
        for partition in (*partitions, partitions[0]):
            delayed.watch(partition)
    assert [list(each.waiting_fetches) for each in partitions] == [[first, second]] * 2
    session.delayed = second
    first.end()
    assert [list(each.waiting_fetches) for each in partitions] == [[second]] * 2
    assert (first.done, first.watched, session.delayed) == (True, [], second)
    second.end()
    assert [list(each.waiting_fetches) for each in partitions] == [[]] * 2
    assert session.delayed is None


# ------------------------------------------------------------------------------------------------------------- waking
@on_a_loop
async def test_woken_fetches_are_answered_together_and_once(waiting: Waiting) -> None:
    fetches = [waiting.add() for _ in range(3)]
    for delayed in (*fetches, fetches[0]):
        waiting.fetches.wake(delayed)
    assert waiting.answered == []
    await asyncio.sleep(0)
    assert waiting.answered == [(delayed, False) for delayed in fetches]
    waiting.fetches.wake(fetches[0])
    await asyncio.sleep(2)
    assert len(waiting.answered) == 3
    assert waiting.fetches.count == 0


@on_a_loop
async def test_a_fetch_that_a_read_wakes_is_answered_when_its_requests_are_handled(waiting: Waiting) -> None:
    delayed = waiting.add(is_handling_read=True)
    waiting.fetches.wake(delayed)
    await asyncio.sleep(0.5)
    assert waiting.answered == []
    waiting.fetches.flush()
    assert waiting.answered == [(delayed, False)]


@on_a_loop
async def test_a_fetch_with_too_little_to_send_waits_for_more(waiting: Waiting) -> None:
    delayed = waiting.add()
    waiting.has_something_to_send = False
    for _ in range(2):
        waiting.fetches.wake(delayed)
        await asyncio.sleep(0)
    assert (waiting.answered, waiting.fetches.count) == ([], 1)
    waiting.has_something_to_send = True
    waiting.fetches.wake(delayed)
    await asyncio.sleep(0)
    assert waiting.answered == [(delayed, False)]


@on_a_loop
async def test_each_large_fetch_is_answered_in_a_loop_iteration_of_its_own(waiting: Waiting) -> None:
    """One of thousands of partitions takes long; a hundred of them at once would delay everything else."""
    large, small = [waiting.add(MANY) for _ in range(4)], waiting.add()
    for delayed in (*large, small):
        waiting.fetches.wake(delayed)
    waiting.fetches.flush()
    assert waiting.answered == [(small, False)]
    waiting.fetches.answered(large[1])  # its request ended meanwhile
    seen = []
    for _ in range(5):
        await asyncio.sleep(0)
        seen.append(len(waiting.answered))
    assert seen == [2, 2, 3, 4, 4]
    assert [delayed for delayed, _ in waiting.answered] == [small, large[0], large[2], large[3]]
    again = waiting.add(MANY)
    waiting.fetches.wake(again)
    await asyncio.sleep(0.1)
    assert waiting.answered[-1] == (again, False)


# -------------------------------------------------------------------------------------------------------------- times
@on_a_loop
async def test_a_fetch_is_answered_when_its_time_is_over_whatever_there_is_to_send(waiting: Waiting) -> None:
    waiting.has_something_to_send = False
    short, long = waiting.add(max_wait_ms=100), waiting.add(max_wait_ms=300)
    await asyncio.sleep(0.099)
    assert waiting.answered == []
    await asyncio.sleep(0.002)
    assert waiting.answered == [(short, True)]
    await asyncio.sleep(0.2)
    assert waiting.answered == [(short, True), (long, True)]


@on_a_loop
async def test_a_newer_high_watermark_is_sent_a_moment_later_unless_an_answer_went_before(waiting: Waiting) -> None:
    waiting.has_something_to_send = False
    delay = WATERMARK_DELAY_MS / 1000
    first, answered, later = (waiting.add() for _ in range(3))
    waiting.fetches.wake_for_watermark(first)
    waiting.fetches.wake_for_watermark(answered)
    await asyncio.sleep(delay / 2)
    waiting.fetches.answered(answered)
    waiting.fetches.wake_for_watermark(answered)
    waiting.fetches.wake_for_watermark(first)
    waiting.fetches.wake_for_watermark(later)
    assert waiting.answered == []
    await asyncio.sleep(delay / 2 + 0.001)
    assert waiting.answered == [(first, True)]
    await asyncio.sleep(delay / 2)
    assert waiting.answered == [(first, True), (later, True)]
    assert waiting.fetches.count == 0


# ------------------------------------------------------------------------------------------------ fetches of a session
def session_of_follower() -> Any:
    return SimpleNamespace(delayed=None, alarm=None, alarm_at=0.0)


@on_a_loop
async def test_each_fetch_of_a_session_waits_its_own_time_although_they_share_an_alarm(waiting: Waiting) -> None:
    session = session_of_follower()
    first = waiting.add_of(session, 1_000)
    await asyncio.sleep(0.6)
    waiting.fetches.answered(first)
    second = waiting.add_of(session, 1_000)
    await asyncio.sleep(0.99)
    assert waiting.answered == []
    await asyncio.sleep(0.02)
    assert waiting.answered == [(second, True)]


@on_a_loop
async def test_a_shorter_wait_of_a_session_is_kept_too(waiting: Waiting) -> None:
    session = session_of_follower()
    waiting.fetches.answered(waiting.add_of(session, 10_000))
    short = waiting.add_of(session, 500)
    await asyncio.sleep(0.49)
    assert waiting.answered == []
    await asyncio.sleep(0.02)
    assert waiting.answered == [(short, True)]


@on_a_loop
async def test_nothing_rings_for_a_session_that_waits_for_nothing_or_has_ended(waiting: Waiting) -> None:
    idle, ended = session_of_follower(), session_of_follower()
    waiting.fetches.answered(waiting.add_of(idle, 500))
    waiting.add_of(ended, 500)
    waiting.fetches.session_ended(ended)
    await asyncio.sleep(2)
    assert (waiting.answered, idle.alarm, ended.alarm) == ([], None, None)


# -------------------------------------------------------------------------------------------------------- connections
@on_a_loop
async def test_the_fetches_of_a_closed_connection_end_without_an_answer(waiting: Waiting) -> None:
    lost, kept = object(), object()
    of_lost = [waiting.add(connection=lost) for _ in range(2)]
    of_kept = waiting.add(connection=kept)
    assert waiting.fetches.count == 3
    waiting.fetches.connection_closed(cast(Any, lost))
    assert waiting.unanswered == [delayed.request for delayed in of_lost]
    assert (waiting.fetches.count, [delayed.done for delayed in of_lost]) == (1, [True, True])
    waiting.fetches.connection_closed(cast(Any, lost))
    for delayed in of_lost:
        waiting.fetches.wake(delayed)
    await asyncio.sleep(2)
    assert waiting.answered == [(of_kept, True)]
    assert len(waiting.unanswered) == 2


@on_a_loop
async def test_a_fetch_that_may_not_wait_is_kept_nowhere(waiting: Waiting) -> None:
    asked: list[int] = []

    def refuse(listed: int) -> bool:
        asked.append(listed)
        return False

    delayed = waiting.add(7, delay=refuse)
    assert (asked, waiting.fetches.count, delayed.alarm) == ([7], 0, None)
    await asyncio.sleep(2)
    assert waiting.answered == []
