"""Logs the faults of peers: a few in full, the rest as a count.

Owns: how many log lines all bad connections of a process may cause together. Leaves to others: what a fault is.

Opening connections costs a peer nothing, but log lines cost disk space: a flood of bad connections wrote 490 KiB of log
a second. So an interval begins with the first fault after a quiet time. It has a limited number of lines, and ends with
one line on the rest: how many faults, of which kinds and from which addresses.
"""

import asyncio
import logging
import re

LINES_MAX = 10
"""Faults logged in full in one interval: enough to see what is wrong with a misconfigured client."""
INTERVAL_SECONDS = 10.0
"""With this, a flood for a whole day is about 15 MB of log, and a reader sees within seconds that it goes on."""
KINDS_MAX = 10
"""Kinds counted separately in one interval; any further kind is counted as others."""
ADDRESSES_MAX = 1_000
"""Addresses counted separately in one interval: some 100 KB."""
ADDRESSES_SHOWN = 3
"""Addresses named in the line: those with the most faults."""
OTHERS = "others"

NUMBER = re.compile(r"\d+")

log = logging.getLogger("minibroker.server")


class PeerFaultLog:
    """The faults of all connections of one server."""

    def __init__(self) -> None:
        self._interval: asyncio.TimerHandle | None = None
        self._lines = 0
        self._level = logging.NOTSET
        self._kinds: dict[str, int] = {}
        self._addresses: dict[str, int] = {}

    def report(self, level: int, peer: str, kind: str, message: str, *values: object) -> None:
        """One fault. `peer` is an address with a port; `kind` is the part that is the same for all peers."""
        if not log.isEnabledFor(level):
            return
        if self._interval is None:
            self._interval = asyncio.get_running_loop().call_later(INTERVAL_SECONDS, self._end_interval)
        if self._lines < LINES_MAX:
            self._lines += 1
            log.log(level, message, *values)
            return
        self._level = max(self._level, level)
        _count(self._kinds, NUMBER.sub("N", kind), KINDS_MAX)
        _count(self._addresses, peer.rpartition(":")[0] or peer, ADDRESSES_MAX)

    def stop(self) -> None:
        """Log the faults that were only counted so far."""
        if self._interval is not None:
            self._interval.cancel()
            self._end_interval()

    def _end_interval(self) -> None:
        self._interval, self._lines = None, 0
        if self._kinds:
            kinds, addresses = _most(self._kinds, KINDS_MAX + 1), _most(self._addresses, ADDRESSES_SHOWN)
            count = sum(self._kinds.values())
            log.log(self._level, "%d more faults within %d s: %s; from %s", count, INTERVAL_SECONDS, kinds, addresses)
        self._level, self._kinds, self._addresses = logging.NOTSET, {}, {}


def _count(counts: dict[str, int], name: str, names_max: int) -> None:
    name = name if name in counts or len(counts) < names_max else OTHERS
    counts[name] = counts.get(name, 0) + 1


def _most(counts: dict[str, int], shown_max: int) -> str:
    ordered = sorted(counts, key=lambda name: (-counts[name], name))
    words = [f"{name} ({counts[name]})" for name in ordered[:shown_max]]
    if len(ordered) > shown_max:
        words.append(f"{len(ordered) - shown_max} more")
    return ", ".join(words)
