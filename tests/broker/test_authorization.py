"""Every API and every kind of peer: which requests are served or refused, and which connections are closed.

The cases come from the table of APIs: an API without a case fails. A peer that fails to prove itself is tried with each
API as well, since a broker that went on with such a connection would still serve what clients may ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from minibroker.broker.requests.authorization import CLUSTER_ACTIONS, READS_AS_REPLICA, refuse
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire import messages as m
from minibroker.protocol.wire.broker_authentication import (
    MECHANISM,
    NONCE_BYTES,
    BrokerName,
    ClientExchange,
)
from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.broker_dialer import NotAuthenticated
from minibroker.runtime.ports import NetworkError
from minibroker.runtime.principal import ANONYMOUS
from minibroker.runtime.rpc import ConnectionClosed, RpcConnection, connect
from minibroker.simulation.cluster import PORT
from tests.broker.requests import TOPIC, ClusterClient, batch, in_cluster, produce_request
from tests.protocol.message_values import values


class RequestOutcome(Enum):
    SERVED = "served"
    REFUSED = "CLUSTER_AUTHORIZATION_FAILED"
    CLOSED = "the connection is closed"


class ApiCase(NamedTuple):
    """How a test sends requests of one API."""

    request: Callable[[ClusterClient, int], m.Request]
    """Builds a request that claims to come from that broker, if it claims a sender at all."""
    of_controller: bool = False
    """Only a controller may send it; otherwise any broker may."""
    names_sender: bool = True


def order(client: ClusterClient) -> dict[str, Any]:
    """Fields common to all orders of the controller, as the target accepts them."""
    broker = client.cluster.brokers[target(client)]
    return {
        "controller_id": client.cluster.controller(),
        "controller_epoch": broker.image.controller_epoch,
        "broker_epoch": client.broker_epoch(target(client)),
    }


def target(client: ClusterClient) -> int:
    """Receives all requests: a broker that does not lead the topic and is not the controller."""
    return next(b for b in client.followers if b != client.cluster.controller())


def listed(client: ClusterClient, sender: int) -> list[m.FetchTopic]:
    return [m.FetchTopic(topic=TOPIC, partitions=[m.FetchPartition(partition=0, fetch_offset=0)])]


CLIENT_APIS: dict[ApiKey, ApiCase] = {
    ApiKey.PRODUCE: ApiCase(lambda client, sender: produce_request(batch(b"v"), acks=1)),
    ApiKey.FETCH: ApiCase(lambda client, sender: m.FetchRequest(max_wait_ms=0, topics=listed(client, sender))),
    ApiKey.LIST_OFFSETS: ApiCase(lambda client, sender: m.ListOffsetsRequest()),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiCase(lambda client, sender: m.OffsetForLeaderEpochRequest()),
    ApiKey.METADATA: ApiCase(lambda client, sender: m.MetadataRequest()),
    ApiKey.API_VERSIONS: ApiCase(lambda client, sender: m.ApiVersionsRequest()),
    ApiKey.CREATE_TOPICS: ApiCase(lambda client, sender: m.CreateTopicsRequest(validate_only=True)),
    ApiKey.DELETE_TOPICS: ApiCase(lambda client, sender: m.DeleteTopicsRequest()),
    ApiKey.INIT_PRODUCER_ID: ApiCase(lambda client, sender: m.InitProducerIdRequest()),
    ApiKey.DESCRIBE_CONFIGS: ApiCase(lambda client, sender: m.DescribeConfigsRequest()),
    ApiKey.ELECT_LEADERS: ApiCase(lambda client, sender: m.ElectLeadersRequest()),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiCase(lambda client, sender: m.IncrementalAlterConfigsRequest()),
    ApiKey.DESCRIBE_CLUSTER: ApiCase(lambda client, sender: m.DescribeClusterRequest()),
    ApiKey.DESCRIBE_REPLICA_STATE: ApiCase(lambda client, sender: m.DescribeReplicaStateRequest()),
    ApiKey.SASL_HANDSHAKE: ApiCase(lambda client, sender: m.SaslHandshakeRequest(mechanism="PLAIN")),
    ApiKey.SASL_AUTHENTICATE: ApiCase(lambda client, sender: m.SaslAuthenticateRequest(auth_bytes=b"?")),
    ApiKey.DESCRIBE_EVENTS: ApiCase(lambda client, sender: m.DescribeEventsRequest()),
    ApiKey.LIST_PRODUCER_NAMES: ApiCase(lambda client, sender: m.ListProducerNamesRequest()),
    ApiKey.DELETE_PRODUCER_NAMES: ApiCase(lambda client, sender: m.DeleteProducerNamesRequest()),
}
BROKER_APIS: dict[ApiKey, ApiCase] = {
    ApiKey.LEADER_AND_ISR: ApiCase(
        lambda client, sender: m.LeaderAndIsrRequest(**order(client) | {"controller_id": sender}), of_controller=True
    ),
    ApiKey.UPDATE_METADATA: ApiCase(
        lambda client, sender: m.UpdateMetadataRequest(**order(client) | {"controller_id": sender}), of_controller=True
    ),
    ApiKey.STOP_REPLICA: ApiCase(
        lambda client, sender: m.StopReplicaRequest(**order(client) | {"controller_id": sender}), of_controller=True
    ),
    ApiKey.CONTROLLED_SHUTDOWN: ApiCase(
        lambda client, sender: m.ControlledShutdownRequest(
            broker_id=sender, broker_epoch=client.broker_epoch(sender), offline_partitions=[]
        )
    ),
    ApiKey.ALTER_PARTITION: ApiCase(
        lambda client, sender: m.AlterPartitionRequest(broker_id=sender, broker_epoch=client.broker_epoch(sender))
    ),
    ApiKey.GET_REPLICA_LOG_INFO: ApiCase(lambda client, sender: m.GetReplicaLogInfoRequest(), names_sender=False),
    ApiKey.CONFIRM_FAILURE: ApiCase(
        lambda client, sender: m.ConfirmFailureRequest(broker_id=3, broker_epoch=client.broker_epoch(3)),
        names_sender=False,
    ),
}
AS_REPLICA: dict[ApiKey, ApiCase] = {
    ApiKey.FETCH: ApiCase(
        lambda client, sender: m.FetchRequest(
            replica_id=sender,
            replica_epoch=client.broker_epoch(sender),
            max_wait_ms=0,
            topics=listed(client, sender),
        )
    ),
    ApiKey.LIST_OFFSETS: ApiCase(lambda client, sender: m.ListOffsetsRequest(replica_id=sender)),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiCase(lambda client, sender: m.OffsetForLeaderEpochRequest(replica_id=sender)),
}


def test_every_api_has_a_case() -> None:
    assert set(CLIENT_APIS) | set(BROKER_APIS) == set(ApiKey)
    assert set(BROKER_APIS) == CLUSTER_ACTIONS
    assert set(AS_REPLICA) == READS_AS_REPLICA


# ----------------------------------------------------------------------------------------------------------- peers
async def a_client(client: ClusterClient, sender: int) -> RpcConnection:
    return await connect(client.runtime.network, host(client), PORT, client_id="client", timeout_ms=1_000)


async def in_the_middle_of_a_handshake(client: ClusterClient, sender: int) -> RpcConnection:
    connection = await a_client(client, sender)
    await connection.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    first = exchange(client, sender).first()
    reply = await connection.request(m.SaslAuthenticateRequest(auth_bytes=first), 1_000)
    assert not reply.error_code
    return connection


async def a_broker(client: ClusterClient, sender: int) -> RpcConnection:
    return await client.connection(target(client), sender)


async def with_a_wrong_secret(client: ClusterClient, sender: int) -> RpcConnection:
    return await proves(client, exchange(client, sender, secret=bytes(32)))


async def with_an_old_epoch(client: ClusterClient, sender: int) -> RpcConnection:
    return await proves(client, exchange(client, sender, epoch=client.broker_epoch(sender) - 1))


async def meant_for_another_broker(client: ClusterClient, sender: int) -> RpcConnection:
    """Like an attacker that relays one broker's handshake to another broker."""
    return await proves(client, exchange(client, sender, server_id=client.leader))


