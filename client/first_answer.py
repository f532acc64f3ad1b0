"""The first good answer of several servers, of which some may say nothing at all.

Owns: when the next one is asked beside those that have not answered yet, and that no task outlives the question.
Refuses to know what is asked, what a good answer is, and in which order the servers come.

A machine that is gone, unlike a process, refuses nobody: whoever is asked alone costs a whole timeout. So, as RFC 8305
("happy eyeballs") has it for the addresses of one host, the next one gets its turn a moment later, or at once when one
fails; the first good answer ends the others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from minibroker.client.errors import MinibrokerError
from minibroker.client.metadata_cache import Address
from minibroker.runtime.rpc import RpcError

ASK_BESIDE_MS = 250
"""RFC 8305's delay between two attempts: longer than a round trip to anywhere on earth, and what a broker on a busy
machine takes to answer, so that hardly anybody is asked in vain; so short that two dark machines are hardly felt."""

Answer = TypeVar("Answer")


class Found(NamedTuple):
    """What came of a question."""

    server: Address | None
    """Who answered; None: nobody did."""
    late: tuple[Address, ...]
    """Who had not answered by then though asked earlier, in the order of asking."""
    failures: dict[Address, Exception]


async def first_answer(
    servers: Sequence[Address], ask: Callable[[Address], Coroutine[Any, Any, Answer]]
) -> tuple[Answer | None, Found]:
    """Ask in this order. `ask` raises MinibrokerError or RpcError for an answer that is none; it is cancelled when
    another server was first, and has ended when this returns. Each keeps its own deadline."""
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
                asked, timeout=ASK_BESIDE_MS / 1000 if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in [each for each in asked if each.done()]:
                server = asked.pop(task)
                try:
                    answer = task.result()
                except (MinibrokerError, RpcError) as error:
                    failures[server] = error
                else:
                    return answer, Found(server, tuple(asked.values()), failures)
        return None, Found(None, (), failures)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
