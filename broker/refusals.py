"""Brokers whose address refused this one a moment ago, by registration.

Owns: that memory. Where an address goes away with its process (a container), a kernel refuses for some milliseconds
only, and nothing answers afterwards: who is asked for a second opinion then can only say what it met by itself. So a
fetcher that loses its leader and is refused notes it here, as does a candidate that loses the controller, and
`failure_confirmation` may rely on it (docs/decisions/0011).
"""

import asyncio

REMEMBERED_SECONDS = 2.0
"""Longer than it takes until somebody asks, also on a busy machine; shorter than anything that a refusal might be mixed
up with. A later registration of the same broker is another one: nothing is known of it."""


class Refusals:
    """What fetchers and the candidate met."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, float]] = {}

    def note(self, broker_id: int, broker_epoch: int | None) -> None:
        """Its address refuses; `broker_epoch` is the registration under which that address was known when dialled."""
        if broker_epoch is not None:
            self._met[broker_id] = (broker_epoch, asyncio.get_running_loop().time())

    def has_met(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether this very registration refused a moment ago."""
        epoch, at = self._met.get(broker_id, (None, 0.0))
        return epoch == broker_epoch and asyncio.get_running_loop().time() - at <= REMEMBERED_SECONDS
