"""Authentication between brokers: which peers pass, and that the proof covers every field."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.wire.authentication_messages import AUTH_BYTES_MAX
from minibroker.protocol.wire.broker_authentication import (
    NONCE_BYTES,
    AuthenticationFailed,
    BrokerName,
    ClientExchange,
    ClientFirst,
    ServerExchange,
)

SECRET, OTHER = bytes(32), bytes(range(32))
NAME = BrokerName(broker_id=2, broker_epoch=77, incarnation_id="start-of-2")
CLIENT_NONCE, SERVER_NONCE = b"c" * NONCE_BYTES, b"s" * NONCE_BYTES


def client(secret: bytes = SECRET, name: BrokerName = NAME, server_id: int = 1) -> ClientExchange:
    return ClientExchange(secret, name, server_id, CLIENT_NONCE)


def server(secret: bytes = SECRET, nonce: bytes = SERVER_NONCE) -> ServerExchange:
    return ServerExchange(secret, 1, nonce)


def test_both_sides_authenticate_each_other() -> None:
    ours, theirs = client(), server()
    name, proof = theirs.final(ours.final(theirs.first(ours.first())))
    ours.check(proof)
    assert name == NAME


def test_a_peer_without_the_secret_passes_on_neither_side() -> None:
    liar, honest = client(OTHER), server()
    with pytest.raises(
        AuthenticationFailed,
        match="its proof that it is broker 2 is wrong",
    ):
        honest.final(liar.final(honest.first(liar.first())))
    ours, impostor = client(), server(OTHER)
    final = ours.final(impostor.first(ours.first()))
    with pytest.raises(AuthenticationFailed):
        impostor.final(final)
    for proof in (bytes(32), final[-32:]):  # nor is our own proof an answer
        with pytest.raises(AuthenticationFailed, match="does not know this cluster's secret"):
            ours.check(msgspec.msgpack.encode({"proof": proof}))


def test_a_recorded_exchange_is_refused_on_another_connection() -> None:
    ours, then = client(), server()
    first = ours.first()
    final = ours.final(then.first(first))
    then.final(final)
    now = server(nonce=b"t" * NONCE_BYTES)
    now.first(first)
    with pytest.raises(AuthenticationFailed):
        now.final(final)


def test_a_proof_for_one_broker_is_refused_at_another() -> None:
    """A broker that is dialled by mistake cannot forward the exchange."""
    ours, theirs = client(server_id=3), server()
    with pytest.raises(AuthenticationFailed, match="it looks for broker 3, this is broker 1"):
        theirs.first(ours.first())


CHANGES: list[dict[str, Any]] = [
    {"name": msgspec.structs.replace(NAME, broker_id=3)},
    {"name": msgspec.structs.replace(NAME, broker_epoch=78)},
    {"name": msgspec.structs.replace(NAME, incarnation_id="another")},
    {"nonce": b"d" * NONCE_BYTES},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_every_field_of_the_first_message_is_covered_by_the_proof(change: dict[str, Any]) -> None:
    """The first message is changed on its way, and the proof does not match it."""
    ours, theirs = client(), server()
    sent = msgspec.msgpack.decode(ours.first(), type=ClientFirst)
    changed = msgspec.msgpack.encode(msgspec.structs.replace(sent, **change))
    with pytest.raises(AuthenticationFailed):
        theirs.final(ours.final(theirs.first(changed)))


@given(st.binary(max_size=200))
def test_anything_but_a_message_is_refused_in_words(content: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server().first(content)
    with pytest.raises(AuthenticationFailed):
        client().final(content)
    ours, theirs = client(), server()
    theirs.first(ours.first())
    with pytest.raises(AuthenticationFailed):
        theirs.final(content)
    with pytest.raises(AuthenticationFailed):
        ours.check(content)


def test_no_message_comes_near_its_limit() -> None:
    longest = BrokerName(broker_id=2**31 - 1, broker_epoch=2**63 - 1, incarnation_id="x" * 64)
    assert len(client(name=longest, server_id=1).first()) < AUTH_BYTES_MAX / 3
