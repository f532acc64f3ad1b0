"""Stand-ins for brokers in tests: one connects as a broker does, the other answers as a broker does."""

import random
from collections.abc import Callable

from minibroker.broker.requests.authentication import Authentication
from minibroker.protocol.wire.broker_authentication import BrokerName
from minibroker.protocol.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from minibroker.runtime.broker_dialer import BrokerDialer, Credentials
from minibroker.runtime.ports import Network
from minibroker.runtime.server.incoming_request import IncomingRequest

SECRET = bytes(range(32))


def dialer(network: Network, broker_id: int, broker_epoch: int = 1, secret: bytes = SECRET) -> BrokerDialer:
    """The dialer of a registered broker."""
    found = BrokerDialer(network, random.Random(broker_id))
    name = BrokerName(broker_id=broker_id, broker_epoch=broker_epoch, incarnation_id=f"start-of-{broker_id}")
    found.registered(Credentials(name=name, secret=secret))
    return found


class Answering:
    """Authenticates each peer that connects, and hands on all other requests."""

    def __init__(self, broker_id: int, handle: Callable[[IncomingRequest], None], listener: str = "INTERNAL") -> None:
        self._handle = handle
        self._authentication = Authentication(
            broker_id=broker_id,
            secret=lambda: SECRET,
            listener_name=listener,
            broker_epoch=lambda broker_id: None,
            source=random.Random(broker_id),
        )

    def __call__(self, request: IncomingRequest) -> None:
        match request.body:
            case SaslHandshakeRequest():
                request.respond(self._authentication.handshake(request, request.body))
            case SaslAuthenticateRequest():
                self._authentication.authenticate(request, request.body)
            case _:
                self._handle(request)
