"""Connections on which this broker acts as a broker: authenticated before the first request.

Owns: the dialling side of the authentication between brokers, and the end of such connections when the registration
they were opened under is over. Leaves to others: the proofs (`protocol/wire/broker_authentication`), where the secret
comes from, when to dial again, and which broker.

A connection belongs to one registration of this broker, and ends with it. Requests under the next registration use
connections that were authenticated for it.
"""

import random

import msgspec

from minibroker.protocol.errors import error_code
from minibroker.protocol.ids import BrokerId
from minibroker.protocol.wire.broker_authentication import (
    MECHANISM,
    NONCE_BYTES,
    AuthenticationFailed,
    BrokerName,
    ClientExchange,
)
from minibroker.protocol.wire.messages import (
    Response,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)
from minibroker.runtime.ports import Network, NetworkError
from minibroker.runtime.rpc import STRANGERS_ANSWER_MAX_BYTES, RpcConnection, RpcError, connect

AUTHENTICATION_TIMEOUT_MS = 5_000
"""For each of the two answers. A broker answers from memory, but it may be busy, and a retry would wait again."""


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """What this broker authenticates itself with."""

    name: BrokerName
    secret: bytes


class NotAuthenticated(NetworkError):
    """The connection was made, but authentication failed: the peer rejects this broker, or is not a broker itself."""


class BrokerDialer:
    """One per broker process. `network` is for callers that only test whether a broker is reachable."""

    def __init__(self, network: Network, source: random.Random) -> None:
        self.network = network
        self._random = source
        self._credentials: Credentials | None = None
        self._opened: list[RpcConnection] = []

    def registered(self, credentials: Credentials) -> None:
        """From now on this broker acts under this registration."""
        if credentials != self._credentials:
            self.unregistered()
            self._credentials = credentials

    def unregistered(self) -> None:
        """The registration is over: no request may be sent under it any more."""
        self._credentials = None
        opened, self._opened = self._opened, []
        for connection in opened:
            connection.abort()

    async def connect(
        self,
        broker_id: BrokerId,
        address: tuple[str, int],
        *,
        client_id: str,
        timeout_ms: int,
        authentication_timeout_ms: int = AUTHENTICATION_TIMEOUT_MS,
    ) -> RpcConnection:
        """A connection to that broker, on which both sides are authenticated.

        `timeout_ms` is for the connection alone, the other timeout for each of two answers. Raises NetworkError as
        `connect` does, and NotAuthenticated if the connection was made and either side fails authentication.
        """
        credentials = self._credentials
        if credentials is None:
            raise NotAuthenticated("this broker is not registered: no peer would accept it as one")
        connection = await connect(
            self.network,
            *address,
            client_id=client_id,
            timeout_ms=timeout_ms,
            answer_max_bytes=STRANGERS_ANSWER_MAX_BYTES,
        )
        try:
            await self._authenticate(connection, broker_id, credentials, authentication_timeout_ms)
            if self._credentials is not credentials:
                raise NotAuthenticated("the registration of this broker ended meanwhile")
        except (RpcError, AuthenticationFailed) as error:
            connection.abort()
            raise NotAuthenticated(f"no broker {broker_id} at {address[0]}:{address[1]}: {error}") from error
        except BaseException:
            connection.abort()
            raise
        connection.allow_large_answers()
        self._opened = [each for each in self._opened if not each.closed]
        self._opened.append(connection)
        return connection

    async def _authenticate(
        self, connection: RpcConnection, broker_id: BrokerId, credentials: Credentials, timeout_ms: int
    ) -> None:
        """Raises RpcError, AuthenticationFailed."""
        nonce = self._random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES)
        exchange = ClientExchange(credentials.secret, credentials.name, broker_id, nonce)
        refused: list[Response] = []
        connection.send(SaslHandshakeRequest(mechanism=MECHANISM), lambda reply: _note(reply, refused))
        challenge = await self._step(connection, exchange.first(), refused, timeout_ms)
        exchange.check(await self._step(connection, exchange.final(challenge), refused, timeout_ms))

    @staticmethod
    async def _step(connection: RpcConnection, auth_bytes: bytes, refused: list[Response], timeout_ms: int) -> bytes:
        """The handshake is answered before the first step, so its refusal is known by then."""
        reply = await connection.request(SaslAuthenticateRequest(auth_bytes=auth_bytes), timeout_ms)
        for response in (*refused, reply):
            if response.error_code:
                name = error_code(response.error_code).name
                raise AuthenticationFailed(f"{name}: {response.error_message or 'it gives no reason'}")
        assert isinstance(reply, SaslAuthenticateResponse)
        return reply.auth_bytes


def _note(reply: Response | RpcError, refused: list[Response]) -> None:
    if isinstance(reply, Response) and reply.error_code:
        refused.append(reply)
