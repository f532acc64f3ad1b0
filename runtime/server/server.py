"""The answering half of the wire: accepts connections, turns bytes into requests, sends replies.

Owns: all connections of a process and what they may use together (receive buffers, waiting requests, unread replies,
their number, the loop's time). Leaves to others: what a request means. Each one is passed to `handler` in one
synchronous call, in the order of arrival on its connection; it is answered then or later through
`IncomingRequest.respond`.

Theory of overload: a small request is handled at once, and a large one waits in TCP. When memory is short, connections
that have held it longest without progress are closed. So a hostile peer costs the others time in proportion to what it
sends, and memory up to a limit. The limits, each with its reason, are in `server_limits`.
"""

import asyncio
import logging
from collections.abc import Callable

from minibroker.protocol.wire.framing import MemoryBudget
from minibroker.runtime.deadline import DeadlineTimer
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import Listener, Network
from minibroker.runtime.server.connection_owner import Handler
from minibroker.runtime.server.heavy_requests import HeavyRequests
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.runtime.server.loop_iteration import LoopIteration
from minibroker.runtime.server.peer_fault_log import PeerFaultLog
from minibroker.runtime.server.server_connection import ServerConnection
from minibroker.runtime.server.server_limits import (
    EVICT_IDLE_AFTER_MS,
    PROBATION_MS,
    STUCK_FRAME_MS,
    SWEEP_INTERVAL_MS,
    ServerLimits,
)
from minibroker.runtime.server.unread_replies import UnreadReplies
from minibroker.runtime.server.waiting_requests import WaitingRequests

__all__ = ["IncomingRequest", "RpcServer", "ServerConnection", "ServerLimits"]

log = logging.getLogger("minibroker.server")

RECLAIM_PAUSE_MS = 50
"""The shortest time between two searches for idle buffers."""


