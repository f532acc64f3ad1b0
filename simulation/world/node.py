"""Simulated machines and the processes that run on them.

A node is a machine: it has a name, a disk, an address and a power switch. A process is one run of code on it; killing
it ends it for good, and starting the node again makes a new process over the same disk. A context variable holds the
process that code belongs to, so every task and callback that the code starts belongs to the same process.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Iterable
from typing import Protocol


class ProcessDead(BaseException):
    """Unwinds code of a process that has just been killed: no `except Exception` may catch it."""


class Schedule(Protocol):
    """The part of the loop that a process uses."""

    def run_again(self, handles: Iterable[asyncio.Handle]) -> None:
        """Make these callbacks ready, in order."""
        ...


class Process:
    """One run of a node. Its callbacks wait while it is paused or busy, and are dropped once it is dead."""

    def __init__(self, name: str, incarnation: int, schedule: Schedule) -> None:
        self.name = name
        self.incarnation = incarnation
        self.alive = True
        self.paused = False
        self.busy_until = 0.0
        """Loop time until which a synchronous disk call holds it."""
        self.runs = True
        """Alive, not paused, not busy: its callbacks run at once."""
        self.backlog: deque[asyncio.Handle] = deque()
        self._schedule = schedule
        self.context = contextvars.Context()
        """For callbacks that the world delivers to this process."""
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"{self.name}#{self.incarnation}"

    def check_alive(self) -> None:
        """Called by every port: nothing that a dead process requests may happen."""
        if not self.alive:
            raise ProcessDead(self.name)

    def pause(self) -> None:
        self.paused = True
        self.runs = False

    def resume(self, now: float) -> None:
        self.paused = False
        self.wake(now)

    def wake(self, now: float) -> None:
        """Go on, unless something still holds it."""
        self.runs = self.alive and not self.paused and self.busy_until <= now
        if self.runs and self.backlog:
            self._schedule.run_again(self.backlog)
            self.backlog.clear()

    def kill(self) -> None:
        self.alive = False
        self.runs = False
        self.backlog.clear()


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("simulated process", default=None)
