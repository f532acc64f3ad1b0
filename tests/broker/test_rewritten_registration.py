"""A registration that another tool has rewritten: only our content under our session is ours."""

import asyncio

import msgspec
import pytest

from minibroker.broker.membership.registration import BrokerIdTaken
from minibroker.protocol.events.broker_events import RegistrationReplaced
from tests.broker.test_registration import PATH, registered, start_broker
from tests.broker.virtual_zookeeper import World, run


def test_a_registration_with_anothers_content_under_our_session_is_not_ours() -> None:
    """The controller would take this process for another one, whose log it may be told of."""

    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        observer = await world.observer()
        node = await registered(observer)
        await observer.set(PATH, msgspec.structs.replace(node, incarnation_id="another").encode(), -1)
        await asyncio.sleep(0.1)
        assert broker.registration.is_fenced()
        assert broker.events == ["registered", "lost"]
        assert broker.keeping is not None
        with pytest.raises(BrokerIdTaken, match="was taken over") as ended:
            await broker.keeping
        assert ended.value.is_replaced, "nothing may start it again by itself"

    run(story)


def test_our_content_under_another_session_is_written_anew() -> None:
    """It would vanish with that session, while this broker serves."""

    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        observer, epoch = await world.observer(), broker.registration.broker_epoch
        node = await registered(observer)
        await observer.delete(PATH)
        await observer.create(PATH, node.encode(), ephemeral=True)
        await asyncio.sleep(1)
        _, stat = await observer.get(PATH)
        assert stat.ephemeral_owner == broker.coordination.session_id
        assert stat.czxid == broker.registration.broker_epoch != epoch
        assert RegistrationReplaced(broker=1) in broker.reported

    run(story)
