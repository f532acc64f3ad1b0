"""Limits of all peers together: small requests are served, large ones wait, stuck connections are closed."""

import asyncio
import itertools
import re
import struct

import msgpack
import pytest

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import ApiKey, ApiVersionsResponse
from minibroker.runtime.server.peer_fault_log import LINES_MAX
from minibroker.runtime.server.server import ServerLimits
from minibroker.runtime.server.server_limits import (
    DECODED_GROWTH,
    HEAVY_BYTES_PER_SECOND,
    HEAVY_WAITING_MAX_BYTES,
    LIGHT_REQUEST_MAX_BYTES,
    PARTITION_MEMORY_BYTES,
    REQUEST_MEMORY_BYTES,
    SMALL_WAIT_BYTES,
    STUCK_FRAME_MS,
    STUCK_READER_MS,
)
from tests.runtime.wire_scene import (
    PROBE,
    Peer,
    Scene,
    ask_fetch,
    framed,
    is_served,
    light,
    packed,
    simulated,
    sized,
    until,
)

KIB, MIB = 1024, 1024 * 1024
NARROW = ServerLimits(receive_budget_bytes=3 * MIB, broker_reserve_bytes=MIB)
"""Two MiB for clients, one for brokers."""


def large_part(size: int, of: int = 8 * MIB) -> bytes:
    """The beginning of a Produce that never ends."""
    return struct.pack(">I", of) + b"\x95\x00" + b"\x00" * (size - 6)


def answer_of(size: int) -> bytes:
    return framed(b"\x92\x01" + bytes(msgpack.packb({"filler": b"y" * size})))


# ----------------------------------------------------------------------------------------------------- receive buffers
@simulated
async def test_a_spent_budget_stops_only_those_that_want_more(scene: Scene) -> None:
    server = await scene.serve(NARROW)
    modest = await scene.peer("modest")
    greedy = [await scene.peer(f"greedy-{n}") for n in range(6)]
    for peer in greedy:
        peer.send(large_part(MIB))
    await asyncio.sleep(STUCK_FRAME_MS / 2000)
    assert server.budget.used_bytes <= 2 * MIB
    assert not any(peer.closed for peer in greedy)
    assert await is_served(modest) < 0.1


@simulated
async def test_brokers_keep_their_reserve(scene: Scene) -> None:
    server = await scene.serve(NARROW)
    broker = await scene.peer("broker")
    assert await is_served(broker) < 0.1
    scene.connection_of(broker).mark_as_broker()
    for n in range(6):
        (await scene.peer(f"greedy-{n}")).send(large_part(MIB))
    await asyncio.sleep(0.2)
    began = scene.world.loop.time()
    broker.send(sized(500 * KIB, 1, ApiKey.LEADER_AND_ISR), light(2))
    await until(lambda: (2, {}) in [(number, {}) for number, _ in broker.answers])
    assert scene.world.loop.time() - began < 0.1
    assert server.budget.used_bytes <= 3 * MIB


@simulated
async def test_while_memory_is_short_connections_with_slow_frames_are_closed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """A huge but complete request is handled after a few seconds, not after the 30 that half a frame may take."""
    server = await scene.serve(NARROW)
    greedy = [await scene.peer(f"greedy-{n}") for n in range(6)]
    for peer in greedy:
        peer.send(large_part(MIB))
    await asyncio.sleep(0.2)
    honest = await scene.peer("honest")
    began = scene.world.loop.time()
    honest.send(packed(ApiKey.PRODUCE, {"topic_data": [], "filler": b"x" * 600 * KIB}, 5))
    await until(lambda: honest.answers)
    assert scene.world.loop.time() - began < 4 * STUCK_FRAME_MS / 1000
    gone = [connection.peer for connection in scene.closed]
    lines = [re.sub(r"connection \d+ from", "connection from", record.getMessage()) for record in caplog.records]
    assert gone
    assert sorted(lines) == sorted(
        f"closing connection from {name}: its request takes too long to come while memory for requests is short"
        for name in gone
    )
    assert not honest.closed
    assert server.budget.used_bytes <= 2 * MIB


