"""Every API and every kind of peer: who is served, who is refused, and whose connection ends.

The rows come from the table of APIs: an API without a row fails. A peer that fails to prove itself is tried with each
API as well, since a broker that went on with such a connection would still serve what clients may ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from minibroker.broker.authorization import CLUSTER_ACTIONS, READS_AS_REPLICA
from minibroker.protocol import messages as m
from minibroker.protocol.broker_authentication import (
    MECHANISM,
    NONCE_BYTES,
    BrokerName,
    ClientExchange,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.messages import ApiKey
from minibroker.runtime.broker_dialer import NotAuthenticated
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.rpc import ConnectionClosed, RpcConnection, connect
from minibroker.simulation.cluster import PORT
from tests.broker.requests import TOPIC, Asked, batch, in_cluster, produce_request


class Outcome(Enum):
    SERVED = "served"
    REFUSED = "CLUSTER_AUTHORIZATION_FAILED"
    CLOSED = "the connection is closed"


class Row(NamedTuple):
    """How one API is asked."""

    request: Callable[[Asked, int], m.Request]
    """Said to come from that broker, if it says so at all."""
    of_controller: bool = False
    """Only a controller asks it; else any broker may."""
    names_speaker: bool = True


def order(asked: Asked) -> dict[str, Any]:
    """What is the same in all orders of the controller; obeyed by the broker that is asked."""
    broker = asked.cluster.brokers[target(asked)]
    return {
        "controller_id": asked.cluster.controller(),
        "controller_epoch": broker.image.controller_epoch,
        "broker_epoch": asked.broker_epoch(target(asked)),
    }


def target(asked: Asked) -> int:
    """Whom all are asked: a broker that does not lead the topic and is not the controller."""
    return next(b for b in asked.followers if b != asked.cluster.controller())


def listed(asked: Asked, speaker: int) -> list[m.FetchTopic]:
    return [m.FetchTopic(topic=TOPIC, partitions=[m.FetchPartition(partition=0, fetch_offset=0)])]


ANYBODY: dict[ApiKey, Row] = {
    ApiKey.PRODUCE: Row(lambda asked, speaker: produce_request(batch(b"v"), acks=1)),
    ApiKey.FETCH: Row(lambda asked, speaker: m.FetchRequest(max_wait_ms=0, topics=listed(asked, speaker))),
    ApiKey.LIST_OFFSETS: Row(lambda asked, speaker: m.ListOffsetsRequest()),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row(lambda asked, speaker: m.OffsetForLeaderEpochRequest()),
    ApiKey.METADATA: Row(lambda asked, speaker: m.MetadataRequest()),
    ApiKey.API_VERSIONS: Row(lambda asked, speaker: m.ApiVersionsRequest()),
    ApiKey.CREATE_TOPICS: Row(lambda asked, speaker: m.CreateTopicsRequest(validate_only=True)),
    ApiKey.DELETE_TOPICS: Row(lambda asked, speaker: m.DeleteTopicsRequest()),
    ApiKey.INIT_PRODUCER_ID: Row(lambda asked, speaker: m.InitProducerIdRequest()),
    ApiKey.DESCRIBE_CONFIGS: Row(lambda asked, speaker: m.DescribeConfigsRequest()),
    ApiKey.ELECT_LEADERS: Row(lambda asked, speaker: m.ElectLeadersRequest()),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row(lambda asked, speaker: m.IncrementalAlterConfigsRequest()),
    ApiKey.DESCRIBE_CLUSTER: Row(lambda asked, speaker: m.DescribeClusterRequest()),
    ApiKey.DESCRIBE_REPLICA_STATE: Row(lambda asked, speaker: m.DescribeReplicaStateRequest()),
    ApiKey.SASL_HANDSHAKE: Row(lambda asked, speaker: m.SaslHandshakeRequest(mechanism="PLAIN")),
    ApiKey.SASL_AUTHENTICATE: Row(lambda asked, speaker: m.SaslAuthenticateRequest(auth_bytes=b"?")),
}
BROKERS: dict[ApiKey, Row] = {
    ApiKey.LEADER_AND_ISR: Row(
        lambda asked, speaker: m.LeaderAndIsrRequest(**order(asked) | {"controller_id": speaker}), of_controller=True
    ),
    ApiKey.UPDATE_METADATA: Row(
        lambda asked, speaker: m.UpdateMetadataRequest(**order(asked) | {"controller_id": speaker}), of_controller=True
    ),
    ApiKey.STOP_REPLICA: Row(
        lambda asked, speaker: m.StopReplicaRequest(**order(asked) | {"controller_id": speaker}), of_controller=True
    ),
    ApiKey.CONTROLLED_SHUTDOWN: Row(
        lambda asked, speaker: m.ControlledShutdownRequest(
            broker_id=speaker, broker_epoch=asked.broker_epoch(speaker), offline_partitions=[]
        )
    ),
    ApiKey.ALTER_PARTITION: Row(
        lambda asked, speaker: m.AlterPartitionRequest(broker_id=speaker, broker_epoch=asked.broker_epoch(speaker))
    ),
    ApiKey.GET_REPLICA_LOG_INFO: Row(lambda asked, speaker: m.GetReplicaLogInfoRequest(), names_speaker=False),
    ApiKey.CONFIRM_FAILURE: Row(
        lambda asked, speaker: m.ConfirmFailureRequest(broker_id=3, broker_epoch=asked.broker_epoch(3)),
        names_speaker=False,
    ),
}
AS_REPLICA: dict[ApiKey, Row] = {
    ApiKey.FETCH: Row(
        lambda asked, speaker: m.FetchRequest(
            replica_id=speaker,
            replica_epoch=asked.broker_epoch(speaker),
            max_wait_ms=0,
            topics=listed(asked, speaker),
        )
    ),
    ApiKey.LIST_OFFSETS: Row(lambda asked, speaker: m.ListOffsetsRequest(replica_id=speaker)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row(lambda asked, speaker: m.OffsetForLeaderEpochRequest(replica_id=speaker)),
}


def test_every_api_has_a_row() -> None:
    assert set(ANYBODY) | set(BROKERS) == set(ApiKey)
    assert set(BROKERS) == CLUSTER_ACTIONS
    assert set(AS_REPLICA) == READS_AS_REPLICA


# -------------------------------------------------------------------------------------------------------- who asks
async def a_client(asked: Asked, speaker: int) -> RpcConnection:
    return await connect(asked.runtime.network, host(asked), PORT, client_id="client", timeout_ms=1_000)


async def in_the_middle_of_a_handshake(asked: Asked, speaker: int) -> RpcConnection:
    connection = await a_client(asked, speaker)
    await connection.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    first = exchange(asked, speaker).first()
    reply = await connection.request(m.SaslAuthenticateRequest(auth_bytes=first), 1_000)
    assert not reply.error_code
    return connection


async def a_broker(asked: Asked, speaker: int) -> RpcConnection:
    return await asked.connection(target(asked), speaker)


async def with_a_wrong_secret(asked: Asked, speaker: int) -> RpcConnection:
    return await proves(asked, exchange(asked, speaker, secret=bytes(32)))


async def with_an_old_epoch(asked: Asked, speaker: int) -> RpcConnection:
    return await proves(asked, exchange(asked, speaker, epoch=asked.broker_epoch(speaker) - 1))


async def meant_for_another_broker(asked: Asked, speaker: int) -> RpcConnection:
    """As somebody would who passes on what one broker says to another one."""
    return await proves(asked, exchange(asked, speaker, server_id=asked.leader))


async def with_a_recorded_handshake(asked: Asked, speaker: int) -> RpcConnection:
    honest = exchange(asked, speaker)
    connection = await a_client(asked, speaker)
    await connection.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    first = m.SaslAuthenticateRequest(auth_bytes=honest.first())
    challenge = await connection.request(first, 1_000)
    assert isinstance(challenge, m.SaslAuthenticateResponse)
    final = m.SaslAuthenticateRequest(auth_bytes=honest.final(challenge.auth_bytes))
    proof = await connection.request(final, 1_000)
    assert isinstance(proof, m.SaslAuthenticateResponse)
    honest.check(proof.auth_bytes)
    replayed = await a_client(asked, speaker)
    await replayed.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    assert not (await replayed.request(first, 1_000)).error_code
    reply = await replayed.request(final, 1_000)
    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    return replayed


async def proves(asked: Asked, said: ClientExchange) -> RpcConnection:
    """Go through with it, and be told that it failed."""
    connection = await a_client(asked, 0)
    await connection.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    reply = await connection.request(m.SaslAuthenticateRequest(auth_bytes=said.first()), 1_000)
    if isinstance(reply, m.SaslAuthenticateResponse) and not reply.error_code:
        reply = await connection.request(m.SaslAuthenticateRequest(auth_bytes=said.final(reply.auth_bytes)), 1_000)
    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    return connection


def exchange(
    asked: Asked, speaker: int, *, secret: bytes | None = None, epoch: int | None = None, server_id: int | None = None
) -> ClientExchange:
    name = BrokerName(
        broker_id=speaker,
        broker_epoch=asked.broker_epoch(speaker) if epoch is None else epoch,
        incarnation_id="any",
    )
    known = asked.cluster.brokers[1].secret.key
    nonce = asked.runtime.random.randbytes(NONCE_BYTES)
    return ClientExchange(secret or known, name, target(asked) if server_id is None else server_id, nonce)


def host(asked: Asked) -> str:
    return f"broker-{target(asked)}"


async def outcome(connection: RpcConnection, body: m.Request) -> Outcome:
    try:
        reply = await connection.request(body, 60_000)
    except ConnectionClosed:
        return Outcome.CLOSED
    return Outcome.REFUSED if reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED else Outcome.SERVED


Peer = Callable[[Asked, int], Awaitable[RpcConnection]]
CASES: list[tuple[Peer, Outcome, Outcome]] = [
    (a_client, Outcome.SERVED, Outcome.REFUSED),
    (in_the_middle_of_a_handshake, Outcome.SERVED, Outcome.REFUSED),
    (a_broker, Outcome.SERVED, Outcome.SERVED),
    (with_a_wrong_secret, Outcome.CLOSED, Outcome.CLOSED),
    (with_an_old_epoch, Outcome.CLOSED, Outcome.CLOSED),
    (meant_for_another_broker, Outcome.CLOSED, Outcome.CLOSED),
    (with_a_recorded_handshake, Outcome.CLOSED, Outcome.CLOSED),
]
"""The peer; what becomes of a request that anybody may make, and of one for brokers alone."""


@pytest.mark.parametrize(("peer", "anybodys", "brokers"), CASES, ids=[case[0].__name__ for case in CASES])
def test_every_api_and_every_kind_of_peer(peer: Peer, anybodys: Outcome, brokers: Outcome) -> None:
    async def check(asked: Asked) -> None:
        rows = [(key, row, anybodys) for key, row in ANYBODY.items()]
        rows += [(key, row, brokers) for table in (BROKERS, AS_REPLICA) for key, row in table.items()]
        for key, row, expected in rows:
            speaker = asked.cluster.controller() if row.of_controller else target(asked) % 3 + 1
            assert speaker is not None
            connection = await peer(asked, speaker)
            found = await outcome(connection, row.request(asked, speaker))
            if key is ApiKey.SASL_AUTHENTICATE and peer is in_the_middle_of_a_handshake:
                continue  # a wrong proof: it is answered, and the connection ends
            assert (key.name, found) == (key.name, expected)

    in_cluster(check)


def test_a_broker_asks_in_its_own_name_alone() -> None:
    async def check(asked: Asked) -> None:
        controller = asked.cluster.controller()
        assert controller is not None
        for key, row in {**BROKERS, **AS_REPLICA}.items():
            speaker = controller if row.of_controller else target(asked) % 3 + 1
            other = next(b for b in (1, 2, 3) if b not in (speaker, target(asked)))
            found = await outcome(await a_broker(asked, other), row.request(asked, speaker))
            expected = Outcome.REFUSED if row.names_speaker else Outcome.SERVED
            assert (key.name, found) == (key.name, expected)

    in_cluster(check)


def test_a_broker_asks_in_the_name_of_its_present_registration_alone() -> None:
    async def check(asked: Asked) -> None:
        speaker = target(asked) % 3 + 1
        epoch = asked.broker_epoch(speaker) + 1
        for body in (
            m.AlterPartitionRequest(broker_id=speaker, broker_epoch=epoch),
            m.ControlledShutdownRequest(broker_id=speaker, broker_epoch=epoch, offline_partitions=[]),
            m.FetchRequest(replica_id=speaker, replica_epoch=epoch, max_wait_ms=0),
            m.FetchRequest(replica_id=speaker, replica_epoch=-1, max_wait_ms=0),
        ):
            assert await outcome(await a_broker(asked, speaker), body) is Outcome.REFUSED

    in_cluster(check)


def test_a_registration_that_is_over_gives_no_right_any_more() -> None:
    """Its connection stays one that a client could have."""

    async def check(asked: Asked) -> None:
        cluster, speaker = asked.cluster, target(asked) % 3 + 1
        connection = await a_broker(asked, speaker)
        requests = {key: row.request(asked, speaker) for key, row in BROKERS.items() if not row.of_controller}
        before = asked.broker_epoch(speaker)
        cluster.world.zookeeper.expire_session(cluster.brokers[speaker].coordination.session_id)
        image = cluster.brokers[target(asked)].image
        await cluster.until(lambda: (image.broker_epoch(speaker) or 0) > before, what="a new registration")
        for key, body in requests.items():
            assert (key.name, await outcome(connection, body)) == (key.name, Outcome.REFUSED)
        assert await outcome(connection, m.MetadataRequest()) is Outcome.SERVED

    in_cluster(check)


def test_a_made_up_controller_epoch_mutes_nobody() -> None:
    """Even in the name of the broker that is controller: ZooKeeper has never heard of it."""

    async def check(asked: Asked) -> None:
        controller = asked.cluster.controller()
        assert controller is not None
        connection = await a_broker(asked, controller)
        image = asked.cluster.brokers[target(asked)].image
        before = image.controller_epoch
        for key in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA):
            body = BROKERS[key].request(asked, controller)
            assert isinstance(body, m.LeaderAndIsrRequest | m.UpdateMetadataRequest | m.StopReplicaRequest)
            assert await outcome(connection, replace(body, controller_epoch=2**31 - 1)) is Outcome.REFUSED
            assert await outcome(connection, body) is Outcome.SERVED
        assert image.controller_epoch == before

    in_cluster(check)


def test_a_controller_epoch_waits_until_zookeeper_answers() -> None:
    """Nothing is believed meanwhile, and the refusal says that it may be tried again."""

    async def check(asked: Asked) -> None:
        controller = asked.cluster.controller()
        assert controller is not None
        connection = await a_broker(asked, controller)
        broker_id = target(asked)
        asked.cluster.world.zookeeper.cut(f"broker-{broker_id}")
        order_of_a_later_one = replace(
            m.UpdateMetadataRequest(**order(asked)), controller_epoch=order(asked)["controller_epoch"] + 1
        )
        reply = await connection.request(order_of_a_later_one, 60_000)
        assert reply.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "ZooKeeper cannot be asked" in (reply.error_message or "")

    in_cluster(check)


def test_who_answers_at_a_brokers_address_must_be_that_broker() -> None:
    """A follower copies from whoever answers: another broker that listens there, or another cluster's, is none."""

    async def check(asked: Asked) -> None:
        dialer = asked.dialer(1)
        with pytest.raises(NotAuthenticated, match="it looks for broker 3, this is broker 2"):
            await dialer.connect(3, ("broker-2", PORT), client_id="test", timeout_ms=1_000)
        assert issubclass(NotAuthenticated, NetworkError)

    in_cluster(check)
