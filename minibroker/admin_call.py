"""What a command asks of an administration client.

Owns: opening the client, the time limit, and the end of the command where the client raises an error. Leaves to others:
the question, and the messages while no broker answers (`opened_client`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.command_line import PROGRESS_AFTER_S, CommandFailed, ProgressLine, run_async
from minibroker.opened_client import FIRST_ANSWER_MS, opened

T = TypeVar("T")


def ask_admin(
    servers: str,
    timeout_s: float,
    work: Callable[[AdminClient, float], Awaitable[T]],
    doing: str,
    *,
    waiting: str | None = None,
) -> T:
    """Run `work(admin, timeout_ms)`; every error of the client becomes a CommandFailed. `waiting` is shown if it takes
    a while: for work that prints nothing meanwhile."""

    async def ask() -> T:
        timeout_ms = max(1, round(timeout_s * 1000))
        client = AdminClient(bootstrap_servers=servers, bootstrap_timeout_ms=min(FIRST_ANSWER_MS, timeout_ms))
        async with opened(client, servers) as admin:
            if waiting is None:
                return await work(admin, timeout_ms)
            progress = ProgressLine(after_s=0.0)
            shown = asyncio.get_running_loop().call_later(PROGRESS_AFTER_S, progress.show, waiting)
            try:
                return await work(admin, timeout_ms)
            finally:
                shown.cancel()
                progress.clear()

    try:
        return run_async(ask(), timeout_s + 10, doing)
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None
