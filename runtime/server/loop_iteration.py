"""How much clients may request within one loop iteration, so that a thousand of them cannot delay everything else.

Owns: the allowance of the present iteration. Leaves to others: which request uses it. A request that finds nothing left
waits for the next iteration, behind those that wait already.
"""

import asyncio
from collections.abc import Callable

from minibroker.runtime.server.server_limits import HANDSHAKES_PER_ITERATION, ITERATION_COST


class LoopIteration:
    """The allowance of one server."""

    __slots__ = ("_call_soon", "_is_new", "handshakes_left", "left")

    def __init__(self) -> None:
        self.left = ITERATION_COST
        self.handshakes_left = HANDSHAKES_PER_ITERATION
        self._is_new = True
        self._call_soon: Callable[[Callable[[], None]], object] | None = None

    def spend(self, cost: int) -> None:
        """A request was handled. The last one of an iteration may cost more than is left."""
        if self._is_new:
            self._is_new = False
            if self._call_soon is None:
                # getting the loop costs a system call (getpid), so it is done once
                self._call_soon = asyncio.get_running_loop().call_soon
            self._call_soon(self._renew)
        self.left -= cost

    def _renew(self) -> None:
        self.left = ITERATION_COST
        self.handshakes_left = HANDSHAKES_PER_ITERATION
        self._is_new = True
