"""Only the event loop that started a client may use it, in its thread and its process.

Owns: the check and its messages. No part of a client is thread-safe, and a connection that two processes read is useful
to neither: without the check such a call waits for ever, or loses other calls' records.
"""

import asyncio

from minibroker.client import default_runtime
from minibroker.client.errors import ForeignCaller


class CallerCheck:
    """Refuses calls to one client from another loop, thread or process. Created on the loop that starts the client."""

    __slots__ = ("_loop", "_process_id", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._process_id = default_runtime.process_id

    @property
    def is_in_own_process(self) -> bool:
        """Not in one that was forked from it, which has a copy of the client."""
        return default_runtime.process_id == self._process_id

    def check(self) -> None:
        """Raises ForeignCaller. Costs as much as one record of a batch, so it runs once per batch or wait, not per
        record."""
        if default_runtime.process_id != self._process_id:  # not the property: a call costs as much as the rest
            raise ForeignCaller(
                f"this {self._what} was started before the process was forked, and belongs to the parent process:"
                " start another one after the fork"
            )
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            if not self._loop.is_running():
                return  # between two runs of the loop no other call can be running
            running = None
        if running is not self._loop:
            where = "a thread without an event loop" if running is None else "another event loop"
            raise ForeignCaller(
                f"this {self._what} was called from {where}, and belongs to the one that it was started on: start one"
                " there, too, or hand the call over with asyncio.run_coroutine_threadsafe"
            )
