"""Connections that a broker opens as a broker: when none is opened, when they end, and the errors of failures."""

import asyncio
import random

import pytest

from minibroker.protocol.wire.broker_authentication import BrokerName
from minibroker.protocol.wire.codec import encode_request
from minibroker.protocol.wire.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    LeaderAndIsrRequest,
    Request,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from minibroker.runtime.broker_dialer import AUTHENTICATION_TIMEOUT_MS, BrokerDialer, Credentials, NotAuthenticated
from minibroker.runtime.ports import ConnectionRefused
from minibroker.runtime.rpc import STRANGERS_ANSWER_MAX_BYTES, PeerBroken
from minibroker.runtime.server.heavy_requests import is_handshake
from minibroker.runtime.server.loop_iteration import LoopIteration
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.runtime.server.server_limits import HANDSHAKES_PER_ITERATION
from minibroker.simulation.world.world import SimulatedWorld
from tests.authenticated import SECRET, Answering, dialer

HOST, PORT = "server", 9092


class Scene:
    """Broker 1 answers; broker 2 dials."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.network = self.world.runtime("client").network
        self.principals: list[str] = []

    def handle(self, request: IncomingRequest) -> None:
        self.principals.append(str(request.connection.principal))
        request.respond(ApiVersionsResponse())

    async def serve(self, answering: bool = True, listener: str = "INTERNAL") -> RpcServer:
        handler = Answering(1, self.handle) if answering else (lambda request: None)
        server = RpcServer(self.world.runtime(HOST).network, handler)
        await server.start(HOST, PORT, listener)
        return server


def test_requests_carry_the_identity_of_the_broker_that_dialled() -> None:
    scene = Scene()

    async def story() -> None:
        server = await scene.serve()
        connection = await dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        await connection.request(ApiVersionsRequest(), 1_000)
        assert scene.principals == ["Broker:2"]
        await server.stop()

    scene.world.run(story())


def test_without_a_registration_no_broker_is_dialled() -> None:
    scene = Scene()

    async def story() -> None:
        server = await scene.serve()
        unregistered = BrokerDialer(scene.network, random.Random(1))
        with pytest.raises(NotAuthenticated, match="this broker is not registered"):
            await unregistered.connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        assert not server.connections
        await server.stop()

    scene.world.run(story())


def test_connections_end_with_the_registration_they_were_opened_under() -> None:
    scene = Scene()

    async def story() -> None:
        server = await scene.serve()
        ours = dialer(scene.network, 2, broker_epoch=5)
        connection = await ours.connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        same = BrokerName(broker_id=2, broker_epoch=5, incarnation_id="start-of-2")
        ours.registered(Credentials(name=same, secret=SECRET))
        assert not connection.closed
        later = BrokerName(broker_id=2, broker_epoch=6, incarnation_id="start-of-2")
        ours.registered(Credentials(name=later, secret=SECRET))
        await asyncio.sleep(0.1)
        assert connection.closed
        again = await ours.connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        ours.unregistered()
        await asyncio.sleep(0.1)
        assert again.closed
        await server.stop()

    scene.world.run(story())


@pytest.mark.parametrize("registered_again", [False, True])
@pytest.mark.parametrize("steps", range(4))
def test_no_connection_is_made_under_a_registration_that_ends_meanwhile(steps: int, registered_again: bool) -> None:
    """It ends while the connection is made, or after so many answers of the peer. The connection was in no list by
    then: a broker would act under an old registration for as long as it lasts."""
    scene = Scene()
    ours = dialer(scene.network, 2, broker_epoch=5)
    answered = 0

    def end() -> None:
        ours.unregistered()
        if registered_again:
            later = BrokerName(broker_id=2, broker_epoch=6, incarnation_id="start-of-2")
            ours.registered(Credentials(name=later, secret=SECRET))

    def handle(request: IncomingRequest) -> None:
        nonlocal answered
        answered += 1
        authenticate(request)
        if answered == steps:
            end()

    authenticate = Answering(1, scene.handle)

    async def story() -> None:
        server = RpcServer(scene.world.runtime(HOST).network, handle)
        await server.start(HOST, PORT, "INTERNAL")
        if steps == 0:
            asyncio.get_running_loop().call_soon(end)
        with pytest.raises(NotAuthenticated, match="the registration of this broker ended meanwhile"):
            await ours.connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        assert answered == 3, "a handshake of two steps, and the connection is given up after it"
        await asyncio.sleep(0.1)
        assert not server.connections
        await server.stop()

    scene.world.run(story())


def test_a_refusing_kernel_is_distinguished_from_a_refusing_broker() -> None:
    """Only the first is a sign of a failed broker (docs/decisions/0011)."""
    scene = Scene()

    async def story() -> None:
        scene.world.runtime(HOST)  # a machine without a listener
        with pytest.raises(ConnectionRefused):
            await dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        server = await scene.serve()
        stranger = dialer(scene.network, 2, secret=bytes(32))
        with pytest.raises(NotAuthenticated, match="SASL_AUTHENTICATION_FAILED: its proof that"):
            await stranger.connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        await server.stop()

    scene.world.run(story())


def test_a_silent_broker_is_waited_for_no_longer_than_the_timeout() -> None:
    scene = Scene()

    async def story() -> None:
        server = await scene.serve(answering=False)
        began = scene.world.loop.time()
        with pytest.raises(NotAuthenticated, match=f"was not answered by {HOST}:{PORT} within"):
            await dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        assert scene.world.loop.time() - began <= 1.1 * AUTHENTICATION_TIMEOUT_MS / 1000
        await server.stop()

    scene.world.run(story())


def test_a_connection_that_is_given_up_before_it_is_authenticated_is_closed() -> None:
    """Each attempt of a controller that ends meanwhile would leave one, on both brokers."""
    scene = Scene()

    async def story() -> None:
        server = await scene.serve(answering=False)
        dialling = asyncio.ensure_future(
            dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        )
        await asyncio.sleep(0.1)
        assert len(server.connections) == 1
        dialling.cancel()
        await asyncio.wait([dialling])
        await asyncio.sleep(0.1)
        assert not server.connections
        await server.stop()

    scene.world.run(story())


@pytest.mark.parametrize("is_stranger", [True, False])
def test_only_a_peer_that_has_proven_to_be_a_broker_sends_large_answers(is_stranger: bool) -> None:
    """A process that listens at a dead broker's port could take 190 MiB of each broker that dials it."""
    scene = Scene()
    large = ApiVersionsResponse(error_message="x" * STRANGERS_ANSWER_MAX_BYTES)

    def handle(request: IncomingRequest) -> None:
        if is_stranger and isinstance(request.body, SaslHandshakeRequest):
            request.respond(large)
        else:
            authenticate(request)

    authenticate = Answering(1, lambda request: request.respond(large))

    async def story() -> None:
        server = RpcServer(scene.world.runtime(HOST).network, handle)
        await server.start(HOST, PORT, "INTERNAL")
        dialling = dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        if is_stranger:
            with pytest.raises(NotAuthenticated, match=f"the limit is {STRANGERS_ANSWER_MAX_BYTES}"):
                await dialling
        else:
            connection = await dialling
            with pytest.raises(PeerBroken, match="length <= 32768"):  # it was read
                await connection.request(ApiVersionsRequest(), 1_000)
        await server.stop()

    scene.world.run(story())


