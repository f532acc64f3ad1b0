"""Requests that wait for their answer: how much memory they take, and when that is too much.

Owns: the sum over all clients' connections of one server, in two parts. Memory for the first request in flight of each
connection, if it is small, is bounded by the number of connections and always granted: a thousand idle consumers are no
overload. Everything else has a limit. Leaves to others: what a request is. Brokers are not counted.
"""

from collections.abc import Callable

import msgspec


class Charge(msgspec.Struct):
    """Memory that one request takes until it is answered."""

    small_bytes: int = 0
    other_bytes: int = 0


class WaitingRequests:
    """The waiting requests of one server."""

    def __init__(self, limit_bytes: int, on_room: Callable[[], None]) -> None:
        """`on_room` is called when the limit is no longer exceeded."""
        self.limit_bytes = limit_bytes
        self.small_bytes = 0
        self.other_bytes = 0
        self.is_full = False
        self._on_room = on_room

    def take_small(self, charge: Charge, size_bytes: int) -> None:
        self.small_bytes += size_bytes
        charge.small_bytes += size_bytes

    def take(self, charge: Charge, size_bytes: int) -> None:
        """Take it even if there is no room: the request has been decoded already."""
        self.other_bytes += size_bytes
        charge.other_bytes += size_bytes
        self.is_full = self.other_bytes > self.limit_bytes

    def try_take(self, charge: Charge, size_bytes: int) -> bool:
        """Take it if there is room. A quarter is reserved for `take`."""
        if self.other_bytes + size_bytes > self.limit_bytes * 3 // 4:
            return False
        self.take(charge, size_bytes)
        return True

    def give_back(self, charge: Charge) -> None:
        """The request is answered."""
        self.small_bytes -= charge.small_bytes
        self.other_bytes -= charge.other_bytes
        charge.small_bytes = charge.other_bytes = 0
        assert self.small_bytes >= 0
        assert self.other_bytes >= 0
        if self.is_full and self.other_bytes <= self.limit_bytes:
            self.is_full = False
            self._on_room()
