"""A client that a command opens: a person at a terminal is told when no broker answers at first.

Owns: that one line. A client looks for a first broker for ten seconds, even where all refuse, for a cluster may be
starting; without a word that looks like a command that hangs.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from minibroker.command_line import ProgressLine

LOOKING_AFTER_S = 1.0
"""A broker that is well answers a client's first question in milliseconds."""

T = TypeVar("T")


@asynccontextmanager
async def opened(client: AbstractAsyncContextManager[T], servers: str) -> AsyncIterator[T]:
    """The client for the block, as `async with client` gives it."""
    progress = ProgressLine(after_s=0.0)
    looking = asyncio.get_running_loop().call_later(
        LOOKING_AFTER_S, progress.show, f"no broker answers yet at {servers}: still looking (Ctrl-C ends it)"
    )
    async with AsyncExitStack() as stack:
        try:
            entered = await stack.enter_async_context(client)
        finally:
            looking.cancel()
            progress.clear()
        yield entered
