"""Heavy requests are handled one at a time, small ones first, in at most about half of the loop's time.

Owns: the queue of connections whose next request is large, or is small with a large answer. Leaves to others: what is
in the request. It waits, packed, in the connection's receive buffer, which the memory budget covers.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import NamedTuple, Protocol

from minibroker.protocol.wire.messages import APIS, ApiKey
from minibroker.runtime.deadline import DeadlineTimer
from minibroker.runtime.server.server_limits import (
    HANDSHAKE_MAX_BYTES,
    HEAVY_BYTES_PER_SECOND,
    HEAVY_OLDEST_EVERY,
    HEAVY_RETRY_MS,
    HEAVY_WAITING_MAX_BYTES,
    LIGHT_REQUEST_MAX_BYTES,
)

ARRAY_OF_FIVE = 0x95
HANDSHAKES = frozenset({ApiKey.SASL_HANDSHAKE.value, ApiKey.SASL_AUTHENTICATE.value})
LARGE_ANSWERS = frozenset({ApiKey.METADATA.value, ApiKey.DESCRIBE_CONFIGS.value, *range(0xCC, 0xD4)})
"""First byte of the packed api key; 0xcc to 0xd3 begin a number that takes more than one byte, as ours do (1000)."""

NEVER_HEAVY = frozenset({ApiKey.PRODUCE.value, *(key for key, api in APIS.items() if api.is_cluster_action)})
"""Produce's bytes are records, and it is the hot path. The cluster depends on the others, and a broker that sends its
first request is not yet known to be a broker."""
assert max(NEVER_HEAVY) < 0x80, "a larger key takes more than one byte, so its requests would queue"


def is_handshake(frame: memoryview) -> bool:
    """Whether the frame is a step of an authentication."""
    return 1 < len(frame) <= HANDSHAKE_MAX_BYTES and frame[0] == ARRAY_OF_FIVE and frame[1] in HANDSHAKES


def is_heavy(frame: memoryview) -> bool:
    """Whether a request has to wait for the slot of heavy requests."""
    if len(frame) < 2:
        return False
    if frame[0] != ARRAY_OF_FIVE:
        return True
    key = frame[1]
    return key not in NEVER_HEAVY and (key in LARGE_ANSWERS or len(frame) > LIGHT_REQUEST_MAX_BYTES)


class HeavyConnection(Protocol):
    """A connection with a heavy request."""

    is_closed: bool

    def take_heavy_slot(self) -> None: ...
    def abort_because(self, reason: str) -> None: ...


class _Waiting(NamedTuple):
    """A request in the queue, in the order of the queue."""

    rank: int
    """Its size; all sizes up to LIGHT_REQUEST_MAX_BYTES are the same."""
    serial: int
    size_bytes: int
    connection: HeavyConnection


class HeavyRequests:
    """All heavy requests of one server."""

    def __init__(self, has_room: Callable[[], bool]) -> None:
        """`has_room`: whether there is memory for one more large answer."""
        self._has_room = has_room
        self._waiting: list[_Waiting] = []
        self._waiting_bytes = 0
        self._serial = 0
        self._taken = 0
        self._free_at = 0.0
        self._is_handling = False
        self._timer = DeadlineTimer(self._serve)

    def begin(self, connection: HeavyConnection, size_bytes: int) -> bool:
        """True: handle it now. False: wait until `take_heavy_slot` is called, then ask again; if too much waits already
        and this request is the largest, the connection is closed instead."""
        is_free = not self._waiting and not self._is_handling
        if is_free and asyncio.get_running_loop().time() >= self._free_at and self._has_room():
            self._began(size_bytes)
            return True
        self._serial += 1
        rank = max(size_bytes, LIGHT_REQUEST_MAX_BYTES)
        heapq.heappush(self._waiting, _Waiting(rank, self._serial, size_bytes, connection))
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > HEAVY_WAITING_MAX_BYTES:
            self._reject_largest()
        self._schedule()
        return False

    def _reject_largest(self) -> None:
        """First drop connections that have closed meanwhile, then close those with the largest requests."""
        self._waiting = [entry for entry in self._waiting if not entry.connection.is_closed]
        heapq.heapify(self._waiting)
        self._waiting_bytes = sum(entry.size_bytes for entry in self._waiting)
        while self._waiting_bytes > HEAVY_WAITING_MAX_BYTES:
            largest = self._remove(max(self._waiting))
            largest.connection.abort_because(
                f"its request of {largest.size_bytes} bytes is one too many while large requests wait"
            )

    def _remove(self, entry: _Waiting) -> _Waiting:
        self._waiting.remove(entry)
        heapq.heapify(self._waiting)
        self._waiting_bytes -= entry.size_bytes
        return entry

    def _take_next(self) -> _Waiting:
        self._taken += 1
        if self._taken % HEAVY_OLDEST_EVERY == 0:
            return self._remove(min(self._waiting, key=lambda entry: entry.serial))
        entry = heapq.heappop(self._waiting)
        self._waiting_bytes -= entry.size_bytes
        return entry

    def stop(self) -> None:
        """Begin no request any more."""
        self._waiting.clear()
        self._waiting_bytes = 0
        self._timer.cancel()

    def _began(self, size_bytes: int) -> None:
        self._is_handling = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._handled, loop.time(), size_bytes)

    def _handled(self, began: float, size_bytes: int) -> None:
        """Called in the next loop iteration, because the loop's time only advances then: pause for as long as the
        request took."""
        self._is_handling = False
        now = asyncio.get_running_loop().time()
        self._free_at = now + max(now - began, size_bytes / HEAVY_BYTES_PER_SECOND)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._timer.is_set and not self._is_handling:
            self._timer.set(self._free_at)

    def _serve(self) -> None:
        if not self._has_room():
            self._timer.set_after(HEAVY_RETRY_MS / 1000)
            return
        while self._waiting:
            _, _, size_bytes, connection = self._take_next()
            if not connection.is_closed:
                self._began(size_bytes)
                connection.take_heavy_slot()
                break
