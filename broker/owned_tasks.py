"""Tasks that somebody waits for.

Owns: a set of running tasks, and their end together with their owner. A task that ends with an exception is our own
bug, for what can go wrong outside is handled in the task. Refuses to know what they do.
"""

import asyncio
from collections.abc import Coroutine


class OwnedTasks:
    """asyncio keeps weak references only: a task that nobody owns may vanish, and its error with it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def own(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run it to its end, or to `stop`."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            raise error  # our own bug: the loop's handler ends the process

    async def stop(self) -> None:
        """Cancel what is under way and wait for it, in an order that does not depend on addresses."""
        tasks = sorted(self._tasks, key=lambda task: task.get_name())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
