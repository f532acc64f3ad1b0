"""One connection to one registration of a broker, held only to notice at once when its process dies.

Owns: that connection, and the distinction between a dead process and anything else. Leaves to others: the conclusions
(`failure_detection`, `succession`).

Theory (docs/decisions/0011). When a process dies its kernel closes its connections and refuses new ones. So a
connection that was held, is lost without our doing and is refused when it is dialled again indicates a failure. Nothing
else does: not a timeout, not an unreachable host, and not a refusal without an earlier connection, for a wrongly
configured address refuses, too. A refusal is reported again after each attempt: if no other broker could confirm the
first one, the next may succeed. A connection that is held again withdraws the suspicion.

A container's address goes away with its process: it refuses for some milliseconds, then does not answer, and its name
is unknown. So the IP address of the lost connection is dialled first, at once, and for a moment the refusal is repeated
although nothing answers any more. A dial while the listening socket is being closed ends in a reset, which is no
refusal; the same IP address is then dialled once more.

The end of a process is not noticed on a connection that its kernel has forgotten, as happens when a firewall drops one
that seemed idle. So each connection asks for the API versions now and then. The answer is not waited for: it
proves nothing, but a kernel that knows no such connection resets it, and the next one is held.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable

import msgspec

from minibroker.protocol.wire.messages import ApiVersionsRequest
from minibroker.runtime.ports import ConnectionRefused, Network, NetworkError
from minibroker.runtime.rpc import STRANGERS_ANSWER_MAX_BYTES, ConnectionClosed, RpcConnection, connect

CONNECT_TIMEOUT_MS = 3_000
"""A host that does not answer must not delay the next attempt long after it is back."""
RECENT_SECONDS = 2.0
"""For this long after a connection was lost, dials time out fast, and a refusal is repeated where nothing answers any
more. A broker remembers a refusal as long (`broker/membership/refusals.py`)."""
RECENT_CONNECT_TIMEOUT_MS = 200
"""A kernel that refuses does so within one round trip."""
REDIAL_SECONDS_MIN = 0.01
"""A dying process may close its listening socket last: then it accepts one more connection, and loses it at once."""
REDIAL_SECONDS_MAX = 1.0
"""Pause between two attempts in the long run; it doubles from the minimum."""
STEADY_SECONDS = 1.0
"""A connection that was held for this long is dialled again without a pause."""
ASK_SECONDS = 2.0
"""Between two questions, which keep a connection known on the way and find out that it is not. Firewalls forget an idle
one after minutes; the sooner a forgotten one is noticed, the smaller the chance that the broker dies before."""


class LivenessEvents(msgspec.Struct, frozen=True, kw_only=True):
    """Callbacks of a liveness connection; each is called on the event loop."""

    on_held: Callable[[], None] = lambda: None
    on_lost: Callable[[], None] = lambda: None
    on_refused: Callable[[int], None] = lambda attempt: None
    """With the number of refusals reported since the connection was lost: 1 is the first."""
    on_silent: Callable[[int], None] = lambda attempt: None
    """Nothing answers, moments after a refusal, which still counts; with the next number."""


async def hold_liveness_connection(
    network: Network, address: tuple[str, int], client_id: str, events: LivenessEvents
) -> None:
    """Hold a connection until cancelled."""
    loop = asyncio.get_running_loop()
    was_held, refusals, pause = False, 0, REDIAL_SECONDS_MIN
    lost_at = refused_at = -math.inf
    lost_address: tuple[str, int] | None = None
    while True:
        is_recent = loop.time() - lost_at <= RECENT_SECONDS
        timeout_ms = RECENT_CONNECT_TIMEOUT_MS if is_recent else CONNECT_TIMEOUT_MS
        dialled_again, lost_address = lost_address, None
        host, port = dialled_again or address
        try:
            connection = await connect(
                network,
                host,
                port,
                client_id=client_id,
                timeout_ms=timeout_ms,
                answer_max_bytes=STRANGERS_ANSWER_MAX_BYTES,
            )
        except ConnectionRefused:
            if was_held:
                refusals, refused_at = refusals + 1, loop.time()
                events.on_refused(refusals)
        except NetworkError:  # this proves nothing, but a recent refusal still counts
            if loop.time() - refused_at <= RECENT_SECONDS:
                refusals += 1
                events.on_silent(refusals)
            elif loop.time() - lost_at < RECENT_CONNECT_TIMEOUT_MS / 1000:  # too soon for silence: it was a reset
                lost_address = dialled_again
        else:
            was_held, refusals, held_since, refused_at = True, 0, loop.time(), -math.inf
            lost = asyncio.Event()
            connection.on_closed = lost.set
            try:
                if not connection.closed:
                    events.on_held()
                    await _ask_until_lost(connection, lost)
            finally:
                connection.abort()
            lost_at, lost_address = loop.time(), connection.remote_address
            events.on_lost()
            if lost_at - held_since >= STEADY_SECONDS:
                pause = REDIAL_SECONDS_MIN
                continue
        await asyncio.sleep(pause)
        pause = min(2 * pause, REDIAL_SECONDS_MAX)


async def _ask_until_lost(connection: RpcConnection, lost: asyncio.Event) -> None:
    """One question at a time: a broker that hangs shall not find many of them."""
    while not lost.is_set():
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await lost.wait()
        except TimeoutError:
            if not connection.is_waited_on:
                with contextlib.suppress(ConnectionClosed):  # it is about to be told
                    connection.send(ApiVersionsRequest(), lambda reply: None)
