"""The end of a cluster that must not outlive this program, whatever signals come.

Owns: which clusters those are, SIGTERM and SIGHUP while there are any, and the signals that come during a teardown.
Leaves to others: how a cluster is started and stopped.

Theory. Three things leave processes or containers behind: a second Ctrl-C, which raises KeyboardInterrupt in the middle
of the teardown that the first one began; SIGTERM and SIGHUP (the terminal is closed), which end Python at once; and an
exception that passes the teardown by. So while this program owns a cluster, these signals act as Ctrl-C. During the
teardown all of them wait until it has ended, and no cancellation ends it. What still runs after a failed teardown, or
when the program ends, is killed at once.
"""

import asyncio
import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
"""Under `nohup` SIGHUP is ignored, and stays so."""

TEARDOWN_SECONDS = 200.0
"""A clean stop of all processes or containers, and a kill of those that do not stop; each step has a limit of its own.
The rest is killed at this limit."""


class TeardownTimedOut(Exception):
    """The cluster had not ended in time and was killed. One sentence."""


class Ownership:
    """Of one cluster, from before its start until after its teardown: a context, which may be entered again inside.

    `kill` ends the cluster at once, without an event loop. It raises nothing, and does nothing if all has ended."""

    def __init__(self, kill: Callable[[], None]) -> None:
        self._kill = kill
        self._depth = 0
        self._process_id = 0

    def __enter__(self) -> Self:
        self._depth += 1
        self._process_id = os.getpid()
        _OWNED[id(self)] = self
        for number in ENDINGS if _handles_signals() else ():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None = None, *details: object) -> None:
        """An interrupt that passed the teardown by kills the cluster; an error may leave it running on purpose."""
        self._depth -= 1
        if self._depth:
            return
        if kind is not None and not issubclass(kind, Exception):
            self._kill()
        del _OWNED[id(self)]
        for number in ENDINGS if not _OWNED and _handles_signals() else ():
            if signal.getsignal(number) is _interrupt:
                signal.signal(number, signal.SIG_DFL)

    async def finish(self, teardown: Coroutine[Any, Any, T], timeout_s: float = TEARDOWN_SECONDS) -> T:
        """Its result, when it has ended. A signal or cancellation that comes meanwhile takes effect afterwards. Raises
        TeardownTimedOut."""
        with signals_held():
            task = asyncio.create_task(teardown)
            try:
                was_cancelled = await _ended(task, timeout_s)
                if not task.done():
                    task.cancel()
                    raise TeardownTimedOut(f"the cluster had not stopped after {timeout_s:g} s and was killed")
                result = task.result()
            except BaseException:
                self._kill()
                raise
        if was_cancelled:
            raise asyncio.CancelledError
        return result

    def kill_if_owner(self) -> None:
        """At the end of the program, but not of a forked one."""
        if self._process_id == os.getpid():
            self._kill()


_OWNED: dict[int, Ownership] = {}


@atexit.register
def _kill_the_rest() -> None:
    with signals_held():
        for ownership in list(_OWNED.values()):
            ownership.kill_if_owner()


async def _ended(task: "asyncio.Task[Any]", timeout_s: float) -> bool:
    """Wait for its end or the timeout; returns whether this wait was cancelled."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    was_cancelled = False
    while not task.done() and (left := deadline - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError:
            was_cancelled = True
    return was_cancelled


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the end of the block; then the first one takes effect."""
    if not _handles_signals():
        yield
        return
    noted: list[int] = []
    numbers = [number for number in (signal.SIGINT, *ENDINGS) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda number, frame: noted.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if noted:
            signal.raise_signal(noted[0])


def _handles_signals() -> bool:
    """Python runs handlers in the main thread only, and lets no other set them."""
    return threading.current_thread() is threading.main_thread()


def _interrupt(number: int, frame: FrameType | None) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)
