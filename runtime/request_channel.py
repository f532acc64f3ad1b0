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
        self._turn = asyncio.Lock()

    async def ask(self, request: Request, kind: type[R], timeout_ms: int) -> R:
        """Return the answer, which is of this kind; `timeout_ms` is for the answer alone. Raises RequestFailed."""
        async with self._turn:
            try:
                connection = self._connection
                if connection is None or connection.closed:
                    connection = self._connection = await self._dial()
                response = await connection.request(request, timeout_ms)
            except (NetworkError, RpcError) as error:
                self.hang_up()
                raise (UnreadableAnswer if isinstance(error, PeerBroken) else RequestFailed)(str(error)) from error
        if response.error_code:
            why = f": {response.error_message}" if response.error_message else ""
            raise RequestRefused(f"{connection.peer} answered {error_code(response.error_code).name}{why}")
        assert isinstance(response, kind)
        return response

    def hang_up(self) -> None:
        """Close the connection at once; a request that waits for its answer gets none. The next one dials again."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hang_up()
