"""The shared secret in ZooKeeper with which brokers of a cluster authenticate to each other.

Owns: agreeing on it at the start, and following its changes while the broker runs. Leaves to others: authentication
with it (`protocol/wire/broker_authentication`).

The first broker of a cluster generates the secret. If it is deleted, any running broker writes it again. If it is
replaced, all brokers adopt the new one and reconnect to each other. If it cannot be read, it is not touched: a running
broker keeps the secret it knows, and a starting broker refuses to start. One that ZooKeeper refuses is asked for again
and again: ZooKeeper tells no client when it does no more.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from minibroker.broker.membership.registration import (
    CONFLICTS_MAX,
    RETRY_SECONDS,
    TRANSIENT_ERRORS,
    ClusterMismatch,
    ZooKeeperRefuses,
)
from minibroker.protocol.events.broker_events import ClusterSecretReplaced
from minibroker.protocol.wire.broker_authentication import SECRET_BYTES
from minibroker.protocol.znodes import CLUSTER_SECRET, ClusterSecret, CorruptZnode
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import Coordination, CoordinationError, NodeExists, NoNode, NotAuthorized

REFUSED_SECONDS = 10.0
"""Pause after ZooKeeper refused: a right is missing, or it gives an answer that nothing here expects."""

log = logging.getLogger("minibroker.cluster_secret")


class SharedSecret:
    """One broker's copy of it. Use: `agree`, then `run` in a task of the owner."""

    def __init__(
        self,
        coordination: Coordination,
        source: random.Random,
        observer: Observer = UNOBSERVED,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_changed` is called when another secret has replaced this one."""
        self.key = b""
        """Known once `agree` has returned."""
        self._on_changed = on_changed
        self._observer = observer
        self._coordination = coordination
        self._random = source
        self._attention = asyncio.Event()

    async def agree(self) -> None:
        """Adopt the secret in ZooKeeper; if there is none, write the one known here, or a new one. Raises
        ClusterMismatch, ZooKeeperRefuses, and transient errors (`TRANSIENT_ERRORS`)."""
        drawn = self.key or self._random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES)
        for _ in range(CONFLICTS_MAX):
            try:
                content, _ = await self._coordination.get(CLUSTER_SECRET, self._attention.set)
                self._take(ClusterSecret.decode(content).key())
                return
            except NoNode:
                pass
            except CorruptZnode as error:
                raise ClusterMismatch(
                    f"the cluster's secret cannot be read ({error}): delete {CLUSTER_SECRET} in ZooKeeper; a running"
                    " broker writes it again, and if none runs, the first one that starts draws another"
                ) from error
            except NotAuthorized as error:
                raise ZooKeeperRefuses(
                    f"ZooKeeper does not let this process read the cluster's secret ({error}): set"
                    " zookeeper.digest.credentials to what the other brokers have"
                ) from error
            node = ClusterSecret(secret=drawn.hex()).encode()
            try:
                await self._coordination.create(CLUSTER_SECRET, node, is_secret=True)
            except NodeExists:
                pass
            except NotAuthorized as error:
                raise ZooKeeperRefuses(
                    f"ZooKeeper does not let this process write the cluster's secret ({error}): set"
                    " zookeeper.digest.credentials to what the other brokers have"
                ) from error
            except NoNode as error:
                raise ClusterMismatch("ZooKeeper knows no cluster: its data was wiped") from error
        raise ClusterMismatch(
            f"{CLUSTER_SECRET} is created and deleted all the time: another program writes to this ZooKeeper"
        )

    def _take(self, key: bytes) -> None:
        was_known, is_new = bool(self.key), key != self.key
        self.key = key
        if was_known and is_new:
            self._observer.notify(ClusterSecretReplaced())
            self._on_changed()

    async def run(self) -> None:
        """Follow it until cancelled. The known secret stays valid until ZooKeeper holds another one."""
        is_refused = False
        while True:
            await self._attention.wait()
            self._attention.clear()
            try:
                await self.agree()
                is_refused = False
            except TRANSIENT_ERRORS:
                await asyncio.sleep(RETRY_SECONDS)
                self._attention.set()
            except ClusterMismatch as error:
                log.warning("keeping the secret that is known here: %s", error)
            except (ZooKeeperRefuses, CoordinationError) as error:
                if not is_refused:
                    log.warning("keeping the secret that is known here: %s", error)
                is_refused = True
                await asyncio.sleep(REFUSED_SECONDS)
                self._attention.set()
