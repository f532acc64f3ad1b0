"""The answering half of the wire, against peers that do what they should not (what they may take: test_overload)."""

import asyncio
import itertools
import logging
import re
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from minibroker.runtime.server.server import IncomingRequest, ServerLimits
from minibroker.runtime.server.server_limits import (
    ITERATION_COST,
    REQUEST_LOOP_COST,
    REQUESTS_IN_FLIGHT_MAX,
    SWEEP_INTERVAL_MS,
)
from minibroker.simulation.world.world import SimulatedWorld
from tests.runtime.wire_scene import Peer, Scene, framed, light, packed, simulated, sized, until

SWEEP = SWEEP_INTERVAL_MS / 1000
PRODUCE = ProduceRequest(
    topic_data=[ProduceTopic(name="t", partition_data=[ProducePartition(index=0, records=bytearray())])]
)


def lines_about(peer: Peer, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without the connection's number, which the test does not know."""
    lines = [record.getMessage() for record in caplog.records if peer.name in record.getMessage()]
    return [re.sub(r"connection \d+ from", "connection from", line) for line in lines]


async def still_answers(peer: Peer) -> bool:
    """Whether the connection stays open."""
    peer.send(light(4711))
    await until(lambda: peer.closed or any(number == 4711 for number, _ in peer.answers))
    return not peer.closed


# ------------------------------------------------------------------------------------------------------- bad requests
@pytest.mark.parametrize(("key", "version"), [(9999, 0), (10, 0), (-1, 0), (2**40, 0), (3, 1), (0, 7), (3, -1)])
@simulated
async def test_an_unknown_api_or_version_is_answered_and_the_connection_stays(
    scene: Scene, key: int, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    peer = await scene.peer()
    for number in (5, 6):
        peer.send(packed(key, {}, correlation_id=number, version=version))
    await until(lambda: len(peer.answers) == 2)
    assert [number for number, _ in peer.answers] == [5, 6]
    assert all(body["error_code"] == ErrorCode.UNSUPPORTED_VERSION for _, body in peer.answers)
    assert f"api key {key} version {version}" in peer.answers[0][1]["error_message"]
    assert await still_answers(peer)
    assert len(lines_about(peer, caplog)) == 1


MALFORMED: dict[str, bytes] = {
    "a list for a map": packed(ApiKey.LIST_OFFSETS, [1, 2], 9),
    "a text for a number": packed(ApiKey.FETCH, {"max_wait_ms": "long"}, 9),
    "a number above its range": packed(ApiKey.FETCH, {"max_wait_ms": 2**31}, 9),
    "a text that is too long": packed(ApiKey.CREATE_TOPICS, {"topics": [{"name": "x" * 250}]}, 9),
    "a list that is too long": packed(ApiKey.DELETE_TOPICS, {"topic_names": ["x"] * 10_001}, 9),
    "a field is missing": packed(ApiKey.FETCH, {"topics": [{"partitions": []}]}, 9),
    "a text that is not UTF-8": framed(b"\x95\x03\x00\x09\xa1c\x81\xa6topics\x91\x81\xa4name\xa2\xff\xfe"),
}


@pytest.mark.parametrize("name", MALFORMED)
@simulated
async def test_a_malformed_body_is_answered_and_the_connection_stays(
    scene: Scene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    peer = await scene.peer()
    for _ in range(3):
        peer.send(MALFORMED[name])
    await until(lambda: len(peer.answers) == 3)
    assert [number for number, _ in peer.answers] == [9, 9, 9]
    assert all(body["error_code"] == ErrorCode.INVALID_REQUEST for _, body in peer.answers)
    assert all("malformed request" in body["error_message"] for _, body in peer.answers)
    assert await still_answers(peer)
    assert len(lines_about(peer, caplog)) == 1
    assert scene.server.delayed_cost_bytes == 0


@simulated
async def test_a_malformed_produce_is_answered_and_closed(scene: Scene) -> None:
    """With acks=0 its sender expects no answer: only the end of the connection is sure to inform it."""
    await scene.serve()
    peer = await scene.peer()
    peer.send(packed(ApiKey.PRODUCE, {"acks": "all"}, 3), light())
    await until(lambda: peer.closed)
    assert [(number, body["error_code"]) for number, body in peer.answers] == [(3, ErrorCode.INVALID_REQUEST)]
    assert not scene.requests, "later bytes are not handled"


# --------------------------------------------------------------------------------------------------- broken framing
BROKEN: dict[str, tuple[bytes, int]] = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", -1),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 600, -1),
    "a huge length": (b"\xff\xff\xff\xff", -1),
    "a length above the limit": (struct.pack(">I", 16 * 1024 * 1024 + 1), -1),
    "a large request without records": (struct.pack(">I", 1024 * 1024 + 1) + b"\x95\x03\x00\x01\xa1c\x80\x00", -1),
    "an empty frame": (framed(b""), -1),
    "no array": (framed(b"\x80"), -1),
    "an array of four": (framed(bytes(msgpack.packb([3, 0, 1, "c"]))), -1),
    "bytes behind the body": (framed(bytes(msgpack.packb([3, 0, 1, "c", {}])) + b"\x00"), -1),
    "a client id too long": (packed(3, {}, 77).replace(b"\xa4peer", b"\xda\x01\x01" + b"c" * 257), -1),
    "a body nested too deep": (framed(b"\x95\x01\x00\x09\xa1c\x81\xa3new" + b"\x91" * 50_000 + b"\x90"), -1),
    "nested lists": (framed(b"\x91" * 100_000), -1),
}


@pytest.mark.parametrize("name", BROKEN)
@simulated
async def test_broken_framing_is_answered_closed_and_logged_once(
    scene: Scene, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    neighbour, peer = await scene.peer("neighbour"), await scene.peer()
    data, correlation_id = BROKEN[name]
    if name == "a client id too long":
        data = framed(data[4:])
    peer.send(data)
    await until(lambda: peer.closed)
    assert [(number, body["error_code"]) for number, body in peer.answers] == [
        (correlation_id, ErrorCode.INVALID_REQUEST)
    ]
    (line,) = lines_about(peer, caplog)
    assert "broke the protocol" in line
    assert await still_answers(neighbour)
    assert not lines_about(neighbour, caplog)
    assert scene.server.budget.used_bytes == 0


@simulated
async def test_requests_before_the_broken_bytes_are_answered(scene: Scene) -> None:
    await scene.serve()
    peer = await scene.peer()
    peer.send(light(1), light(2), b"\xff\xff\xff\xff", light(3))
    await until(lambda: peer.closed)
    assert [number for number, _ in peer.answers] == [1, 2, -1]
    assert len(scene.requests) == 2


# ---------------------------------------------------------------------------------------------------------- deadlines
@simulated
async def test_half_a_frame_is_closed_at_its_deadline(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.serve(ServerLimits(frame_deadline_ms=5_000))
    peer = await scene.peer()
    peer.send(sized(20_000)[:10_000])
    await asyncio.sleep(4.9)
    assert not peer.closed
    await until(lambda: peer.closed, 0.2 + 2 * SWEEP)
    assert lines_about(peer, caplog) == [f"closing connection from {peer.name}: half a frame for 5000 ms"]
    assert scene.server.budget.used_bytes == 0


@simulated
async def test_a_frame_that_trickles_is_closed_at_its_deadline_too(scene: Scene) -> None:
    await scene.serve(ServerLimits(frame_deadline_ms=5_000))
    peer = await scene.peer()
    began = scene.world.loop.time()
    for byte in light() * 200:
        if peer.closed:
            break
        peer.send(bytes((byte,)))
        await asyncio.sleep(1)
    assert peer.closed
    assert scene.world.loop.time() - began < 5 + 2 * SWEEP + 2


@simulated
async def test_requests_that_come_slowly_one_after_the_other_are_not_half_a_frame(scene: Scene) -> None:
    await scene.serve(ServerLimits(frame_deadline_ms=5_000))
    peer = await scene.peer()
    frame = light()
    peer.send(frame[:10])
    for _ in range(10):
        await asyncio.sleep(4)
        peer.send(frame[10:], frame[:10])
    await until(lambda: len(scene.requests) == 10)
    assert not peer.closed


@simulated
async def test_a_peer_that_reads_no_replies_is_closed_and_others_are_undisturbed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve(ServerLimits(write_deadline_ms=5_000), answers_at_once=False)
    neighbour, peer = await scene.peer("neighbour"), await scene.peer()
    peer.stop_reading()
    peer.send(light())
    await until(lambda: scene.requests)
    scene.requests[0].respond_frame([framed(b"\x92\x01" + bytes(msgpack.packb({"x": b"y" * 500_000})))])
    for number in range(40):
        neighbour.send(light(number))
        await until(lambda n=number: len(scene.requests) == n + 2)  # type: ignore[misc]
        began = scene.world.loop.time()
        scene.requests[-1].respond(ApiVersionsResponse())
        await until(lambda n=number: len(neighbour.answers) == n + 1)  # type: ignore[misc]
        assert scene.world.loop.time() - began < 0.1
        await asyncio.sleep(0.25)
    await until(lambda: scene.closed)
    assert [connection.peer for connection in scene.closed] == [peer.name]
    assert lines_about(peer, caplog) == [
        f"closing connection from {peer.name}: it has not read its replies for 5000 ms"
    ]


@simulated
async def test_an_idle_connection_is_closed_without_alarm(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    await scene.serve(ServerLimits(idle_deadline_ms=60_000))
    peer = await scene.peer()
    for _ in range(3):
        await asyncio.sleep(59)
        assert await still_answers(peer)
    await until(lambda: peer.closed, 60 + 2 * SWEEP)
    assert all(record.levelno < logging.WARNING for record in caplog.records)


@simulated
async def test_a_connection_that_waits_for_an_answer_is_not_idle(scene: Scene) -> None:
    await scene.serve(ServerLimits(idle_deadline_ms=10_000), answers_at_once=False)
    peer = await scene.peer()
    peer.send(light())
    await asyncio.sleep(100)
    assert not peer.closed
    scene.requests[0].respond(ApiVersionsResponse())
    await until(lambda: peer.answers)


@simulated
async def test_a_closed_connection_whose_peer_reads_nothing_is_aborted_at_last(scene: Scene) -> None:
    """The peer broke the protocol, and reads nothing, so that its answer stays unsent."""
    await scene.serve(ServerLimits(write_deadline_ms=5_000), answers_at_once=False)
    peer = await scene.peer()
    peer.stop_reading()
    peer.send(light())
    await until(lambda: scene.requests)
    scene.requests[0].respond_frame([framed(b"\x92\x01" + bytes(msgpack.packb({"x": b"y" * 270_000})))])
    peer.send(b"\xff\xff\xff\xff")
    await until(lambda: scene.closed, 5 + 3 * SWEEP)


# ---------------------------------------------------------------------------------------------------------- pipelining
@simulated
async def test_requests_are_handled_in_order_of_arrival(scene: Scene) -> None:
    """Light and heavy, whole and in pieces."""
    await scene.serve()
    peer = await scene.peer()
    frames = [light(n) if n % 3 else sized(9_000, n) for n in range(30)]
    data = b"".join(frames)
    for start in range(0, len(data), 7_001):
        peer.send(data[start : start + 7_001])
        await asyncio.sleep(0.001)
    await until(lambda: len(scene.requests) == 30)
    assert [request.correlation_id for request in scene.requests] == list(range(30))


@simulated
async def test_all_requests_of_one_read_are_handled_before_after_requests(scene: Scene) -> None:
    """`after_requests` is called once for each read, however many requests it brought."""
    server = await scene.serve()
    counts: list[int] = []
    server.after_requests = lambda: counts.append(len(scene.requests))
    peer = await scene.peer()
    scene.world.network.latency.split_probability = 0.0
    peer.send(*(light(n) for n in range(40)))
    await until(lambda: len(scene.requests) == 40)
    assert counts == [40]
    peer.send(light()[:10])
    await asyncio.sleep(1)
    assert counts == [40], "half a request is no request"
    peer.send(light()[10:])
    await until(lambda: len(counts) == 2)


@simulated
async def test_a_buffer_full_of_requests_does_not_hold_up_others(scene: Scene) -> None:
    server = await scene.serve()
    totals: list[int] = []
    server.after_requests = lambda: totals.append(len(scene.requests))
    greedy = await scene.peer("greedy")
    greedy.send(sized(120_000), *(light(n) for n in range(3_000)))
    await until(lambda: len(scene.requests) == 3_001)
    handled = [after - before for before, after in itertools.pairwise([0, *totals])]
    assert max(handled) <= 1 + ITERATION_COST // REQUEST_LOOP_COST
    await until(lambda: len(greedy.answers) == 3_001)


@simulated
async def test_a_large_request_that_is_refused_does_not_let_those_behind_it_pass(scene: Scene) -> None:
    """It had waited for the slot of large requests, and all refused ones behind it were handled in the same turn."""
    server = await scene.serve()
    greedy = await scene.peer("greedy")
    totals: list[int] = []
    greedy.send(*2 * [sized(60_000, 0, api_key=77)], *(packed(77, {}, number) for number in range(1, 3_001)))
    await until(lambda: server.connections)
    connection = scene.connection_of(greedy)
    answered: list[object] = []
    answer = connection.answer

    def noted(pieces: Any) -> None:
        answered.append(pieces)
        answer(pieces)

    connection.answer = noted  # type: ignore[method-assign]
    server.after_requests = lambda: totals.append(len(answered))
    await until(lambda: len(greedy.answers) == 3_002)
    handled = [after - before for before, after in itertools.pairwise([0, *totals])]
    assert max(handled) <= 1 + ITERATION_COST // REQUEST_LOOP_COST


@simulated
async def test_a_connection_with_too_many_unanswered_requests_is_not_read(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    neighbour, peer = await scene.peer("neighbour"), await scene.peer()
    for number in range(REQUESTS_IN_FLIGHT_MAX + 500):
        peer.send(light(number))
    await asyncio.sleep(2)
    assert len(scene.requests) == REQUESTS_IN_FLIGHT_MAX
    neighbour.send(light())
    await until(lambda: len(scene.requests) == REQUESTS_IN_FLIGHT_MAX + 1)
    for request in scene.requests[:400]:
        request.respond(ApiVersionsResponse())
    await until(lambda: len(scene.requests) == REQUESTS_IN_FLIGHT_MAX + 1 + 400)
    assert not peer.closed


@simulated
async def test_nothing_is_handled_after_the_connection_was_closed(scene: Scene) -> None:
    """A batch with acks=0 failed: the batches after it would leave a gap."""
    server = await scene.serve()
    handled: list[IncomingRequest] = []

    def refuse_the_second(request: IncomingRequest) -> None:
        handled.append(request)
        if len(handled) == 2:
            request.close_connection("acks=0 and the batch failed")
        request.finish_without_reply()

    server.handler = refuse_the_second
    peer = await scene.peer()
    peer.send(*(light(n) for n in range(5)))
    await until(lambda: peer.closed)
    assert len(handled) == 2
    assert server.delayed_cost_bytes == 0


@simulated
async def test_a_reply_on_a_closed_connection_is_dropped(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    peer = await scene.peer()
    peer.ask(FetchRequest())
    await until(lambda: scene.requests)
    peer.transport.abort()
    await until(lambda: scene.closed)
    assert scene.server.delayed_cost_bytes > 0, "the handler still holds it"
    scene.requests[0].respond(ApiVersionsResponse())
    assert scene.server.delayed_cost_bytes == 0


@simulated
async def test_a_request_ends_once(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    peer = await scene.peer()
    peer.send(light())
    await until(lambda: scene.requests)
    scene.requests[0].respond(ApiVersionsResponse())
    with pytest.raises(AssertionError, match="ends once"):
        scene.requests[0].respond(ApiVersionsResponse())


@simulated
async def test_a_stopped_server_has_closed_everything(scene: Scene) -> None:
    server = await scene.serve(answers_at_once=False)
    peers = [await scene.peer() for _ in range(5)]
    peers[0].send(light())
    peers[1].send(light()[:5])
    peers[2].send(sized(200_000)[:100_000])
    await until(lambda: scene.requests)
    await server.stop()
    await until(lambda: all(peer.closed for peer in peers))
    scene.requests[0].respond(ApiVersionsResponse())
    assert not server.connections
    assert server.budget.used_bytes == server.delayed_cost_bytes == 0


# --------------------------------------------------------------------------------------------------------- accounting
COSTLY = [
    FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0, fetch_offset=0)])]),
    PRODUCE,
    ApiVersionsRequest(),
]


@simulated
async def test_the_memory_of_waiting_requests_is_released_however_they_end(scene: Scene) -> None:
    await scene.serve(answers_at_once=False)
    peers = [await scene.peer() for _ in range(3)]
    for peer in peers:
        for number, body in enumerate(COSTLY):
            peer.ask(body, number)
    await until(lambda: len(scene.requests) == 9)
    for request in scene.requests:
        if request.api_key == ApiKey.FETCH:
            assert request.delay(partitions=3)
    assert scene.server.delayed_cost_bytes > 0
    of = {peer.name: [r for r in scene.requests if r.connection.peer == peer.name] for peer in peers}
    for request in of[peers[0].name]:
        request.respond(ApiVersionsResponse())
    for request in of[peers[1].name]:
        request.finish_without_reply()
    scene.connection_of(peers[2]).mark_as_broker()
    peers[2].transport.abort()
    await until(lambda: scene.closed)
    for request in of[peers[2].name]:
        request.respond(ApiVersionsResponse())
    assert scene.server.delayed_cost_bytes == 0


# --------------------------------------------------------------------------------------------------------------- fuzz
PIECES = st.lists(
    st.binary(max_size=60)
    | st.sampled_from([light(), light()[:9], sized(5_000), framed(b"\xc0"), packed(3, {"topics": 1}), framed(b"")])
    | st.integers(0, 20).map(lambda size: framed(b"\x95\x03\x00\x01\xc0\x80"[:size])),
    max_size=8,
)


@given(st.lists(PIECES, min_size=1, max_size=3), st.integers(0, 2**16))
def test_arbitrary_bytes_do_not_disturb_the_server(peers: list[list[bytes]], seed: int) -> None:
    """No exception escapes, correct requests are answered, and at the end no memory is held."""
    world = SimulatedWorld(seed)

    async def play() -> None:
        scene = Scene(world)
        server = await scene.serve(ServerLimits(frame_deadline_ms=3_000))
        good = await scene.peer("good")
        for pieces in peers:
            peer = await scene.peer("bad")
            for piece in pieces:
                if not peer.closed:
                    peer.send(piece)
        assert await still_answers(good)
        await asyncio.sleep(3 + 2 * SWEEP)
        assert server.delayed_cost_bytes == server.budget.used_bytes == 0
        assert await still_answers(good)
        await server.stop()

    world.run(play())
