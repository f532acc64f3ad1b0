"""Connections between clients and the simulated ZooKeeper: what is in flight, in which order, and what holds it.

Owns: the two directions of a link, and holds on requests. Leaves to others: the server (`zookeeper`), and a client's
session (`coordination`).

Theory: both directions of a link are first in, first out, so a watch event arrives before the answer that could show
the new data. Requests in flight when a link is cut are lost, or reach the server when it is healed: by then their
sender has got 'outcome unknown'.
"""

import asyncio
import contextvars
import random
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from minibroker.runtime.ports import CoordinationError, Operation
from minibroker.simulation.world.loop import WORLD, VirtualLoop
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.observations import RequestSent, WorldObservers

LATE_REQUEST_PROBABILITY = 0.5
"""Share of links given up by their client that still deliver to the server what is in flight."""
REFUSED = -1
"""Instead of a granted timeout: the real server ends the connection without an answer."""


class ZooKeeperRequest(msgspec.Struct, frozen=True):
    """A client's request: to read something, or to change something."""

    kind: str
    """'get', 'exists', 'children', 'write', 'close'."""
    path: str = ""
    operations: tuple[Operation, ...] = ()
    watch: int | None = None
    """The client's number for the watch to set."""


Answer = Callable[[Any, CoordinationError | None], bool]  # returns whether the process still waited for it


class RequestHold:
    """Holds back requests of a machine in front of the server, with all that follow on their link: a test directs when
    a write happens. A client without answers gives its link up, and what waits there is then refused."""

    def __init__(self, host: str | None, match: Callable[[ZooKeeperRequest], bool] | None, times: int) -> None:
        self._host = host
        self._match = match
        self._times = times
        self._waiting: list[Pipe] = []
        self._caught = asyncio.Event()
        self.is_open = False
        self.seen: list[ZooKeeperRequest] = []
        """Every request that was held, in order."""

    def stops(self, host: str, request: ZooKeeperRequest, pipe: "Pipe") -> bool:
        if self.is_open or self._times <= 0 or self._host not in (None, host):
            return False
        if self._match is not None and not self._match(request):
            return False
        self._times -= 1
        self.seen.append(request)
        self._waiting.append(pipe)
        self._caught.set()
        return True

    async def caught(self) -> ZooKeeperRequest:
        """Wait until it has held a request since the last call; returns the newest."""
        await self._caught.wait()
        self._caught.clear()
        return self.seen[-1]

    def release(self) -> None:
        """Open permanently: waiting requests go on, in order."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for pipe in waiting:
            pipe.go_on()

    def drop(self) -> None:
        """Open permanently; what waits is lost, with all behind it. For a process that has ended: a living one would
        wait for answers on a connection that seems to work."""
        for pipe in self._waiting:
            pipe.clear()
        self.release()


class LinkServer(Protocol):
    """The part of the server that its links use."""

    loop: VirtualLoop
    random: random.Random
    observers: WorldObservers
    holds: tuple[RequestHold, ...]

    def add_link(self, link: "Link") -> None: ...

    def is_reachable(self, host: str, for_answers: bool = False) -> bool: ...

    def delay(self, host: str) -> float: ...

    def connect(
        self, link: "Link", session_id: int, zxid_seen: int, timeout_ms: int, answer: Callable[[int, int], None]
    ) -> None: ...

    def receive(self, link: "Link", request: ZooKeeperRequest, answer: Answer) -> None: ...

    def forget_watches(self, link: "Link") -> None: ...


class Pipe:
    """One direction of a link. A cut holds it, as TCP would resend; it never reorders and never leaves a gap."""

    def __init__(self, server: LinkServer, host: str, context: contextvars.Context, is_answers: bool) -> None:
        self._server = server
        self._host = host
        self._context = context
        self._is_answers = is_answers
        self._is_held = False
        self._waiting: deque[tuple[float, Callable[..., object], tuple[Any, ...]]] = deque()
        self._last_arrival = 0.0

    def put(self, call: Callable[..., object], *arguments: Any) -> None:
        self._last_arrival = max(self._last_arrival, self._server.loop.time() + self._server.delay(self._host))
        self._waiting.append((self._last_arrival, call, arguments))
        self._server.loop.call_at(self._last_arrival, self.pump, context=self._context)

    def pump(self) -> None:
        now, server = self._server.loop.time(), self._server
        while self._waiting and self._waiting[0][0] <= now and server.is_reachable(self._host, self._is_answers):
            if self._is_held or self._stops_at_hold():
                return
            _, call, arguments = self._waiting.popleft()
            call(*arguments)

    def _stops_at_hold(self) -> bool:
        for hold in self._server.holds:
            for argument in self._waiting[0][2]:
                if isinstance(argument, ZooKeeperRequest) and hold.stops(self._host, argument, self):
                    self._is_held = True
                    return True
        return False

    def go_on(self) -> None:
        """The hold is open again."""
        self._is_held = False
        self.pump_soon()

    def pump_soon(self) -> None:
        if self._waiting:
            when = self._server.loop.time() + self._server.delay(self._host)
            self._server.loop.call_at(when, self.pump, context=self._context)

    def clear(self) -> None:
        self._waiting.clear()


class Link:
    """One connection between a client and the server. `owner` gets answers, watches and notice of its end."""

    def __init__(self, server: LinkServer, process: Process, owner: "LinkOwner") -> None:
        self._server = server
        self.process = process
        self._owner = owner
        self.session_id = 0
        self._requests = Pipe(server, process.name, WORLD, is_answers=False)
        self._answers = Pipe(server, process.name, process.context, is_answers=True)
        server.add_link(self)

    def send(self, request: ZooKeeperRequest, answer: Answer) -> None:
        """To the server; `answer` is called in the client's process, or never."""
        self._server.observers.notify(RequestSent(self.process.name, request.kind, request.path))
        self._requests.put(self._server.receive, self, request, answer)

    def ask_for_session(
        self, session_id: int, zxid_seen: int, timeout_ms: int, answer: Callable[[int, int], None]
    ) -> None:
        self._requests.put(self._server.connect, self, session_id, zxid_seen, timeout_ms, answer)

    def deliver(self, call: Callable[..., object], *arguments: Any) -> None:
        """To the client."""
        self._answers.put(call, *arguments)

    def pump_soon(self) -> None:
        self._requests.pump_soon()
        self._answers.pump_soon()

    def fire_watch(self, number: int) -> None:
        self.deliver(self._owner.on_watch, self, number)

    def break_from_server(self) -> None:
        """The server closes it; the client is notified if it can be reached."""
        self._server.forget_watches(self)
        self.deliver(self._owner.on_broken, self)

    def break_in_between(self) -> None:
        """A reset by the network: cuts do not keep it from the client."""
        self._server.forget_watches(self)
        self._server.loop.call_soon(self._owner.on_broken, self, context=self.process.context)

    def break_from_client(self) -> None:
        """The client has given it up. What it has sent may still be in flight, and arrive."""
        self._answers.clear()
        if self._server.random.random() >= LATE_REQUEST_PROBABILITY:
            self._requests.clear()
        self._server.forget_watches(self)


class LinkOwner:
    """The part of a client that a link uses."""

    def on_watch(self, link: Link, number: int) -> None: ...

    def on_broken(self, link: Link) -> None: ...
