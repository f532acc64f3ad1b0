"""Tasks that live and end with their owner: errors reach the loop, and a stop ends all."""

import asyncio
from typing import Any

from minibroker.broker.owned_tasks import OwnedTasks


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
