"""Requests on a connection that is opened when one needs it: when it is kept, when it ends, and what counts."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import TEXT_MAX, ApiVersionsRequest, ApiVersionsResponse
from minibroker.runtime.request_channel import RequestChannel, RequestFailed, RequestRefused, UnreadableAnswer
from minibroker.runtime.rpc import connect
from minibroker.runtime.server.server import IncomingRequest, RpcServer
from minibroker.simulation.world.world import SimulatedWorld

HOST, PORT = "server", 9092
TIMEOUT_MS = 1_000


class Scene:
    """A server that answers with what a test sets, and a channel to it."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.answer: ApiVersionsResponse | None = ApiVersionsResponse()
        """None: it does not answer."""
        self.server = RpcServer(self.world.runtime(HOST).network, self._handle)
        self.opened = 0
        network = self.world.runtime("client").network
        self._connect = partial(connect, network, HOST, PORT, client_id="c", timeout_ms=TIMEOUT_MS)
        self.channel = RequestChannel(self._dial)

    def play(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.server.start(HOST, PORT, "INTERNAL")
            with self.channel:
                await story()
            await asyncio.sleep(0.1)
            assert not self.server.connections, "nothing outlives the channel"
            await self.server.stop()

        self.world.run(main(), seconds_max=100)

    async def ask(self) -> ApiVersionsResponse:
        return await self.channel.ask(ApiVersionsRequest(), ApiVersionsResponse, TIMEOUT_MS)

    async def _dial(self):  # type: ignore[no-untyped-def]
        self.opened += 1
        return await self._connect()

    def _handle(self, request: IncomingRequest) -> None:
        if self.answer is not None:
            request.respond(self.answer)


def test_requests_share_a_connection() -> None:
    scene = Scene()

    async def story() -> None:
        assert scene.opened == 0
        await scene.ask()
        await scene.ask()
        assert scene.opened == 1

    scene.play(story)


def test_a_request_without_an_answer_ends_the_connection_at_its_limit() -> None:
    """TCP may take a quarter of an hour to detect a dead peer; the next request finds another way, or the new host."""
    scene = Scene()

    async def story() -> None:
        scene.answer = None
        began = scene.world.loop.time()
        with pytest.raises(RequestFailed, match="API_VERSIONS was not answered by server:9092 within 1000 ms"):
            await scene.ask()
        assert scene.world.loop.time() - began <= 1.1 * TIMEOUT_MS / 1000
        scene.answer = ApiVersionsResponse()
        await scene.ask()
        assert scene.opened == 2

    scene.play(story)


def test_a_lost_connection_is_opened_again_by_the_next_request() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.ask()
        for connection in tuple(scene.server.connections.values()):
            connection.abort_because("the test ends it")
        await asyncio.sleep(0.1)
        await scene.ask()
        assert scene.opened == 2

    scene.play(story)


def test_a_peer_that_refuses_connections_gives_no_answer() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.server.stop()
        with pytest.raises(RequestFailed, match="server:9092"):
            await scene.ask()

    scene.play(story)


def test_a_refused_request_keeps_the_connection() -> None:
    scene = Scene()

    async def story() -> None:
        scene.answer = ApiVersionsResponse(error_code=ErrorCode.NOT_CONTROLLER, error_message="ask broker 3")
        with pytest.raises(RequestRefused, match=r"server:9092 answered NOT_CONTROLLER: ask broker 3$"):
            await scene.ask()
        scene.answer = ApiVersionsResponse(error_code=ErrorCode.NOT_CONTROLLER)
        with pytest.raises(RequestRefused, match=r"server:9092 answered NOT_CONTROLLER$"):
            await scene.ask()
        assert scene.opened == 1

    scene.play(story)


def test_an_answer_that_does_not_decode_is_told_from_a_missing_one() -> None:
    scene = Scene()

    async def story() -> None:
        scene.answer = ApiVersionsResponse(broker_software_version="x" * (TEXT_MAX + 1))
        with pytest.raises(UnreadableAnswer, match="broke the protocol"):
            await scene.ask()

    scene.play(story)


def test_hanging_up_ends_the_wait_for_an_answer() -> None:
    scene = Scene()

    async def story() -> None:
        scene.answer = None
        asking = asyncio.create_task(scene.ask())
        await asyncio.sleep(0.1)
        began = scene.world.loop.time()
        scene.channel.hang_up()
        with pytest.raises(RequestFailed, match="was lost"):
            await asking
        assert scene.world.loop.time() - began < 0.1
        scene.answer = ApiVersionsResponse()
        await scene.ask()

    scene.play(story)


@pytest.mark.parametrize("is_late", [False, True], ids=["while it dials", "as the dial ends"])
def test_hanging_up_ends_a_dial_and_the_requests_that_wait_for_it(is_late: bool) -> None:
    """Once the dial went on, and its connection outlived the channel."""
    scene = Scene()

    async def story() -> None:
        lets_through = asyncio.Event()
        connect = scene._connect

        async def slow():  # type: ignore[no-untyped-def]
            await lets_through.wait()
            connection = await connect()
            if is_late and scene.opened == 1:
                scene.channel.hang_up()
            return connection

        scene._connect = slow  # type: ignore[assignment]
        asked = [asyncio.create_task(scene.ask()) for _ in range(2)]
        await asyncio.sleep(0.1)
        if is_late:
            lets_through.set()
        else:
            scene.channel.hang_up()
        began = scene.world.loop.time()
        for asking in asked:
            with pytest.raises(RequestFailed, match="hung up before it sent the request"):
                await asking
        assert scene.world.loop.time() - began < 0.1
        assert scene.opened == 1
        lets_through.set()
        await scene.ask()
        assert scene.opened == 2

    scene.play(story)


def test_a_request_waits_until_the_one_before_has_ended() -> None:
    """Two that found no connection would each open one, and only one of the two would ever be closed."""
    scene = Scene()

    async def story() -> None:
        await asyncio.gather(scene.ask(), scene.ask())
        assert scene.opened == 1

    scene.play(story)
