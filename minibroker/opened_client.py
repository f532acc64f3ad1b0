"""A client that a command opens: shows the user when no broker answers at first, and the client's later warnings.

Owns: these messages. A client tries to reach a first broker for ten seconds, even if all refuse, because a cluster may
be starting; without a message the command would seem to hang, also if the leader of a partition refuses to serve it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeVar

from minibroker.command_line import ProgressLine, warn

LOOKING_AFTER_S = 1.0
"""A healthy broker answers a client's first request in milliseconds."""

T = TypeVar("T")


@asynccontextmanager
async def opened(client: AbstractAsyncContextManager[T], servers: str) -> AsyncIterator[T]:
    """Open the client for the block, like `async with client`."""
    progress = ProgressLine(after_s=0.0)
    looking = asyncio.get_running_loop().call_later(
        LOOKING_AFTER_S, progress.show, f"no broker answers yet at {servers}: still trying (Ctrl-C ends it)"
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(_client_warnings(progress))
        try:
            entered = await stack.enter_async_context(client)
        finally:
            looking.cancel()
            progress.clear()
        yield entered


@contextmanager
def _client_warnings(progress: ProgressLine) -> Iterator[None]:
    """Print the client's logged warnings on stderr like other warnings of a command."""
    handler = _Warnings(progress)
    log = logging.getLogger("minibroker.client")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Warnings(logging.Handler):
    def __init__(self, progress: ProgressLine) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.clear()
        warn(record.getMessage())
