"""Connections that find nothing left of a loop iteration: they take turns, and each is woken when it is due."""

import pytest

from minibroker.protocol.wire.framing import FrameReceiver
from minibroker.protocol.wire.messages import ApiKey
from minibroker.runtime.server.loop_iteration import LoopIteration
from minibroker.runtime.server.server import ServerConnection
from tests.runtime.wire_scene import PROBE, Scene, is_served, light, packed, simulated, sized, until

BUFFERFUL = [sized(500, n) for n in range(7)]
"""As many requests as fit in the buffer that every connection has."""


def receive(connection: ServerConnection, data: bytes) -> None:
    """The connection receives this now."""
    connection.get_buffer(len(data))[: len(data)] = data
    connection.buffer_updated(len(data))


async def crowd_of(scene: Scene, size: int) -> list[ServerConnection]:
    return [scene.connection_of(await scene.peer(f"crowd-{n}")) for n in range(size)]


@simulated
async def test_a_newcomer_waits_for_one_turn_of_each_connection(scene: Scene) -> None:
    await scene.serve()
    crowd = await crowd_of(scene, 300)
    newcomer = scene.connection_of(await scene.peer("newcomer"))
    for connection in crowd:
        receive(connection, b"".join(BUFFERFUL))
    receive(newcomer, light(PROBE))
    await until(lambda: len(scene.requests) == 300 * len(BUFFERFUL) + 1)
    handled = [(request.connection.id, request.correlation_id) for request in scene.requests]
    waited_for = handled.index((newcomer.id, PROBE))
    assert waited_for <= 3 * len(crowd), f"{waited_for} requests of {len(crowd)} connections went first"
    for connection in crowd:
        order = [number for connection_id, number in handled if connection_id == connection.id]
        assert order == list(range(len(BUFFERFUL))), "in the order of arrival"


@simulated
async def test_a_connection_in_the_queue_is_woken_for_its_turn_alone(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that waited were woken in each iteration, and most of them found nothing left. On a busy machine, nine
    hundred kept a producer waiting for the 15 s that they attacked."""
    put_back: list[FrameReceiver] = []
    original = FrameReceiver.put_back

    def count(receiver: FrameReceiver, frame: memoryview) -> None:
        put_back.append(receiver)
        original(receiver, frame)

    monkeypatch.setattr(FrameReceiver, "put_back", count)
    await scene.serve()
    for connection in await crowd_of(scene, 300):
        receive(connection, b"".join(BUFFERFUL))
    await until(lambda: len(scene.requests) == 300 * len(BUFFERFUL))
    assert 0 < len(put_back) <= len(scene.requests), f"{len(put_back)} times a request that was due had to wait again"


@simulated
async def test_a_connection_that_closes_gives_up_its_turn(scene: Scene) -> None:
    server = await scene.serve()
    crowd = await crowd_of(scene, 300)
    for connection in crowd:
        receive(connection, b"".join(BUFFERFUL))
    handled = len(scene.requests)
    assert server.iteration.queue
    for connection in crowd:
        connection.abort()
    await is_served(await scene.peer("newcomer"))
    assert len(scene.requests) == handled + 1
    assert not server.iteration.queue


@simulated
async def test_a_flood_of_light_requests_does_not_stop_heavy_ones(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata is heavy. While light requests used up each iteration, a heavy one whose turn had come went back to the
    end of two queues, again and again."""
    server = await scene.serve()
    monkeypatch.setattr(LoopIteration, "_renew", lambda iteration: None)
    for connection in await crowd_of(scene, 3):
        receive(connection, packed(ApiKey.METADATA, {}))
    server.iteration.left = 0
    await until(lambda: len(scene.requests) == 3)
