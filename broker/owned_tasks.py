"""Tasks that live and end with their owner.

Owns: sets of running tasks, and their end together with their owner. A task that ends with an exception is a bug of
our own, because a task handles external errors itself. The loop's exception handler then ends the process at once: to
cancel the other tasks and wait for them takes as long as their work on the disk, and clients would be served meanwhile.
Leaves to others: what the tasks do.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any


def end_process_on_bug(task: asyncio.Task[Any], *expected: type[BaseException]) -> None:
    """Let the loop's exception handler have the error with which this task ends, unless it is an expected one."""

    task.add_done_callback(lambda task: _raise_bug(task, *expected))


def _raise_bug(task: asyncio.Task[Any], *expected: type[BaseException]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, expected):
        raise error


class OwnedGroup(asyncio.TaskGroup):
    """A group whose tasks run as long as the process."""

    def create_task(self, *work: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(*work, **options)
        end_process_on_bug(task)
        return task


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
        _raise_bug(task)

    async def stop(self) -> None:
        """Cancel all tasks and wait for them, by name, in an order that does not depend on memory addresses."""
        tasks = sorted(self._tasks, key=lambda task: task.get_name())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
