"""A broker that is asked to confirm a suspected failure: what it confirms, and where it does not connect to."""

import asyncio
from collections.abc import Callable

import pytest

from minibroker.broker.membership.failure_confirmer import (
    CONNECT_AGAIN_TIMEOUT_MS,
    CONNECT_TIMEOUT_MS,
    FailureConfirmer,
)
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.refusals import REMEMBERED_SECONDS, Refusals
from minibroker.protocol.wire.messages import BrokerEndpoint, ConfirmFailureRequest, LiveBroker, UpdateMetadataRequest
from minibroker.runtime.server.server import RpcServer
from minibroker.simulation.world.world import SimulatedWorld

LISTENER = "INTERNAL"
PORT = 9092
CONFIRMER, SUSPECTED = 1, 2
SUSPECTED_EPOCH = 20


class Scene:
    """A confirmer that knows the suspected broker from the controller."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.world.runtime("suspected")
        self.is_fenced = False
        self.refusals = Refusals()
        image = MetadataImage(CONFIRMER, "cluster")
        known = [
            LiveBroker(
                id=CONFIRMER,
                broker_epoch=10,
                endpoints=[BrokerEndpoint(listener=LISTENER, host="confirmer", port=PORT)],
            ),
            LiveBroker(
                id=SUSPECTED,
                broker_epoch=SUSPECTED_EPOCH,
                endpoints=[BrokerEndpoint(listener=LISTENER, host="suspected", port=PORT)],
            ),
        ]
        update = UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=10, live_brokers=known)
        assert image.apply_update(update, 10).error_code == 0
        self.confirmer = FailureConfirmer(
            network=self.world.runtime("confirmer").network,
            image=image,
            refusals=self.refusals,
            listener_name=LISTENER,
            is_fenced=lambda: self.is_fenced,
        )

    def ask(
        self,
        broker_id: int = SUSPECTED,
        broker_epoch: int = SUSPECTED_EPOCH,
        *,
        listens: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """The confirmer's answer; `meanwhile` runs just before the request."""

        async def ask() -> bool:
            if listens:
                server = RpcServer(self.world.runtime("suspected").network, lambda request: None)
                await self.world.spawn("suspected", server.start("suspected", PORT))
            meanwhile()
            request = ConfirmFailureRequest(broker_id=broker_id, broker_epoch=broker_epoch)
            async with asyncio.timeout(1):
                return (await self.world.spawn("confirmer", self.confirmer.answer(request))).refused

        return self.world.run(ask())


def test_refused_connection_is_confirmed() -> None:
    assert Scene().ask() is True


def test_a_broker_that_accepts_the_connection_has_not_failed() -> None:
    assert Scene().ask(listens=True) is False


def test_machine_that_does_not_answer_is_not_confirmed() -> None:
    scene = Scene()
    assert scene.ask(listens=True, meanwhile=lambda: scene.world.power_loss("suspected")) is False


def test_hanging_process_is_not_confirmed() -> None:
    scene = Scene()
    assert scene.ask(listens=True, meanwhile=lambda: scene.world.pause("suspected")) is False


@pytest.mark.parametrize(("broker_id", "broker_epoch"), [(SUSPECTED, 19), (SUSPECTED, 21), (9, 20), (CONFIRMER, 10)])
def test_only_known_registrations_are_dialled(broker_id: int, broker_epoch: int) -> None:
    assert Scene().ask(broker_id, broker_epoch) is False


def test_a_fenced_confirmer_confirms_nothing() -> None:
    scene = Scene()
    scene.is_fenced = True
    assert scene.ask() is False


def refused_before_it_was_gone(scene: Scene, broker_epoch: int) -> None:
    """A fetcher on this broker was refused, then the address disappeared."""
    scene.refusals.note(SUSPECTED, broker_epoch)
    scene.world.power_loss("suspected")


def test_a_recent_refusal_counts_if_the_address_is_gone() -> None:
    scene = Scene()
    assert scene.ask(listens=True, meanwhile=lambda: refused_before_it_was_gone(scene, SUSPECTED_EPOCH)) is True


@pytest.mark.parametrize(
    ("refused_epoch", "timeout_ms"), [(SUSPECTED_EPOCH, CONNECT_AGAIN_TIMEOUT_MS), (19, CONNECT_TIMEOUT_MS)]
)
def test_an_address_that_is_gone_is_waited_for_more_briefly_after_a_refusal(
    refused_epoch: int, timeout_ms: int
) -> None:
    """Partitions are without a leader meanwhile."""
    scene, began = Scene(), list[float]()

    def vanish() -> None:
        refused_before_it_was_gone(scene, refused_epoch)
        began.append(scene.world.loop.time())

    scene.ask(listens=True, meanwhile=vanish)
    assert scene.world.loop.time() - began[0] == pytest.approx(timeout_ms / 1000)


def test_an_accepted_connection_overrides_an_earlier_refusal() -> None:
    scene = Scene()
    assert scene.ask(listens=True, meanwhile=lambda: scene.refusals.note(SUSPECTED, SUSPECTED_EPOCH)) is False


def test_a_refusal_of_an_earlier_registration_does_not_count() -> None:
    scene = Scene()
    assert scene.ask(listens=True, meanwhile=lambda: refused_before_it_was_gone(scene, SUSPECTED_EPOCH - 1)) is False


def test_a_refusal_is_remembered_briefly() -> None:
    scene = Scene()

    async def passes() -> tuple[bool, bool]:
        scene.refusals.note(SUSPECTED, SUSPECTED_EPOCH)
        await asyncio.sleep(REMEMBERED_SECONDS)
        still = scene.refusals.has_met(SUSPECTED, SUSPECTED_EPOCH)
        await asyncio.sleep(0.1)
        return still, scene.refusals.has_met(SUSPECTED, SUSPECTED_EPOCH)

    assert scene.world.run(passes()) == (True, False)
