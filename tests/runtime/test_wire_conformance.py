"""Both ends of the wire on every kind of ports: asyncio, uvloop, simulated."""

import asyncio

from minibroker.protocol.wire.messages import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from minibroker.runtime.rpc import connect
from minibroker.runtime.server.server import IncomingRequest, RpcServer, ServerLimits
from tests.runtime.ports import RuntimePorts, conformance
from tests.runtime.wire_scene import Peer, light, sized, until

HOST = "127.0.0.1"
MIB = 1024 * 1024
MANY = ApiVersionsResponse(api_keys=[ApiVersion(api_key=n) for n in range(200)], error_message="m" * 32_000)


class Kept:
    """A server that answers requests when the test says so."""

    def __init__(self, ports: RuntimePorts, limits: ServerLimits | None = None) -> None:
        self.requests: list[IncomingRequest] = []
        self.server = RpcServer(ports.network, self.requests.append, limits)
        self._default_runtime = ports

    async def start(self) -> None:
        await self.server.start(HOST, 0)

    async def peer(self) -> Peer:
        _, protocol = await self._default_runtime.network.connect(Peer, HOST, self.server.port, 5_000)
        assert isinstance(protocol, Peer)
        return protocol


@conformance
async def test_replies_larger_than_any_kernel_buffer_cross_the_last_one_first(ports: RuntimePorts) -> None:
    kept = Kept(ports)
    await kept.start()
    connection = await connect(ports.network, HOST, kept.server.port, client_id="c", timeout_ms=5_000)
    asked = [asyncio.ensure_future(connection.request(ApiVersionsRequest(), 20_000)) for _ in range(300)]
    await until(lambda: len(kept.requests) == 300)
    for request in reversed(kept.requests):
        request.respond(MANY)
    assert all([await reply == MANY for reply in asked])
    await connection.close()
    await kept.server.stop()
    assert kept.server.delayed_cost_bytes == 0


@conformance
async def test_requests_that_had_to_wait_are_handled_in_their_order(ports: RuntimePorts) -> None:
    """Too many at once, some of them large: reading stops and continues, and no request is lost or handled twice."""
    kept = Kept(ports)

    def answer(request: IncomingRequest) -> None:
        kept.requests.append(request)
        request.respond(ApiVersionsResponse())

    kept.server.handler = answer
    await kept.start()
    peer = await kept.peer()
    frames = [sized(20_000, n) if n % 300 == 7 else light(n) for n in range(3_000)]
    peer.send(*frames)
    await until(lambda: len(peer.answers) == 3_000)
    assert [request.correlation_id for request in kept.requests] == list(range(3_000))
    await kept.server.stop()


@conformance
async def test_unread_replies_are_noticed_and_stop_the_next_request(ports: RuntimePorts) -> None:
    kept = Kept(ports, ServerLimits(unread_replies_max_bytes=64 * MIB))
    await kept.start()
    peer = await kept.peer()
    peer.stop_reading()
    peer.send(light(1))
    await until(lambda: len(kept.requests) == 1)
    kept.requests[0].respond_frame([b"\x00" * (24 * MIB)])
    assert kept.server.reply_room() < 30 * MIB
    peer.send(light(2))
    await asyncio.sleep(0.02)
    assert len(kept.requests) == 1
    peer.transport.abort()
    await until(lambda: not kept.server.connections)
    assert kept.server.reply_room() == 32 * MIB
    await kept.server.stop()


@conformance
async def test_a_closing_connection_sends_its_answers_first(ports: RuntimePorts) -> None:
    kept = Kept(ports)
    await kept.start()
    peer = await kept.peer()
    peer.send(b"\xff\xff\xff\xff")
    await until(lambda: peer.closed)
    assert [number for number, _ in peer.answers] == [-1]
    assert not kept.server.connections
    await kept.server.stop()
