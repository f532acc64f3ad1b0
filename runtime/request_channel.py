"""Requests to one peer, one after another, on a connection that is opened when a request needs it.

Owns: that connection, and which answers count. It is kept for the next request, and hung up when there is no answer,
also if only the answer is missing: TCP may take minutes to detect a dead peer. Leaves to others: how the peer is
dialled (`broker_dialer` authenticates, `rpc.connect` does not), what is asked and when again, and the limits of the
waits: `dial` has its own, each request another. For many requests in flight, or replies to callbacks: `rpc`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

from minibroker.protocol.errors import error_code
from minibroker.protocol.wire.messages import Request, Response
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.rpc import PeerBroken, RpcConnection, RpcError

R = TypeVar("R", bound=Response)
Dial = Callable[[], Awaitable[RpcConnection]]
"""Opens a connection within a limit of its own. Raises NetworkError."""


class RequestFailed(Exception):
    """The peer was not reached, or its answer is missing or of no use; the message names the peer and the cause."""


class UnreadableAnswer(RequestFailed):
    """The peer sent something that does not decode."""


class RequestRefused(RequestFailed):
    """The peer answered with an error code. The connection stays open."""


class RequestChannel:
    """Asks one peer; a request waits until the one before has ended. Hang up at the end, or use it with `with`."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._connection: RpcConnection | None = None
        self._dial_limit: asyncio.Timeout | None = None
        """Ends the dial in progress."""
        self._hang_ups = 0
        """Ends the requests that were begun before the last one."""
        self._turn = asyncio.Lock()

    async def ask(self, request: Request, kind: type[R], timeout_ms: int) -> R:
        """Return the answer, which is of this kind; `timeout_ms` is for the answer alone. Raises RequestFailed."""
        hang_ups = self._hang_ups
        async with self._turn:
            try:
                connection = await self._connected(hang_ups)
                response = await connection.request(request, timeout_ms)
            except (NetworkError, RpcError) as error:
                self._close()
                raise (UnreadableAnswer if isinstance(error, PeerBroken) else RequestFailed)(str(error)) from error
        if response.error_code:
            why = f": {response.error_message}" if response.error_message else ""
            raise RequestRefused(f"{connection.peer} answered {error_code(response.error_code).name}{why}")
        assert isinstance(response, kind)
        return response

    async def _connected(self, hang_ups: int) -> RpcConnection:
        """The connection, for a request that was begun after so many hang-ups."""
        if hang_ups == self._hang_ups and (self._connection is None or self._connection.closed):
            connection = await self._dialled()
            if hang_ups == self._hang_ups:
                self._connection = connection
            elif connection is not None:
                connection.abort()  # the dial ended in the same moment
        if hang_ups != self._hang_ups or self._connection is None:
            raise RequestFailed("this side hung up before it sent the request")
        return self._connection

    async def _dialled(self) -> RpcConnection | None:
        """A new connection; None if `hang_up` has ended the dial."""
        limit = self._dial_limit = asyncio.timeout(None)
        try:
            async with limit:
                return await self._dial()
        except TimeoutError:
            if not limit.expired():
                raise
            return None
        finally:
            self._dial_limit = None

    def hang_up(self) -> None:
        """Close the connection at once, and end a dial. Requests that wait for their answer, for the dial or for their
        turn fail; the next one dials again."""
        self._hang_ups += 1
        if self._dial_limit is not None:
            self._dial_limit.reschedule(asyncio.get_running_loop().time())
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
