"""The liveness connection to a broker: its events when that broker fails, hangs, restarts or was never there."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from minibroker.controller.detection import liveness_connection
from minibroker.controller.detection.liveness_connection import LivenessEvents, hold_liveness_connection
from minibroker.protocol.wire.messages import ApiVersionsResponse
from minibroker.runtime.ports import ConnectionRefused, Network, NetworkError
from minibroker.runtime.rpc import ConnectionClosed, RpcConnection, connect
from minibroker.runtime.server.server import IncomingRequest, RpcServer, ServerLimits
from minibroker.simulation.world.world import SimulatedWorld

PORT = 9092
MIB = 1024 * 1024


class Scene:
    """A broker, and a liveness connection to it; its events are recorded with their time in ms since the last reset."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.events: list[str] = []
        self.at_ms: list[float] = []
        self._reset_at = 0.0
        self.questions = 0
        self.answers = True

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
        server = RpcServer(self.world.runtime("broker").network, self._answer, limits)
        await self.world.spawn("broker", server.start("broker", PORT))

    def _answer(self, request: IncomingRequest) -> None:
        self.questions += 1
        if self.answers:
            request.respond(ApiVersionsResponse())

    def reset(self) -> None:
        self.events.clear()
        self.at_ms.clear()
        self._reset_at = self.world.loop.time()

    def _note(self, what: str) -> None:
        self.events.append(what)
        self.at_ms.append((self.world.loop.time() - self._reset_at) * 1000)


def _ignore(request: IncomingRequest) -> None:
    raise AssertionError("a liveness connection sends no request at once")


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


def test_a_connection_that_the_brokers_kernel_has_forgotten_is_replaced_before_the_broker_dies() -> None:
    """The end of the process was noticed by its session alone (seed 17403436)."""
    scene = Scene()

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(30)
        scene.reset()
        scene.world.network.half_open("broker", "controller")
        await asyncio.sleep(liveness_connection.ASK_SECONDS + 0.1)
        assert scene.events == ["lost", "held"]
        scene.reset()
        scene.world.kill("broker")
        await asyncio.sleep(0.02)
        assert scene.events[:2] == ["lost", "refused 1"]

    scene.play(story)


@pytest.mark.parametrize(("answers", "questions"), [(True, 14), (False, 1)])
def test_a_broker_is_asked_every_two_seconds_once_it_has_answered(answers: bool, questions: int) -> None:
    """A process that stands still for a night must not find thousands of questions."""
    scene = Scene()
    scene.answers = answers

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(29.5)
        assert scene.events == ["held"]
        assert scene.questions == questions

    scene.play(story)


def test_a_question_on_a_connection_that_is_just_lost_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()

    def send(*_: object) -> int:
        raise ConnectionClosed("it is being closed")

    async def story() -> None:
        await scene.serve()
        monkeypatch.setattr(RpcConnection, "send", send)
        await asyncio.sleep(5)
        assert scene.events == ["held"]
        scene.world.network.reset_connections("controller", "broker")
        await asyncio.sleep(1)
        assert scene.events == ["held", "lost", "held"]

    scene.play(story)


