"""What a test leaves running when its cluster ends: tasks of its service, and clients that were not closed.

Owns: their end, and the warning that names them. Leaves to others: which tasks are the test's (`cluster`).
"""

import asyncio
import warnings
from pathlib import Path
from typing import Any

from minibroker.client.cluster import CLIENT_TASK
from minibroker.protocol.counted import counted

LEFTOVERS_SECONDS = 10.0
"""For the tasks that a test left to end after their cancellation."""


class LeftoverTasks(UserWarning):
    """Tasks of the test still ran when its cluster ended; they were cancelled."""


async def end_tasks(found: "list[asyncio.Task[Any]]") -> None:
    """Cancel these tasks and name them in one warning, with the clients that are not closed then. The service's tasks
    end first, because they close their clients."""
    services = [task for task in found if not _is_a_clients(task)]
    await _cancel(services)
    leaked = [task for task in found if _is_a_clients(task) and not task.done()]
    await _cancel(leaked)
    names = [f"{task.get_name()}: {_place_of(task)}" for task in services]
    names += [_unclosed_clients(leaked)] if leaked else []
    names += [f"{task.get_name()} ignored that" for task in found if not task.done()]
    if names:
        warnings.warn(LeftoverTasks(f"cancelled at the end of the test: {'; '.join(names)}"), stacklevel=3)


async def _cancel(tasks: "list[asyncio.Task[Any]]") -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LEFTOVERS_SECONDS)


def _unclosed_clients(tasks: "list[asyncio.Task[Any]]") -> str:
    """Clients whose tasks ran on when all services had ended, by their names."""
    names = [task.get_name() for task in tasks if task.get_name().startswith(CLIENT_TASK)]
    which = ", ".join(name.removeprefix(CLIENT_TASK) for name in names)
    if not names:
        return "a client that was not closed"
    return f"{counted(len(names), 'client')} that {'was' if len(names) == 1 else 'were'} not closed ({which})"


def _is_a_clients(task: "asyncio.Task[Any]") -> bool:
    """Of the client's code, not of the service that uses the client."""
    frame = getattr(task.get_coro(), "cr_frame", None)
    return frame is not None and str(frame.f_globals.get("__name__")).startswith("minibroker.")


def _place_of(task: "asyncio.Task[Any]") -> str:
    coroutine: Any = task.get_coro()
    code = coroutine.cr_code
    return f"{coroutine.__qualname__} in {Path(code.co_filename).name}:{code.co_firstlineno}"
