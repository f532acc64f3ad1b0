"""The producer's memory: who gets some, in which order, and what a call leaves behind that waits no longer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.client.errors import ClientClosed
from minibroker.client.limits import Deadline
from minibroker.client.producer.buffer_memory import BufferMemory
from minibroker.simulation.world.world import SimulatedWorld

Story = Callable[[BufferMemory], Coroutine[Any, Any, None]]


def full_memory(story: Story) -> Callable[[], None]:
    """Make a synchronous test of a coroutine, which gets a memory of 100 bytes without room."""

    def test() -> None:
        memory = BufferMemory(100)
        assert memory.reserve(100)
        SimulatedWorld().run(story(memory))

    test.__name__, test.__doc__ = story.__name__, story.__doc__
    return test


def waiting(memory: BufferMemory, timeout_ms: float = 60_000) -> "asyncio.Task[bool]":
    return asyncio.create_task(memory.wait(Deadline(timeout_ms)))


def test_only_an_empty_memory_takes_a_piece_beyond_its_limit() -> None:
    memory = BufferMemory(100)
    assert memory.reserve(60)
    assert not memory.reserve(41)
    assert memory.reserve(40)
    assert (memory.used_bytes, memory.free_bytes) == (100, 0)
    memory.release(100)
    assert memory.reserve(101)
    assert (memory.used_bytes, memory.free_bytes) == (101, 0)


@full_memory
async def test_calls_are_woken_one_at_a_time_in_order_of_arrival(memory: BufferMemory) -> None:
    first, second = waiting(memory), waiting(memory)
    await asyncio.sleep(0.01)
    memory.release(24)
    await asyncio.sleep(0.01)
    assert not first.done(), "less than a quarter is free"
    memory.release(1)
    await asyncio.sleep(0.01)
    assert first.done() and first.result()
    assert not second.done()
    memory.release(1)
    assert await second


@full_memory
async def test_a_call_that_has_waited_in_vain_leaves_nothing_behind(memory: BufferMemory) -> None:
    """The memory of a producer without a broker stays full, and each of its calls waits in vain."""
    for _ in range(3):
        assert not await memory.wait(Deadline(1_000))
    cancelled = waiting(memory)
    await asyncio.sleep(0.01)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert not memory._waiters


@full_memory
async def test_a_call_that_is_cancelled_once_woken_wakes_the_next_one(memory: BufferMemory) -> None:
    first, second = waiting(memory), waiting(memory)
    await asyncio.sleep(0.01)
    memory.release(50)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await second


@full_memory
async def test_a_call_whose_time_ends_once_it_is_woken_wakes_the_next_one(memory: BufferMemory) -> None:
    """Both happen in one loop iteration, as in a process that stood still."""
    loop = asyncio.get_running_loop()
    loop.call_at(loop.time() + 1, memory.release, 50)
    first, second = waiting(memory, timeout_ms=1_000), waiting(memory)
    assert not await first
    assert await second


@full_memory
async def test_an_end_without_error_wakes_all_waiting_calls(memory: BufferMemory) -> None:
    calls = [waiting(memory) for _ in range(3)]
    await asyncio.sleep(0.01)
    memory.wake_all()
    assert await asyncio.gather(*calls) == [True] * 3


@full_memory
async def test_an_error_ends_all_waiting_calls(memory: BufferMemory) -> None:
    calls = [waiting(memory) for _ in range(3)]
    await asyncio.sleep(0.01)
    error = ClientClosed("the producer is closed")
    memory.end(error)
    assert await asyncio.gather(*calls, return_exceptions=True) == [error] * 3
