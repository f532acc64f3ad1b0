"""A broker's registration in ZooKeeper: its cluster, its id, its broker epoch, and when it must stop serving.

Owns: the agreement on the cluster id, the node /brokers/ids/<id> and its renewal, and whether the broker is fenced.
Leaves to others: opening the session (`zookeeper_session`), what a broker does with all that, and which broker is
controller.

Theory:
- The broker epoch is the czxid of our node: a number that grows with each registration in the whole cluster.
- The owner of a session is the last to learn from ZooKeeper that it has ended. So the deadline by our own clock counts,
  not a message (hardening rule 8): `is_fenced` compares the loop's time with it, for every request.
- Each process start draws an incarnation id. A node with our directory id and another incarnation was left by our
  killed predecessor (we hold the directory's lock, so it is dead): it is replaced at once, together with a /controller
  that its session still holds, so that the cluster need not wait for that session to end (hardening rule 1).
- A node of another log directory belongs to another broker, or to this one before its disk was wiped: wait until its
  session would have ended, then give up. A process that was registered and finds another one in its place gives up,
  too: two processes with copies of one directory must not replace each other forever.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from minibroker.protocol.counted import some_of
from minibroker.protocol.events.broker_events import (
    BrokerRegistered,
    NodeMissing,
    NodeUnreadable,
    RegistrationAwaited,
    RegistrationLost,
    RegistrationReplaced,
    SessionChanged,
)
from minibroker.protocol.ids import BrokerEpoch, BrokerId
from minibroker.protocol.wire.messages import BrokerEndpoint
from minibroker.protocol.znodes import (
    BROKER_IDS,
    CLUSTER_ID,
    CLUSTER_SECRET,
    CONTROLLER,
    PERSISTENT_PATHS,
    BrokerRegistration,
    ClusterId,
    CorruptZnode,
    broker_path,
    format_endpoint,
)
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import (
    BadVersion,
    Clock,
    Coordination,
    CoordinationUnavailable,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotAuthorized,
    Operation,
    SessionEvent,
    SessionExpired,
    Stat,
    WriteOutcomeUnknown,
)

RETRY_SECONDS = 0.2
"""Pause after ZooKeeper did not answer; the adapter reconnects by itself meanwhile."""

FOREIGN_NODE_SESSIONS = 1.25
"""Sessions to wait for a foreign node to vanish: one, plus the delay because ZooKeeper expires sessions by the tick."""

CONFLICTS_MAX = 50
"""Times that the nodes may change between reading and writing before the start is given up: another writer
interferes."""

TRANSIENT_ERRORS = (CoordinationUnavailable, WriteOutcomeUnknown, SessionExpired)
"""Transient errors: ZooKeeper does not answer, or the outcome is unknown. Read again later."""

log = logging.getLogger("minibroker.registration")
T = TypeVar("T")


class RegistrationError(Exception):
    """This broker cannot take its place in the cluster. The message says why and what to do."""


class ZooKeeperUnreachable(RegistrationError):
    """No answer within zookeeper.connection.timeout.ms."""


class ClusterMismatch(RegistrationError):
    """ZooKeeper does not know the cluster of the log directory, or has lost its data."""


class OlderCopy(ClusterMismatch):
    """ZooKeeper lacks changes that this broker has seen there."""

    def __init__(self, proof: str) -> None:
        super().__init__(
            f"ZooKeeper's data is older than what this broker has seen there ({proof}): it was restored from an older"
            " copy. Stop all brokers, restore the youngest copy that there is, and start them. If that is this one,"
            " docs/OPERATIONS.md says how to go on"
        )


class ZooKeeperRefuses(RegistrationError):
    """This process lacks the ZooKeeper credentials of a broker of this cluster."""


class BrokerIdTaken(RegistrationError):
    """Another process is registered under our id."""

    def __init__(self, message: str, *, is_replaced: bool = False) -> None:
        super().__init__(message)
        self.is_replaced = is_replaced
        """This process was registered before. If it were started again, it would take the id back."""


class BrokerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of a broker process."""

    broker_id: BrokerId
    directory_id: str
    """Id of its log directory (meta.properties)."""
    incarnation_id: str
    """Drawn by this start of the process."""
    cluster_id: str | None = None
    """Cluster that the log directory belongs to; None: a fresh directory."""


