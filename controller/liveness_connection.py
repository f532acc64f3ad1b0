"""One idle connection to one registration of a broker, held only to notice at once when its process dies.

Owns: that connection, and telling a process that is gone from anything else. Refuses to conclude anything: what it sees
is evidence, and `failure_detection` and `succession` say what follows.

Theory (docs/decisions/0011). When a process dies its kernel closes its connections and refuses new ones. So a line that
was held, is lost by no will of ours and is refused when it is dialled again speaks of a death. Nothing else does: not a
timeout, not an unreachable host, and not a refusal where there never was a line, for an address that is configured
wrongly refuses, too. A refusal is told again after each attempt, so that whoever could not act on the first one (no
other broker could confirm) gets another; a line that is held again takes back what was told.

A container's address goes away with its process: it refuses for some milliseconds, then nobody answers, and its name is
unknown. So the address that the lost line led to is dialled first, in numbers and at once, and a refusal is told again
for a moment though nobody answers any more. Whoever dials while the listening socket is being closed is reset, which is
no refusal; it dials there once more.
"""

import asyncio
import math
from collections.abc import Callable

import msgspec

from minibroker.runtime.ports import ConnectionRefused, Network, NetworkError
from minibroker.runtime.rpc import connect

CONNECT_TIMEOUT_MS = 3_000
"""A host that does not answer at all must not keep us from trying again long after it is back."""
RECENT_SECONDS = 2.0
"""So long after a line was lost it is dialled impatiently, and so long a refusal is told again where nothing answers
any more. As long as a broker remembers one (`broker/refusals.py`)."""
RECENT_CONNECT_TIMEOUT_MS = 200
"""A kernel that refuses does so within one round trip."""
REDIAL_SECONDS_MIN = 0.01
"""A dying process may close its listening socket last: then it takes one more connection, and loses it at once."""
REDIAL_SECONDS_MAX = 1.0
"""Pause between two attempts in the long run; it doubles from the minimum."""
STEADY_SECONDS = 1.0
"""A line that was held for so long is dialled again without a pause."""


class LivenessEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Whom a line tells; each is called on the event loop."""

    on_held: Callable[[], None] = lambda: None
    on_lost: Callable[[], None] = lambda: None
    on_refused: Callable[[int], None] = lambda attempt: None
    """With the number of refusals told since the line was lost: 1 is the first."""
    on_silent: Callable[[int], None] = lambda attempt: None
    """Nothing answers, moments after a refusal, which counts on; with the same number."""


async def hold_liveness_connection(
    network: Network, address: tuple[str, int], client_id: str, events: LivenessEvents
) -> None:
    """Hold a line until cancelled."""
    loop = asyncio.get_running_loop()
    was_held, told, pause = False, 0, REDIAL_SECONDS_MIN
    lost_at = refused_at = -math.inf
    lost_address: tuple[str, int] | None = None
    while True:
        is_recent = loop.time() - lost_at <= RECENT_SECONDS
        timeout_ms = RECENT_CONNECT_TIMEOUT_MS if is_recent else CONNECT_TIMEOUT_MS
        dialled_again, lost_address = lost_address, None
        host, port = dialled_again or address
        try:
            connection = await connect(network, host, port, client_id=client_id, timeout_ms=timeout_ms)
        except ConnectionRefused:
            if was_held:
                told, refused_at = told + 1, loop.time()
                events.on_refused(told)
        except NetworkError:  # nothing is known, but what was seen a moment ago
            if loop.time() - refused_at <= RECENT_SECONDS:
                told += 1
                events.on_silent(told)
            elif loop.time() - lost_at < RECENT_CONNECT_TIMEOUT_MS / 1000:  # too soon for silence: it was a reset
                lost_address = dialled_again
        else:
            was_held, told, held_since, refused_at = True, 0, loop.time(), -math.inf
            lost = asyncio.Event()
            connection.on_closed = lost.set
            try:
                if not connection.closed:
                    events.on_held()
                    await lost.wait()
            finally:
                connection.abort()
            lost_at, lost_address = loop.time(), connection.remote_address
            events.on_lost()
            if lost_at - held_since >= STEADY_SECONDS:
                pause = REDIAL_SECONDS_MIN
                continue
        await asyncio.sleep(pause)
        pause = min(2 * pause, REDIAL_SECONDS_MAX)