@simulated
async def test_a_request_of_usual_size_does_not_wait_for_huge_ones(scene: Scene) -> None:
    await scene.serve(NARROW)
    for n in range(2):
        (await scene.peer(f"greedy-{n}")).send(large_part(MIB))
    await asyncio.sleep(0.2)
    honest = await scene.peer("honest")
    honest.send(packed(ApiKey.PRODUCE, {"topic_data": [], "filler": b"x" * 100 * KIB}, 5))
    await until(lambda: honest.answers, 0.2)


@simulated
async def test_half_frames_are_left_alone_while_memory_is_plenty(scene: Scene) -> None:
    await scene.serve(NARROW)
    peer = await scene.peer()
    peer.send(large_part(100 * KIB))
    await asyncio.sleep(5 * STUCK_FRAME_MS / 1000)
    assert not peer.closed


@simulated
async def test_buffers_of_idle_connections_are_taken_first(scene: Scene) -> None:
    server = await scene.serve(NARROW)
    idle = [await scene.peer(f"idle-{n}") for n in range(5)]
    for peer in idle:
        peer.send(packed(ApiKey.PRODUCE, {"filler": b"x" * 200 * KIB}, 1))
        await until(lambda p=peer: p.answers)  # type: ignore[misc]
    busy = await scene.peer("busy")
    busy.send(packed(ApiKey.PRODUCE, {"filler": b"x" * 1400 * KIB}, 1))
    await until(lambda: busy.answers, 0.5)
    assert not any(peer.closed for peer in idle)
    assert server.budget.used_bytes <= 2 * MIB


# ------------------------------------------------------------------------------------------------------ large requests
@simulated
async def test_large_requests_are_handled_one_at_a_time_the_smallest_first(scene: Scene) -> None:
    await scene.serve()
    sizes = [600 * KIB, 900 * KIB, 20 * KIB, 300 * KIB, 6 * KIB]
    for index, size in enumerate(sizes):
        (await scene.peer(f"peer-{index}")).send(sized(size, index))
        await asyncio.sleep(0.02)
    neighbour = await scene.peer("neighbour")
    while len(scene.requests) < len(sizes):
        assert await is_served(neighbour) < 0.1
        scene.requests[:] = [request for request in scene.requests if request.correlation_id != PROBE]
    assert [request.correlation_id for request in scene.requests] == [0, 4, 2, 3, 1], "the first did not have to wait"


@simulated
async def test_large_requests_leave_time_for_others(scene: Scene) -> None:
    await scene.serve()
    handled: list[float] = []
    scene.server.after_requests = lambda: handled.append(scene.world.loop.time())
    for index in range(5):
        (await scene.peer(f"peer-{index}")).send(sized(512 * KIB, index))
    await until(lambda: len(handled) == 5)
    pauses = [after - before for before, after in itertools.pairwise(handled)]
    assert min(pauses) >= 512 * KIB / HEAVY_BYTES_PER_SECOND


@simulated
async def test_a_closed_connection_does_not_take_the_slot_of_large_requests(scene: Scene) -> None:
    await scene.serve()
    last = await scene.peer("last")
    for index in range(20):
        peer = await scene.peer(f"gone-{index}")
        peer.send(sized(900 * KIB, index))
        await asyncio.sleep(0.1 if index == 0 else 0.002)
        if index:
            peer.transport.abort()
    last.send(sized(901 * KIB, 99))
    await until(lambda: last.answers, 2 * 900 * KIB / HEAVY_BYTES_PER_SECOND)


