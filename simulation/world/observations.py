"""What a simulated world reports of itself: what ZooKeeper did, disk calls that failed, processes that stood still.

Owns: the events and their subscribers. Leaves to others: what they mean, and what processes report (see
`SimulatedWorld.observers`). All are reported before anything else happens in the world, and a subscriber only reads.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from msgspec import Struct

from minibroker.runtime.ports import CoordinationError, DiskError, Operation


class RequestSent(Struct, frozen=True):
    """A process sends ZooKeeper a request, which may get lost."""

    host: str
    kind: str
    """See `ZooKeeperRequest.kind`."""
    path: str


class RequestReceived(Struct, frozen=True):
    """ZooKeeper got a request; it may still drop it, if its session is over."""

    host: str
    kind: str
    """See `ZooKeeperRequest.kind`."""
    path: str


class AnswerArrived(Struct, frozen=True):
    """ZooKeeper's answer is back at the process that asked, which has not read it yet."""

    host: str
    kind: str
    path: str
    result: Any
    error: CoordinationError | None
    is_awaited: bool
    """False: the process has given up waiting, so it learns nothing (seed 17312267)."""


class DeletedNode(Struct, frozen=True):
    """A node of ZooKeeper as it was last."""

    data: bytes
    czxid: int
    ephemeral_owner: int


class NodesWritten(Struct, frozen=True):
    """A transaction changed ZooKeeper's data; watches have not fired yet."""

    operations: Sequence[Operation]
    session_id: int
    deleted: dict[str, DeletedNode]
    """By path: the nodes that were there before, of the paths that it deletes."""


class SessionCutShort(Struct, frozen=True):
    """A fault ends the session of this machine before its time."""

    host: str


class SessionEnded(Struct, frozen=True):
    """A session is over, and its nodes are gone; watches have not fired yet."""

    deleted_paths: Sequence[str]


class DataReplaced(Struct, frozen=True):
    """While ZooKeeper was stopped, another copy of its data was put in: what is known of the data before is over."""


class DiskCallFailed(Struct, frozen=True):
    """A fault lets a call of the acting process fail."""

    host: str
    call: str
    path: str
    error: DiskError


class ProcessPaused(Struct, frozen=True):
    """SIGSTOP."""

    host: str


class ProcessResumed(Struct, frozen=True):
    """SIGCONT; no callback of the process has run yet."""

    host: str


E = TypeVar("E", bound=Struct)


class WorldObservers:
    """Hands each event to the subscribers of its kind, in the order in which they subscribed, to the world's end."""

    def __init__(self) -> None:
        self._subscribers: dict[type[Struct], list[Callable[[Struct], None]]] = {}

    def subscribe(self, kind: type[E], subscriber: Callable[[E], None]) -> None:
        self._subscribers.setdefault(kind, []).append(cast("Callable[[Struct], None]", subscriber))

    def notify(self, event: Struct) -> None:
        for subscriber in self._subscribers.get(type(event), ()):
            subscriber(event)
