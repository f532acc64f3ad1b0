"""Mutual authentication of brokers: a challenge answered with HMAC-SHA-256 over the cluster's secret.

Owns: the SASL mechanism `BROKER-HMAC-SHA256`, that is its four messages, in the order of SCRAM's (RFC 5802), and what
each proof covers. Pure: the nonces come from outside. Leaves to others: where the secret is kept (`znodes`), the
requests that carry the messages (`authentication_messages`), and what an authenticated broker may do.

    client   ClientFirst   its name, the broker it means to reach, its nonce
    server   ServerFirst   its nonce
    client   ClientFinal   its proof
    server   ServerFinal   its proof

Each proof covers both nonces and both names. So a recorded exchange is useless on another connection, and a proof made
for one broker is useless at another. The server proves itself as well, because a follower copies records from the
process that answers at its leader's address.

Not covered: the bytes that follow are neither encrypted nor signed. An attacker that can change packets on their way
can take over a connection once it is authenticated; only TLS prevents that.
"""

import hmac
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.message_types import BrokerEpoch, BrokerId, Identifier, Message

MECHANISM = "BROKER-HMAC-SHA256"
NONCE_BYTES = 32
"""As long as the proof, so that no nonce repeats: an attacker could use a repeated one."""
PROOF_BYTES = 32
SECRET_BYTES = 32

Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Proof = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


class AuthenticationFailed(ProtocolError):
    """The peer is not what it claims to be, or does not speak this mechanism."""


class BrokerName(Message, frozen=True, kw_only=True):
    """A broker and its registration."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    """czxid of its registration in ZooKeeper."""
    incarnation_id: Identifier
    """Drawn at random by this start of its process."""


class ClientFirst(Message, frozen=True, kw_only=True):
    name: BrokerName
    server_id: BrokerId
    """The broker that the client means to reach."""
    nonce: Nonce


class ServerFirst(Message, frozen=True, kw_only=True):
    nonce: Nonce


class ClientFinal(Message, frozen=True, kw_only=True):
    proof: Proof


class ServerFinal(Message, frozen=True, kw_only=True):
    proof: Proof


M = TypeVar("M", bound=Message)
_encode = msgspec.msgpack.Encoder().encode


class ClientExchange:
    """The side that dials. Use: send `first()`, pass the answer to `final`, pass the last answer to `check`."""

    def __init__(self, secret: bytes, name: BrokerName, server_id: int, nonce: bytes) -> None:
        self._secret = secret
        self._first = ClientFirst(name=name, server_id=server_id, nonce=nonce)
        self._server_nonce = b""

    def first(self) -> bytes:
        """Our name and nonce."""
        return _encode(self._first)

    def final(self, server_first: bytes) -> bytes:
        """Our proof. Raises AuthenticationFailed."""
        self._server_nonce = _decode(server_first, ServerFirst).nonce
        return _encode(ClientFinal(proof=_proof(self._secret, "client", self._first, self._server_nonce)))

    def check(self, server_final: bytes) -> None:
        """Raises AuthenticationFailed unless the server knows the secret, too."""
        expected = _proof(self._secret, "server", self._first, self._server_nonce)
        if not hmac.compare_digest(_decode(server_final, ServerFinal).proof, expected):
            raise AuthenticationFailed("it does not know this cluster's secret: it belongs to another cluster")


class ServerExchange:
    """The side that is dialled. Use: `first` with the first message, then `final` with the next; once each."""

    def __init__(self, secret: bytes, server_id: int, nonce: bytes) -> None:
        self._secret = secret
        self._server_id = server_id
        self._nonce = nonce
        self._client_first: ClientFirst | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the next message is the proof."""
        return self._client_first is not None

    def first(self, client_first: bytes) -> bytes:
        """The challenge. Raises AuthenticationFailed."""
        asked = _decode(client_first, ClientFirst)
        if asked.server_id != self._server_id:
            raise AuthenticationFailed(f"it looks for broker {asked.server_id}, this is broker {self._server_id}")
        self._client_first = asked
        return _encode(ServerFirst(nonce=self._nonce))

    def final(self, client_final: bytes) -> tuple[BrokerName, bytes]:
        """The proven name of the client, and our own proof for it. Raises AuthenticationFailed."""
        asked = self._client_first
        assert asked is not None, "the proof comes second"
        expected = _proof(self._secret, "client", asked, self._nonce)
        if not hmac.compare_digest(_decode(client_final, ClientFinal).proof, expected):
            raise AuthenticationFailed(f"its proof that it is broker {asked.name.broker_id} is wrong")
        return asked.name, _encode(ServerFinal(proof=_proof(self._secret, "server", asked, self._nonce)))


def _proof(secret: bytes, side: str, first: ClientFirst, server_nonce: bytes) -> bytes:
    """Over everything that both sides sent, as one msgpack array: no two different exchanges pack to the same bytes."""
    name = first.name
    transcript = _encode(
        [
            *(MECHANISM, side, first.server_id, first.nonce, server_nonce),
            *(name.broker_id, name.broker_epoch, name.incarnation_id),
        ]
    )
    return hmac.digest(secret, transcript, "sha256")


def _decode(packed: bytes, kind: type[M]) -> M:
    try:
        return msgspec.msgpack.decode(packed, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, OverflowError, ValueError) as error:
        raise AuthenticationFailed(f"malformed {kind.__name__}: {error}") from None
