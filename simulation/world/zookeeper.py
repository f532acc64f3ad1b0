"""The simulated ZooKeeper: one server for a world.

Owns: sessions, watches, and the faults of the server. Leaves to others: links to clients (`zookeeper_links`), and the
znodes (`znode_tree`).

Theory: a session lives at the server, which keeps it as long as requests arrive; a link is one connection of it. Others
see a session's end before its owner does.
"""

import asyncio
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from minibroker.runtime.ports import CoordinationError
from minibroker.simulation.world.loop import WORLD, VirtualLoop
from minibroker.simulation.world.observations import (
    AnswerArrived,
    DataReplaced,
    RequestReceived,
    SessionCutShort,
    SessionEnded,
    WorldObservers,
)
from minibroker.simulation.world.trace import Trace
from minibroker.simulation.world.znode_tree import ZNode, ZNodeChange, ZNodeTree, describe
from minibroker.simulation.world.zookeeper_links import REFUSED, Answer, Link, RequestHold, ZooKeeperRequest

FIRST_SESSION_ID = 0x1000_0000_0000_0000

UNLIMITED = 1_000_000_000
LINKS_KEPT = 1_000
"""Links that a healed cut wakes; older ones were given up long ago."""


class Session(msgspec.Struct):
    """The server's state of one session."""

    session_id: int
    timeout_ms: int
    last_request_at: float
    link: Link | None = None


class DataCopy(msgspec.Struct, frozen=True):
    """A copy of the server's data, made at one moment."""

    zxid: int
    """The newest transaction."""
    nodes: dict[str, ZNode]
    sessions: dict[int, int]
    """The sessions that lived then, and their timeouts in milliseconds."""


class ServerOptions(msgspec.Struct):
    """Settings of the simulated server."""

    tick_ms: int = 500
    latency_minimum: float = 0.000_3
    latency_extra_mean: float = 0.000_5
    extra_delay: float = 0.0
    """Seconds added each way: a slow ZooKeeper."""