def test_on_a_client_listener_no_peer_becomes_a_broker() -> None:
    scene = Scene()

    async def story() -> None:
        server = await scene.serve(listener="EXTERNAL")
        with pytest.raises(NotAuthenticated, match="UNSUPPORTED_SASL_MECHANISM: listener EXTERNAL takes no mechanism"):
            await dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        await server.stop()

    scene.world.run(story())


def test_a_flood_of_clients_keeps_no_broker_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker counts as a client until it is authenticated: eight hundred busy clients kept it out."""
    scene = Scene()

    async def story() -> None:
        server = await scene.serve()
        monkeypatch.setattr(LoopIteration, "_renew", lambda iteration: None)
        server.iteration.left = 0  # clients have used up this iteration
        broker = await dialer(scene.network, 2).connect(1, (HOST, PORT), client_id="b", timeout_ms=1_000)
        await broker.request(ApiVersionsRequest(), 1_000)
        assert scene.principals == ["Broker:2"]
        assert server.iteration.handshakes_left == HANDSHAKES_PER_ITERATION - 3, "there is a limit for these, too"
        await server.stop()

    scene.world.run(story())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (SaslHandshakeRequest(mechanism="m"), True),
        (SaslAuthenticateRequest(auth_bytes=b"x" * 1_024), True),
        (SaslHandshakeRequest(mechanism="m" * 500), True),
        (ApiVersionsRequest(), False),
        (LeaderAndIsrRequest(controller_id=1, controller_epoch=1, broker_epoch=1), False),
    ],
)
def test_steps_of_an_authentication_are_recognised(body: Request, expected: bool) -> None:
    frame = b"".join(bytes(piece) for piece in encode_request(body, 1, "client"))[4:]
    assert is_handshake(memoryview(frame)) is expected


@pytest.mark.parametrize("frame", [b"", b"\x95", b"\x94\x11", b"\x95\x11" + bytes(3_000)])
def test_other_frames_are_no_step_of_an_authentication(frame: bytes) -> None:
    assert not is_handshake(memoryview(frame))
