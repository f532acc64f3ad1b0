"""Tasks that live and end with their owner.

Owns: a set of running tasks, and their end together with their owner. A task that ends with an exception is a bug of
our own, because a task handles external errors itself. Leaves to others: what the tasks do.
"""

import asyncio
from collections.abc import Coroutine


class OwnedTasks:
    """Holds references: asyncio keeps only weak ones, so a task without an owner may vanish, and its error with it."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        """In the order of their beginnings."""

    def __len__(self) -> int:
        return len(self._tasks)

    def own(self, work: Coroutine[None, None, None], name: str) -> None:
        """Run `work` to its end, or until `stop`."""
        task = asyncio.create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            raise error  # a bug of our own: the loop's exception handler ends the process

    async def stop(self) -> None:
        """Cancel all tasks and wait for them, by name, in an order that does not depend on memory addresses."""
        tasks = sorted(self._tasks, key=lambda task: task.get_name())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
