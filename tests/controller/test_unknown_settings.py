"""A topic whose settings node is gone or cannot be parsed keeps its records, until its settings are written again."""

from __future__ import annotations

import pytest

from minibroker.controller.cluster_reader import SETTINGS_WHILE_UNKNOWN
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import DeleteTopicsRequest, ResourceType, UpdateMetadataRequest
from minibroker.protocol.znodes import ConfigNode
from tests.controller.cluster import Candidate, Cluster, simulated
from tests.controller.test_settings import altered, setting

PATH = znodes.topic_config_path("lines")


async def spoil(cluster: Cluster, content: bytes | None) -> Candidate:
    """A topic with settings of its own, whose node another tool spoils; then the next controller."""
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]], retention_ms="-1", min_insync_replicas="2")
    await controller.stop()
    await (cluster.observer.delete(PATH) if content is None else cluster.observer.set(PATH, content))
    return await cluster.controller(name="next", broker_id=101)


def sent_settings(cluster: Cluster) -> dict[str, str]:
    """As broker 1 knows them."""
    orders = [each for each in cluster.brokers[1].requests if isinstance(each, UpdateMetadataRequest)]
    return dict(next(each.topic_states[-1].configs for each in reversed(orders) if each.topic_states))


@pytest.mark.parametrize("content", [None, b"{", b""], ids=["removed", "damaged", "emptied"])
def test_unknown_settings_delete_nothing_and_are_reported(content: bytes | None) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        controller = await spoil(cluster, content)
        await cluster.kill_broker(3)
        await cluster.until(lambda: cluster.brokers[1].metadata("lines", 0)[-1].isr == [1, 2])
        assert sent_settings(cluster) == SETTINGS_WHILE_UNKNOWN
        assert "records are kept" in controller.service.ignored_nodes()[PATH]

    story()


@pytest.mark.parametrize("content", [None, b"{"], ids=["removed", "damaged"])
def test_settings_that_are_written_again_count_with_those_that_were_in_force(content: bytes | None) -> None:
    """An alteration of one of them does not bring a short retention back for the others."""

    @simulated
    async def story(cluster: Cluster) -> None:
        controller = await spoil(cluster, content)
        change = setting("segment.bytes", "1000")
        assert (await altered(cluster, controller, ResourceType.TOPIC, "lines", change))[0] is ErrorCode.NONE
        written = {**SETTINGS_WHILE_UNKNOWN, "segment.bytes": "1000"}
        assert ConfigNode.decode((await cluster.observer.get(PATH))[0]).config == written
        assert sent_settings(cluster) == written
        assert controller.service.ignored_nodes() == {}

    story()


@simulated
async def test_a_topic_without_settings_can_be_deleted_and_is_then_named_no_more(cluster: Cluster) -> None:
    controller = await spoil(cluster, None)
    await cluster.ask(controller, DeleteTopicsRequest(topic_names=["lines"], timeout_ms=5_000))
    assert await cluster.observer.exists(znodes.topic_path("lines")) is None
    assert controller.service.ignored_nodes() == {}
