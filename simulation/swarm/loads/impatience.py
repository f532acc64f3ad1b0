"""A user who does not wait: calls that are cancelled after a moment, a producer's close with a short timeout, and a
program that is cancelled while its producer is open (Ctrl-C).

Owns: the draw of these, from a random stream of its own, so that the calls themselves stay as they were. Leaves to
others: what must hold after a call that was cancelled or gave up (`watched_producer`, `watched_consumer`).
"""

import asyncio
from collections.abc import Awaitable, Callable

from minibroker.simulation.swarm.loads.load_scene import LoadScene

CANCELLED_SHARE = 0.1
"""Of the calls."""
MOMENTS_SECONDS = (0.0, 0.0005, 0.002, 0.05, 0.3)
"""A request takes about 0.001 s; the first ends a call where it first waits."""
SHORT_CLOSE_SHARE = 0.3
CLOSE_TIMEOUTS_MS = (0, 1, 20, 500)
CANCELLED_PROGRAM_SHARE = 0.1


class Impatience:
    """Of one client of a run."""

    def __init__(self, scene: LoadScene, client: str) -> None:
        self._scene = scene
        self._random = scene.cluster.world.random(f"impatience of {client}")

    async def call(self, call: Callable[[], Awaitable[None]]) -> None:
        """Make this call, and perhaps cancel it."""
        if self._random.random() >= CANCELLED_SHARE:
            await call()
            return
        timeout = asyncio.timeout(self._random.choice(MOMENTS_SECONDS))
        try:
            async with timeout:
                await call()
        except TimeoutError:
            if not timeout.expired():
                raise  # the call's own
            self._scene.did("call cancelled")

    def close_timeout_ms(self) -> int | None:
        """None: close waits for every record."""
        return self._random.choice(CLOSE_TIMEOUTS_MS) if self._random.random() < SHORT_CLOSE_SHARE else None

    def cancels_program(self) -> bool:
        """Whether the block of the producer ends with a CancelledError."""
        return self._random.random() < CANCELLED_PROGRAM_SHARE
