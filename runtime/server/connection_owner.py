"""What an accepted connection needs of its server.

Owns: the interface. Leaves to others: the sums over all connections behind it (`server`).
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from minibroker.protocol.wire.framing import MemoryBudget
from minibroker.runtime.observer import Observer
from minibroker.runtime.server.heavy_requests import HeavyRequests
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.runtime.server.loop_iteration import LoopIteration
from minibroker.runtime.server.peer_fault_log import PeerFaultLog
from minibroker.runtime.server.server_limits import ServerLimits
from minibroker.runtime.server.unread_replies import UnreadReplies
from minibroker.runtime.server.waiting_requests import WaitingRequests

Handler = Callable[[IncomingRequest], None]
C = TypeVar("C", contravariant=True)


class ConnectionOwner(Protocol[C]):
    """All that connections share, and the place that each has among them."""

    observer: Observer
    handler: Handler
    after_requests: Callable[[], None] | None
    """Called when the requests of one read have been handled."""
    limits: ServerLimits
    budget: MemoryBudget
    waiting: WaitingRequests
    unread_replies: UnreadReplies
    heavy: HeavyRequests
    iteration: LoopIteration
    peer_faults: PeerFaultLog
    is_handling_read: bool
    """Requests of one read are being handled: small replies are held until that is done."""
    lacks_buffers: bool
    """A frame had no room a moment ago: no connection keeps an empty buffer."""

    @property
    def lacks_memory(self) -> bool:
        """Whether some request has to wait for memory."""
        ...

    def lacks_memory_for(self, connection: C, in_flight: int) -> bool:
        """Whether memory is too short for one more request of this connection."""
        ...

    def admit(self, connection: C) -> bool:
        """Whether there is a place for the connection, or one can be freed."""
        ...

    def confirm_broker(self, connection: C) -> None:
        """The connection has proven to be a broker's."""
        ...

    def forget(self, connection: C) -> None:
        """The connection has ended."""
        ...

    def try_hold_reply(self, connection: C) -> bool:
        """Whether a reply of this connection may wait until the requests of one read have been handled."""
        ...

    def send_held(self) -> None:
        """Send all held replies now."""
        ...

    def note_paused(self, connection: C, paused: bool) -> None:
        """Record whether the connection is paused: paused connections are resumed when there is memory again."""
        ...

    def reclaim_buffers(self) -> bool:
        """Take the buffers of idle connections for a frame that has no room; False: that was done a moment ago."""
        ...
