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
from minibroker.client.errors import ClusterUnreachable
from minibroker.client.limits import Deadline
from minibroker.client.no_answer import no_answer_sentences
from minibroker.client.public_client import PublicClient
from minibroker.client.topics import topic_deletions
from minibroker.client.topics import unknown_topics as find_unknown
from minibroker.command_line import CommandFailed, ProgressLine, warn
from minibroker.unknown_names import impossible_topics, unknown_topics

LOOKING_AFTER_S = 1.0
"""A healthy broker answers a client's first request in milliseconds."""
FIRST_ANSWER_MS = 3_000
"""How long a command looks for a first broker, unless every server refuses the connection. A paused broker costs a
quarter of a second, then the next is asked."""

T = TypeVar("T")


async def require_topics(
    cluster: Cluster, names: Sequence[str], timeout_ms: float, *, or_deletions: bool = False
) -> None:
    """Raise CommandFailed, with similar names, if no broker knows some of these topics. Brokers forget a topic when its
    deletion begins: that is told, or with `or_deletions`, for topics that are to be deleted, accepted. Raises
    MinibrokerError."""
    impossible = impossible_topics(names)
    if impossible is not None:
        raise CommandFailed(impossible)
    unknown, known = await find_unknown(cluster, names, Deadline(timeout_ms))
    if unknown:
        marked = await topic_deletions(cluster)
        missing = [name for name in unknown if name not in marked]
        texts = [marked[name] for name in unknown if name in marked and not or_deletions]
        texts += [unknown_topics(missing, known, may_create=not or_deletions)] if missing else []
        if texts:
            raise CommandFailed("; ".join(texts))


async def require_topics_that_stay(cluster: Cluster, names: Sequence[str], timeout_ms: float) -> None:
    """As `require_topics`, for records that are to be kept: also raise CommandFailed if a topic is marked for
    deletion."""
    await require_topics(cluster, names, timeout_ms)
    marked = await topic_deletions(cluster)
    doomed = [marked[name] for name in names if name in marked]
    if doomed:
        raise CommandFailed(f"{'; '.join(doomed)}; what is written now would be deleted with it")


async def warn_of_deletions(cluster: Cluster, names: Sequence[str] | None = None) -> dict[str, str]:
    """Say which of these topics, or of all, are marked for deletion, and return them."""
    marked = await topic_deletions(cluster)
    found = {name: reason for name, reason in marked.items() if names is None or name in names}
    for reason in found.values():
        warn(reason)
    return found


@asynccontextmanager
async def opened(client: AbstractAsyncContextManager[T], servers: str) -> AsyncIterator[T]:
    """Open the client for the block, like `async with client`. Raises CommandFailed if no broker answers, soon if every
    server refuses the connection."""
    if isinstance(client, PublicClient):
        client._refusals_end_start = True
    progress = ProgressLine(after_s=0.0)
    looking = asyncio.get_running_loop().call_later(
        LOOKING_AFTER_S, progress.show, f"no broker answers yet at {servers}: still trying (Ctrl-C ends it)"
    )
    async with AsyncExitStack() as stack:
        stack.enter_context(_client_warnings())
        try:
            entered = await stack.enter_async_context(client)
        except ClusterUnreachable as error:
            if not error.failures:
                raise
            told = no_answer_sentences(error.failures, "with -b", are_silent=error.are_silent)
            raise CommandFailed(told) from None
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
