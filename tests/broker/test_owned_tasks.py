"""Tasks that live and end with their owner: errors reach the loop, and a stop ends all."""

import asyncio
from typing import Any

import pytest

from minibroker.broker.owned_tasks import OwnedGroup, OwnedTasks, end_process_on_bug


async def test_the_error_of_a_task_reaches_the_loop_and_a_cancelled_task_is_none() -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    tasks = OwnedTasks()

    async def fail() -> None:
        raise AssertionError("a bug of our own")

    async def succeed() -> None:
        pass

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks.own(fail(), "fails")
    tasks.own(succeed(), "succeeds")
    tasks.own(wait(), "is cancelled")
    for _ in range(3):  # they run, end, and are reported
        await asyncio.sleep(0)
    assert [str(each["exception"]) for each in reported] == ["a bug of our own"]
    assert len(tasks) == 1
    await tasks.stop()
    await asyncio.sleep(0)
    assert len(reported) == 1
    assert len(tasks) == 0


async def test_tasks_of_the_same_name_end_in_the_order_in_which_they_began() -> None:
    """A seed must play the same way again: addresses of memory decided it."""
    tasks, ended = OwnedTasks(), list[int]()

    async def wait(number: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    for number in range(50):
        tasks.own(wait(number), "the same")
    await asyncio.sleep(0)
    await tasks.stop()
    assert ended == list(range(50))


async def test_a_bug_in_a_group_reaches_the_loop_before_the_other_tasks_have_ended() -> None:
    """Work in a thread of the disk ends when it ends. Until then clients were served, and then the stop was clean."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    is_done = asyncio.Event()

    async def work() -> None:
        while not is_done.is_set():
            try:
                await asyncio.shield(is_done.wait())
            except asyncio.CancelledError:
                continue

    async def fail() -> None:
        raise AssertionError("a bug of our own")

    async def run() -> None:
        async with OwnedGroup() as group:
            group.create_task(work(), name="works")
            group.create_task(fail(), name="fails")

    running = asyncio.create_task(run())
    for _ in range(5):
        await asyncio.sleep(0)
    assert ([str(each["exception"]) for each in reported], running.done()) == (["a bug of our own"], False)
    is_done.set()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(("expected", "count"), [((), 1), ((OSError,), 1), ((OSError, ValueError), 0)])
async def test_an_expected_error_of_a_task_ends_no_process(expected: tuple[type[Exception], ...], count: int) -> None:
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))

    async def fail() -> None:
        raise ValueError("of the environment")

    task = asyncio.create_task(fail())
    end_process_on_bug(task, *expected)
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert len(reported) == count