def test_a_connection_that_is_held_no_more_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each controller would leave one open to each broker when it ends."""
    world, opened = SimulatedWorld(), list[RpcConnection]()

    async def noted(*arguments: Any, **options: Any) -> RpcConnection:
        opened.append(await connect(*arguments, **options))
        return opened[-1]

    async def story() -> None:
        server = RpcServer(world.runtime("broker").network, _ignore)
        await world.spawn("broker", server.start("broker", PORT))
        network = world.runtime("controller").network
        connection = hold_liveness_connection(network, ("broker", PORT), "liveness", LivenessEvents())
        task = world.spawn("controller", connection)
        await asyncio.sleep(1)
        assert [each.closed for each in opened] == [False]
        task.cancel()
        await asyncio.sleep(1)
        assert [each.closed for each in opened] == [True]

    monkeypatch.setattr(liveness_connection, "connect", noted)
    world.run(story())


def test_a_stranger_at_the_brokers_port_takes_no_memory() -> None:
    """A process that listens there after the death of the broker may send anything. No answer is large, but a frame
    of 128 MiB took 190."""
    scene = Scene()

    class Stranger(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            transport.write((100 * MIB).to_bytes(4, "big"))

    async def story() -> None:
        network = scene.world.runtime("broker").network
        await scene.world.spawn("broker", network.listen(cast(Any, Stranger), "broker", PORT))
        await asyncio.sleep(1)
        assert scene.events[-1] == "lost"

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


# -------------------------------------------------------------------------------------------------------- exact limits
class Dials:
    """Dials, in place of `connect`: those that `ends` names take so many seconds and fail, all others are real. Times
    are binary fractions, so that differences between them are exact."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] = []
        self.timeouts_ms: list[int] = []
        self.ends: list[tuple[float, NetworkError]] = []
        monkeypatch.setattr(liveness_connection, "connect", self._connect)

    async def _connect(
        self, network: Network, host: str, port: int, *, client_id: str, timeout_ms: int, answer_max_bytes: int
    ) -> RpcConnection:
        self.hosts.append(host)
        self.timeouts_ms.append(timeout_ms)
        if not self.ends:
            return await connect(network, host, port, client_id=client_id, timeout_ms=timeout_ms)
        seconds, error = self.ends.pop(0)
        await asyncio.sleep(seconds)
        raise error


@pytest.fixture
def dials(monkeypatch: pytest.MonkeyPatch) -> Dials:
    return Dials(monkeypatch)


def _lose_the_connection(scene: Scene, dials: Dials, ends: list[tuple[float, NetworkError]], seconds: float) -> None:
    """A connection that was held is lost, and the next dials end so; look at what happens within so many seconds."""

    async def story() -> None:
        await scene.serve()
        await asyncio.sleep(5)
        scene.reset()
        dials.hosts.clear()
        dials.timeouts_ms.clear()
        dials.ends = ends
        scene.world.network.reset_connections("controller", "broker")
        await asyncio.sleep(seconds)

    scene.play(story)


def _dialled_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liveness_connection, "REDIAL_SECONDS_MIN", liveness_connection.REDIAL_SECONDS_MAX)


def test_silence_is_reported_up_to_two_seconds_after_the_refusal(dials: Dials, monkeypatch: pytest.MonkeyPatch) -> None:
    _dialled_every_second(monkeypatch)
    scene = Scene()
    silence = (0.0, NetworkError("silence"))
    _lose_the_connection(scene, dials, [(0.0, ConnectionRefused("refused")), silence, silence, silence], 3.5)
    assert len(dials.hosts) == 4
    assert scene.events == ["lost", "refused 1", "silent 2", "silent 3"]


def test_dials_time_out_fast_up_to_two_seconds_after_the_loss(dials: Dials, monkeypatch: pytest.MonkeyPatch) -> None:
    _dialled_every_second(monkeypatch)
    _lose_the_connection(Scene(), dials, [(0.0, NetworkError("silence"))] * 4, 3.5)
    assert dials.timeouts_ms == [200, 200, 200, 3_000]


@pytest.mark.parametrize(("seconds", "is_reset"), [(0.25 - 1 / 64, True), (0.25, False)])
def test_a_dial_that_fails_before_it_could_time_out_was_reset_and_is_repeated(
    dials: Dials, monkeypatch: pytest.MonkeyPatch, seconds: float, is_reset: bool
) -> None:
    """The same IP address is dialled once more; after a silence the name is looked up again."""
    monkeypatch.setattr(liveness_connection, "RECENT_CONNECT_TIMEOUT_MS", 250)
    _lose_the_connection(Scene(), dials, [(seconds, NetworkError("reset or silence"))], 1)
    lost_address, *others = dials.hosts
    assert lost_address != "broker"
    assert others == [lost_address if is_reset else "broker"]