async def with_a_recorded_handshake(client: ClusterClient, sender: int) -> RpcConnection:
    honest = exchange(client, sender)
    connection = await a_client(client, sender)
    await connection.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    first = m.SaslAuthenticateRequest(auth_bytes=honest.first())
    challenge = await connection.request(first, 1_000)
    assert isinstance(challenge, m.SaslAuthenticateResponse)
    final = m.SaslAuthenticateRequest(auth_bytes=honest.final(challenge.auth_bytes))
    proof = await connection.request(final, 1_000)
    assert isinstance(proof, m.SaslAuthenticateResponse)
    honest.check(proof.auth_bytes)
    replayed = await a_client(client, sender)
    await replayed.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    assert not (await replayed.request(first, 1_000)).error_code
    reply = await replayed.request(final, 1_000)
    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    return replayed


async def proves(client: ClusterClient, claimed: ClientExchange) -> RpcConnection:
    """Perform the whole handshake and expect its failure."""
    connection = await a_client(client, 0)
    await connection.request(m.SaslHandshakeRequest(mechanism=MECHANISM), 1_000)
    reply = await connection.request(m.SaslAuthenticateRequest(auth_bytes=claimed.first()), 1_000)
    if isinstance(reply, m.SaslAuthenticateResponse) and not reply.error_code:
        reply = await connection.request(m.SaslAuthenticateRequest(auth_bytes=claimed.final(reply.auth_bytes)), 1_000)
    assert reply.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    return connection


