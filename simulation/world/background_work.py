"""Background work of a simulated process: a synchronous call that halts now and then, so that the event loop runs
meanwhile, as it does beside a real thread.

Owns: the hand-over. The call has a thread of its own, and exactly one of the two runs at any time, so a run repeats
from its seed. Leaves to others: where the call halts, and for how long.
"""

import contextvars
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
START_THREAD = threading.Thread.start
"""Taken before a run forbids threads to the code under test (`real_waiting`)."""


class Abandoned(BaseException):
    """Unwinds a call whose caller waits no more."""


class BackgroundWork(Generic[T]):
    """One call. Use: `advance` until it returns True, then `result`; in the end always `abandon`."""

    def __init__(self, call: Callable[[], T]) -> None:
        self.error: BaseException | None = None
        """What the call raised."""
        self._call = call
        self._results: list[T] = []
        self._is_over = False
        self._is_abandoned = False
        self._may_run, self._has_halted = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), daemon=True)

    def _run(self) -> None:
        try:
            self._results.append(self._call())
        except BaseException as error:  # whatever it is, it belongs to the caller
            self.error = error
        self._is_over = True
        self._has_halted.release()

    def advance(self) -> bool:
        """For the event loop: let the call run until it halts, or ends. True: it has ended."""
        if self._thread.ident is None:
            START_THREAD(self._thread)
        else:
            self._may_run.release()
        self._has_halted.acquire()
        return self._is_over

    def halt(self) -> None:
        """For the call: let the event loop run until it advances this call again."""
        self._has_halted.release()
        self._may_run.acquire()
        if self._is_abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """For the event loop: end the call where it has halted, and its thread. Does nothing if it has ended."""
        self._is_abandoned = True
        while self._thread.ident is not None and not self._is_over:
            self.advance()

    def result(self) -> T:
        """What the call returned; raises what it raised."""
        if self.error is not None:
            raise self.error
        return self._results[0]
