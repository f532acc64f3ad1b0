"""The session with ZooKeeper that a broker opens when it starts.

Owns: how long the start waits for ZooKeeper, and what it says meanwhile. Leaves to others: keeping the session (its
adapter), and what is written in it (`registration`).
"""

import asyncio
import logging
from collections.abc import Callable

from minibroker.broker.membership.registration import RETRY_SECONDS, ZooKeeperUnreachable
from minibroker.runtime.ports import Coordination, CoordinationUnavailable

LEAST_WAIT_SECONDS = 1.0
"""For ZooKeeper's first answer, also where `zookeeper.connection.timeout.ms` is less: it takes some round trips."""
PATIENCE_SECONDS = 2.0
"""A start that waits for ZooKeeper longer than this logs it, once."""

log = logging.getLogger("minibroker.registration")


async def open_session(
    open_coordination: Callable[[str, int], Coordination],
    servers: str,
    session_timeout_ms: int,
    wait_ms: int,
) -> Coordination:
    """A started coordination; waits up to `wait_ms` for ZooKeeper, then raises ZooKeeperUnreachable."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + max(wait_ms / 1000, LEAST_WAIT_SECONDS)
    patience = loop.call_later(
        PATIENCE_SECONDS, log.warning, "waiting up to %.0f s for ZooKeeper at %s", wait_ms / 1000, servers
    )
    try:
        while True:
            coordination = open_coordination(servers, session_timeout_ms)
            try:
                async with asyncio.timeout_at(give_up_at):
                    await coordination.start()
                break
            except (CoordinationUnavailable, TimeoutError) as error:
                if loop.time() + RETRY_SECONDS >= give_up_at:
                    why = f" ({error})" if isinstance(error, CoordinationUnavailable) else ""
                    raise ZooKeeperUnreachable(
                        f"ZooKeeper does not answer at {servers} within {wait_ms} ms{why}: start it, or correct"
                        " zookeeper.connect"
                    ) from error
            await asyncio.sleep(RETRY_SECONDS)
    finally:
        patience.cancel()
    granted = coordination.negotiated_timeout_ms
    if granted != session_timeout_ms:
        log.warning("ZooKeeper grants a session of %d ms, not the %d ms asked for", granted, session_timeout_ms)
    return coordination
