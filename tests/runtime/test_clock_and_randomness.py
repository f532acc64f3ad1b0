"""The ports of clock and randomness: the same cases on the real ones and on the simulated ones."""

import asyncio
import random

from tests.runtime.ports import RuntimePorts, conformance

SLEPT_SECONDS = 0.05
SLACK_SECONDS = 10.0
"""On a busy machine timers fire late, but never early."""

LATEST_WALL_CLOCK_MS = 7_258_118_400_000
"""The year 2200: seconds or microseconds would be far outside."""
EARLIEST_WALL_CLOCK_MS = 1_600_000_000_000


@conformance
async def test_wall_clock_counts_milliseconds_since_1970(ports: RuntimePorts) -> None:
    assert EARLIEST_WALL_CLOCK_MS < ports.runtime.clock.now_ms() < LATEST_WALL_CLOCK_MS


@conformance
async def test_both_clocks_go_on_with_the_loops_time(ports: RuntimePorts) -> None:
    clock, loop = ports.runtime.clock, asyncio.get_running_loop()
    loop_began, wall_began, fine_began = loop.time(), clock.now_ms(), clock.monotonic_ns()
    await asyncio.sleep(SLEPT_SECONDS)
    slept, fine = loop.time() - loop_began, (clock.monotonic_ns() - fine_began) / 1_000_000_000
    assert SLEPT_SECONDS * 0.9 < slept < SLACK_SECONDS
    assert slept * 0.9 <= fine < SLACK_SECONDS
    assert slept * 900 <= clock.now_ms() - wall_began + 1 < SLACK_SECONDS * 1_000


@conformance
async def test_fine_clock_never_goes_back(ports: RuntimePorts) -> None:
    seen = [ports.runtime.clock.monotonic_ns() for _ in range(1_000)]
    assert seen == sorted(seen)


@conformance
async def test_random_numbers_come_from_an_independent_source(ports: RuntimePorts) -> None:
    """Seeding Python's own source does not make another source predictable."""
    random.seed(1)
    drawn = [ports.runtime.random.random() for _ in range(5)]
    random.seed(1)
    assert drawn != [random.random() for _ in range(5)]
    assert all(0.0 <= number < 1.0 for number in drawn)
    assert len(set(drawn)) == 5
