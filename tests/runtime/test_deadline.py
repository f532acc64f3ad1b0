"""One timer for many deadlines calls once, at the earliest; an answer counts that comes together with its deadline."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minibroker.runtime.deadline import DeadlineTimer, answer_within
from minibroker.simulation.world.world import SimulatedWorld


class Scene:
    """A timer, and the seconds at which it called."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.called: list[float] = []
        self.timer = DeadlineTimer(self._call)

    def _call(self) -> None:
        self.called.append(round(self.timer.now(), 3))

    def play(self, story: Callable[[float], Awaitable[None]]) -> list[float]:
        """`story` gets the time at its start; the result counts from there."""

        async def main() -> float:
            start = asyncio.get_running_loop().time()
            await story(start)
            await asyncio.sleep(100)
            return start

        start = self.world.run(main())
        return [round(at - start, 3) for at in self.called]


def test_the_earliest_deadline_counts_whichever_was_set_first() -> None:
    async def story(start: float) -> None:
        for seconds in (3, 1, 2):
            scene.timer.set(start + seconds)
        assert scene.timer.is_set

    scene = Scene()
    assert scene.play(story) == [1]
    assert not scene.timer.is_set


def test_a_deadline_that_is_over_is_called_at_once() -> None:
    async def story(start: float) -> None:
        await asyncio.sleep(5)
        scene.timer.set(start + 1)

    scene = Scene()
    assert scene.play(story) == [5]


def test_a_cancelled_timer_calls_for_later_deadlines_only() -> None:
    async def story(start: float) -> None:
        scene.timer.cancel()
        scene.timer.set_after(1)
        scene.timer.cancel()
        assert not scene.timer.is_set
        scene.timer.set_after(2)

    scene = Scene()
    assert scene.play(story) == [2]


def test_the_next_deadline_may_be_set_while_it_calls() -> None:
    async def story(start: float) -> None:
        scene.timer.set_after(1)

    class Repeating(Scene):
        def _call(self) -> None:
            super()._call()
            if len(self.called) < 3:
                self.timer.set_after(1)

    scene = Repeating()
    assert scene.play(story) == [1, 2, 3]


async def test_an_answer_counts_that_comes_together_with_its_deadline() -> None:
    """A process that stood still finds both at once. It dropped the answer (seed 17312267)."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[str] = loop.create_future()
    loop.call_soon(answered.set_result, "gone")
    assert await answer_within(answered, timeout_ms=0) == "gone"


async def test_without_an_answer_the_wait_ends_at_its_deadline() -> None:
    answered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        await answer_within(answered, timeout_ms=1)
    assert answered.cancelled()