class SimulatedZooKeeper:
    """The server, shared by a world. Faults are calls on it."""

    def __init__(
        self, loop: VirtualLoop, rng: random.Random, trace: Trace, observers: WorldObservers | None = None
    ) -> None:
        self.loop = loop
        self.random = rng
        self.trace = trace
        self.observers = observers or WorldObservers()
        self.options = ServerOptions()
        self.tree = ZNodeTree(self.observers)
        self.sessions: dict[int, Session] = {}
        self._next_session_id = FIRST_SESSION_ID
        self._watches: dict[ZNodeChange, list[tuple[Link, int]]] = {}
        self._unreachable: set[str] = set()
        self._answers_cut: set[str] = set()
        self.slow_hosts: dict[str, float] = {}
        """Seconds added each way for one machine."""
        self.holds: tuple[RequestHold, ...] = ()
        self._is_all_cut = False
        self._stopped = False
        self._links: deque[Link] = deque(maxlen=LINKS_KEPT)
        self._lost_replies: dict[str, int] = {}
        self._lost_requests: dict[str, int] = {}

    # -------------------------------------------------------------------------------------------------- faults
    def cut(self, host: str | None = None) -> None:
        """Unreachable for one machine, or for all."""
        if host is None:
            self._is_all_cut = True
        else:
            self._unreachable.add(host)

    def cut_answers(self, host: str) -> None:
        """One way: the server gets the machine's requests and keeps its session, but no answer comes back."""
        self._answers_cut.add(host)

    def heal(self, host: str | None = None) -> None:
        """Undo cuts; for all machines, also slow links and holds."""
        if host is None:
            self._is_all_cut = False
            self._unreachable.clear()
            self._answers_cut.clear()
            self.slow_hosts.clear()
            for hold in self.holds:
                hold.release()
            self.holds = ()
        else:
            self._unreachable.discard(host)
            self._answers_cut.discard(host)
        for link in self._links:
            link.pump_soon()

    def reach_all(self) -> None:
        """Undo the cut of all machines; what is cut for one of them stays so."""
        self._is_all_cut = False
        for link in self._links:
            link.pump_soon()

    def lose_next_reply(self, host: str, times: int = 1) -> None:
        """The next write of this machine happens, but its connection breaks before the answer."""
        self._lost_replies[host] = self._lost_replies.get(host, 0) + times

    def lose_next_request(self, host: str, times: int = 1) -> None:
        """The next write of this machine never happens: its connection breaks on the way."""
        self._lost_requests[host] = self._lost_requests.get(host, 0) + times

    def hold(
        self, host: str | None = None, match: Callable[[ZooKeeperRequest], bool] | None = None, times: int = UNLIMITED
    ) -> RequestHold:
        """Hold back requests of one machine (None: any) until the hold is released."""
        hold = RequestHold(host, match, times)
        self.holds = (*(other for other in self.holds if not other.is_open), hold)
        return hold

    def drop_connection(self, host: str) -> None:
        """Reset the machine's connections: both ends notice. The session lives."""
        for session in list(self.sessions.values()):
            if session.link is not None and session.link.process.name == host:
                session.link.break_in_between()
                session.link = None

    def expire_session(self, session_id: int) -> None:
        """End the session as if no request had come: others see its ephemerals vanish first."""
        session = self.sessions.get(session_id)
        if session is not None:
            if session.link is not None:
                self.observers.notify(SessionCutShort(session.link.process.name))
            self._end_session(session)

    def sessions_of(self, host: str) -> list[int]:
        return [
            session.session_id
            for session in self.sessions.values()
            if session.link is not None and session.link.process.name == host
        ]

    def stop(self) -> None:
        """The server process ends; its data and sessions stay on its disk."""
        self._stopped = True
        for session in self.sessions.values():
            if session.link is not None:
                session.link.break_from_server()
                session.link = None

    def start(self) -> None:
        """Start again after `stop`: as in ZooKeeper, every session gets its full time again."""
        if not self._stopped:
            return
        self._stopped = False
        for session in list(self.sessions.values()):
            self._touch(session)
            self._watch_expiry(session)

    def copied_data(self) -> DataCopy:
        """A copy of the data directory, made while the server runs or not."""
        zxid, nodes = self.tree.copied()
        return DataCopy(zxid, nodes, {each.session_id: each.timeout_ms for each in self.sessions.values()})

    def put_in(self, copy: DataCopy) -> None:
        """Restart the server on this copy. As a real one does, it gives the sessions of that time their full time
        again, so what they own is there until then."""
        self.stop()
        self.tree.put_in(copy.zxid, copy.nodes)
        self.sessions = {each: Session(each, timeout_ms, 0.0) for each, timeout_ms in copy.sessions.items()}
        self._watches.clear()
        self.trace.record("zk-data-replaced", copy.zxid)
        self.observers.notify(DataReplaced())
        self.start()

    def add_link(self, link: Link) -> None:
        self._links.append(link)

    def is_reachable(self, host: str, for_answers: bool = False) -> bool:
        if self._is_all_cut or host in self._unreachable:
            return False
        return not (for_answers and host in self._answers_cut)

    @property
    def is_running(self) -> bool:
        return not self._stopped

    # ------------------------------------------------------------------------------------------------ sessions
    def connect(
        self, link: Link, session_id: int, zxid_seen: int, timeout_ms: int, answer: Callable[[int, int], None]
    ) -> None:
        """Attach a link to a session; answers (session id, granted timeout): 0 if the session is over, REFUSED if the
        client has seen younger data than there is."""
        if zxid_seen > self.tree.zxid:
            link.deliver(answer, session_id, REFUSED)
            return
        if session_id == 0:
            session = self._new_session(timeout_ms)
        else:
            found = self.sessions.get(session_id)
            if found is None:
                self.trace.record("zk-refused-session", link.process.name, session_id)
                link.deliver(answer, session_id, 0)
                return
            session = found
        if session.link is not None and session.link is not link:
            session.link.break_from_client()
        session.link = link
        link.session_id = session.session_id
        self._touch(session)
        self.trace.record("zk-connect", link.process.name, session.session_id)
        link.deliver(answer, session.session_id, session.timeout_ms)

    def _new_session(self, timeout_ms: int) -> Session:
        tick = self.options.tick_ms
        granted = min(max(timeout_ms, 2 * tick), 20 * tick)
        session = Session(self._next_session_id, granted, self.loop.time())
        self._next_session_id += 1
        self.tree.next_zxid()
        self.sessions[session.session_id] = session
        self._watch_expiry(session)
        return session

    def _touch(self, session: Session) -> None:
        session.last_request_at = self.loop.time()

    def _expires_at(self, session: Session) -> float:
        """Sessions end at the first tick after their timeout."""
        tick = self.options.tick_ms / 1000
        due = session.last_request_at + session.timeout_ms / 1000
        return (math.floor(due / tick) + 1) * tick

    def _watch_expiry(self, session: Session) -> None:
        self.loop.call_at(self._expires_at(session), self._check_expiry, session, context=WORLD)

    def _check_expiry(self, session: Session) -> None:
        if self.sessions.get(session.session_id) is not session or self._stopped:
            return
        if self._expires_at(session) > self.loop.time():
            self._watch_expiry(session)
        else:
            self._end_session(session)

    def _end_session(self, session: Session) -> None:
        del self.sessions[session.session_id]
        gone, changed = self.tree.delete_ephemerals(session.session_id)
        self.observers.notify(SessionEnded(gone))
        self.trace.record("zk-session-end", session.session_id, *gone)
        self._fire(changed)
        if session.link is not None:
            session.link.break_from_server()
            session.link = None

    # ------------------------------------------------------------------------------------------------ requests
    def delay(self, host: str) -> float:
        """One way, to or from a client."""
        options = self.options
        extra = -options.latency_extra_mean * math.log(1.0 - self.random.random())
        return options.latency_minimum + extra + options.extra_delay + self.slow_hosts.get(host, 0.0)

    def receive(self, link: Link, request: ZooKeeperRequest, answer: Answer) -> None:
        self.observers.notify(RequestReceived(link.process.name, request.kind, request.path))
        session = self.sessions.get(link.session_id)
        if self._stopped or session is None or session.link is not link:
            return  # the link is broken, and its client notified
        self._touch(session)
        if request.kind == "close":
            session.link = None
            self._end_session(session)
            link.deliver(answer, None, None)
            return
        host = link.process.name
        if request.kind == "write" and self._lost_requests.get(host, 0) > 0:
            self._lost_requests[host] -= 1
            session.link = None
            link.break_from_server()
            return
        try:
            result, error = self._perform(link, request, session.session_id), None
        except CoordinationError as failure:
            result, error = None, failure
        if request.kind == "write":
            self.trace.record("zk-write", host, self.tree.zxid, describe(request.operations), type(error).__name__)
            if self._lost_replies.get(host, 0) > 0:
                self._lost_replies[host] -= 1
                session.link = None
                link.break_from_server()
                return
        link.deliver(self._reporting(host, request, answer), result, error)

    def _reporting(self, host: str, request: ZooKeeperRequest, answer: Answer) -> Answer:
        """The same answer, which also reports that it has arrived."""

        def arrived(result: Any, error: CoordinationError | None) -> bool:
            is_awaited = answer(result, error)
            self.observers.notify(AnswerArrived(host, request.kind, request.path, result, error, is_awaited))
            return is_awaited

        return arrived

    def _perform(self, link: Link, request: ZooKeeperRequest, session_id: int) -> Any:
        match request.kind:
            case "get":
                node = self.tree.find(request.path)
                self._leave_watch(link, request, children=False)
                return node.data, node.stat()
            case "exists":
                self._leave_watch(link, request, children=False)
                found = self.tree.nodes.get(request.path)
                return None if found is None else found.stat()
            case "children":
                names = self.tree.children(request.path)
                self._leave_watch(link, request, children=True)
                return names
            case "write":
                results, changed = self.tree.transact(request.operations, session_id)
                self._fire(changed)
                created = [path for path in results if isinstance(path, str) and path in self.tree.nodes]
                return results, {path: self.tree.nodes[path].stat() for path in created}
            case _:
                raise AssertionError(request.kind)

    # ------------------------------------------------------------------------------------------------- watches
    def _leave_watch(self, link: Link, request: ZooKeeperRequest, children: bool) -> None:
        if request.watch is not None:
            self._watches.setdefault(ZNodeChange(request.path, children), []).append((link, request.watch))

    def _fire(self, changed: Sequence[ZNodeChange]) -> None:
        for change in changed:
            for link, number in self._watches.pop(change, []):
                link.fire_watch(number)

    def forget_watches(self, link: Link) -> None:
        for change, watchers in list(self._watches.items()):
            kept = [entry for entry in watchers if entry[0] is not link]
            if kept:
                self._watches[change] = kept
            else:
                del self._watches[change]

    async def settle(self) -> None:
        """For tests: wait long enough for everything in flight to arrive."""
        await asyncio.sleep(0.1 + 2 * self.options.extra_delay)
