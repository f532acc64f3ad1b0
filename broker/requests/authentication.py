"""Authentication of peers: the server side of SaslHandshake and SaslAuthenticate (KIP-43, KIP-152).

Owns: the progress of each connection's authentication, and its principal afterwards. Leaves to others: the proofs
(`protocol/wire/broker_authentication`), and what a principal may do (`authorization`).

There is one mechanism, for brokers, and only on the inter-broker listener. A connection that never uses it stays
anonymous and counts as a client. One that fails gets an error and is closed; the broker has spent one challenge on it.
"""

import random
from collections.abc import Callable

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerEpoch, BrokerId
from minibroker.protocol.wire.broker_authentication import (
    MECHANISM,
    NONCE_BYTES,
    AuthenticationFailed,
    BrokerName,
    ServerExchange,
)
from minibroker.protocol.wire.messages import (
    Response,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from minibroker.runtime.principal import broker_principal
from minibroker.runtime.server.incoming_request import IncomingRequest, RequestConnection


class Authentication:
    """Of all connections of one broker."""

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        secret: Callable[[], bytes],
        listener_name: str,
        broker_epoch: Callable[[BrokerId], BrokerEpoch | None],
        source: random.Random,
    ) -> None:
        """`listener_name`: the inter-broker listener. `broker_epoch`: epoch of a broker's newest registration known
        here; a newer one may be on its way."""
        self._broker_id = broker_id
        self._secret = secret
        self._listener_name = listener_name
        self._broker_epoch = broker_epoch
        self._random = source
        self._exchanges: dict[RequestConnection, ServerExchange] = {}
        """Unfinished exchanges by connection."""

    def connection_closed(self, connection: RequestConnection) -> None:
        """Drop an unfinished exchange."""
        self._exchanges.pop(connection, None)

    def handshake(self, request: IncomingRequest, body: SaslHandshakeRequest) -> Response:
        """Begin with the mechanism that the peer requests."""
        connection = request.connection
        mechanisms = [MECHANISM] if connection.listener_name == self._listener_name else []
        if body.mechanism not in mechanisms:
            text = f"listener {connection.listener_name} takes {' or '.join(mechanisms) or 'no mechanism'}"
            return SaslHandshakeResponse(
                error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, error_message=text, mechanisms=mechanisms
            )
        if connection in self._exchanges or connection.principal.broker is not None:
            text = "this connection has done its handshake: open another one"
            return Response(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        nonce = self._random.getrandbits(8 * NONCE_BYTES).to_bytes(NONCE_BYTES)
        self._exchanges[connection] = ServerExchange(self._secret(), self._broker_id, nonce)
        return SaslHandshakeResponse(mechanisms=mechanisms)

    def authenticate(self, request: IncomingRequest, body: SaslAuthenticateRequest) -> None:
        """One step of the mechanism. The last step gives the connection its principal; a wrong one closes it."""
        connection = request.connection
        exchange = self._exchanges.get(connection)
        if exchange is None:
            text = "SaslHandshake comes first, and each connection is authenticated once"
            request.respond(Response(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text))
            return
        try:
            if not exchange.has_begun:
                request.respond(SaslAuthenticateResponse(auth_bytes=exchange.first(body.auth_bytes)))
                return
            name, proof = exchange.final(body.auth_bytes)
            self._check_registration(name)
        except AuthenticationFailed as error:
            del self._exchanges[connection]
            text = str(error)
            request.respond(Response(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text))
            connection.close_because(f"authentication failed: {text}")
            return
        del self._exchanges[connection]
        connection.principal = broker_principal(name)
        connection.mark_as_broker()
        request.respond(SaslAuthenticateResponse(auth_bytes=proof))

    def _check_registration(self, name: BrokerName) -> None:
        """Raises AuthenticationFailed if a newer registration of that broker is known."""
        known = self._broker_epoch(name.broker_id)
        if known is not None and name.broker_epoch < known:
            raise AuthenticationFailed(
                f"broker {name.broker_id} has registered anew since broker epoch {name.broker_epoch}"
            )
