"""Brokers that recently refused a connection of this one, by registration.

Owns: that record. If an address disappears with its process (a container), its kernel refuses for some milliseconds
only, and nothing answers afterwards: then a confirmer can only report a refusal that it met earlier. So a fetcher that
loses its leader and is refused records it here, as does a candidate that loses the controller, and
`failure_confirmer` may rely on it (docs/decisions/0011).
"""

import asyncio

REMEMBERED_SECONDS = 2.0
"""Longer than a request for confirmation takes, also on a busy machine; short enough that a refusal cannot belong to
another event. For a later registration of the same broker, no refusal is known."""


class Refusals:
    """Recent refusals met by fetchers and by the controller candidate."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, float]] = {}

    def note(self, broker_id: int, broker_epoch: int | None) -> None:
        """Its address refuses; `broker_epoch` is the registration to which that address belonged when dialled."""
        if broker_epoch is not None:
            self._met[broker_id] = (broker_epoch, asyncio.get_running_loop().time())

    def has_met(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether exactly this registration refused recently."""
        epoch, at = self._met.get(broker_id, (None, 0.0))
        return epoch == broker_epoch and asyncio.get_running_loop().time() - at <= REMEMBERED_SECONDS
