"""The idle line to a broker: what it tells when that broker dies, hangs, restarts or was never there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.controller.liveness_connection import LivenessEvents, hold_liveness_connection
from minibroker.runtime.server import IncomingRequest, RpcServer, ServerLimits
from minibroker.simulation.world import SimulatedWorld

PORT = 9092


class Scene:
    """A broker, and a line to it whose events are noted with their time in ms since the last `mark`."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.told: list[str] = []
        self.at_ms: list[float] = []
        self._marked = 0.0

    def play(self, story: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            events = LivenessEvents(
                on_held=lambda: self._note("held"),
                on_lost=lambda: self._note("lost"),
                on_refused=lambda attempt: self._note(f"refused {attempt}"),
                on_silent=lambda attempt: self._note(f"silent {attempt}"),
            )
            network = self.world.runtime("controller").network
            line = self.world.spawn("controller", hold_liveness_connection(network, ("broker", PORT), "line", events))
            await story()
            line.cancel()

        self.world.runtime("broker")
        self.world.run(main(), seconds_max=100)

    async def serve(self, limits: ServerLimits | None = None) -> None:
        server = RpcServer(self.world.runtime("broker").network, _ignore, limits)
        await self.world.spawn("broker", server.start("broker", PORT))

    def mark(self) -> None:
        self.told.clear()
        self.at_ms.clear()
        self._marked = self.world.loop.time()

    def _note(self, what: str) -> None:
        self.told.append(what)
        self.at_ms.append((self.world.loop.time() - self._marked) * 1000)


def _ignore(request: IncomingRequest) -> None:
    raise AssertionError("a line asks nothing")


def test_death_is_noticed_at_once_on_an_idle_line() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(30)
        assert scene.told == ["held"]
        scene.mark()
        scene.world.kill("broker")
        await asyncio.sleep(0.02)
        assert scene.told[:2] == ["lost", "refused 1"]
        assert scene.at_ms[1] < 20

    scene.play(story)


def test_refusal_is_told_again_ever_more_slowly() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.mark()
        scene.world.kill("broker")
        await asyncio.sleep(10)
        assert scene.told[:4] == ["lost", "refused 1", "refused 2", "refused 3"]
        assert 12 < len(scene.told) < 20

    scene.play(story)


def test_address_that_never_took_a_line_is_never_reported() -> None:
    scene = Scene()

    async def story() -> None:
        await asyncio.sleep(10)
        assert scene.told == []

    scene.play(story)


def test_machine_without_power_tells_nothing() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.mark()
        scene.world.power_loss("broker")
        await asyncio.sleep(10)
        assert scene.told == []

    scene.play(story)


def test_hanging_process_tells_nothing() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.mark()
        scene.world.pause("broker")
        await asyncio.sleep(10)
        assert scene.told == []

    scene.play(story)


def test_lost_connection_to_a_broker_that_lives_is_held_again() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.mark()
        scene.world.network.reset_connections("controller", "broker")
        await asyncio.sleep(1)
        assert scene.told == ["lost", "held"]

    scene.play(story)


def test_peer_that_closes_each_line_at_once_is_not_dialled_without_a_pause() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve(ServerLimits(connections_max=0))
        await asyncio.sleep(10)
        assert "refused 1" not in scene.told
        assert scene.told.count("held") < 20

    scene.play(story)


def test_address_that_goes_away_with_its_process_is_dialled_in_time_and_its_refusal_counts_for_a_moment() -> None:
    """A container: nobody finds its name any more, and its address refuses for some milliseconds only."""
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.mark()
        scene.world.network.forget_name("broker")
        scene.world.kill("broker")
        await asyncio.sleep(0.01)
        scene.world.network.isolate("broker")
        await asyncio.sleep(10)
        assert scene.told[:3] == ["lost", "refused 1", "silent 2"]
        assert set(scene.told[3:]) == {f"silent {number}" for number in range(3, len(scene.told))}
        assert 3 < len(scene.told) < 12
        assert scene.at_ms[-1] < 2_500

    scene.play(story)


def test_silence_without_a_refusal_tells_nothing() -> None:
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.mark()
        scene.world.network.forget_name("broker")
        scene.world.network.reset_connections("controller", "broker")
        await asyncio.sleep(0.000_1)
        scene.world.network.isolate("broker")
        await asyncio.sleep(10)
        assert scene.told == ["lost"]

    scene.play(story)
