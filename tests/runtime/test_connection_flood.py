"""Too many connections: those without requests are closed, busy ones stay, and a flood causes few log lines."""

import asyncio

import pytest

from minibroker.protocol.wire.messages import ApiVersionsResponse
from minibroker.runtime.server.server import ServerLimits
from tests.runtime.wire_scene import Peer, Scene, ask_fetch, is_served, simulated, until

KIB, MIB = 1024, 1024 * 1024


@simulated
async def test_a_connection_without_requests_is_closed_for_a_new_one(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    server = await scene.serve(ServerLimits(connections_max=5))
    active = [await scene.peer(f"active-{n}") for n in range(2)]
    for peer in active:
        await is_served(peer)
    silent = [await scene.peer(f"silent-{n}") for n in range(3)]
    late = await scene.peer("late")
    assert await is_served(late) < 0.1
    await until(lambda: silent[0].closed)
    assert not any(peer.closed for peer in (*active, *silent[1:]))
    assert len(server.connections) == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"5 connections are open: no place, at first for {late.name}"
    ]


@simulated
async def test_a_flood_of_connections_causes_few_log_lines(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    server = await scene.serve(ServerLimits(connections_max=10))
    honest = await scene.peer("honest")
    await is_served(honest)
    for _ in range(200):
        await scene.peer("flood")
    assert await is_served(honest) < 0.1
    assert len(server.connections) == 10
    await asyncio.sleep(5)
    assert len(caplog.records) == 2
    assert "connections had no place" in caplog.records[1].getMessage()


@simulated
async def test_a_new_connection_is_refused_where_all_are_busy(scene: Scene) -> None:
    server = await scene.serve(ServerLimits(connections_max=3), answers_at_once=False)
    busy = [await scene.peer(f"busy-{n}") for n in range(3)]
    for peer in busy:
        await ask_fetch(scene, peer)
    late = await scene.peer("late")
    await until(lambda: late.closed)
    assert not any(peer.closed for peer in busy)
    for request in scene.requests:
        request.respond(ApiVersionsResponse())
    await asyncio.sleep(6)
    await is_asked(scene, busy[2])
    another = await scene.peer("another")
    await is_asked(scene, another)
    assert busy[0].closed != busy[1].closed, "one of those that were idle longest"
    assert len(server.connections) == 3


@simulated
async def test_a_broker_gets_a_place_where_all_are_busy(scene: Scene) -> None:
    limits = ServerLimits(connections_max=3, broker_places=2)
    server = await scene.serve(limits, answers_at_once=False)
    busy = [await scene.peer(f"busy-{n}") for n in range(3)]
    for peer in busy:
        await ask_fetch(scene, peer)
    first, second, third = [await scene.peer(f"late-{n}") for n in range(3)]
    await until(lambda: first.closed)
    (await ask_fetch(scene, third)).connection.mark_as_broker()
    await until(lambda: second.closed, seconds=5)
    fourth, fifth = [await scene.peer(f"late-{n}") for n in range(4, 6)]
    await asyncio.sleep(5)
    assert (fourth.closed, fifth.closed) == (True, True), "neither proves within two seconds that it is a broker"
    assert not any(peer.closed for peer in (*busy, third))
    assert len(server.connections) == 4


async def is_asked(scene: Scene, peer: Peer) -> None:
    (await ask_fetch(scene, peer)).respond(ApiVersionsResponse())


@simulated
async def test_a_client_in_a_place_for_brokers_stays_if_another_place_is_free_by_then(scene: Scene) -> None:
    """It was closed after two seconds because all places were taken, though half of them were not any more."""
    server = await scene.serve(ServerLimits(connections_max=3, broker_places=2), answers_at_once=False)
    busy = [await scene.peer(f"busy-{n}") for n in range(3)]
    for peer in busy:
        await ask_fetch(scene, peer)
    first, second = await scene.peer("first"), await scene.peer("second")
    for peer in (first, second):
        await ask_fetch(scene, peer)
    busy[0].transport.abort()
    await until(lambda: len(server.connections) == 4)
    await until(lambda: second.closed, 10)
    await asyncio.sleep(10)
    assert not first.closed
    assert len(server.connections) == 3
