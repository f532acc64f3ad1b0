"""A client that a command opens: shows the user when no broker answers at first, and the client's later warnings.

Owns: these messages, how long a command looks for a first broker, and the check that topics exist. A client waits for a
broker and for a topic, because both may be starting. A user who types a command has more likely misspelt an
address or a name, and wants to know that.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from typing import TypeVar

from minibroker.client.cluster import Cluster
from minibroker.client.limits import Deadline
from minibroker.client.topics import unknown_topics
from minibroker.command_line import CommandFailed, ProgressLine, unknown_topic, warn

LOOKING_AFTER_S = 1.0
"""A healthy broker answers a client's first request in milliseconds."""
FIRST_ANSWER_MS = 3_000
"""How long a command looks for a first broker. A paused broker costs a quarter of a second, then the next is asked."""

T = TypeVar("T")


async def require_topics(cluster: Cluster, names: Sequence[str], timeout_ms: float) -> None:
    """Raise CommandFailed, with a similar name, if no broker knows one of these topics. Raises MinibrokerError."""
    unknown, known = await unknown_topics(cluster, names, Deadline(timeout_ms))
    if unknown:
        raise CommandFailed(unknown_topic(unknown[0], known))


@asynccontextmanager
async def opened(client: AbstractAsyncContextManager[T], servers: str) -> AsyncIterator[T]:
    """Open the client for the block, like `async with client`."""
    progress = ProgressLine(after_s=0.0)
    looking = asyncio.get_running_loop().call_later(
        LOOKING_AFTER_S, progress.show, f"no broker answers yet at {servers}: still trying (Ctrl-C ends it)"
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(_client_warnings())
        try:
            entered = await stack.enter_async_context(client)
        finally:
            looking.cancel()
            progress.clear()
        yield entered


@contextmanager
def _client_warnings() -> Iterator[None]:
    """Print the client's logged warnings on stderr like other warnings of a command."""
    handler = _Warnings()
    log = logging.getLogger("minibroker.client")
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        ProgressLine.erase()
        name = getattr(record, "client_id", "")
        warn(record.getMessage().removeprefix(f"{name}: "))
