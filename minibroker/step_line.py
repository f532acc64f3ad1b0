"""What a terminal shows of steps that block the main thread: the present one, and seconds that go on.

Owns: the thread that shows it. Leaves to others: the steps.
"""

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from minibroker.command_line import PROGRESS_EVERY_S, ProgressLine

JOIN_TIMEOUT_S = 1.0
"""Showing a line takes microseconds, unless the terminal is stopped."""


class StepLine:
    """A context; `tell` names the step that begins. A thread, because only the main thread is interrupted by Ctrl-C,
    and so must do the work."""

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        """`show` gets the step with its seconds, again and again; without it, they go to a line of stderr."""
        self._line = ProgressLine()
        self._show = show or self._line.show
        self._is_needed = show is not None or self._line.enabled
        self._step = ""
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def is_shown(self) -> bool:
        """Whether there is a terminal for it."""
        return self._is_needed

    def tell(self, step: str) -> None:
        self._step = step

    def __enter__(self) -> Self:
        if self._is_needed:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._is_needed:
            self._thread.join(JOIN_TIMEOUT_S)
        self._line.clear()

    def _run(self) -> None:
        while not self._over.wait(PROGRESS_EVERY_S):
            if self._step:
                self._show(f"{self._step}, {time.monotonic() - self._began:.0f} s")
