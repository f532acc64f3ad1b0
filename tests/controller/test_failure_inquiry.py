"""The question to other brokers whether a suspected broker refuses them, too: the first that confirms ends it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.controller import controller_channels
from minibroker.controller.controller_channels import ControllerChannels
from minibroker.controller.core.events import ConfirmFailure
from minibroker.controller.detection import succession
from minibroker.controller.detection.failure_inquiry import ANSWER_TIMEOUT_MS, ConfirmerAddress, first_to_confirm
from minibroker.controller.detection.succession import Succession
from minibroker.simulation.world.world import SimulatedWorld
from tests.authenticated import dialer
from tests.controller.cluster import PORT, Cluster, simulated
from tests.controller.facts import broker

SUSPECT = 1
SUSPECT_EPOCH = 10
MACHINE = "asking"


async def inquire(cluster: Cluster, *asked: int) -> int | None:
    runtime = cluster.world.runtime(MACHINE)
    confirmers = [ConfirmerAddress(broker_id=each, address=(f"broker{each}", PORT)) for each in asked]
    question = first_to_confirm(dialer(runtime.network, 100), MACHINE, confirmers, SUSPECT, SUSPECT_EPOCH)
    return await cluster.world.spawn(MACHINE, question)


@simulated
async def test_one_confirmation_among_denials_is_enough(cluster: Cluster) -> None:
    await cluster.start(2, 3, 4)
    cluster.brokers[3].is_refused = True
    assert await inquire(cluster, 2, 3, 4) == 3
    (question,) = cluster.brokers[3].inquiries
    assert (question.broker_id, question.broker_epoch) == (SUSPECT, SUSPECT_EPOCH)


@simulated
async def test_without_a_confirmation_nothing_is_confirmed(cluster: Cluster) -> None:
    """A broker that does not answer proves neither that the suspected one refuses nor that it lives itself."""
    await cluster.start(2, 3)
    cluster.brokers[2].is_refused = True
    cluster.world.pause("broker2")
    assert await inquire(cluster, 2, 3) is None
    assert await inquire(cluster) is None


@simulated
async def test_a_confirmation_waits_for_no_silent_broker(cluster: Cluster) -> None:
    """Partitions are without a leader meanwhile."""
    await cluster.start(2, 3)
    cluster.brokers[3].is_refused = True
    cluster.world.pause("broker2")
    asked_at = asyncio.get_running_loop().time()
    assert await inquire(cluster, 2, 3) == 3
    assert asyncio.get_running_loop().time() - asked_at < ANSWER_TIMEOUT_MS / 1_000 / 2


def test_the_time_until_the_confirmation_is_told_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that the controller asks about, and of a controller that a candidate asks about."""
    nothing, told = cast(Any, None), list[Any]()

    async def confirm(*_: object) -> int:
        await asyncio.sleep(0.25)
        return 3

    for module in (controller_channels, succession):
        monkeypatch.setattr(module, "first_to_confirm", confirm)
    channels = SimpleNamespace(
        address=lambda _: ("b", PORT), _dialer=nothing, _client_id="controller", _on_event=told.append
    )
    inquiry = ConfirmFailure(broker=broker(SUSPECT), confirmers=(broker(3),), attempt=1)
    SimulatedWorld().run(ControllerChannels._ask_confirmers(cast(Any, channels), inquiry))

    candidate, observer = SimpleNamespace(broker_id=2), SimpleNamespace(notify=told.append)
    waiting = Succession(nothing, nothing, cast(Any, candidate), "INTERNAL", nothing, cast(Any, observer))
    current: Any = SimpleNamespace(broker_id=SUSPECT, broker_epoch=SUSPECT_EPOCH, address=("b", PORT))
    SimulatedWorld().run(waiting._is_confirmed(current, {3: nothing}, 1))
    assert [each.took_ms for each in told] == [250, 250]
