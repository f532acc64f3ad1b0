"""The liveness connection to a broker: its events when that broker fails, hangs, restarts or was never there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.controller.detection.liveness_connection import LivenessEvents, hold_liveness_connection
from minibroker.runtime.server.server import IncomingRequest, RpcServer, ServerLimits
from minibroker.simulation.world.world import SimulatedWorld

PORT = 9092


class Scene:
    """A broker, and a liveness connection to it; its events are recorded with their time in ms since the last reset."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.events: list[str] = []
        self.at_ms: list[float] = []
        self._reset_at = 0.0

    def play(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            events = LivenessEvents(
                on_held=lambda: self._note("held"),
                on_lost=lambda: self._note("lost"),
                on_refused=lambda attempt: self._note(f"refused {attempt}"),
                on_silent=lambda attempt: self._note(f"silent {attempt}"),
            )
            network = self.world.runtime("controller").network
            connection = hold_liveness_connection(network, ("broker", PORT), "liveness", events)
            task = self.world.spawn("controller", connection)
            await story()
            task.cancel()

        self.world.runtime("broker")
        self.world.run(main(), seconds_max=100)

    async def serve(self, limits: ServerLimits | None = None) -> None:
        server = RpcServer(self.world.runtime("broker").network, _ignore, limits)
        await self.world.spawn("broker", server.start("broker", PORT))

    def reset(self) -> None:
        self.events.clear()
        self.at_ms.clear()
        self._reset_at = self.world.loop.time()

    def _note(self, what: str) -> None:
        self.events.append(what)
        self.at_ms.append((self.world.loop.time() - self._reset_at) * 1000)


def _ignore(request: IncomingRequest) -> None:
    raise AssertionError("a liveness connection sends no request")


def test_failure_is_noticed_at_once_on_an_idle_connection() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(30)
        assert scene.events == ["held"]
        scene.reset()
        scene.world.kill("broker")
        await asyncio.sleep(0.02)
        assert scene.events[:2] == ["lost", "refused 1"]
        assert scene.at_ms[1] < 20

    scene.play(story)


def test_refusals_are_reported_repeatedly_with_growing_pauses() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        scene.world.kill("broker")
        await asyncio.sleep(10)
        assert scene.events[:4] == ["lost", "refused 1", "refused 2", "refused 3"]
        assert 12 < len(scene.events) < 20

    scene.play(story)


def test_address_that_never_accepted_a_connection_is_never_reported() -> None:
    scene = Scene()

    async def story() -> None:
        await asyncio.sleep(10)
        assert scene.events == []

    scene.play(story)


def test_a_power_loss_is_not_reported() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        scene.world.power_loss("broker")
        await asyncio.sleep(10)
        assert scene.events == []

    scene.play(story)


def test_a_hanging_process_is_not_reported() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        scene.world.pause("broker")
        await asyncio.sleep(10)
        assert scene.events == []

    scene.play(story)


def test_lost_connection_to_a_broker_that_lives_is_held_again() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        scene.world.network.reset_connections("controller", "broker")
        await asyncio.sleep(1)
        assert scene.events == ["lost", "held"]

    scene.play(story)


def test_a_peer_that_closes_each_connection_at_once_is_dialled_with_pauses() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve(ServerLimits(connections_max=0))
        await asyncio.sleep(10)
        assert "refused 1" not in scene.events
        assert scene.events.count("held") < 20

    scene.play(story)


def test_an_address_that_vanishes_with_its_process_is_dialled_before_it_is_gone() -> None:
    """A container: its name cannot be resolved any more, and its address refuses for some milliseconds only."""
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        scene.world.network.forget_name("broker")
        scene.world.kill("broker")
        await asyncio.sleep(0.01)
        scene.world.network.isolate("broker")
        await asyncio.sleep(10)
        assert scene.events[:3] == ["lost", "refused 1", "silent 2"]
        assert set(scene.events[3:]) == {f"silent {number}" for number in range(3, len(scene.events))}
        assert 3 < len(scene.events) < 12
        assert scene.at_ms[-1] < 2_500

    scene.play(story)


def test_silence_without_a_refusal_is_not_reported() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        scene.world.network.forget_name("broker")
        scene.world.network.reset_connections("controller", "broker")
        await asyncio.sleep(0.000_1)
        scene.world.network.isolate("broker")
        await asyncio.sleep(10)
        assert scene.events == ["lost"]

    scene.play(story)