def exchange(
    client: ClusterClient,
    sender: int,
    *,
    secret: bytes | None = None,
    epoch: int | None = None,
    server_id: int | None = None,
) -> ClientExchange:
    name = BrokerName(
        broker_id=sender,
        broker_epoch=client.broker_epoch(sender) if epoch is None else epoch,
        incarnation_id="any",
    )
    known = client.cluster.brokers[1].secret.key
    nonce = client.runtime.random.randbytes(NONCE_BYTES)
    return ClientExchange(secret or known, name, target(client) if server_id is None else server_id, nonce)


def host(client: ClusterClient) -> str:
    return f"broker-{target(client)}"


async def outcome(connection: RpcConnection, body: m.Request) -> RequestOutcome:
    try:
        reply = await connection.request(body, 60_000)
    except ConnectionClosed:
        return RequestOutcome.CLOSED
    return (
        RequestOutcome.REFUSED if reply.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED else RequestOutcome.SERVED
    )


Peer = Callable[[ClusterClient, int], Awaitable[RpcConnection]]
CASES: list[tuple[Peer, RequestOutcome, RequestOutcome]] = [
    (a_client, RequestOutcome.SERVED, RequestOutcome.REFUSED),
    (in_the_middle_of_a_handshake, RequestOutcome.SERVED, RequestOutcome.REFUSED),
    (a_broker, RequestOutcome.SERVED, RequestOutcome.SERVED),
    (with_a_wrong_secret, RequestOutcome.CLOSED, RequestOutcome.CLOSED),
    (with_an_old_epoch, RequestOutcome.CLOSED, RequestOutcome.CLOSED),
    (meant_for_another_broker, RequestOutcome.CLOSED, RequestOutcome.CLOSED),
    (with_a_recorded_handshake, RequestOutcome.CLOSED, RequestOutcome.CLOSED),
]
"""The peer, the outcome of a request that any client may send, and of one for brokers only."""


@pytest.mark.parametrize(("peer", "client_outcome", "broker_outcome"), CASES, ids=[case[0].__name__ for case in CASES])
def test_every_api_and_every_kind_of_peer(
    peer: Peer, client_outcome: RequestOutcome, broker_outcome: RequestOutcome
) -> None:
    async def check(client: ClusterClient) -> None:
        cases = [(key, case, client_outcome) for key, case in CLIENT_APIS.items()]
        cases += [(key, case, broker_outcome) for table in (BROKER_APIS, AS_REPLICA) for key, case in table.items()]
        for key, case, expected in cases:
            sender = client.cluster.controller() if case.of_controller else target(client) % 3 + 1
            assert sender is not None
            connection = await peer(client, sender)
            found = await outcome(connection, case.request(client, sender))
            if key is ApiKey.SASL_AUTHENTICATE and peer is in_the_middle_of_a_handshake:
                continue  # a wrong proof: it is answered, and the connection ends
            assert (key.name, found) == (key.name, expected)

    in_cluster(check)


@pytest.mark.parametrize("key", sorted(CLUSTER_ACTIONS | READS_AS_REPLICA), ids=lambda key: ApiKey(key).name)
@given(data=st.data())
def test_a_refused_client_is_told_what_was_for_brokers(key: int, data: st.DataObject) -> None:
    """Of the APIs that any client may use, only the replica id was wrong."""
    answer = refuse(ANONYMOUS, data.draw(values(m.APIS[key].request)), lambda _: None)
    assert answer is not None and answer.error_message is not None
    what = ApiKey(key).name + (" with a replica id" if key in READS_AS_REPLICA else "")
    assert answer.error_message.startswith(f"{what} is for brokers"), answer.error_message


