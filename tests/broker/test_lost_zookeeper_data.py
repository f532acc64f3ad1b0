"""ZooKeeper loses all or part of its data while a broker runs: the broker reports it and ends."""

import asyncio
from copy import deepcopy

import pytest

from minibroker.broker.membership.registration import (
    BrokerIdentity,
    ClusterMismatch,
    OlderCopy,
    Registration,
    draw_id,
)
from minibroker.runtime.ports import Coordination
from minibroker.simulation.world.znode_tree import ZNodeTree
from tests.broker.test_registration import ENDPOINTS, PATH, start_broker
from tests.broker.virtual_zookeeper import World, run


async def remove_below(observer: Coordination, path: str) -> None:
    """Remove the node and everything below it; for the root, only what is below it."""
    for name in await observer.get_children(path):
        await remove_below(observer, f"{path.rstrip('/')}/{name}")
    if path != "/":
        await observer.delete(path)


def test_running_broker_stops_when_zookeeper_comes_back_empty() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        world.zookeeper.stop()
        await asyncio.sleep(1)
        world.zookeeper.tree, world.zookeeper.sessions = ZNodeTree(), {}
        world.zookeeper.start()
        assert broker.keeping is not None
        with pytest.raises(ClusterMismatch, match="its data was wiped"):
            await broker.keeping
        assert broker.registration.is_fenced()

    run(story)


def test_running_broker_stops_when_all_nodes_are_deleted_under_it() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        await remove_below(await world.observer(), "/")
        assert broker.keeping is not None
        with pytest.raises(ClusterMismatch, match=r"its data was wiped|ZooKeeper has lost /brokers"):
            await broker.keeping
        assert broker.registration.is_fenced()

    run(story)


def test_running_broker_stops_when_a_part_of_the_nodes_is_deleted_under_it() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        await remove_below(await world.observer(), "/brokers")
        assert broker.keeping is not None
        with pytest.raises(ClusterMismatch, match=r"ZooKeeper has lost /brokers.* while this broker ran.*restore"):
            await broker.keeping
        assert broker.registration.is_fenced()

    run(story)


def test_a_running_broker_recreates_the_parent_node_of_registrations() -> None:
    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        await remove_below(await world.observer(), "/brokers/ids")
        await asyncio.sleep(1)
        assert broker.events == ["registered", "lost", "registered"]
        assert not broker.registration.is_fenced()

    run(story)


def test_running_broker_stops_when_zookeeper_comes_back_with_an_older_copy() -> None:
    async def story(world: World) -> None:
        first = await start_broker(world, world.process("zero"))
        await first.coordination.close()
        copy = deepcopy(world.zookeeper.tree)
        for number in range(20):
            await (await world.observer()).create(f"/later-{number}", b"")
        broker = await start_broker(world, world.process("one"))
        world.zookeeper.stop()
        await asyncio.sleep(1)
        world.zookeeper.tree, world.zookeeper.sessions = copy, {}
        world.zookeeper.start()
        assert broker.keeping is not None
        with pytest.raises(ClusterMismatch, match=r"restored from an older copy\. Stop all brokers"):
            await broker.keeping
        assert broker.registration.is_fenced()

    run(story)


def test_running_broker_that_registered_before_the_older_copy_was_made_stops_too() -> None:
    """Its own registration is older than the copy; what it has read from ZooKeeper since is not."""

    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        copy = deepcopy(world.zookeeper.tree)
        for number in range(20):
            await (await world.observer()).create(f"/later-{number}", b"")
        await broker.coordination.exists("/")
        world.zookeeper.stop()
        await asyncio.sleep(1)
        world.zookeeper.tree, world.zookeeper.sessions = copy, {}
        world.zookeeper.start()
        assert broker.keeping is not None
        with pytest.raises(ClusterMismatch, match=r"restored from an older copy\. Stop all brokers"):
            await asyncio.wait_for(broker.keeping, 60)
        assert broker.events.count("registered") == 1, "it must not register in the older data"
        assert broker.registration.is_fenced()

    run(story)


def test_brokers_compare_what_they_know_before_each_registration() -> None:
    async def story(world: World) -> None:
        compared: list[Coordination] = []

        async def compare(coordination: Coordination) -> None:
            compared.append(coordination)
            if len(compared) == 4:
                raise OlderCopy("a test said so")

        process = world.process("one")
        coordination = await world.connect(process)
        identity = BrokerIdentity(broker_id=1, directory_id="d", incarnation_id=draw_id(world.random))
        registration = Registration(coordination, world.clock, identity, world.random, require_known_changes=compare)
        await world.inside(process, registration.prepare(10_000))
        assert len(compared) == 1
        await world.inside(process, registration.register(ENDPOINTS, 10_000))
        assert len(compared) == 2
        keeping = world.loop.create_task(registration.run(), context=process.context)
        for _ in range(2):
            await (await world.observer()).delete(PATH)
            await asyncio.sleep(1)
        with pytest.raises(OlderCopy, match=r"a test said so\): it was restored from an older copy"):
            await keeping
        assert registration.is_fenced()

    run(story)
