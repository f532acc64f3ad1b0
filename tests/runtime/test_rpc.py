"""The requesting half of the wire: each request ends exactly once, with a reply or an error."""

import asyncio
from typing import Any

import msgpack
import pytest

from minibroker.protocol.wire.codec import encode_response
from minibroker.protocol.wire.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    Response,
)
from minibroker.runtime import rpc
from minibroker.runtime.rpc import ConnectionClosed, PeerBroken, RequestTimedOut, RpcError, connect
from tests.runtime.wire_scene import HOST, PORT, Peer, Scene, framed, simulated, until

Replies = list[Response | RpcError]


def numbered(number: int) -> ApiVersionsResponse:
    return ApiVersionsResponse(api_keys=[ApiVersion(api_key=number)])


@simulated
async def test_replies_reach_their_callers_in_any_order(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    replies: list[Replies] = [[] for _ in range(5)]
    for kept in replies:
        connection.send(ApiVersionsRequest(), kept.append)
    await until(lambda: len(scene.requests) == 5)
    for index in (3, 0, 4, 2, 1):
        scene.requests[index].respond(numbered(index))
    await until(lambda: all(replies))
    assert replies == [[numbered(index)] for index in range(5)]


@simulated
async def test_on_closed_set_after_the_end_is_called_at_once(scene: Scene) -> None:
    """The peer failed while the connection was made: a replica fetcher waited for ever (found by swarm seed 80)."""
    await scene.serve()
    connection = await scene.client()
    scene.world.kill(HOST)
    await until(lambda: connection.closed)
    calls: list[str] = []
    connection.on_closed = lambda: calls.append("closed")
    assert calls == ["closed"]


@simulated
async def test_a_reply_is_decoded_by_its_request(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    asking = asyncio.ensure_future(connection.request(DescribeClusterRequest(), 1_000))
    await until(lambda: scene.requests)
    scene.requests[0].respond(DescribeClusterResponse(cluster_id="abc"))
    assert await asking == DescribeClusterResponse(cluster_id="abc")


@simulated
async def test_a_lost_connection_answers_each_waiting_caller_once(scene: Scene) -> None:
    server = await scene.serve(answers_at_once=False)
    connection = await scene.client()
    closed: list[str] = []
    connection.on_closed = lambda: closed.append("closed")
    replies: list[Replies] = [[] for _ in range(3)]
    for kept in replies:
        connection.send(ApiVersionsRequest(), kept.append)
    await until(lambda: len(scene.requests) == 3)
    scene.requests[1].respond(numbered(1))
    await until(lambda: replies[1])
    await server.stop()
    await until(lambda: connection.closed)
    assert replies[1] == [numbered(1)]
    assert [len(kept) for kept in replies] == [1, 1, 1]
    assert all(isinstance(kept[0], ConnectionClosed) for kept in (replies[0], replies[2]))
    assert "server:9092" in str(replies[0][0])
    assert closed == ["closed"]
    with pytest.raises(ConnectionClosed, match="server:9092 is closed"):
        connection.send(ApiVersionsRequest(), replies[0].append)
    with pytest.raises(ConnectionClosed):
        connection.send_without_reply(ApiVersionsRequest())
    assert [len(kept) for kept in replies] == [1, 1, 1]


@simulated
async def test_a_request_on_a_closing_connection_is_refused(scene: Scene) -> None:
    await scene.serve()
    connection = await scene.client()
    connection.abort()
    with pytest.raises(ConnectionClosed):
        connection.send(ApiVersionsRequest(), lambda reply: None)
    with pytest.raises(ConnectionClosed):
        connection.send_without_reply(ApiVersionsRequest())
    await connection.close()
    assert connection.closed


@simulated
async def test_a_connection_that_the_peer_has_ended_is_lost_whatever_of_a_request_is_unsent(scene: Scene) -> None:
    """The transport would wait until the peer takes the rest, which a dead machine never does. Meanwhile each request
    is refused at once, so a producer that tried again kept its process busy."""
    peer = Peer()
    await scene.world.runtime(HOST).network.listen(lambda: peer, HOST, PORT)
    connection = await scene.client()
    replies: Replies = []
    await until(lambda: peer.transport is not None)
    peer.stop_reading()
    large = ProducePartition(index=0, records=bytearray(1 << 20))
    connection.send(ProduceRequest(topic_data=[ProduceTopic(name="t", partition_data=[large])]), replies.append)
    assert connection.is_waited_on
    peer.transport.write_eof()
    await until(lambda: connection.closed)
    [reply] = replies
    assert isinstance(reply, ConnectionClosed)


@simulated
async def test_a_request_sent_while_the_loss_is_reported_is_refused(scene: Scene) -> None:
    """A callback that retries at once must not wait for ever on the lost connection."""
    server = await scene.serve(answers_at_once=False)
    connection = await scene.client()
    refusals: list[RpcError] = []

    def retry(reply: Response | RpcError) -> None:
        try:
            connection.send(ApiVersionsRequest(), retry)
        except RpcError as error:
            refusals.append(error)

    connection.send(ApiVersionsRequest(), retry)
    await until(lambda: scene.requests)
    await server.stop()
    await until(lambda: refusals)
    assert len(refusals) == 1


@simulated
async def test_a_request_that_cannot_be_packed_leaves_nothing_behind(scene: Scene) -> None:
    server = await scene.serve(answers_at_once=False)
    connection = await scene.client()
    replies: Replies = []
    broken: Any = FetchRequest(replica_id=2**70)
    with pytest.raises(OverflowError):
        connection.send(broken, replies.append)
    await server.stop()
    await until(lambda: connection.closed)
    assert not replies, "the request was never sent"


# -------------------------------------------------------------------------------------------------------- deadlines
@simulated
async def test_no_answer_within_the_deadline_names_api_and_peer(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    began = scene.world.loop.time()
    with pytest.raises(RequestTimedOut, match="API_VERSIONS was not answered by server:9092 within 700 ms"):
        await connection.request(ApiVersionsRequest(), 700)
    assert scene.world.loop.time() - began == pytest.approx(0.7, abs=0.01)


@simulated
async def test_a_reply_counts_that_comes_together_with_its_deadline(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that stood still finds both at once."""
    await scene.serve()
    connection = await scene.client()
    send = connection.send

    def answer_at_once(body: ApiVersionsRequest, on_reply: Any) -> int:
        asyncio.get_running_loop().call_soon(on_reply, numbered(7))
        return send(body, lambda reply: None)

    monkeypatch.setattr(connection, "send", answer_at_once)
    assert await connection.request(ApiVersionsRequest(), timeout_ms=0) == numbered(7)


@simulated
async def test_a_late_reply_is_dropped_and_the_connection_stays_usable(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    with pytest.raises(RequestTimedOut):
        await connection.request(ApiVersionsRequest(), 100)
    scene.requests[0].respond(numbered(0))
    asking = asyncio.ensure_future(connection.request(ApiVersionsRequest(), 1_000))
    await until(lambda: len(scene.requests) == 2)
    scene.requests[1].respond(numbered(1))
    assert await asking == numbered(1)
    assert not connection.closed


@simulated
async def test_a_forgotten_request_is_never_answered(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    replies: Replies = []
    connection.forget(connection.send(ApiVersionsRequest(), replies.append))
    await until(lambda: scene.requests)
    scene.requests[0].respond(numbered(0))
    await asyncio.sleep(1)
    await connection.close()
    assert not replies


@simulated
async def test_more_requests_than_may_wait_are_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may call a client ten thousand times at once: that is no bug of ours."""
    monkeypatch.setattr(rpc, "PENDING_MAX", 2)
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    for _ in range(2):
        connection.send(ApiVersionsRequest(), lambda reply: None)
    with pytest.raises(RpcError, match=f"more than 2 requests wait for {HOST}:{PORT}"):
        await connection.request(ApiVersionsRequest(), 1_000)


@simulated
async def test_a_cancelled_request_is_forgotten(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    connection = await scene.client()
    asking = asyncio.ensure_future(connection.request(ApiVersionsRequest(), 10_000))
    await until(lambda: scene.requests)
    asking.cancel()
    assert connection.is_waited_on
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert not connection.is_waited_on, "a silent connection that nothing waits for is closed by its owner"
    scene.requests[0].respond(numbered(0))
    await asyncio.sleep(1)
    assert not connection.closed


# ------------------------------------------------------------------------------------------------------ broken peers
class Answering(asyncio.BufferedProtocol):
    """A server that answers the first bytes it gets with bytes of the test's choice."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._room = bytearray(4096)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._transport.write(self._answer)

    def eof_received(self) -> bool:
        return False


BROKEN = {
    "not msgpack": framed(b"\xc1\xc1\xc1"),
    "no array": framed(b"\x80"),
    "an unfinished body": framed(b"\x92\x00\x81\xa1a"),
    "a huge length": b"\xff\xff\xff\xff",
    "a field of another type": framed(bytes(msgpack.packb([0, {"api_keys": 5}]))),
}


@pytest.mark.parametrize("name", BROKEN)
@simulated
async def test_a_peer_that_breaks_the_protocol_ends_the_connection(scene: Scene, name: str) -> None:
    network = scene.world.runtime(HOST).network
    await network.listen(lambda: Answering(BROKEN[name]), HOST, PORT)
    connection = await scene.client()
    replies: list[Replies] = [[], []]
    for kept in replies:
        connection.send(ApiVersionsRequest(), kept.append)
    await until(lambda: connection.closed)
    await asyncio.sleep(1)
    assert [len(kept) for kept in replies] == [1, 1]
    assert isinstance(replies[0][0], PeerBroken)
    assert "server:9092 broke the protocol" in str(replies[0][0])


@simulated
async def test_an_answer_without_a_request_is_dropped(scene: Scene) -> None:
    """As after a deadline, or for the refusal of a request without reply."""
    stray = b"".join(bytes(piece) for piece in encode_response(rpc.WITHOUT_REPLY, Response(error_code=42)))
    network = scene.world.runtime(HOST).network
    await network.listen(lambda: Answering(stray), HOST, PORT)
    connection = await scene.client()
    connection.send_without_reply(ApiVersionsRequest())
    await asyncio.sleep(1)
    assert not connection.closed


@simulated
async def test_correlation_ids_wrap_and_never_equal_the_one_without_reply(scene: Scene) -> None:
    await scene.serve()
    connection = await scene.client()
    connection._next_correlation_id = rpc.WITHOUT_REPLY - 1
    ids = [connection.send(ApiVersionsRequest(), lambda reply: None) for _ in range(3)]
    assert ids == [rpc.WITHOUT_REPLY - 1, 0, 1]


@simulated
async def test_a_refused_connection_names_the_address(scene: Scene) -> None:
    network = scene.world.runtime("client").network
    scene.world.runtime(HOST)
    with pytest.raises(Exception, match="server:9092"):
        await connect(network, HOST, PORT, client_id="c", timeout_ms=500)
