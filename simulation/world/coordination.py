"""The simulated coordination port: a process's client of the simulated ZooKeeper.

It behaves as the real adapter does, measured by the same cases: it fails at once while there is no link, gives up a
silent link after two thirds of a session, retries every 0.1 to 1 s, keeps watches over an outage, and counts the
session's deadline from the time of sending.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from minibroker.runtime.deadline import answer_within
from minibroker.runtime.ports import (
    CoordinationError,
    CoordinationUnavailable,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    Operation,
    SessionEvent,
    SetOp,
    Stat,
    Watcher,
    WriteOutcomeUnknown,
)
from minibroker.runtime.refused_session import SessionRefusals
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.zookeeper import SimulatedZooKeeper
from minibroker.simulation.world.zookeeper_links import REFUSED, Link, LinkOwner, ZooKeeperRequest

NEVER = float("-inf")
HEARTBEATS_PER_SESSION = 6
RECONNECT_DELAY_SECONDS = 0.1
RECONNECT_DELAY_SECONDS_MAX = 1.0

SILENCE_SHARE = 2 / 3
"""Share of a session: a link that answers nothing for this long is given up, as kazoo does."""


class SimulatedCoordination(LinkOwner):
    """Implements `ports.Coordination` for one process."""

    def __init__(self, server: SimulatedZooKeeper, process: Process, servers: str, session_timeout_ms: int) -> None:
        self._server = server
        self._loop = server.loop
        self._process = process
        self._servers = servers
        self._timeout_ms = session_timeout_ms
        self._granted_ms = session_timeout_ms
        self._session_id = 0
        self._session_ended = False
        self._session_deadline = NEVER
        self._zxid_seen = 0
        self._went_back: tuple[int, int] | None = None
        self._refusals = SessionRefusals()
        self._listeners: list[Callable[[SessionEvent], None]] = []
        self._link: Link | None = None
        self._unanswered: dict[int, tuple[float, asyncio.Future[Any], bool]] = {}
        self._last_answer_at = NEVER
        self._watches: dict[int, Watcher] = {}
        self._held: list[Watcher] = []
        self._serial = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._connected = asyncio.Event()
        self._broken = asyncio.Event()
        self._closed = False

    # ------------------------------------------------------------------------------------------------- session
    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def negotiated_timeout_ms(self) -> int:
        return self._granted_ms

    @property
    def session_deadline(self) -> float:
        return self._session_deadline

    @property
    def went_back(self) -> tuple[int, int] | None:
        return self._went_back

    def add_session_listener(self, listener: Callable[[SessionEvent], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        self._process.check_alive()
        assert not self._tasks, "started twice"
        self._tasks.append(self._loop.create_task(self._stay_connected(), name="zookeeper-link"))
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
        self._tasks.append(self._loop.create_task(self._beat(), name="zookeeper-heartbeat"))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._connected.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        link = self._link
        if link is not None:
            ended: asyncio.Future[None] = self._loop.create_future()

            def answer(result: Any, error: CoordinationError | None) -> bool:
                return ended.cancel()

            link.send(ZooKeeperRequest("close"), answer)
            await asyncio.wait([ended], timeout=self._timeout_ms / 1000)
            ended.cancel()
            link.break_from_client()
            self._fail_unanswered()
        self._session_deadline = NEVER
        self._held.clear()

    async def _stay_connected(self) -> None:
        delay = RECONNECT_DELAY_SECONDS
        while True:
            link = await self._connect()
            if link is not None:
                delay = RECONNECT_DELAY_SECONDS
                await self._broken.wait()
            await asyncio.sleep(delay * self._server.random.uniform(0.8, 1.2))
            delay = min(2 * delay, RECONNECT_DELAY_SECONDS_MAX)

    async def _connect(self) -> Link | None:
        """One attempt; None if there is no answer, or the session turns out to be over."""
        if not self._server.is_running:
            return None
        link = Link(self._server, self._process, self)
        granted: asyncio.Future[tuple[int, int]] = self._loop.create_future()

        def answer(session_id: int, timeout_ms: int) -> None:
            if not granted.done():
                granted.set_result((session_id, timeout_ms))

        sent_at = self._loop.time()
        wanted, seen = (0, 0) if self._session_ended else (self._session_id, self._zxid_seen)
        link.ask_for_session(wanted, seen, self._timeout_ms, answer)
        try:
            async with asyncio.timeout(RECONNECT_DELAY_SECONDS_MAX):
                session_id, timeout_ms = await granted
        except TimeoutError:
            link.break_from_client()
            return None
        if timeout_ms == REFUSED:
            link.break_from_client()
            if self._refusals.refused(self._loop.time(), self._session_deadline, self._granted_ms / 1000):
                self._on_expired()
            return None
        if timeout_ms == 0:
            self._on_expired()
            return None
        self._on_connected(link, session_id, timeout_ms, sent_at)
        return link

    def _on_connected(self, link: Link, session_id: int, timeout_ms: int, sent_at: float) -> None:
        self._refusals.answered()
        if self._server.tree.zxid < self._zxid_seen:
            self._went_back = self._zxid_seen, self._server.tree.zxid
        self._zxid_seen = self._server.tree.zxid
        is_first = self._session_id == 0
        is_new = session_id != self._session_id
        self._link = link
        self._session_id = session_id
        self._session_ended = False
        self._granted_ms = timeout_ms
        self._last_answer_at = self._loop.time()
        deadline = sent_at + timeout_ms / 1000
        self._session_deadline = deadline if is_new else max(self._session_deadline, deadline)
        self._broken.clear()
        self._connected.set()
        self._notify("new-session" if is_new and not is_first else "connected")
        self._fire_held()

    def on_broken(self, link: Link) -> None:
        if link is not self._link:
            return
        link.break_from_client()
        self._link = None
        self._connected.clear()
        self._broken.set()
        self._held.extend(self._watches.values())
        self._watches.clear()
        self._fail_unanswered()
        self._notify("suspended")

    def _on_expired(self) -> None:
        self._session_ended = True
        self._session_deadline = NEVER
        self._notify("expired")

    def _notify(self, kind: str) -> None:
        if not self._closed:
            event = SessionEvent(kind=kind, session_id=self._session_id)
            for listener in list(self._listeners):
                self._loop.call_soon(listener, event)

    async def _beat(self) -> None:
        while True:
            link = self._link
            if link is not None and self._is_silent():
                self.on_broken(link)
            elif link is not None:
                self._send(link, ZooKeeperRequest("exists", "/"), is_write=False)
            await asyncio.sleep(self._granted_ms / 1000 / HEARTBEATS_PER_SESSION)

    def _is_silent(self) -> bool:
        if not self._unanswered:
            return False
        oldest = next(iter(self._unanswered.values()))[0]
        return self._loop.time() - max(oldest, self._last_answer_at) > SILENCE_SHARE * self._granted_ms / 1000

    # ------------------------------------------------------------------------------------------------- watches
    def on_watch(self, link: Link, number: int) -> None:
        watcher = self._watches.pop(number, None)
        if watcher is not None and link is self._link and not self._closed:
            watcher()

    def _fire_held(self) -> None:
        held, self._held = self._held, []
        for watcher in held:
            self._loop.call_soon(watcher)

    # --------------------------------------------------------------------------------------------------- calls
    def _send(self, link: Link, request: ZooKeeperRequest, is_write: bool) -> "asyncio.Future[Any]":
        """Send, and return the future of the answer; it gets an error when the link breaks."""
        self._serial += 1
        serial, sent_at, session_id = self._serial, self._loop.time(), self._session_id
        answered: asyncio.Future[Any] = self._loop.create_future()
        self._unanswered[serial] = (sent_at, answered, is_write)

        def answer(result: Any, error: CoordinationError | None) -> bool:
            self._unanswered.pop(serial, None)
            self._last_answer_at = self._loop.time()
            self._zxid_seen = max(self._zxid_seen, self._server.tree.zxid)
            if session_id == self._session_id and not self._session_ended:
                self._session_deadline = max(self._session_deadline, sent_at + self._granted_ms / 1000)
            if answered.done():
                return False
            if error is None:
                answered.set_result(result)
            else:
                _set_error(answered, error)
            return True

        link.send(request, answer)
        return answered

    def _fail_unanswered(self) -> None:
        unanswered, self._unanswered = self._unanswered, {}
        for _, answered, is_write in unanswered.values():
            if not answered.done():
                kind = WriteOutcomeUnknown if is_write else CoordinationUnavailable
                _set_error(answered, kind("the connection to ZooKeeper broke"))

    async def _call(self, request: ZooKeeperRequest, is_write: bool = False) -> Any:
        self._process.check_alive()
        what = f"{request.kind} {request.path or [operation.path for operation in request.operations]}"
        if self._link is None or self._closed:
            raise CoordinationUnavailable(f"{what}: no connection to ZooKeeper {self._servers}")
        answered = self._send(self._link, request, is_write)
        try:
            return await answer_within(answered, self._timeout_ms)
        except TimeoutError:
            kind = WriteOutcomeUnknown if is_write else CoordinationUnavailable
            raise kind(f"{what}: no answer from ZooKeeper in {self._timeout_ms} ms") from None

    @contextlib.contextmanager
    def _watching(self, watcher: Watcher | None) -> Iterator[int | None]:
        """A number for the watch of one call; a failed call leaves no watch."""
        if watcher is None:
            yield None
            return
        self._serial += 1
        number = self._serial
        self._watches[number] = watcher
        try:
            yield number
        except BaseException:
            self._watches.pop(number, None)
            if watcher in self._held:
                self._held.remove(watcher)
            raise

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        with self._watching(watcher) as watch:
            data, stat = await self._call(ZooKeeperRequest("get", path, watch=watch))
        return data, stat

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        with self._watching(watcher) as watch:
            stat: Stat | None = await self._call(ZooKeeperRequest("exists", path, watch=watch))
        return stat

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        with self._watching(watcher) as watch:
            names: list[str] = await self._call(ZooKeeperRequest("children", path, watch=watch))
        return names

    async def _write(self, *operations: Operation) -> tuple[list[str | Stat | None], dict[str, Stat]]:
        try:
            results, stats = await self._call(ZooKeeperRequest("write", operations=operations), is_write=True)
        except CoordinationError as error:
            if len(operations) == 1:
                error.index = None
            raise
        return results, stats

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
        operation = CreateOp(path=path, data=data, ephemeral=ephemeral, sequence=sequence)
        try:
            results, stats = await self._write(operation)
        except NoNode:
            if not make_parents:
                raise
            await self._make_parents(path)
            results, stats = await self._write(operation)
        real_path = results[0]
        assert isinstance(real_path, str)
        return real_path, stats[real_path]

    async def _make_parents(self, path: str) -> None:
        names = path.strip("/").split("/")[:-1]
        for depth in range(1, len(names) + 1):
            with contextlib.suppress(NodeExists):
                await self.create("/" + "/".join(names[:depth]), b"")

    async def protect(self, paths: Sequence[str]) -> list[str]:
        """There are no credentials here."""
        return []

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        results, _ = await self._write(SetOp(path=path, data=data, version=version))
        stat = results[0]
        assert isinstance(stat, Stat)
        return stat

    async def delete(self, path: str, version: int = -1) -> None:
        await self._write(DeleteOp(path=path, version=version))

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        if not operations:
            return []
        results, _ = await self._call(ZooKeeperRequest("write", operations=tuple(operations)), is_write=True)
        return list(results)


def _set_error(answered: "asyncio.Future[Any]", error: CoordinationError) -> None:
    """Set the error and mark it as retrieved: the waiting task may have been cancelled, or killed just now (seed
    17004982)."""
    answered.set_exception(error)
    answered.exception()
