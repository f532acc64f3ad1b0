"""Which heavy request is handled next. None waits for ever, whatever others send."""

import pytest

from minibroker.runtime.server.heavy_requests import HeavyRequests
from minibroker.runtime.server.server_limits import HEAVY_OLDEST_EVERY
from tests.runtime.wire_scene import Scene, simulated, until

KIB = 1024
CROWD = 10


class Waiting:
    """A connection with heavy requests of one size, so many in all."""

    def __init__(self, heavy: HeavyRequests, order: list[int], size_bytes: int, count: int = 1) -> None:
        self.is_closed = False
        self.closed_because: str | None = None
        self._heavy = heavy
        self._order = order
        self._size_bytes = size_bytes
        self._left = count
        self._begin()

    def _begin(self) -> None:
        if self._left and self._heavy.begin(self, self._size_bytes):
            self.take_heavy_slot()

    def take_heavy_slot(self) -> None:
        self._left -= 1
        self._order.append(self._size_bytes)
        self._begin()

    def abort_because(self, reason: str) -> None:
        self.is_closed = True
        self.closed_because = reason


@simulated
async def test_of_requests_that_came_together_the_smallest_goes_first(scene: Scene) -> None:
    heavy, order = HeavyRequests(lambda: True), list[int]()
    for size_bytes in (20, 900 * KIB, 5 * KIB, 300 * KIB):
        Waiting(heavy, order, size_bytes)
    await until(lambda: len(order) == 4)
    assert order == [20, 5 * KIB, 300 * KIB, 900 * KIB]


@pytest.mark.parametrize("size_bytes", [70, 4 * KIB, 64 * KIB, 1024 * KIB])
@simulated
async def test_connections_with_endless_smaller_requests_keep_none_from_being_handled(
    scene: Scene, size_bytes: int
) -> None:
    """Ten connections that sent Metadata of 25 bytes as fast as they could left none of any other client, whose
    requests have a longer client_id."""
    heavy, order = HeavyRequests(lambda: True), list[int]()
    for _ in range(CROWD):
        Waiting(heavy, order, 25, count=10_000)
    Waiting(heavy, order, size_bytes)
    await until(lambda: len(order) >= 100)
    assert order.index(size_bytes) <= CROWD + HEAVY_OLDEST_EVERY


@simulated
async def test_if_too_much_waits_the_largest_is_closed(scene: Scene) -> None:
    heavy, order = HeavyRequests(lambda: True), list[int]()
    Waiting(heavy, order, 20)  # is being handled
    large = [Waiting(heavy, order, 1_000 * KIB) for _ in range(8)]
    largest = Waiting(heavy, order, 1_001 * KIB)
    assert largest.closed_because == "its request of 1025024 bytes is one too many while large requests wait"
    assert not any(each.is_closed for each in large)
