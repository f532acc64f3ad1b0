"""Whether others of the event loop get their turns while something long goes on."""

import asyncio
from collections.abc import Awaitable


async def turns_during(work: Awaitable[object]) -> int:
    """Turns that another task got until `work` had ended."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    running = asyncio.create_task(others())
    await work
    running.cancel()
    return turns
