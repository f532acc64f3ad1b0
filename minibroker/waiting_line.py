"""The line that a terminal shows while a command waits and prints nothing.

Owns: when it comes, and that it goes before other output. Leaves to others: what is waited for.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minibroker.command_line import PROGRESS_AFTER_S, ProgressLine


@asynccontextmanager
async def waiting_line(text: str) -> AsyncIterator[None]:
    """Show `text` if the block takes a while, unless it is ending after Ctrl-C."""
    progress, task = ProgressLine(after_s=0.0), asyncio.current_task()

    def show() -> None:
        if task is not None and not task.cancelling():
            progress.show(f"{text} (Ctrl-C ends it)")

    shown = asyncio.get_running_loop().call_later(PROGRESS_AFTER_S, show)
    try:
        yield
    finally:
        shown.cancel()
        progress.clear()
