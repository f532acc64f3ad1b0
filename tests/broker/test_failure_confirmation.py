"""A broker that is asked whether another one is dead: what it confirms, and where it refuses to knock."""

import asyncio
from collections.abc import Callable

import pytest

from minibroker.broker.failure_confirmation import FailureConfirmation
from minibroker.broker.metadata_image import MetadataImage
from minibroker.broker.refusals import REMEMBERED_SECONDS, Refusals
from minibroker.protocol.messages import BrokerEndpoint, ConfirmFailureRequest, LiveBroker, UpdateMetadataRequest
from minibroker.runtime.server import RpcServer
from minibroker.simulation.world import SimulatedWorld

LISTENER = "INTERNAL"
PORT = 9092
WITNESS, SUSPECT = 1, 2
SUSPECT_EPOCH = 20


class Scene:
    """A witness that the controller has told of the suspect."""

    def __init__(self) -> None:
        self.world = SimulatedWorld()
        self.world.runtime("suspect")
        self.is_fenced = False
        self.refusals = Refusals()
        image = MetadataImage(WITNESS, "cluster")
        known = [
            LiveBroker(
                id=WITNESS, broker_epoch=10, endpoints=[BrokerEndpoint(listener=LISTENER, host="witness", port=PORT)]
            ),
            LiveBroker(
                id=SUSPECT,
                broker_epoch=SUSPECT_EPOCH,
                endpoints=[BrokerEndpoint(listener=LISTENER, host="suspect", port=PORT)],
            ),
        ]
        update = UpdateMetadataRequest(controller_id=1, controller_epoch=1, broker_epoch=10, live_brokers=known)
        assert image.apply_update(update, 10).error_code == 0
        self.witness = FailureConfirmation(
            network=self.world.runtime("witness").network,
            image=image,
            refusals=self.refusals,
            listener_name=LISTENER,
            is_fenced=lambda: self.is_fenced,
        )

    def asked(
        self,
        broker_id: int = SUSPECT,
        broker_epoch: int = SUSPECT_EPOCH,
        *,
        listens: bool = False,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> bool:
        """The witness's answer; `meanwhile` happens just before it is asked."""

        async def ask() -> bool:
            if listens:
                server = RpcServer(self.world.runtime("suspect").network, lambda request: None)
                await self.world.spawn("suspect", server.start("suspect", PORT))
            meanwhile()
            request = ConfirmFailureRequest(broker_id=broker_id, broker_epoch=broker_epoch)
            async with asyncio.timeout(1):
                return (await self.world.spawn("witness", self.witness.answer(request))).refused

        return self.world.run(ask())


def test_refused_connection_is_confirmed() -> None:
    assert Scene().asked() is True


def test_broker_that_takes_the_connection_is_not_dead() -> None:
    assert Scene().asked(listens=True) is False


def test_machine_that_does_not_answer_is_not_confirmed() -> None:
    scene = Scene()
    assert scene.asked(listens=True, meanwhile=lambda: scene.world.power_loss("suspect")) is False


def test_hanging_process_is_not_confirmed() -> None:
    scene = Scene()
    assert scene.asked(listens=True, meanwhile=lambda: scene.world.pause("suspect")) is False


@pytest.mark.parametrize(("broker_id", "broker_epoch"), [(SUSPECT, 19), (SUSPECT, 21), (9, 20), (WITNESS, 10)])
def test_only_registrations_that_it_knows_are_tried(broker_id: int, broker_epoch: int) -> None:
    assert Scene().asked(broker_id, broker_epoch) is False


def test_witness_that_may_be_dead_itself_confirms_nothing() -> None:
    scene = Scene()
    scene.is_fenced = True
    assert scene.asked() is False


def refused_before_it_was_gone(scene: Scene, broker_epoch: int) -> None:
    """A fetcher here was refused, then the address went away."""
    scene.refusals.note(SUSPECT, broker_epoch)
    scene.world.power_loss("suspect")


def test_a_refusal_met_a_moment_ago_counts_where_the_address_is_gone_by_now() -> None:
    scene = Scene()
    assert scene.asked(listens=True, meanwhile=lambda: refused_before_it_was_gone(scene, SUSPECT_EPOCH)) is True


def test_a_broker_that_takes_the_connection_now_is_not_dead_whatever_was_met_before() -> None:
    scene = Scene()
    assert scene.asked(listens=True, meanwhile=lambda: scene.refusals.note(SUSPECT, SUSPECT_EPOCH)) is False


def test_a_refusal_of_an_earlier_registration_says_nothing() -> None:
    scene = Scene()
    assert scene.asked(listens=True, meanwhile=lambda: refused_before_it_was_gone(scene, SUSPECT_EPOCH - 1)) is False


def test_a_refusal_is_remembered_for_a_moment_only() -> None:
    scene = Scene()

    async def passes() -> tuple[bool, bool]:
        scene.refusals.note(SUSPECT, SUSPECT_EPOCH)
        await asyncio.sleep(REMEMBERED_SECONDS)
        still = scene.refusals.has_met(SUSPECT, SUSPECT_EPOCH)
        await asyncio.sleep(0.1)
        return still, scene.refusals.has_met(SUSPECT, SUSPECT_EPOCH)

    assert scene.world.run(passes()) == (True, False)