def test_a_broker_cannot_send_requests_in_another_brokers_name() -> None:
    async def check(client: ClusterClient) -> None:
        controller = client.cluster.controller()
        assert controller is not None
        for key, case in {**BROKER_APIS, **AS_REPLICA}.items():
            sender = controller if case.of_controller else target(client) % 3 + 1
            other = next(b for b in (1, 2, 3) if b not in (sender, target(client)))
            found = await outcome(await a_broker(client, other), case.request(client, sender))
            expected = RequestOutcome.REFUSED if case.names_sender else RequestOutcome.SERVED
            assert (key.name, found) == (key.name, expected)

    in_cluster(check)


def test_a_request_under_another_broker_epoch_than_its_connection_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        sender = target(client) % 3 + 1
        epoch = client.broker_epoch(sender) + 1
        for body in (
            m.AlterPartitionRequest(broker_id=sender, broker_epoch=epoch),
            m.ControlledShutdownRequest(broker_id=sender, broker_epoch=epoch, offline_partitions=[]),
            m.FetchRequest(replica_id=sender, replica_epoch=epoch, max_wait_ms=0),
            m.FetchRequest(replica_id=sender, replica_epoch=-1, max_wait_ms=0),
        ):
            assert await outcome(await a_broker(client, sender), body) is RequestOutcome.REFUSED

    in_cluster(check)


def test_a_replaced_registration_loses_the_rights_of_a_broker() -> None:
    """Its connection keeps the rights of a client."""

    async def check(client: ClusterClient) -> None:
        cluster, sender = client.cluster, target(client) % 3 + 1
        connection = await a_broker(client, sender)
        requests = {key: case.request(client, sender) for key, case in BROKER_APIS.items() if not case.of_controller}
        before = client.broker_epoch(sender)
        cluster.world.zookeeper.expire_session(cluster.brokers[sender].coordination.session_id)
        image = cluster.brokers[target(client)].image
        await cluster.until(lambda: (image.broker_epoch(sender) or 0) > before, what="a new registration")
        for key, body in requests.items():
            assert (key.name, await outcome(connection, body)) == (key.name, RequestOutcome.REFUSED)
        assert await outcome(connection, m.MetadataRequest()) is RequestOutcome.SERVED

    in_cluster(check)


def test_a_made_up_controller_epoch_is_refused_and_has_no_effect() -> None:
    """Even in the name of the broker that is controller: ZooKeeper does not know that epoch."""

    async def check(client: ClusterClient) -> None:
        controller = client.cluster.controller()
        assert controller is not None
        connection = await a_broker(client, controller)
        image = client.cluster.brokers[target(client)].image
        before = image.controller_epoch
        for key in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA):
            body = BROKER_APIS[key].request(client, controller)
            assert isinstance(body, m.LeaderAndIsrRequest | m.UpdateMetadataRequest | m.StopReplicaRequest)
            assert await outcome(connection, replace(body, controller_epoch=2**31 - 1)) is RequestOutcome.REFUSED
            assert await outcome(connection, body) is RequestOutcome.SERVED
        assert image.controller_epoch == before

    in_cluster(check)


def test_a_controller_epoch_waits_until_zookeeper_answers() -> None:
    """Until then the order is not executed, and the refusal is retriable."""

    async def check(client: ClusterClient) -> None:
        controller = client.cluster.controller()
        assert controller is not None
        connection = await a_broker(client, controller)
        broker_id = target(client)
        client.cluster.world.zookeeper.cut(f"broker-{broker_id}")
        order_of_a_later_one = replace(
            m.UpdateMetadataRequest(**order(client)), controller_epoch=order(client)["controller_epoch"] + 1
        )
        reply = await connection.request(order_of_a_later_one, 60_000)
        assert reply.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "ZooKeeper cannot be asked" in (reply.error_message or "")

    in_cluster(check)


def test_a_dialer_rejects_another_broker_at_the_dialled_address() -> None:
    """A follower copies from the broker that answers: it must not be another broker, or one of another cluster."""

    async def check(client: ClusterClient) -> None:
        dialer = client.dialer(1)
        with pytest.raises(NotAuthenticated, match="it looks for broker 3, this is broker 2"):
            await dialer.connect(3, ("broker-2", PORT), client_id="test", timeout_ms=1_000)
        assert issubclass(NotAuthenticated, NetworkError)

    in_cluster(check)
