"""Open connections, one per server, with their handshake and back-off.

Owns: when to connect again, and the check that the peer is a minibroker (ApiVersions, once per connection). Leaves to
others: which broker has which address (`cluster`), and the requests.
"""

import asyncio
from collections.abc import Callable
from weakref import WeakKeyDictionary

from minibroker.client.client_log import ClientLog
from minibroker.client.errors import BrokerUnreachable, ClientClosed, MinibrokerError, NotMinibroker, broker_error
from minibroker.client.limits import CONNECT_TIMEOUT_MS, TIMER_SLACK_MS, Deadline
from minibroker.client.metadata_cache import Address
from minibroker.client.retry import backoff_ms
from minibroker.protocol.wire.messages import ApiKey, ApiVersionsRequest, ApiVersionsResponse
from minibroker.runtime.ports import NetworkError, Runtime
from minibroker.runtime.rpc import PeerBroken, RequestTimedOut, RpcConnection, RpcError, connect

SOFTWARE_NAME = "minibroker-python"
NEEDED_APIS = (ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.METADATA)
"""A peer that lacks one of these at version 0 is of no use to any client."""


class _Server:
    """The state of one address."""

    def __init__(self) -> None:
        self.connection: RpcConnection | None = None
        self.attempt: asyncio.Task[RpcConnection] | None = None
        self.waiting = 0
        """The number of calls that wait for the attempt."""
        self.is_wanted = False
        """The attempt must continue even if no call waits for it."""
        self.failures = 0
        self.retry_at = 0.0
        self.last_error: MinibrokerError | None = None
        self.ever_connected = False


