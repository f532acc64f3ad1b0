"""A request of an administrator for many things holds up no other work of the controller until all are done."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    AlterConfigsResource,
    CreatableAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    Request,
    ResourceType,
)
from minibroker.protocol.znodes import ConfigNode
from tests.controller.cluster import Cluster, simulated
from tests.controller.test_settings import setting

NAMES = [f"t{number}" for number in range(30)]
CHANGES = [
    AlterConfigsResource(resource_type=ResourceType.TOPIC, resource_name=name, configs=[setting("retention.ms", "5")])
    for name in NAMES
]
REQUESTS = {
    "delete": DeleteTopicsRequest(topic_names=NAMES, timeout_ms=1_000),
    "alter": IncrementalAlterConfigsRequest(resources=CHANGES),
}


async def begun(cluster: Cluster) -> int:
    """How many topics are changed, marked for deletion, or gone."""
    marked = set(await cluster.observer.get_children(znodes.DELETE_TOPICS))
    left = set(await cluster.observer.get_children(znodes.BROKER_TOPICS))
    count = 0
    for name in NAMES:
        if name in left - marked:
            content, _ = await cluster.observer.get(znodes.topic_config_path(name))
            count += bool(ConfigNode.decode(content).config)
        else:
            count += 1
    return count


@pytest.mark.parametrize("name", REQUESTS)
def test_other_work_is_done_between_the_parts_of_a_long_request(name: str) -> None:
    """One request may name ten thousand topics, each a write to ZooKeeper: a dead leader was replaced after 31 s."""
    request: Request = REQUESTS[name]

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        for topic in NAMES:
            await cluster.create(controller, topic, [[1]])
        asking = cluster.world.spawn(controller.name, cluster.ask(controller, request))
        await asyncio.sleep(0.01)
        await cluster.create(controller, "lines", [[1]])
        assert await begun(cluster) < len(NAMES)
        await asking
        assert await begun(cluster) == len(NAMES)

    story()


CREATION = CreateTopicsRequest(
    topics=[
        CreatableTopic(name=name, assignments=[CreatableAssignment(partition_index=0, broker_ids=[1])])
        for name in NAMES
    ]
)


async def topics(cluster: Cluster) -> list[list[str]]:
    """Those that there are, and those that are marked for deletion."""
    return [sorted(await cluster.observer.get_children(path)) for path in (znodes.BROKER_TOPICS, znodes.DELETE_TOPICS)]


@pytest.mark.parametrize("seconds", [0.001, 0.003, 0.01, 0.03])
@pytest.mark.parametrize("deletes", [False, True], ids=["create", "delete"])
def test_a_controller_that_ends_while_it_serves_a_request_does_not_say_that_nothing_was_done(
    deletes: bool, seconds: float
) -> None:
    """Its client asked the next controller, and told its caller that what this one had created existed before, or that
    what it had deleted had never been there."""

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        if deletes:
            assert not (await cluster.ask(controller, CREATION)).error_code
        before = await topics(cluster)
        request: Request = REQUESTS["delete"] if deletes else CREATION
        asking = cluster.world.spawn(controller.name, cluster.ask(controller, request))
        await asyncio.sleep(seconds)
        await controller.stop()
        answer = await asking
        await cluster.world.zookeeper.settle()
        if await topics(cluster) != before:
            assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT

    story()
