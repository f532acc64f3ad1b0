"""What a command asks of an administration client.

Owns: opening the client, the time limit, and the end of the command where the client raises an error. Leaves to others:
the question, and the messages while no broker answers (`opened_client`).
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.command_line import CommandFailed, run_async
from minibroker.opened_client import FIRST_ANSWER_MS, opened
from minibroker.waiting_line import waiting_line

T = TypeVar("T")


def ask_admin(
    servers: str,
    timeout_s: float,
    work: Callable[[AdminClient, float], Awaitable[T]],
    doing: str,
    *,
    waiting: str = "waiting for the cluster's answer",
) -> T:
    """Run `work(admin, timeout_ms)`; every error of the client becomes a CommandFailed. `waiting` is shown if it takes
    a while."""

    async def ask() -> T:
        timeout_ms = max(1, round(timeout_s * 1000))
        client = AdminClient(bootstrap_servers=servers, bootstrap_timeout_ms=min(FIRST_ANSWER_MS, timeout_ms))
        async with opened(client, servers) as admin, waiting_line(waiting):
            return await work(admin, timeout_ms)

    try:
        return run_async(ask(), timeout_s + 10, doing)
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None