class Connections:
    """The connections of one client."""

    def __init__(
        self, runtime: Runtime, client_id: str, backoff_base_ms: float, backoff_max_ms: float, log: ClientLog
    ) -> None:
        self._runtime = runtime
        self._client_id = client_id
        self._log = log
        self._backoff_base_ms = backoff_base_ms
        self._backoff_max_ms = backoff_max_ms
        self._servers: dict[Address, _Server] = {}
        self._attempts: dict[asyncio.Task[RpcConnection], None] = {}
        """Also those that were cancelled and have not ended yet."""
        self._silences: WeakKeyDictionary[RpcConnection, tuple[int, float]] = WeakKeyDictionary()
        """Of connections over which calls reached their ends: their `reads` then, and since when calls had waited."""
        self._closed = False
        self.on_change: Callable[[Address], None] = lambda address: None
        """Called after a connection was opened, was lost, or could not be opened."""

    def open_connection(self, address: Address) -> RpcConnection | None:
        """The connection if one is open now; else None, and an attempt is under way (`on_change` follows)."""
        connection = self._open_one(address)
        if connection is None and not self._closed:
            self._attempt(address).is_wanted = True
        return connection

    def is_open(self, address: Address) -> bool:
        """Is there a connection now? Starts nothing."""
        server = self._servers.get(address)
        return server is not None and server.connection is not None and not server.connection.closed

    async def acquire(self, address: Address, deadline: Deadline) -> RpcConnection:
        """A connection within the deadline. Raises BrokerUnreachable, NotMinibroker or ClientClosed.

        Cancelling the call also cancels the attempt, unless another caller needs it.
        """
        connection = self._open_one(address)
        if connection is not None:
            return connection
        if self._closed:
            raise ClientClosed("the client is closed")
        server = self._attempt(address)
        attempt = server.attempt
        assert attempt is not None
        server.waiting += 1
        try:
            done, _ = await asyncio.wait([attempt], timeout=deadline.remaining_ms() / 1000)
        except asyncio.CancelledError:
            if server.waiting == 1 and not server.is_wanted and attempt.cancel():
                server.attempt = None  # it ends later: a caller in this step of the loop must not join it
            raise
        finally:
            server.waiting -= 1
        if not done:
            raise self.last_error(address) or BrokerUnreachable(
                f"{address} did not accept a connection within {round(deadline.timeout_ms)} ms"
            )
        if attempt.cancelled():
            raise ClientClosed("the client was closed")
        return attempt.result()

    def last_error(self, address: Address) -> MinibrokerError | None:
        """Why the last attempt failed; None after a success."""
        server = self._servers.get(address)
        return server.last_error if server is not None else None

    def ever_connected(self, address: Address) -> bool:
        """Whether this client has ever been connected to this address."""
        server = self._servers.get(address)
        return server is not None and server.ever_connected

    def end_if_silent(self, connection: RpcConnection, reads: int, asked_at: float, limit_ms: float) -> None:
        """A call over it was not answered in its time, which was shorter than the limit. `reads` are those at its
        beginning, `asked_at` its loop time. If nothing at all has come for as long as the limit, the connection is
        closed, however short the time of each call was. TCP may take minutes to notice that the peer is gone; a new one
        is opened soon. Over a connection that brings something others may wait, and one short call is no reason to end
        theirs."""
        if connection.reads != reads:
            return
        reads_before, since = self._silences.get(connection, (reads, asked_at))
        since = min(since, asked_at) if reads_before == reads else asked_at
        self._silences[connection] = reads, since
        if (asyncio.get_running_loop().time() - since) * 1000 + TIMER_SLACK_MS >= limit_ms:
            connection.abort()

    async def close(self) -> None:
        """Close all; attempts under way are cancelled and awaited."""
        self._closed = True
        attempts = tuple(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        try:
            await asyncio.gather(*attempts, return_exceptions=True)
            for server in tuple(self._servers.values()):
                if server.connection is not None:
                    await server.connection.close()
                    server.connection = None
        finally:
            for server in self._servers.values():
                if server.connection is not None:
                    server.connection.abort()  # this call was cancelled, and a second one does nothing

    # ------------------------------------------------------------------------------------------------------ attempts
    def _open_one(self, address: Address) -> RpcConnection | None:
        server = self._servers.get(address)
        if server is None or server.connection is None:
            return None
        if server.connection.closed:
            server.connection = None
        return server.connection

    def _attempt(self, address: Address) -> _Server:
        """The server with an attempt under way."""
        server = self._servers.setdefault(address, _Server())
        if server.attempt is None:
            server.attempt = asyncio.get_running_loop().create_task(self._open(address, server))
            self._attempts[server.attempt] = None
            server.attempt.add_done_callback(lambda task: self._attempt_ended(address, server, task))
        return server

    def _attempt_ended(self, address: Address, server: _Server, task: "asyncio.Task[RpcConnection]") -> None:
        self._attempts.pop(task)
        if server.attempt is task:
            server.attempt = None
            server.is_wanted = False
        if task.cancelled():
            return
        error = task.exception()  # retrieved here, so that an attempt without a waiter logs no warning
        if error is not None and not isinstance(error, MinibrokerError):
            raise error  # a bug of the client must not be retried for ever
        self.on_change(address)

    async def _open(self, address: Address, server: _Server) -> RpcConnection:
        loop = asyncio.get_running_loop()
        if server.retry_at > loop.time():
            await asyncio.sleep(server.retry_at - loop.time())
        try:
            connection = await self._connect(address)
        except MinibrokerError as error:
            server.failures += 1
            server.last_error = error
            pause_ms = backoff_ms(
                server.failures, self._backoff_base_ms, self._backoff_max_ms, self._runtime.random.random()
            )
            server.retry_at = loop.time() + pause_ms / 1000
            self._log.debug("no connection to %s, attempt %d: %s", address, server.failures, error)
            raise
        server.failures = 0
        server.last_error = None
        server.ever_connected = True
        server.connection = connection
        self._log.info("connected to %s", address)
        connection.on_closed = lambda: self._lost(address, server, connection)
        return connection

    def _lost(self, address: Address, server: _Server, connection: RpcConnection) -> None:
        if server.connection is connection:
            server.connection = None
            if not self._closed:
                self._log.info("lost the connection to %s", address)
                self.on_change(address)

    async def _connect(self, address: Address) -> RpcConnection:
        """Connect and perform the handshake."""
        try:
            connection = await connect(
                self._runtime.network,
                address.host,
                address.port,
                client_id=self._client_id,
                timeout_ms=CONNECT_TIMEOUT_MS,
            )
        except NetworkError as error:
            raise BrokerUnreachable(str(error)) from error
        try:
            reply = await connection.request(ApiVersionsRequest(client_software_name=SOFTWARE_NAME), CONNECT_TIMEOUT_MS)
            _check_versions(address, reply)
        except RpcError as error:
            connection.abort()
            raise _handshake_failed(address, error) from error
        except BaseException:
            connection.abort()
            raise
        return connection


def _check_versions(address: Address, reply: object) -> None:
    if not isinstance(reply, ApiVersionsResponse):
        raise NotMinibroker(f"{address} answered the handshake with something else; is it a minibroker?")
    if reply.error_code:
        raise NotMinibroker(f"{address} refused the handshake: {broker_error(reply.error_code)}")
    supported = {version.api_key for version in reply.api_keys if version.min_version <= 0 <= version.max_version}
    missing = [api.name for api in NEEDED_APIS if api.value not in supported]
    if missing:
        raise NotMinibroker(
            f"{address} runs version {reply.broker_software_version or '?'}, which does not speak "
            f"{', '.join(missing)} as this client does; use the same minibroker version on both sides"
        )


def _handshake_failed(address: Address, error: RpcError) -> MinibrokerError:
    if isinstance(error, PeerBroken):
        return NotMinibroker(f"{address} does not speak minibroker's protocol ({error}); check the port")
    if isinstance(error, RequestTimedOut):
        return BrokerUnreachable(f"{address} accepts connections but does not answer, as a paused broker does")
    return BrokerUnreachable(
        f"{address} closed the connection during the handshake, as Kafka or a TLS port does: check the port"
    )