class RpcServer:
    """All connections of one broker process, over any number of listeners."""

    def __init__(
        self, network: Network, handler: Handler, limits: ServerLimits | None = None, observer: Observer = UNOBSERVED
    ) -> None:
        self.observer = observer
        self.limits = limits or ServerLimits()
        self.handler = handler
        self.after_requests: Callable[[], None] | None = None
        """Called when the requests of one read have been handled: delayed requests that they completed are answered
        together."""
        self.on_connection_closed: Callable[[ServerConnection], None] | None = None
        self.budget = MemoryBudget(self.limits.receive_budget_bytes, self.limits.broker_reserve_bytes)
        self.budget.on_release = self._reconsider_soon
        self.unread_replies = UnreadReplies(self.limits.unread_replies_max_bytes, self._reconsider_soon)
        self.waiting = WaitingRequests(self.limits.waiting_max_bytes, self._reconsider_soon)
        self.heavy = HeavyRequests(self.unread_replies.has_room)
        self.iteration = LoopIteration()
        self.peer_faults = PeerFaultLog()
        self.connections: dict[int, ServerConnection] = {}
        self.lacks_buffers = False
        """A frame had no room a moment ago: no connection keeps an empty buffer."""
        self._paused: dict[ServerConnection, None] = {}
        self._on_probation: dict[ServerConnection, None] = {}
        """Connections in places kept for brokers, the oldest first."""
        self._network = network
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._next_id = 0
        self._rejected_count = 0
        self._reconsider_scheduled = False
        self._shortage_timer = DeadlineTimer(self._close_slow_frames)
        self._reclaim_at = 0.0
        self.is_handling_read = False
        """Requests of one read are being handled: small replies are held until that is done."""
        self._holding: dict[ServerConnection, None] = {}

    @property
    def port(self) -> int:
        """Port of the first listener."""
        return self._listeners[0].port

    async def start(self, host: str, port: int, listener_name: str = "PLAINTEXT") -> int:
        """Open one more listener and return its port. Raises AddressInUse."""
        listener = await self._network.listen(lambda: self._new_connection(listener_name), host, port)
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="server-sweep")
        return listener.port

    async def stop(self) -> None:
        """Stop accepting, then close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        for listener in tuple(self._listeners):
            await listener.close()
        for connection in tuple(self.connections.values()):
            connection.abort()
        self._listeners.clear()
        self.heavy.stop()
        self.unread_replies.stop()
        self.peer_faults.stop()
        self._shortage_timer.cancel()

    @property
    def delayed_cost_bytes(self) -> int:
        """Estimated memory of clients' requests that wait for their answer."""
        return self.waiting.small_bytes + self.waiting.other_bytes

    def reply_room(self) -> int:
        """The largest size of one more reply to a client; 0 while unread replies take all the memory for them."""
        return self.unread_replies.room()

    # -------------------------------------------------------------------------------------------- for connections
    def admit(self, connection: ServerConnection) -> bool:
        """Whether there is a place for the connection, or one can be freed."""
        if len(self.connections) - len(self._on_probation) >= self.limits.connections_max:
            if not self._rejected_count:
                log.warning(
                    "%d connections are open: no place, at first for %s", len(self.connections), connection.peer
                )
            self._rejected_count += 1
            victim = self._eviction_candidate()
            if victim is None:
                victim = self._put_on_probation(connection)
            if victim is not None:
                victim.abort()
                self._remove(victim)
            if victim is connection:
                return False
        self.connections[connection.id] = connection
        return True

    def _put_on_probation(self, connection: ServerConnection) -> ServerConnection | None:
        """It may be a broker: give it one of their places. Returns the connection to close for that, perhaps itself."""
        if not self.limits.broker_places:
            return connection
        self._on_probation[connection] = None
        return next(iter(self._on_probation)) if len(self._on_probation) > self.limits.broker_places else None

    def confirm_broker(self, connection: ServerConnection) -> None:
        """The connection has proven to be a broker's."""
        self._on_probation.pop(connection, None)

    def _remove(self, connection: ServerConnection) -> None:
        self.connections.pop(connection.id, None)
        self._on_probation.pop(connection, None)

    def _end_probation(self, now: float) -> None:
        for connection in tuple(self._on_probation):
            if len(self.connections) - len(self._on_probation) < self.limits.connections_max:
                del self._on_probation[connection]  # another place is free by now
            elif (now - connection.opened_at) * 1000 >= PROBATION_MS:
                connection.abort_because("all places are taken, and it is not a broker", logging.INFO)

    def forget(self, connection: ServerConnection) -> None:
        """The connection has ended."""
        self._remove(connection)
        self.unread_replies.discard(connection)
        if self.on_connection_closed is not None:
            self.on_connection_closed(connection)

    def try_hold_reply(self, connection: ServerConnection) -> bool:
        """Whether a reply of this connection may wait for the end of a step."""
        if self.is_handling_read:
            self._holding[connection] = None
        return self.is_handling_read

    def send_held(self) -> None:
        """Send all held replies now."""
        if self._holding:
            holding, self._holding = self._holding, {}
            for connection in holding:
                connection.send_held()

    def note_paused(self, connection: ServerConnection, paused: bool) -> None:
        """Record whether the connection is paused: paused connections are resumed when there is memory again."""
        if paused:
            self._paused[connection] = None
        else:
            self._paused.pop(connection, None)

    @property
    def lacks_memory(self) -> bool:
        """Whether some request has to wait for memory."""
        return self.waiting.is_full or self.unread_replies.is_full

    def lacks_memory_for(self, connection: ServerConnection, in_flight: int) -> bool:
        """Whether memory is too short for one more request of this connection. Never so for the first one, as long as
        the peer reads its replies."""
        if self.waiting.is_full and in_flight:
            return True
        return self.unread_replies.is_full and connection in self.unread_replies

    def reclaim_buffers(self) -> bool:
        """A frame has no room: take the buffers of idle connections now, and later close those with slow frames."""
        loop = asyncio.get_running_loop()
        self.lacks_buffers = True
        self._shortage_timer.set_after(STUCK_FRAME_MS / 1000)
        if loop.time() < self._reclaim_at:
            return False
        self._reclaim_at = loop.time() + RECLAIM_PAUSE_MS / 1000
        for connection in tuple(self.connections.values()):
            connection.release_idle_buffer()
        return True

    # --------------------------------------------------------------------------------------------------- machinery
    def _new_connection(self, listener_name: str) -> ServerConnection:
        self._next_id += 1
        return ServerConnection(self, self._next_id, listener_name)

    def _reconsider_soon(self) -> None:
        if not self._reconsider_scheduled and self._paused:
            self._reconsider_scheduled = True
            asyncio.get_running_loop().call_soon(self._reconsider)

    def _reconsider(self) -> None:
        self._reconsider_scheduled = False
        for connection in tuple(self._paused):
            connection.resume_soon()

    def _eviction_candidate(self) -> ServerConnection | None:
        """The oldest connection that never sent a request; else the one that has been idle longest."""
        now = asyncio.get_running_loop().time()
        idle: ServerConnection | None = None
        longest = EVICT_IDLE_AFTER_MS / 1000
        for connection in self.connections.values():
            if connection.is_broker or connection in self._on_probation:
                continue
            if not connection.has_sent_request:
                return connection
            seconds = connection.idle_seconds(now)
            if seconds > longest:
                idle, longest = connection, seconds
        return idle

    def _close_slow_frames(self) -> None:
        """The budget is used up and a connection waits for it: close those with the oldest unfinished frames."""
        if not any(connection.is_starved for connection in self._paused):
            self.lacks_buffers = False
            return
        now = asyncio.get_running_loop().time()
        enough = (self.limits.receive_budget_bytes - self.limits.broker_reserve_bytes) // 2
        unfinished = [
            (connection.frame_began, connection.id, connection)
            for connection in self.connections.values()
            if connection.frame_began is not None and not connection.is_broker
        ]
        for began, _, connection in sorted(unfinished):
            if self.budget.used_bytes <= enough or (now - began) * 1000 < STUCK_FRAME_MS:
                break
            connection.abort_because("its request takes too long to come while memory for requests is short")
        self._reconsider_soon()
        self._shortage_timer.set_after(STUCK_FRAME_MS / 1000)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_MS / 1000)
            now = loop.time()
            self._end_probation(now)
            for connection in tuple(self.connections.values()):
                connection.check_deadlines(now)
            self.unread_replies.measure()
            self._reconsider_soon()
            if self._rejected_count > 1:
                log.warning("%d connections had no place", self._rejected_count)
            self._rejected_count = 0
