"""The virtual loop: unmodified asyncio, in no real time, the same in every run."""

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import Coroutine
from typing import Any

import pytest

from minibroker.simulation.world.loop import (
    Livelock,
    Stuck,
    VirtualFuture,
    VirtualLoop,
    VirtualTask,
    close_coroutine,
)
from minibroker.simulation.world.real_waiting import RealWaiting


def test_a_virtual_day_takes_no_time() -> None:
    async def main() -> float:
        began = asyncio.get_running_loop().time()
        await asyncio.sleep(86_400)
        return asyncio.get_running_loop().time() - began

    began = time.perf_counter()
    assert VirtualLoop().run(main()) == 86_400
    assert time.perf_counter() - began < 1


def test_timeouts_groups_queues_and_events_run_unmodified() -> None:
    async def produce(queue: asyncio.Queue[int]) -> None:
        for number in range(3):
            await asyncio.sleep(1)
            await queue.put(number)

    async def main() -> list[object]:
        seen: list[object] = []
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(produce(queue))
            seen.extend([await queue.get() for _ in range(3)])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 5)
        done, pending = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(n)) for n in (1, 9)], timeout=2)
        seen.append((len(done), len(pending)))
        for task in pending:
            task.cancel()
        async with asyncio.Lock(), asyncio.Semaphore(1):
            seen.append(asyncio.get_running_loop().time())
        return seen

    loop = VirtualLoop()
    assert loop.run(main()) == [0, 1, 2, (1, 1), loop.start_time + 3 + 5 + 5 + 2]


def test_a_failing_task_cancels_its_group() -> None:
    cancelled: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            cancelled.append(number)
            raise

    async def fail() -> None:
        await asyncio.sleep(1)
        raise ValueError("on purpose")

    async def main() -> None:
        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(wait(number))
                group.create_task(fail())

    VirtualLoop().run(main())
    assert sorted(cancelled) == list(range(20))


def cancellation_order() -> list[int]:
    """The order in which a set of tasks is cancelled, as asyncio does with a group."""
    order: list[int] = []

    async def wait(number: int) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            order.append(number)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(wait(number)) for number in range(200)]
            await asyncio.sleep(1)
            for task in set(tasks):
                task.cancel()

    VirtualLoop().run(main())
    return order


def test_sets_of_tasks_have_the_same_order_in_every_run() -> None:
    first = cancellation_order()
    ballast = [object() for _ in range(10_000)]
    assert cancellation_order() == first
    del ballast


def test_timers_of_one_moment_fire_in_the_order_of_their_creation() -> None:
    order: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        when = loop.time() + 1
        for number in range(100):
            loop.call_at(when, order.append, number)
        await asyncio.sleep(1)

    VirtualLoop().run(main())
    assert order == list(range(100))


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> int:
        for _ in range(20_000):
            async with asyncio.timeout(3600):
                await asyncio.sleep(0)
        return len(loop._timers)

    loop = VirtualLoop()
    assert loop.run(main()) < 5_000


def test_waiting_for_nothing_is_reported_with_the_waiting_tasks() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="wait_for_ever"):
        VirtualLoop().run(wait_for_ever())


def test_heartbeats_do_not_hide_a_run_without_end() -> None:
    async def main() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(Stuck, match="not done after 61"):
        VirtualLoop().run(main(), seconds_max=60)


def test_time_that_stands_still_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.simulation.world.loop.CALLBACKS_PER_INSTANT_MAX", 1_000)

    async def main() -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        VirtualLoop().run(main())


def test_unhandled_errors_fail_the_run() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        VirtualLoop().run(main())


def test_errors_of_forgotten_tasks_fail_the_run() -> None:
    async def fail() -> None:
        raise ValueError("forgotten")

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(fail())
        await asyncio.sleep(1)
        del task
        gc.collect()

    with pytest.raises(AssertionError, match="forgotten"):
        VirtualLoop().run(main())


@pytest.mark.filterwarnings("error")
def test_coroutines_that_a_closed_one_was_given_are_not_reported_as_forgotten() -> None:
    async def given() -> None:
        pass

    async def perform(work: Coroutine[Any, Any, None]) -> None:
        await work

    close_coroutine(perform(given()))
    gc.collect()


def test_real_waiting_is_refused() -> None:
    async def sleeps() -> None:
        sleep = time.sleep
        sleep(1)

    async def starts_a_thread() -> None:
        threading.Thread(target=print).start()

    async def uses_an_executor() -> None:
        await asyncio.to_thread(print)

    async def opens_a_socket() -> None:
        await asyncio.open_connection("127.0.0.1", 1)

    for main in (sleeps, starts_a_thread, uses_an_executor, opens_a_socket):
        with pytest.raises(RealWaiting):
            VirtualLoop().run(main())
    assert time.sleep.__module__ == "time"
    threading.Thread(target=lambda: None).start()


def test_hashes_are_counters_and_equality_is_identity() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        one, other = loop.create_future(), loop.create_future()
        assert isinstance(one, VirtualFuture)
        assert hash(one) + 1 == hash(other)
        assert hash(one) + 1 == hash(other), "drawn once"
        assert one != other
        assert isinstance(asyncio.current_task(), VirtualTask)

    VirtualLoop().run(main())


def test_a_hundred_thousand_callbacks_a_second() -> None:
    """150,000 and more on an idle machine; this one may be busy."""

    async def tick() -> None:
        for _ in range(1_000):
            await asyncio.sleep(0.001)

    async def main() -> None:
        await asyncio.gather(*(tick() for _ in range(20)))

    loop, began = VirtualLoop(), time.perf_counter()
    loop.run(main())
    assert loop.callbacks_run / (time.perf_counter() - began) > 30_000
