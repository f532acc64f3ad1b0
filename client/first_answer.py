"""The first valid answer of several servers, some of which may not answer at all.

Owns: when to ask the next server although earlier ones have not answered yet, and that no task outlives the call.
Leaves to others: the request, what a valid answer is, and the order of the servers.

A machine that is down, unlike a process, does not refuse connections: asking it alone costs a whole timeout. So, as
RFC 8305 ("happy eyeballs") does for the addresses of one host, the next server is asked a moment later, or at once when
one fails; the first valid answer cancels the other attempts.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from minibroker.client.errors import MinibrokerError
from minibroker.client.metadata_cache import Address
from minibroker.runtime.rpc import RpcError

ATTEMPT_DELAY_MS = 250
"""RFC 8305's delay between two attempts. Longer than a round trip to anywhere on earth and than a broker on a busy
machine takes to answer, so hardly any request is wasted; so short that two unreachable machines hardly matter."""

Answer = TypeVar("Answer")


class ServerAttempts(NamedTuple):
    """What each server did."""

    server: Address | None
    """The server that answered; None if none did."""
    late: tuple[Address, ...]
    """Servers that had not answered by then although asked earlier, in the order of asking."""
    failures: dict[Address, Exception]


async def first_answer(
    servers: Sequence[Address], ask: Callable[[Address], Coroutine[Any, Any, Answer]]
) -> tuple[Answer | None, ServerAttempts]:
    """Ask in this order. `ask` raises MinibrokerError or RpcError if there is no valid answer. It is cancelled when
    another server was first, and has ended when this returns. Each call of it keeps its own deadline."""
    waiting = list(servers)
    asked: dict[asyncio.Task[Answer], Address] = {}
    failures: dict[Address, Exception] = {}
    loop = asyncio.get_running_loop()
    try:
        while waiting or asked:
            if waiting:
                server = waiting.pop(0)
                asked[loop.create_task(ask(server))] = server
            await asyncio.wait(
                asked, timeout=ATTEMPT_DELAY_MS / 1000 if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [each for each in asked if each.done()]:
                server = asked.pop(task)
                try:
                    answer = task.result()
                except (MinibrokerError, RpcError) as error:
                    failures[server] = error
                else:
                    return answer, ServerAttempts(server, tuple(asked.values()), failures)
        return None, ServerAttempts(None, (), failures)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
