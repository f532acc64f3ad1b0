"""Open batches are sent without waiting for linger_ms while a call waits for them.

Owns: how many calls wait. Leaves to others: sending (`sender`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.sender import Sender


class Urgency:
    """Of one producer, from its start on."""

    def __init__(self, accumulator: Accumulator, sender: Sender) -> None:
        self._accumulator = accumulator
        self._sender = sender
        self._calls = 0

    @contextmanager
    def raised(self) -> Iterator[None]:
        """For a call that waits in this block."""
        self._calls += 1
        self._accumulator.skips_linger = True
        self._sender.wake()
        try:
            yield
        finally:
            self._calls -= 1
            self._accumulator.skips_linger = self._calls > 0
            if not self._calls:
                self._sender.linger_again()
