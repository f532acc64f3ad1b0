"""Which loop runs, asked thousands of times per virtual second.

Owns: a cheap answer while a virtual loop runs. Before CPython 3.12 `asyncio.get_running_loop` makes a system call each
time (getpid, in case the process was forked), which takes as long as ten calls of a Python function.
"""

import asyncio
import contextlib
import sys
from asyncio import events
from collections.abc import Iterator
from threading import get_ident

ASKS_THE_KERNEL = sys.version_info < (3, 12)


@contextlib.contextmanager
def answering_for(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """While this loop runs, answer with it in its thread. Other threads get the ordinary answer."""
    if not ASKS_THE_KERNEL:
        yield
        return
    ask, ask_or_none, here = events.get_running_loop, events._get_running_loop, get_ident()

    def running_loop() -> asyncio.AbstractEventLoop:
        return loop if get_ident() == here else ask()

    def running_loop_or_none() -> asyncio.AbstractEventLoop | None:
        return loop if get_ident() == here else ask_or_none()

    asyncio.get_running_loop = events.get_running_loop = running_loop
    events._get_running_loop = running_loop_or_none
    try:
        yield
    finally:
        asyncio.get_running_loop = events.get_running_loop = ask
        events._get_running_loop = ask_or_none