async def _nothing(coordination: Coordination) -> None:
    """For a registration without logs."""


def draw_id(rng: random.Random) -> str:
    """A random id that no other start, directory or cluster will draw."""
    return f"{rng.getrandbits(128):032x}"


class Registration:
    """One broker's registration. Use: `prepare`, `register`, then `run` in a task of the owner."""

    def __init__(
        self,
        coordination: Coordination,
        clock: Clock,
        identity: BrokerIdentity,
        source: random.Random,
        observer: Observer = UNOBSERVED,
        *,
        on_registered: Callable[[BrokerEpoch], None] = lambda broker_epoch: None,
        on_epoch_ended: Callable[[], None] = lambda: None,
        on_fenced: Callable[[], None] = lambda: None,
        require_known_changes: Callable[[Coordination], Awaitable[None]] = _nothing,
    ) -> None:
        """`on_registered` is called each time a new broker epoch begins. `on_epoch_ended`: each time one ends
        unintentionally; stop serving, answer all waiting requests. `on_fenced`: when the session's deadline passes
        while registered; answer all waiting requests. If ZooKeeper kept the session, the broker epoch continues, and
        `is_fenced` is false again."""
        self.identity = identity
        self.cluster_id = ""
        self._on_registered = on_registered
        self._on_epoch_ended = on_epoch_ended
        self._on_fenced = on_fenced
        self._require_known_changes = require_known_changes
        self._observer = observer
        self._coordination = coordination
        self._clock = clock
        self._random = source
        self._path = broker_path(identity.broker_id)
        self._endpoints: tuple[BrokerEndpoint, ...] = ()
        self._broker_epoch: BrokerEpoch | None = None
        self._highest_epoch: BrokerEpoch = -1
        """Newest broker epoch of this process; ZooKeeper's numbers only grow, unless it loses data."""
        self._was_registered = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._attention = asyncio.Event()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._has_reported_fence = False
        coordination.add_session_listener(self._on_session_event)

    # ------------------------------------------------------------------------------------------------------ state
    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        """None: not registered."""
        return self._broker_epoch

    @property
    def incarnation_id(self) -> str:
        return self.identity.incarnation_id

    def is_fenced(self) -> bool:
        """Whether this broker must not serve: it is not registered, or ZooKeeper may have ended its session."""
        if self._broker_epoch is None or self._loop is None:
            return True
        return self._loop.time() >= self._coordination.session_deadline

    # ------------------------------------------------------------------------------------------------------ start
    async def prepare(self, wait_ms: int) -> str:
        """Create the permanent nodes and agree on the cluster id, which is returned. Raises RegistrationError."""
        try:
            self.cluster_id = await self.retrying(self._prepare, wait_ms)
        except NotAuthorized as error:
            raise ZooKeeperRefuses(
                f"ZooKeeper does not accept this process as a broker of this cluster ({error}): set"
                " zookeeper.digest.credentials to what the other brokers have"
            ) from error
        return self.cluster_id

    async def register(self, endpoints: Sequence[BrokerEndpoint], wait_ms: int) -> BrokerEpoch:
        """Register this broker with its advertised endpoints; returns the broker epoch. Raises RegistrationError."""
        assert endpoints, "a broker without an address"
        self._endpoints = tuple(endpoints)
        self._loop = asyncio.get_running_loop()
        await self.retrying(self._ensure_registered, wait_ms)
        assert self._broker_epoch is not None
        return self._broker_epoch

    async def run(self) -> None:
        """Keep the registration until cancelled. Raises BrokerIdTaken if another process replaced ours, and
        ClusterMismatch if ZooKeeper has lost its data."""
        assert self._loop is not None, "register first"
        self._check_deadline(self._loop)
        try:
            while True:
                await self._attention.wait()
                self._attention.clear()
                try:
                    await self._ensure_registered()
                except TRANSIENT_ERRORS:
                    await asyncio.sleep(RETRY_SECONDS)
                    self._attention.set()
        finally:
            assert self._deadline_timer is not None
            self._deadline_timer.cancel()

    def _check_deadline(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs on one timer, at the last known deadline: about once per session while ZooKeeper answers."""
        if not self.is_fenced():
            self._has_reported_fence = False
        elif self._broker_epoch is not None and not self._has_reported_fence:
            self._has_reported_fence = True
            self._on_fenced()
        now, deadline = loop.time(), self._coordination.session_deadline
        again_at = deadline if deadline > now else now + RETRY_SECONDS
        self._deadline_timer = loop.call_at(again_at, self._check_deadline, loop)

    async def retrying(self, call: Callable[[], Awaitable[T]], wait_ms: int) -> T:
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + wait_ms / 1000
        while True:
            try:
                return await call()
            except TRANSIENT_ERRORS as error:
                if loop.time() + RETRY_SECONDS >= give_up_at:
                    raise ZooKeeperUnreachable(f"ZooKeeper stopped answering at the start ({error})") from error
                await asyncio.sleep(RETRY_SECONDS)

    # ---------------------------------------------------------------------------------------------------- cluster
    async def _prepare(self) -> str:
        for path in PERSISTENT_PATHS:
            try:
                await self._coordination.create(path, b"")
            except NodeExists:
                pass
        open_paths = await self._coordination.protect((*PERSISTENT_PATHS, CLUSTER_ID, CLUSTER_SECRET))
        if open_paths:
            raise ZooKeeperRefuses(
                f"zookeeper.digest.credentials are set, but any client may change {some_of(open_paths)} in"
                " ZooKeeper: this cluster was created without them. Leave them out, or start a new cluster with them"
            )
        cluster_id = await self._agree_on_cluster(self.identity.cluster_id)
        await self._require_known_changes(self._coordination)
        return cluster_id

    async def _agree_on_cluster(self, expected: str | None) -> str:
        """The cluster id that ZooKeeper knows; a new one only if none is expected."""
        found = await self._find_cluster_id(expected)
        if expected not in (None, found):
            raise ClusterMismatch(
                f"the log directory belongs to cluster {expected}, ZooKeeper knows cluster {found}: correct"
                " zookeeper.connect, or restore ZooKeeper's data; to join the new cluster without the old records,"
                " empty log.dirs"
            )
        return found

    async def _find_cluster_id(self, expected: str | None) -> str:
        for _ in range(CONFLICTS_MAX):
            try:
                content, _ = await self._coordination.get(CLUSTER_ID)
                return ClusterId.decode(content).id
            except NoNode:
                pass
            except CorruptZnode as error:
                raise ClusterMismatch(f"ZooKeeper's cluster id cannot be read ({error})") from error
            if expected is not None:
                raise ClusterMismatch(
                    f"the log directory belongs to cluster {expected}, and ZooKeeper knows no cluster: its data was"
                    " wiped, or zookeeper.connect names another ZooKeeper. Restore its data, or start a new cluster"
                    " with an empty log.dirs on every broker"
                )
            try:
                await self._coordination.create(CLUSTER_ID, ClusterId(id=draw_id(self._random)).encode())
            except NodeExists:
                pass
        raise ClusterMismatch(
            f"{CLUSTER_ID} is created and deleted all the time: another program writes to this ZooKeeper"
        )

    async def _check_permanent_nodes(self) -> None:
        """A running cluster never loses these nodes; if one is missing, so is everything below it. Only the node for
        registrations can be created again, because brokers restore what was below it."""
        missing = [path for path in PERSISTENT_PATHS if await self._coordination.exists(path) is None]
        if missing == [BROKER_IDS]:
            self._observer.notify(NodeMissing(path=BROKER_IDS))
            with contextlib.suppress(NodeExists):
                await self._coordination.create(BROKER_IDS, b"")
        elif missing:
            raise ClusterMismatch(
                f"ZooKeeper has lost {', '.join(missing)} while this broker ran, with all that was there: restore its"
                " data, then start the brokers. A start creates these nodes again, but not the topics in them"
            )

    # --------------------------------------------------------------------------------------------------- our node
    async def _ensure_registered(self) -> None:
        """Read our node, and write until it is ours under the current session."""
        for _ in range(CONFLICTS_MAX):
            found = await self._read_node()
            if found is None:
                self._end_broker_epoch("its registration is gone")
                if self._was_registered:  # ZooKeeper may have lost its data meanwhile
                    await self._agree_on_cluster(self.cluster_id)
                    await self._check_permanent_nodes()
                await self._require_known_changes(self._coordination)
            if self._coordination.went_back is not None:
                seen, newest = self._coordination.went_back
                raise OlderCopy(f"its newest transaction was {seen}, and is {newest} now")
            if found is None:
                await self._write([self._create_operation()])
                continue
            node, stat = found
            if self._is_ours(node) and stat.ephemeral_owner == self._coordination.session_id:
                self._registered(stat)
                return
            self._end_broker_epoch("another registration stands in its place")
            if not self._may_replace(node):
                await self._wait_until_gone(node)
                continue
            self._observer.notify(RegistrationReplaced(broker=self.identity.broker_id))
            controller = await self._controller_of(stat.ephemeral_owner)
            remove = DeleteOp(path=self._path, version=stat.version)
            await self._write([remove, *controller, self._create_operation()])
        raise BrokerIdTaken(f"broker id {self.identity.broker_id}: its registration is rewritten all the time")

    async def _read_node(self) -> tuple[BrokerRegistration | None, Stat] | None:
        """Our node as it is now, watched; None if there is none, (None, stat) if it is not readable."""
        try:
            content, stat = await self._coordination.get(self._path, self._attention.set)
        except NoNode:
            return None
        except NotAuthorized as error:
            return await self._read_listed(error)
        try:
            return BrokerRegistration.decode(content), stat
        except CorruptZnode as error:
            self._report_unreadable(str(error))
            return None, stat

    async def _read_listed(self, refusal: NotAuthorized) -> tuple[BrokerRegistration | None, Stat] | None:
        """The same of a node that another tool has given an ACL of its own. Since 3.9.2 ZooKeeper tells nothing of such
        a node but that its parent lists it, not even by a watch. While our session lasts, no other node replaces it."""
        try:
            names = await self._coordination.get_children(BROKER_IDS, self._attention.set)
        except NoNode:
            return None
        if str(self.identity.broker_id) not in names:
            return None
        owner, epoch = self._coordination.session_id, self._broker_epoch
        stat = Stat(version=0, czxid=epoch or 0, mzxid=epoch or 0, ephemeral_owner=owner, num_children=0)
        if epoch is not None:
            return BrokerRegistration.decode(self._create_operation().data), stat
        self._report_unreadable(f"no right to {refusal}")
        return None, stat

    def _report_unreadable(self, reason: str) -> None:
        consequence = "this broker cannot register until it is gone"
        self._observer.notify(NodeUnreadable(path=self._path, consequence=consequence, reason=reason))

    async def _controller_of(self, session_id: int) -> list[Operation]:
        """The operation that removes /controller, if that session holds it."""
        try:
            _, stat = await self._coordination.get(CONTROLLER)
        except NoNode:
            return []
        return [DeleteOp(path=CONTROLLER, version=stat.version)] if stat.ephemeral_owner == session_id else []

    async def _write(self, operations: Sequence[Operation]) -> None:
        """The caller reads next, so a conflicting write is no error here."""
        try:
            await self._coordination.multi(operations)
        except (NodeExists, NoNode, BadVersion) as conflict:
            log.info("registering again: %s", conflict)

    def _create_operation(self) -> CreateOp:
        first = self._endpoints[0]
        node = BrokerRegistration(
            host=first.host,
            port=first.port,
            endpoints=[format_endpoint(each.listener, each.host, each.port) for each in self._endpoints],
            listener_security_protocol_map={each.listener: "PLAINTEXT" for each in self._endpoints},
            timestamp=str(self._clock.now_ms()),
            incarnation_id=self.identity.incarnation_id,
            directory_id=self.identity.directory_id,
            cluster_id=self.cluster_id,
        )
        return CreateOp(path=self._path, data=node.encode(), ephemeral=True)

    def _is_ours(self, node: BrokerRegistration | None) -> bool:
        return node is not None and node.incarnation_id == self.identity.incarnation_id

    def _may_replace(self, node: BrokerRegistration | None) -> bool:
        if node is None:
            return False
        if self._is_ours(node):
            return True  # written under an earlier session of this process
        return not self._was_registered and node.directory_id == self.identity.directory_id

    async def _wait_until_gone(self, node: BrokerRegistration | None) -> None:
        """Return when the foreign node's session has ended; raises BrokerIdTaken if it stays alive."""
        wait_seconds = self._coordination.negotiated_timeout_ms * FOREIGN_NODE_SESSIONS / 1000
        self._observer.notify(RegistrationAwaited(broker=self.identity.broker_id, seconds=wait_seconds))
        try:
            async with asyncio.timeout(wait_seconds):
                while True:
                    await self._attention.wait()
                    self._attention.clear()
                    found = await self._read_node()
                    if found is None or self._may_replace(found[0]):
                        return
        except TimeoutError:
            raise BrokerIdTaken(self._taken_message(node), is_replaced=self._was_registered) from None

    def _taken_message(self, node: BrokerRegistration | None) -> str:
        broker_id = self.identity.broker_id
        where = "with content that is not readable" if node is None else f"at {', '.join(node.endpoints)}"
        if node is not None and node.directory_id == self.identity.directory_id:
            return (
                f"broker id {broker_id} was taken over by another process, {where}, that runs on a copy of this log"
                " directory: stop one of them, and give each broker its own broker.id and log.dirs"
            )
        return (
            f"broker id {broker_id} is in use: another live broker is registered under it, {where}, with another log"
            " directory. Give each broker its own broker.id, or stop the other one"
        )

    # ------------------------------------------------------------------------------------------------------ events
    def _registered(self, stat: Stat) -> None:
        if self._broker_epoch == stat.czxid:
            return
        self._end_broker_epoch("it was registered again")
        if stat.czxid < self._highest_epoch:
            raise OlderCopy(f"its newest transaction was {self._highest_epoch}, and is {stat.czxid} now")
        self._broker_epoch = self._highest_epoch = stat.czxid
        self._was_registered = True
        shown = ", ".join(f"{each.listener}://{each.host}:{each.port}" for each in self._endpoints)
        registered = BrokerRegistered(broker=self.identity.broker_id, broker_epoch=stat.czxid, address=shown)
        self._observer.notify(registered)
        self._on_registered(stat.czxid)

    def _end_broker_epoch(self, reason: str) -> None:
        """End the broker epoch; no effect if there is none."""
        if self._broker_epoch is None:
            return
        lost = RegistrationLost(broker=self.identity.broker_id, broker_epoch=self._broker_epoch, reason=reason)
        self._observer.notify(lost)
        self._broker_epoch = None
        self._has_reported_fence = False
        self._on_epoch_ended()

    def observe_removal(self) -> None:
        """Another reader in this process, on the same session, has seen that our node is gone. ZooKeeper answers a
        session in order, so everything we read before is older: from now on this broker serves nothing."""
        self._end_broker_epoch("its registration is gone")
        self._attention.set()

    def _on_session_event(self, event: SessionEvent) -> None:
        self._observer.notify(SessionChanged(state=event.kind))
        if event.kind in ("expired", "new-session"):
            self._end_broker_epoch("its ZooKeeper session is over")
        if event.kind != "suspended":
            self._attention.set()
