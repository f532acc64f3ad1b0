"""Runs some children at a time; each coroutine is one child."""

import asyncio
from collections.abc import Coroutine, Sequence


async def in_parallel(processes: int, works: Sequence[Coroutine[None, None, None]]) -> None:
    """In this order. The first error, or Ctrl-C, ends all of them."""
    left = iter(works)

    async def work() -> None:
        for each in left:
            await each

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(processes):
                group.create_task(work())
    finally:
        for each in left:
            each.close()
