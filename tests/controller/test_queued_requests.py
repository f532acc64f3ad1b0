"""A request of an administrator for many things holds up no other work of the controller until all are done."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.protocol import znodes
from minibroker.protocol.wire.messages import (
    AlterConfigsResource,
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
