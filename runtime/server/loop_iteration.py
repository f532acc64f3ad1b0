"""How much clients may request within one loop iteration, so that a thousand of them cannot delay everything else.

Owns: the allowance of the present iteration, and the queue of connections whose requests found nothing left. Leaves to
others: which request uses it.

The connections in the queue take turns, the one that has waited longest first, and each turn is short. So a client
waits for one turn of each of the others, and not until those with hundreds of requests in their buffers are done.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from minibroker.runtime.server.server_limits import HANDSHAKES_PER_ITERATION, ITERATION_COST


class WaitingConnection(Protocol):
    """A connection in the queue."""

    def take_turn(self) -> None:
        """Handle requests, at most TURN_COST of them while others wait."""
        ...


class LoopIteration:
    """The allowance of one server."""

    __slots__ = ("_call_soon", "_is_new", "handshakes_left", "left", "queue")

    def __init__(self) -> None:
        self.left = ITERATION_COST
        self.handshakes_left = HANDSHAKES_PER_ITERATION
        self.queue: deque[WaitingConnection] = deque()
        """At most one place for each connection."""
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
        queue = self.queue
        while queue and self.left > 0:
            queue.popleft().take_turn()
