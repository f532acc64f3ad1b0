"""A registration that another tool has rewritten: only our content under our session is ours."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from minibroker.broker.membership.registration import BrokerIdTaken
from minibroker.protocol.events.broker_events import RegistrationReplaced
from minibroker.protocol.znodes import BROKER_IDS
from minibroker.runtime.ports import NotAuthorized, Watcher
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


def test_a_registration_that_may_not_be_read_any_more_is_ours_while_it_is_listed() -> None:
    """Another tool has given it an ACL of its own. The broker ended at its next connection to ZooKeeper, and could not
    be started again while its session lasted. No watch of that node tells it that a controller unregisters it."""

    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        observer, epoch, inner = await world.observer(), broker.registration.broker_epoch, broker.coordination
        rights = list[str]()

        async def get(path: str, watcher: Watcher | None = None) -> object:
            if path == PATH and not rights:
                raise NotAuthorized(f"get {path}")
            return await inner.get(path, watcher)

        async def exists(path: str, watcher: Watcher | None = None) -> object:
            if path == PATH and not rights:
                raise NotAuthorized(f"exists {path}")
            return await inner.exists(path, watcher)

        limited = SimpleNamespace(get=get, exists=exists, session_id=inner.session_id, went_back=None)
        limited.__dict__.update({name: getattr(inner, name) for name in ("get_children", "create", "multi")})
        limited.__dict__.update(session_deadline=1e9, negotiated_timeout_ms=3_000)
        broker.registration._coordination = cast(Any, limited)
        broker.registration._attention.set()
        await asyncio.sleep(1)
        assert broker.keeping is not None
        assert not broker.keeping.done()
        assert broker.registration.broker_epoch == epoch
        rights.append("of the next node")
        await observer.delete(PATH)
        await asyncio.sleep(1)
        assert await observer.get_children(BROKER_IDS) == ["1"]
        assert broker.registration.broker_epoch not in (None, epoch)

    run(story)
