"""The real coordination port: ZooKeeper through kazoo.

Owns: the bridge between kazoo's thread and the event loop, the deadline of every call, our own heartbeat and the
session deadline that follows from it, and the meaning of kazoo's states. Leaves to others: that of its answers
(`kazoo_answers`).

Theory: kazoo runs one connection thread. Everything that this thread reports (answers, watch events, states) is passed
to the loop in the order in which it happened. This keeps the order that ZooKeeper promises: a watch fires before the
new data can be read. kazoo knows neither deadlines nor when ZooKeeper last received something from us: both are kept
here. While there is no connection, no call enters kazoo's queue, where it would wait for ever and might run late. A
call in progress when the connection breaks ends as 'outcome unknown' (writes) or 'unavailable' (reads).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from minibroker.runtime.adapters.kazoo_answers import (
    ANSWERS,
    NO_ANSWER,
    add_operation,
    raise_failed_operation,
    to_stat,
)
from minibroker.runtime.adapters.kazoo_client import (
    RECONNECT_DELAY_SECONDS_MAX,
    SessionGrant,
    is_open,
    open_kazoo,
    post,
    readable_acl,
    secret_acl,
)
from minibroker.runtime.deadline import answer_within
from minibroker.runtime.ports import (
    CoordinationError,
    CoordinationUnavailable,
    CreateOp,
    NodeExists,
    NoNode,
    Operation,
    SessionEvent,
    SetOp,
    Stat,
    Watcher,
    WriteOutcomeUnknown,
)
from minibroker.runtime.refused_session import WIPED, SessionRefusals

HEARTBEATS_PER_SESSION = 6
"""kazoo pings twice per session timeout and does not report when; six leave room for lost ones before the deadline."""

NEVER = float("-inf")

T = TypeVar("T")
SessionListener = Callable[[SessionEvent], None]

logger = logging.getLogger(__name__)


class ZooKeeperCoordination:
    """Implements `ports.Coordination`."""

    def __init__(self, servers: str, session_timeout_ms: int, credentials: str = "") -> None:
        """`credentials`: USER:PASSWORD of ZooKeeper's digest scheme; empty: any client may do everything."""
        self._credentials = credentials
        self._servers = servers
        self._timeout_ms = session_timeout_ms
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._heartbeats: asyncio.Task[None] | None = None
        self._listeners: list[SessionListener] = []
        self._connected = asyncio.Event()
        self._closed = False
        self._granted = SessionGrant(session_id=0, timeout_ms=session_timeout_ms, sent_at=NEVER)
        self._session_id = 0
        self._session_ended = False
        self._session_deadline = NEVER
        self._outage_began: float | None = None
        self._refusals = SessionRefusals()
        self._held_watches: list[OneShotWatcher] = []
        self._zxid_seen = 0
        self._is_zxid_doubtful = False
        """A new kazoo client knows nothing of what was seen before, and no answer has come to it."""
        self._went_back: tuple[int, int] | None = None

    # ------------------------------------------------------------------------------------------------- session
    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def negotiated_timeout_ms(self) -> int:
        return self._granted.timeout_ms

    @property
    def session_deadline(self) -> float:
        return self._session_deadline

    @property
    def went_back(self) -> tuple[int, int] | None:
        return self._went_back

    def add_session_listener(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        assert self._client is None, "started twice"
        self._loop = asyncio.get_running_loop()
        try:
            self._open_client()
        except (OSError, RuntimeError) as error:  # no file descriptor for it, or no thread
            raise CoordinationUnavailable(f"cannot reach for ZooKeeper {self._servers}: {error}") from error
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            raise CoordinationUnavailable(
                f"no ZooKeeper answers at {self._servers} within {self._timeout_ms} ms"
            ) from None
        except BaseException:
            await self.close()
            raise
        self._heartbeats = self._loop.create_task(self._beat(), name="zookeeper-heartbeat")

    async def close(self) -> None:
        if self._closed or self._loop is None:
            self._closed = True
            return
        self._closed = True
        self._connected.clear()
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.gather(self._heartbeats, return_exceptions=True)
        if self._client is not None:
            with contextlib.suppress(TimeoutError, RuntimeError):  # no thread for it: kazoo ends with this process
                async with asyncio.timeout(self._timeout_ms / 1000):
                    await self._stop_client(self._client)
        self._session_deadline = NEVER
        self._held_watches.clear()

    def _open_client(self) -> None:
        assert self._loop is not None
        client = self._client = open_kazoo(
            self._servers,
            self._timeout_ms,
            self._loop,
            granted=self._on_granted,
            changed=self._on_state,
            refused=self._on_refused,
            ended=self._on_ended,
            credentials=self._credentials,
        )
        try:
            client.start_async()
        except BaseException:
            with contextlib.suppress(Exception):
                client.close()  # its pipe: a lack of threads may last, and each attempt would leave two descriptors
            raise

    def _stop_client(self, client: Any) -> asyncio.Future[None]:
        """Stop kazoo in a thread of its own: with a hanging ZooKeeper that takes as long as the session timeout."""
        assert self._loop is not None
        loop = self._loop
        stopped: asyncio.Future[None] = loop.create_future()

        def stop() -> None:
            with contextlib.suppress(Exception):
                client.stop()
                client.close()
            post(loop, finish)

        def finish() -> None:
            if not stopped.done():
                stopped.set_result(None)

        threading.Thread(target=stop, name="zookeeper-stop", daemon=True).start()
        return stopped

    def _on_granted(self, grant: SessionGrant) -> None:
        """ZooKeeper accepted the session; kazoo's CONNECTED follows."""
        self._granted = grant

    def _on_refused(self, client: Any) -> None:
        """Continue with a session of a new kazoo client if nothing else helps."""
        assert self._loop is not None
        if self._closed or client is not self._client or not self._session_id or self._session_ended:
            return
        if not self._refusals.refused(self._loop.time(), self._session_deadline, self._granted.timeout_ms / 1000):
            return
        logger.warning(WIPED, self._servers)
        self._end_session()
        self._replace_client(client)

    def _on_state(self, state: str, client: Any) -> None:
        if self._closed or client is not self._client:
            return  # closing the client also looks like a loss
        if state == "CONNECTED":
            self._on_connected()
        elif state == "SUSPENDED":
            self._on_suspended()
        else:
            self._on_lost()

    def _on_connected(self) -> None:
        assert self._loop is not None
        self._refusals.answered()
        is_first = self._session_id == 0
        is_new = self._granted.session_id != self._session_id
        if is_new and not is_first and not self._session_ended:
            self._notify("expired")
        self._session_id = self._granted.session_id
        self._session_ended = False
        deadline = self._granted.sent_at + self._granted.timeout_ms / 1000
        self._session_deadline = deadline if is_new else max(self._session_deadline, deadline)
        if self._outage_began is not None:
            logger.info("ZooKeeper is back after %.1f s", self._loop.time() - self._outage_began)
            self._outage_began = None
        self._connected.set()
        self._notify("new-session" if is_new and not is_first else "connected")
        self._fire_held_watches()

    def _on_suspended(self) -> None:
        assert self._loop is not None
        self._connected.clear()
        if self._outage_began is None:
            self._outage_began = self._loop.time()
            logger.warning("connection to ZooKeeper %s lost, reconnecting", self._servers)
        self._notify("suspended")

    def _on_lost(self) -> None:
        self._connected.clear()
        if self._session_id and not self._session_ended:
            self._end_session()

    def _on_ended(self, client: Any, error: Exception | None) -> None:
        """kazoo's thread ended by itself: a lack of file descriptors, for example, ends the look-up of a server's name
        in an error that kazoo does not expect."""
        if self._closed or client is not self._client:
            return
        logger.warning("kazoo has given up, opening another client: %r", error)
        self._replace_client(client)

    def _end_session(self) -> None:
        self._session_ended = True
        self._session_deadline = NEVER
        self._notify("expired")

    def _replace_client(self, client: Any) -> None:
        """After a pause: what has ended this client may end the next one at once."""
        assert self._loop is not None
        self._client = None
        self._loop.call_later(RECONNECT_DELAY_SECONDS_MAX, self._reopen_client)
        with contextlib.suppress(RuntimeError):  # there is no thread for it
            self._stop_client(client)

    def _reopen_client(self) -> None:
        assert self._loop is not None
        if self._closed:
            return
        self._is_zxid_doubtful = True
        try:
            self._open_client()
        except (OSError, RuntimeError) as error:  # no file descriptor for it, or no thread
            logger.warning("cannot reach for ZooKeeper %s: %s", self._servers, error)
            self._loop.call_later(RECONNECT_DELAY_SECONDS_MAX, self._reopen_client)

    def _notify(self, kind: str) -> None:
        assert self._loop is not None
        event = SessionEvent(kind=kind, session_id=self._session_id)
        for listener in list(self._listeners):
            self._loop.call_soon(listener, event)  # each in its own callback: a failing one does not stop the others

    async def _beat(self) -> None:
        """Send ZooKeeper a read often enough that the deadline advances while it answers."""
        assert self._loop is not None
        while True:
            interval = self._granted.timeout_ms / 1000 / HEARTBEATS_PER_SESSION
            began = self._loop.time()
            with contextlib.suppress(CoordinationError):
                await self.exists("/")
            await asyncio.sleep(max(0.001, interval - (self._loop.time() - began)))

    # ------------------------------------------------------------------------------------------------- watches
    def _on_watch(self, shot: "OneShotWatcher", session_ended: bool) -> None:
        """kazoo forgets its watches when a connection breaks, and calls them. The watched nodes cannot be read then, so
        the watchers are kept until there is a connection again, of this session or the next: no change is missed."""
        if session_ended and not self._connected.is_set() and not self._closed:
            self._held_watches.append(shot)
        elif not self._closed:
            shot.fire()

    def _fire_held_watches(self) -> None:
        assert self._loop is not None
        held, self._held_watches = self._held_watches, []
        for shot in held:
            self._loop.call_soon(shot.fire)

    # --------------------------------------------------------------------------------------------------- calls
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        with self._watching(watcher) as watch:
            data, stat = await self._call(f"get {path}", lambda client: client.get_async(path, watch=watch))
        return data, to_stat(stat)

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        with self._watching(watcher) as watch:
            stat = await self._call(f"exists {path}", lambda client: client.exists_async(path, watch=watch))
        return None if stat is None else to_stat(stat)

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        with self._watching(watcher) as watch:
            names = await self._call(
                f"get_children {path}", lambda client: client.get_children_async(path, watch=watch)
            )
        return sorted(names)

    async def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
        is_secret: bool = False,
    ) -> tuple[str, Stat]:
        acl = secret_acl(self._credentials) if is_secret and self._credentials else None

        def ask(client: Any) -> Any:
            return client.create_async(path, data, acl=acl, ephemeral=ephemeral, sequence=sequence, include_data=True)

        try:
            real_path, stat = await self._call(f"create {path}", ask, is_write=True)
        except NoNode:
            if not make_parents:
                raise
            await self._make_parents(path)
            real_path, stat = await self._call(f"create {path}", ask, is_write=True)
        return real_path, to_stat(stat)

    async def _make_parents(self, path: str) -> None:
        names = path.strip("/").split("/")[:-1]
        for depth in range(1, len(names) + 1):
            with contextlib.suppress(NodeExists):
                await self.create("/" + "/".join(names[:depth]), b"")

    async def protect(self, paths: Sequence[str]) -> list[str]:
        """In ZooKeeper the parent's ACL grants the right to delete a node: under an open root any client can delete
        /controller_epoch, whatever that node's own ACL is."""
        if not self._credentials:
            return []
        found = [path for path in paths if await self._is_open(path)]
        if not found:
            acl = [*secret_acl(self._credentials), *readable_acl()]
            await self._call("set_acls /", lambda client: client.set_acls_async("/", acl), is_write=True)
        return found

    async def _is_open(self, path: str) -> bool:
        try:
            entries, _ = await self._call(f"get_acls {path}", lambda client: client.get_acls_async(path))
        except NoNode:
            return False
        return any(is_open(entry) for entry in entries)

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        stat = await self._call(
            f"set {path}", lambda client: client.set_async(path, data, version=version), is_write=True
        )
        return to_stat(stat)

    async def delete(self, path: str, version: int = -1) -> None:
        await self._call(f"delete {path}", lambda client: client.delete_async(path, version=version), is_write=True)

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        if not operations:
            return []

        def ask(client: Any) -> Any:
            transaction = client.transaction()
            for operation in operations:
                add_operation(transaction, operation)
            return transaction.commit_async()

        results = await self._call(f"multi of {len(operations)}", ask, is_write=True)
        raise_failed_operation(operations, results)
        return [
            result if isinstance(operation, CreateOp) else to_stat(result) if isinstance(operation, SetOp) else None
            for operation, result in zip(operations, results, strict=True)
        ]

    @contextlib.contextmanager
    def _watching(self, watcher: Watcher | None) -> Any:
        """A kazoo watch for one call; a failed call leaves no watch, however late ZooKeeper answers."""
        if watcher is None:
            yield None
            return
        shot = OneShotWatcher(watcher)
        try:
            yield lambda event: self._on_watch(shot, session_ended=event.type == "NONE")
        except BaseException:
            shot.cancel()
            raise

    async def _call(self, what: str, ask: Callable[[Any], Any], is_write: bool = False) -> Any:
        if self._loop is None or self._closed or not self._connected.is_set():
            raise CoordinationUnavailable(f"{what}: no connection to ZooKeeper {self._servers}")
        session_id, sent_at = self._session_id, self._loop.time()
        answered: asyncio.Future[tuple[Any, Any]] = self._loop.create_future()

        def on_result(result: Any) -> None:  # on the loop, see LoopQueue
            if not answered.done():
                # Not the result itself, which refers to this function: each heartbeat would leave a reference cycle.
                answered.set_result((result.exception, result.value))

        client = self._client
        ask(client).rawlink(on_result)
        try:
            failure, value = await answer_within(answered, self._timeout_ms)
        except TimeoutError:
            raise no_answer(is_write, f"{what}: no answer from ZooKeeper in {self._timeout_ms} ms") from None
        name = type(failure).__name__
        if name not in NO_ANSWER and client is self._client:
            self._note_zxid(client.last_zxid)
        if name not in NO_ANSWER and session_id == self._session_id and not self._session_ended:
            self._session_deadline = max(self._session_deadline, sent_at + self._granted.timeout_ms / 1000)
        if failure is None:
            return value
        if name in ANSWERS:
            raise ANSWERS[name](what)
        if name in NO_ANSWER:
            raise no_answer(is_write, f"{what}: the connection to ZooKeeper broke")
        raise CoordinationError(f"{what}: {failure!r}")

    def _note_zxid(self, zxid: int) -> None:
        """kazoo's client has had an answer. A server refuses a client that has seen more than the server has: only a
        new client may meet older data. A server that merely lags is no such case: to open a session is a transaction,
        and the server answers once it has applied it and all before it."""
        if self._is_zxid_doubtful and zxid < self._zxid_seen:
            self._went_back = self._zxid_seen, zxid
        self._is_zxid_doubtful = False
        self._zxid_seen = max(self._zxid_seen, zxid)


class OneShotWatcher:
    """A watcher that is called at most once."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher: Watcher | None = watcher

    def fire(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher()

    def cancel(self) -> None:
        self._watcher = None


def no_answer(is_write: bool, message: str) -> CoordinationError:
    return WriteOutcomeUnknown(message) if is_write else CoordinationUnavailable(message)
