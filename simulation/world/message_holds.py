"""Message holds on links: they hold back, drop or count single frames of the wire protocol, as a test directs.

Theory: a hold stands in front of the receiver. Bytes arrive, whole frames are cut from them, and a frame that matches a
hold stops there with all that follows on its connection, as TCP keeps the order; other connections of the same link go
on. What waits at a hold counts as unread, so its sender feels the window; and it outlives its sender, as bytes in a
kernel do: a killed controller's last order may still arrive. Frames are cut only after the first hold of a run is made,
and on each connection from the first byte of the next write; so the API of a response to an earlier request is unknown.
"""

import asyncio
import enum
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.codec import (
    IncomingFrame,
    decode_request_body,
    decode_request_frame,
    decode_response_body,
    decode_response_frame,
)
from minibroker.protocol.wire.messages import APIS, ApiKey, Request, Response

FRAME_MAX_BYTES = 192 * 1024
"""A longer frame passes unexamined: waiting for all of it could fill the window and never end."""

UNLIMITED = 1_000_000_000

LENGTH_BYTES = 4


class Frame(msgspec.Struct, frozen=True):
    """One frame on a link, as holds see it."""

    source: str
    """Machine that sent it."""
    target: str
    api: ApiKey | None
    """None: a response to a request that passed before the first hold."""
    is_request: bool
    correlation_id: int
    body: memoryview

    def message(self) -> Request | Response:
        """The typed body. Raises ProtocolError for an invalid message."""
        assert self.api is not None, "a response to a request that passed before the first hold"
        if not self.is_request:
            return decode_response_body(self.api, self.body)
        return decode_request_body(IncomingFrame(self.api, 0, self.correlation_id, "", msgspec.Raw(self.body)))

    def __str__(self) -> str:
        name = "?" if self.api is None else self.api.name
        return f"{name} {'request' if self.is_request else 'response'} {self.source}->{self.target}"


class Action(enum.Enum):
    """What a hold does with matching frames."""

    PASS = enum.auto()
    HOLD = enum.auto()
    DROP = enum.auto()


Match = Callable[[Frame], bool]


def requests(*apis: ApiKey) -> Match:
    """For `hold`: requests of these APIs."""
    return lambda frame: frame.is_request and frame.api in apis


def responses(*apis: ApiKey) -> Match:
    """For `hold`: responses to requests of these APIs."""
    return lambda frame: not frame.is_request and frame.api in apis


class HeldEnd(Protocol):
    """The end of a connection that reads what a hold keeps back."""

    @property
    def host(self) -> str: ...
    @property
    def is_client(self) -> bool: ...
    @property
    def is_gone(self) -> bool: ...
    @property
    def peer(self) -> "HeldEnd": ...
    @property
    def cutter(self) -> "FrameCutter | None": ...
    def go_on(self) -> None:
        """The hold is open again."""
        ...

    def lose_frames(self) -> None:
        """What waits at the hold, and everything after it, is lost with the connection."""
        ...