@simulated
async def test_of_too_many_large_requests_the_largest_are_closed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    await scene.serve()
    sizes = [(900 - n) * KIB if n % 2 else (500 + n) * KIB for n in range(30)]
    peers = [await scene.peer(f"peer-{n}") for n in range(30)]
    for index, (peer, size) in enumerate(zip(peers, sizes, strict=True)):
        peer.send(sized(size, index))
    small = await scene.peer("small")
    await asyncio.sleep(0.3)
    began = scene.world.loop.time()
    small.send(sized(10 * KIB, 99))
    await until(lambda: small.answers)
    assert scene.world.loop.time() - began < 0.5
    await until(lambda: all(peer.closed or peer.answers for peer in peers))
    served = [size for peer, size in zip(peers, sizes, strict=True) if peer.answers]
    closed = [size for peer, size in zip(peers, sizes, strict=True) if peer.closed]
    assert sum(served) >= HEAVY_WAITING_MAX_BYTES * 3 // 4
    assert closed
    assert sorted(closed)[len(closed) // 2] > sorted(served)[len(served) // 2]
    lines = [re.sub(r"connection \d+ from", "connection from", record.getMessage()) for record in caplog.records]
    assert len(lines) == min(len(closed), LINES_MAX)
    assert all("is one too many while large requests wait" in line for line in lines)
    assert scene.server.budget.used_bytes < 10 * MIB


@simulated
async def test_small_questions_with_large_answers_are_large_requests(scene: Scene) -> None:
    """Metadata of all topics, and our own DescribeReplicaState; never a Produce."""
    await scene.serve(ServerLimits(unread_replies_max_bytes=100 * KIB), answers_at_once=False)
    slow = await scene.peer("slow")
    slow.stop_reading()
    asked = await ask_fetch(scene, slow)
    asked.respond_frame([answer_of(600 * KIB)])
    peers = {key: await scene.peer(f"asks-{key}") for key in (3, 32, 1000, 0, 18)}
    for key, peer in peers.items():
        peer.send(packed(key, {}))
    await asyncio.sleep(STUCK_READER_MS / 2000)
    assert sorted(request.api_key for request in scene.requests[1:]) == [0, 18], "no memory for large answers now"
    await until(lambda: len(scene.requests) == 6)


@simulated
async def test_requests_between_brokers_do_not_wait_for_large_requests(scene: Scene) -> None:
    """The controller's first request on a connection, while large requests of others wait."""
    await scene.serve()
    for index in range(6):
        (await scene.peer(f"large-{index}")).send(sized(900 * KIB, index))
    controller = await scene.peer("controller")
    await asyncio.sleep(0.05)
    orders = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": 1, "filler": b"x" * 200 * KIB}
    for number, key in enumerate((ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA)):
        controller.send(packed(key, orders, number))
    await until(lambda: len(controller.answers) == 3, 0.1)


# ---------------------------------------------------------------------------------------------------- waiting requests
@simulated
async def test_many_partitions_may_wait_only_up_to_the_limit(scene: Scene) -> None:
    server = await scene.serve(ServerLimits(waiting_max_bytes=MIB), answers_at_once=False)
    refused = 0
    for index in range(20):
        peer = await scene.peer(f"peer-{index}")
        request = await ask_fetch(scene, peer)
        if not request.delay(partitions=100 * KIB // PARTITION_MEMORY_BYTES):
            refused += 1
            request.respond(ApiVersionsResponse())
    assert refused
    assert server.delayed_cost_bytes <= MIB
    small = await ask_fetch(scene, await scene.peer("small"))
    assert small.delay(partitions=SMALL_WAIT_BYTES // PARTITION_MEMORY_BYTES), "a small one may always wait"
    broker = await scene.peer("broker")
    request = await ask_fetch(scene, broker)
    request.connection.mark_as_broker()
    before = server.delayed_cost_bytes
    assert request.delay(partitions=10_000)
    assert server.delayed_cost_bytes == before, "clients' limits do not apply to brokers"
    for request in scene.requests[:-1]:
        if not request._ended:
            request.respond(ApiVersionsResponse())


@simulated
async def test_while_too_much_waits_a_connection_has_one_request_at_a_time(scene: Scene) -> None:
    limit = 4 * REQUEST_MEMORY_BYTES + 4 * DECODED_GROWTH * len(light())
    await scene.serve(ServerLimits(waiting_max_bytes=limit), answers_at_once=False)
    many = await scene.peer("many")
    many.send(*(light(n) for n in range(20)))
    await asyncio.sleep(0.5)
    taken = len(scene.requests)
    assert taken < 20
    one = await scene.peer("one")
    one.send(light(100), light(101))
    await until(lambda: len(scene.requests) == taken + 1)
    await asyncio.sleep(0.5)
    assert [request.correlation_id for request in scene.requests[taken:]] == [100]
    while len(scene.requests) < 22 or any(not request._ended for request in scene.requests):
        for request in scene.requests:
            if not request._ended:
                request.respond(ApiVersionsResponse())
        await asyncio.sleep(0.01)
    assert [request.correlation_id for request in scene.requests if request.correlation_id < 50] == list(range(20))
    assert scene.server.delayed_cost_bytes == 0


@simulated
async def test_a_thousand_idle_consumers_are_no_overload(scene: Scene) -> None:
    server = await scene.serve(ServerLimits(waiting_max_bytes=64 * KIB), answers_at_once=False)
    for index in range(100):
        request = await ask_fetch(scene, await scene.peer(f"consumer-{index}"))
        assert request.delay(partitions=10)
    assert server.delayed_cost_bytes > 2 * 64 * KIB
    producer = await scene.peer("producer")
    producer.send(*(light(n) for n in range(5)))
    await until(lambda: len(scene.requests) == 105, 0.1)


@simulated
async def test_questions_are_answered_while_too_much_waits(scene: Scene) -> None:
    """Requests about the cluster must not wait for delayed fetches."""
    server = await scene.serve(ServerLimits(waiting_max_bytes=64 * KIB), answers_at_once=False)
    for index in range(3):
        crowd = await scene.peer(f"crowd-{index}")
        crowd.send(packed(ApiKey.FETCH, {}) * 40)
    await asyncio.sleep(0.2)
    assert server.waiting.is_full
    newcomer = await scene.peer("newcomer")
    newcomer.send(packed(ApiKey.METADATA, {}, 9))
    await until(lambda: scene.requests[-1].api_key == ApiKey.METADATA, 0.1)


@simulated
async def test_a_large_request_is_refused_where_too_much_waits(scene: Scene) -> None:
    """It can be retried; a Produce is never refused here, because its sender may expect no answer."""
    server = await scene.serve(answers_at_once=False)
    peers = [await scene.peer(f"peer-{n}") for n in range(3)]
    for number, peer in enumerate(peers):
        peer.send(sized(150 * KIB, number, ApiKey.DELETE_TOPICS))
    await until(lambda: all(peer.answers or server.delayed_cost_bytes for peer in peers) and len(peers[2].answers) == 1)
    assert [body["error_code"] for _, body in peers[2].answers] == [ErrorCode.REQUEST_TIMED_OUT]
    assert len(scene.requests) == 1
    peers[2].send(sized(150 * KIB, 7, ApiKey.PRODUCE))
    await until(lambda: len(scene.requests) == 2)
    scene.requests[0].respond(ApiVersionsResponse())
    peers[1].send(sized(150 * KIB, 8, ApiKey.DELETE_TOPICS))
    await until(lambda: len(scene.requests) == 3)
    for request in scene.requests[1:]:
        request.respond(ApiVersionsResponse())
    assert server.delayed_cost_bytes == 0


@simulated
async def test_no_request_of_a_muted_connection_is_handled(scene: Scene) -> None:
    """A request that should have waited was answered at once: the next one must not be handled earlier for that."""
    await scene.serve(answers_at_once=False)
    peer, neighbour = await scene.peer(), await scene.peer("neighbour")
    request = await ask_fetch(scene, peer)
    request.respond(ApiVersionsResponse())
    request.connection.mute(3.0)
    peer.send(light(5), light(6))
    neighbour.send(light(7))
    await asyncio.sleep(2.9)
    assert [request.correlation_id for request in scene.requests[1:]] == [7]
    await asyncio.sleep(0.2)
    assert [request.correlation_id for request in scene.requests[1:]] == [7, 5, 6]


# ------------------------------------------------------------------------------------------------------ unread replies
@simulated
async def test_one_reply_may_take_half_of_what_is_left(scene: Scene) -> None:
    server = await scene.serve(ServerLimits(unread_replies_max_bytes=4 * MIB), answers_at_once=False)
    assert server.reply_room() == 2 * MIB
    slow = await scene.peer("slow")
    slow.stop_reading()
    (await ask_fetch(scene, slow)).respond_frame([answer_of(2 * MIB)])
    await asyncio.sleep(0.01)
    left = 4 * MIB - scene.connection_of(slow).unread_bytes(0.0)
    assert server.reply_room() == left // 2
    slow.start_reading()
    await until(lambda: server.reply_room() == 2 * MIB)


@simulated
async def test_a_peer_that_reads_nothing_is_closed_when_memory_is_short(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    server = await scene.serve(ServerLimits(unread_replies_max_bytes=2 * MIB), answers_at_once=False)
    reader, *stuck = [await scene.peer(f"peer-{n}") for n in range(5)]
    for peer in stuck:
        peer.stop_reading()
        (await ask_fetch(scene, peer)).respond_frame([answer_of(MIB)])
    assert server.reply_room() == 0
    assert await asyncio.wait_for(_served_at_once(scene, reader), 0.2), "light requests go on"
    await until(lambda: server.reply_room() > 0, 2 * STUCK_READER_MS / 1000)
    gone = [connection.peer for connection in scene.closed]
    assert 0 < len(gone) < 4, "no more than necessary"
    lines = [re.sub(r"connection \d+ from", "connection from", record.getMessage()) for record in caplog.records]
    assert len(lines) == len(gone)
    assert all("unread while memory for replies is short" in line for line in lines)
    assert reader.name not in gone


async def _served_at_once(scene: Scene, peer: Peer) -> bool:
    before = len(scene.requests)
    peer.send(light(1))
    await until(lambda: len(scene.requests) > before)
    scene.requests[-1].respond(ApiVersionsResponse())
    await until(lambda: peer.answers)
    return True


@simulated
async def test_a_peer_that_reads_slowly_is_not_closed(scene: Scene) -> None:
    server = await scene.serve(ServerLimits(unread_replies_max_bytes=2 * MIB), answers_at_once=False)
    slow = await scene.peer("slow")
    (await ask_fetch(scene, slow)).respond_frame([answer_of(3 * MIB)])
    slow.stop_reading()
    await asyncio.sleep(0.01)
    assert server.reply_room() == 0
    for _ in range(12):
        slow.start_reading()
        await asyncio.sleep(0.0001)
        slow.stop_reading()
        await asyncio.sleep(STUCK_READER_MS / 2000)
    assert not slow.closed
    slow.start_reading()
    await until(lambda: slow.answers)


@simulated
async def test_replies_to_brokers_are_not_counted(scene: Scene) -> None:
    server = await scene.serve(ServerLimits(unread_replies_max_bytes=2 * MIB), answers_at_once=False)
    broker = await scene.peer("broker")
    request = await ask_fetch(scene, broker)
    request.connection.mark_as_broker()
    broker.stop_reading()
    request.respond_frame([answer_of(5 * MIB)])
    await asyncio.sleep(1)
    assert server.reply_room() == MIB
    assert not broker.closed


@simulated
async def test_what_a_broker_was_sent_before_it_proved_to_be_one_is_not_counted_either(scene: Scene) -> None:
    """It was a client's connection when the challenge was sent, so it was on the list of those with unread replies. Its
    next reply was records, on a slow link: they counted as a client's, and as such of a reader that had stood still for
    ever, so the connection was closed, again after each new authentication."""
    server = await scene.serve(ServerLimits(unread_replies_max_bytes=2 * MIB), answers_at_once=False)
    broker = await scene.peer("broker")
    challenge = await ask_fetch(scene, broker)
    challenge.respond_frame([answer_of(KIB)])
    await until(lambda: broker.answers)
    request = await ask_fetch(scene, broker)
    request.connection.mark_as_broker()
    broker.stop_reading()
    request.respond_frame([answer_of(5 * MIB)])
    await asyncio.sleep(STUCK_READER_MS / 2000)
    assert server.reply_room() == MIB
    await asyncio.sleep(1)
    assert not broker.closed


# ------------------------------------------------------------------------------------------------------------- figures
def test_a_light_request_fits_in_the_buffer_of_every_connection() -> None:
    from minibroker.protocol.wire.framing import INITIAL_BUFFER_BYTES

    assert LIGHT_REQUEST_MAX_BYTES <= INITIAL_BUFFER_BYTES


def test_clients_together_stay_below_64_mib() -> None:
    limits = ServerLimits()
    receive = limits.receive_budget_bytes - limits.broker_reserve_bytes
    small_ones = limits.connections_max * (SMALL_WAIT_BYTES + REQUEST_MEMORY_BYTES)
    waiting = limits.waiting_max_bytes + small_ones
    assert receive + limits.frame_max_bytes + waiting + limits.unread_replies_max_bytes <= 64 * MIB
