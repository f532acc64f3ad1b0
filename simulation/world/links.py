"""The links between simulated machines: what is cut, slow or without power, and when a segment arrives.

Owns: the state of the links, which the ends of connections read. Leaves to others: the connections, and the faults that
change a link (`network`).
"""

import math
import random

import msgspec

from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.message_holds import MessageHold
from minibroker.simulation.world.trace import Trace

GAP_SECONDS = 1.2
"""Two cuts with a shorter gap are in a row: what was sent gets through, but a connection that is being made sends one
SYN per second, or has just been given up and is begun anew."""


class Latency(msgspec.Struct):
    """One-way delays in seconds: at least `minimum`, `extra_mean` more on average (exponential)."""

    minimum: float = 0.000_2
    extra_mean: float = 0.000_3
    loopback: float = 0.000_05
    split_probability: float = 0.02
    """Share of arrivals that are read in two pieces, cut anywhere."""


class Contact(msgspec.Struct):
    """What one machine last saw of another, in loop time; None: never. For checkers only: no process reads it."""

    lost_at: float | None = None
    """A connection between them ended, not closed by this machine."""
    refused_at: float | None = None
    """A connection attempt of this machine was refused."""
    made_at: float | None = None
    """A connection attempt of this machine succeeded."""
    answered_at: float | None = None
    """Something arrived on a connection that this machine opened."""


class Links:
    """All links of a world."""

    def __init__(self, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        self.loop = loop
        self.random = rng
        self.trace = trace
        self.latency = Latency()
        self.slow_links: dict[tuple[str, str], float] = {}
        """Extra seconds from one machine to another."""
        self.bandwidth: dict[tuple[str, str], float] = {}
        """Bytes per second from one machine to another, for all connections together; others are unlimited."""
        self._busy_until: dict[tuple[str, str], float] = {}
        self.holds: tuple[MessageHold, ...] = ()
        self.cuts_frames = False
        """Once there was a hold, whole frames are cut from what arrives."""
        self._addresses: dict[str, str] = {}
        """Address of each machine, by name; a client may connect to either."""
        self._nameless: set[str] = set()
        self._powered_off: set[str] = set()
        self.cuts: dict[tuple[str, str], float] = {}
        """Time of each present cut, in loop time."""
        self._cut_off_since: dict[frozenset[str], float] = {}
        """When the first of the last cuts in a row began between two machines, on either way."""
        self._healed_at: dict[frozenset[str], float] = {}
        """When a cut between two machines was last healed."""
        self.contacts: dict[tuple[str, str], Contact] = {}
        """By observer and observed machine."""
        self._serial = 0

    def is_open(self, source: str, target: str) -> bool:
        return (source, target) not in self.cuts

    def last_cut(self, one: str, other: str) -> tuple[float, float] | None:
        """Start and end (now, if they last) of the last cuts in a row between two machines, whose answers need both
        ways; None: there were none."""
        pair = frozenset((one, other))
        since = self._cut_off_since.get(pair)
        return None if since is None else (since, self.loop.present if self._is_cut(pair) else self._healed_at[pair])

    def _is_cut(self, pair: frozenset[str]) -> bool:
        return any(pair == {*way} for way in self.cuts)

    def cut_since(self, source: str, target: str) -> float:
        return self.cuts.get((source, target), math.inf)

    def contact(self, source: str, target: str) -> Contact:
        return self.contacts.setdefault((source, target), Contact())

    def is_up(self, host: str) -> bool:
        return host not in self._powered_off

    def look_up(self, host: str) -> str | None:
        """The machine of this name or address; None if there is none."""
        if host in self._addresses:
            return None if host in self._nameless else host
        return next((name for name, address in self._addresses.items() if address == host), None)

    def address_of(self, host: str) -> str:
        return self._addresses[host]

    def delay(self, source: str, target: str) -> float:
        """One-way delay of the next segment."""
        latency = self.latency
        if source == target:
            return latency.loopback
        seconds = latency.minimum - latency.extra_mean * math.log(1.0 - self.random.random())
        return seconds + self.slow_links.get((source, target), 0.0) if self.slow_links else seconds

    def transmission(self, source: str, target: str, length: int) -> float:
        """Seconds until the last byte has left, on a link of limited bandwidth: after all that was sent earlier."""
        rate = self.bandwidth.get((source, target))
        if rate is None:
            return 0.0
        now = self.loop.present
        free_at = max(now, self._busy_until.get((source, target), now)) + length / rate
        self._busy_until[source, target] = free_at
        return free_at - now

    def new_serial(self) -> int:
        self._serial += 1
        return self._serial