class MessageHold:
    """Made by `Fabric.hold`, `Fabric.drop_frames` and `Fabric.count_frames`; closed by `release` or `drop`."""

    def __init__(self, source: str | None, target: str | None, match: Match | None, action: Action, times: int) -> None:
        self.seen: list[Frame] = []
        """Every matching frame, in order of arrival: held, dropped or counted."""
        self._source = source
        self._target = target
        self._match = match
        self._action = action
        self._times = times
        self._waiting: list[HeldEnd] = []
        self._began: dict[tuple[str, str], float] = {}
        """When the first frame of each way was caught, in loop time."""
        self._caught = asyncio.Event()
        self._passes = 0
        self.is_open = False

    @property
    def held(self) -> int:
        """Connections that wait here now."""
        return sum(1 for end in self._waiting if not end.is_gone)

    @property
    def is_active(self) -> bool:
        """It holds or drops frames now, or will do so with the next match."""
        return not self.is_open and self._action is not Action.PASS and (self._times > 0 or self.held > 0)

    def since(self, source: str, target: str) -> float:
        """When it began to hold or lose the frames of this way, in loop time; infinity if it does not."""
        return self._began.get((source, target), math.inf) if self.is_active else math.inf

    def decide(self, frame: Frame, end: "HeldEnd") -> Action:
        """The action for a frame that has arrived for this end."""
        if self.is_open or self._source not in (None, frame.source) or self._target not in (None, frame.target):
            return Action.PASS
        if self._match is not None and not self._match(frame):
            return Action.PASS
        if self._passes:
            self._passes -= 1
            return Action.PASS
        if self._times <= 0:
            return Action.PASS
        self._times -= 1
        self.seen.append(frame)
        self._began.setdefault((frame.source, frame.target), asyncio.get_running_loop().time())
        self._caught.set()
        if self._action is Action.HOLD:
            self._waiting.append(end)
        return self._action

    async def caught(self) -> Frame:
        """Wait until it has caught a frame since the last call; returns the newest."""
        await self._caught.wait()
        self._caught.clear()
        return self.seen[-1]

    def let_one_pass(self) -> None:
        """Pass the waiting frame of each connection; the next match is held again."""
        waiting, self._waiting = self._waiting, []
        self._passes += len(waiting)
        for end in waiting:
            end.go_on()

    def release(self) -> None:
        """Open permanently: waiting frames go on, in order."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for end in waiting:
            end.go_on()

    def drop(self) -> None:
        """Open permanently, but waiting frames are lost with their connections: both ends see a reset."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for end in waiting:
            end.lose_frames()


class FrameCutter:
    """Cuts the frames of one direction of a connection, and offers each to the holds."""

    def __init__(self, end: "HeldEnd") -> None:
        self._end = end
        self._arrived = bytearray()
        self._passing = 0
        """Remaining bytes of a long frame that was passed."""
        self._is_protocol = True
        self._asked: dict[int, ApiKey] = {}
        """API by correlation id of passed requests, for the responses in the other direction."""

    def add(self, data: bytes) -> None:
        self._arrived += data

    def take(self, holds: "Sequence[MessageHold]") -> tuple[bytes, Action]:
        """Bytes that pass, and the action that stopped the rest (PASS: none, or a frame is incomplete)."""
        arrived, position, action = self._arrived, 0, Action.PASS
        while action is Action.PASS and position < len(arrived):
            if not self._is_protocol:
                self._passing = len(arrived) - position
            if not self._passing:
                length = LENGTH_BYTES + int.from_bytes(arrived[position : position + LENGTH_BYTES], "big")
                there = len(arrived) - position
                if there < LENGTH_BYTES or (there < length <= FRAME_MAX_BYTES):
                    break
                if length <= FRAME_MAX_BYTES:
                    action = self._decide(bytes(arrived[position + LENGTH_BYTES : position + length]), holds)
                self._passing = length if action is Action.PASS else 0
            step = min(self._passing, len(arrived) - position)
            self._passing -= step
            position += step
        passed = bytes(arrived[:position])
        del arrived[:position]
        return passed, action

    def rest(self) -> bytes:
        """The start of a frame that will never be complete."""
        rest = bytes(self._arrived)
        self._arrived.clear()
        return rest

    def _decide(self, data: bytes, holds: "Sequence[MessageHold]") -> Action:
        try:
            frame = self._decode(data)
        except ProtocolError:
            self._is_protocol = False  # an HTTP request, or a hostile peer: it sends no frames
            return Action.PASS
        for hold in holds:
            action = hold.decide(frame, self._end)
            if action is not Action.PASS:
                return action
        if frame.is_request and frame.api is not None:
            self._asked[frame.correlation_id] = frame.api
        return Action.PASS

    def _decode(self, data: bytes) -> Frame:
        end = self._end
        if not end.is_client:
            request = decode_request_frame(data)
            api = ApiKey(request.api_key) if request.api_key in APIS else None
            return Frame(end.peer.host, end.host, api, True, request.correlation_id, memoryview(request.body))
        correlation_id, body = decode_response_frame(data)
        requests_of = end.peer.cutter
        api = None if requests_of is None else requests_of.asked(correlation_id)
        return Frame(end.peer.host, end.host, api, False, correlation_id, body)

    def asked(self, correlation_id: int) -> ApiKey | None:
        """The API that a response answers. Kept, because a held frame is decoded again."""
        return self._asked.get(correlation_id)
