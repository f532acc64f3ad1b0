"""A very small HTTP/1.1 server for /metrics, /healthz and /readyz, on the network port of the runtime.

Owns: reading one request head, the answer, and the limits for a hostile peer: HEAD_BYTES_MAX of memory on each of
CONNECTIONS_MAX connections for DEADLINE_SECONDS. Leaves to others: the meaning of a path (`routes`).

A further connection closes the oldest one: a client that sends its request at once is always answered, even if another
client holds all other connections open, so that no supervisor takes a healthy broker for a dead one.

One request per connection, then it is closed: scrapes come every few seconds, and nothing else is served here.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from minibroker.broker.monitoring.metrics import BrokerCounters, BrokerGauges, Readiness
from minibroker.runtime.ports import Listener, Network, Transport

HEAD_BYTES_MAX = 8 * 1024
CONNECTIONS_MAX = 20
DEADLINE_SECONDS = 10.0
"""From the connection's opening to the last byte of the answer."""

PAGE_PAUSES = 10
"""A page of a thousand partitions takes 10 ms of the event loop, and twenty clients may ask for it again and again."""

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

log = logging.getLogger("minibroker.http")


class HttpAnswer(msgspec.Struct, frozen=True):
    """The answer of a route."""

    status: int
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[], HttpAnswer]


class HttpEndpoint:
    """Serves GET and HEAD of fixed paths."""

    def __init__(self, network: Network, routes: Mapping[str, Route]) -> None:
        self._network = network
        self._routes = dict(routes)
        self._connections: dict[HttpConnection, None] = {}
        self._listener: Listener | None = None

    async def start(self, host: str, port: int) -> int:
        """Returns the actual port. Raises AddressInUse, NetworkError."""
        self._listener = await self._network.listen(lambda: HttpConnection(self), host, port)
        return self._listener.port

    async def stop(self) -> None:
        if self._listener is not None:
            await self._listener.close()
        for connection in list(self._connections):
            connection.abort()

    def admit(self, connection: "HttpConnection") -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            self.forget(oldest)
            oldest.abort()
        self._connections[connection] = None

    def forget(self, connection: "HttpConnection") -> None:
        self._connections.pop(connection, None)

    def answer(self, head: bytes) -> bytes:
        """The whole response to one request head."""
        method, answer = self._route(head)
        return _response(answer, with_body=method != b"HEAD")

    def _route(self, head: bytes) -> tuple[bytes, HttpAnswer]:
        words = head.split(b"\n", 1)[0].strip().split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/"):
            return b"", HttpAnswer(400, b"not an HTTP request\n")
        method, target, version = words
        if not version.startswith(b"HTTP/1."):
            return method, HttpAnswer(505, b"HTTP/1.1 is supported\n")
        if method not in (b"GET", b"HEAD"):
            return method, HttpAnswer(405, b"only GET\n")
        route = self._routes.get(target.split(b"?", 1)[0].decode("latin-1"))
        if route is None:
            return method, HttpAnswer(404, f"there are: {' '.join(self._routes)}\n".encode())
        try:
            return method, route()
        except Exception:
            log.exception("%s failed", target.decode("latin-1"))
            return method, HttpAnswer(500, b"failed, see the broker's log\n")


class HttpConnection(asyncio.BufferedProtocol):
    """One request and its answer."""

    def __init__(self, endpoint: HttpEndpoint) -> None:
        self._endpoint = endpoint
        self._transport: Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._buffer = bytearray()
        self._filled = 0
        self._is_answered = False

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._endpoint.admit(self)
        self._buffer = bytearray(HEAD_BYTES_MAX)
        self._deadline = asyncio.get_running_loop().call_later(DEADLINE_SECONDS, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint.forget(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._is_answered or self._filled == len(self._buffer):
            return memoryview(bytearray(1024))  # further bytes are dropped
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_answered or self._transport is None or not self._buffer:
            return
        self._filled += nbytes
        head = bytes(self._buffer[: self._filled])
        if b"\r\n\r\n" in head or b"\n\n" in head:
            self._respond(self._endpoint.answer(head))
        elif self._filled == len(self._buffer):
            self._respond(_response(HttpAnswer(431, b"the request is too long\n")))

    def eof_received(self) -> bool:
        return False

    def _respond(self, response: bytes) -> None:
        assert self._transport is not None
        self._is_answered = True
        self._transport.write(response)
        self._transport.close()  # after what was written is sent, or at the deadline


def _response(answer: HttpAnswer, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {answer.status} {REASONS[answer.status]}\r\n"
        f"Content-Type: {answer.content_type}\r\n"
        f"Content-Length: {len(answer.body)}\r\n"
        "Connection: close\r\n"
        "\r\n"
    )
    return head.encode() + (answer.body if with_body else b"")


def broker_routes(
    info: dict[str, str],
    counters: BrokerCounters,
    read_gauges: Callable[[], BrokerGauges],
    readiness: Callable[[], Readiness],
    monotonic_ns: Callable[[], int],
) -> dict[str, Route]:
    """The paths that a broker serves."""
    from minibroker.broker.monitoring.prometheus_page import CONTENT_TYPE, make_page

    page = _with_pauses(make_page(info, counters, read_gauges), monotonic_ns)

    def metrics() -> HttpAnswer:
        return HttpAnswer(200, page(), CONTENT_TYPE)

    def healthz() -> HttpAnswer:
        return HttpAnswer(200, b"ok\n")  # the event loop answers, so the process is alive

    def readyz() -> HttpAnswer:
        state = readiness()
        return HttpAnswer(200 if state.is_ready else 503, f"{state.reason}\n".encode())

    return {"/metrics": metrics, "/healthz": healthz, "/readyz": readyz}


def _with_pauses(make: Callable[[], bytes], monotonic_ns: Callable[[], int]) -> Callable[[], bytes]:
    """The same page as before, until a new one takes no more than 1 / PAGE_PAUSES of the time."""
    page, kept_until_ns = b"", -1

    def kept() -> bytes:
        nonlocal page, kept_until_ns
        began_ns = monotonic_ns()
        if began_ns >= kept_until_ns:
            page = make()
            ended_ns = monotonic_ns()
            kept_until_ns = ended_ns + (PAGE_PAUSES - 1) * (ended_ns - began_ns)
        return page

    return kept
