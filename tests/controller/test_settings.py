"""Settings of topics and brokers, changed while a controller is active."""

from __future__ import annotations

import pytest

from minibroker.controller import administration, cluster_store
from minibroker.controller.administration import CONFIRM_SECONDS_MAX
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    AlterableConfig,
    AlterConfigsResource,
    ConfigOperation,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ResourceType,
    UpdateMetadataRequest,
)
from minibroker.protocol.znodes import ConfigNode
from tests.controller.cluster import Candidate, Cluster, simulated


async def altered(
    cluster: Cluster,
    controller: Candidate,
    kind: int,
    name: str,
    *configs: AlterableConfig,
    validate_only: bool = False,
) -> tuple[ErrorCode, str | None]:
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=list(configs))
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    response = await cluster.ask(controller, request)
    assert isinstance(response, IncrementalAlterConfigsResponse), response
    return ErrorCode(response.responses[0].error_code), response.responses[0].error_message


def setting(name: str, value: str | None) -> AlterableConfig:
    operation = ConfigOperation.DELETE if value is None else ConfigOperation.SET
    return AlterableConfig(name=name, value=value, config_operation=operation)


@simulated
async def test_changed_settings_of_a_topic_reach_every_broker(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]], segment_bytes="1000", retention_ms="5")
    changes = (setting("segment.bytes", None), setting("flush.messages", "1"))
    assert (await altered(cluster, controller, ResourceType.TOPIC, "lines", *changes))[0] is ErrorCode.NONE
    expected = {"flush.messages": "1", "retention.ms": "5"}
    content, _ = await cluster.observer.get(znodes.topic_config_path("lines"))
    assert ConfigNode.decode(content).config == expected
    last = cluster.brokers[2].requests[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert last.topic_states[0].configs == expected


@pytest.mark.invariant("I45")
@simulated
async def test_changed_settings_are_answered_once_brokers_know_them_and_a_check_at_once(cluster: Cluster) -> None:
    """For a broker that hangs no answer waits for ever."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]])
    cluster.brokers[2].is_mute = True

    async def seconds(value: str, validate_only: bool) -> float:
        began = cluster.world.loop.time()
        change = setting("retention.ms", value)
        code, _ = await altered(cluster, controller, ResourceType.TOPIC, "lines", change, validate_only=validate_only)
        assert code is ErrorCode.NONE
        return cluster.world.loop.time() - began

    assert CONFIRM_SECONDS_MAX <= await seconds("5", validate_only=False) < CONFIRM_SECONDS_MAX + 0.5
    assert await seconds("6", validate_only=True) < 0.5
    content, _ = await cluster.observer.get(znodes.topic_config_path("lines"))
    assert ConfigNode.decode(content).config == {"retention.ms": "5"}


@simulated
async def test_settings_are_stored_and_reported_as_accepted_and_not_as_written(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]], segment_bytes="  1000 ")
    await altered(cluster, controller, ResourceType.TOPIC, "lines", setting("retention.ms", " " * 30_000 + "5"))
    content, _ = await cluster.observer.get(znodes.topic_config_path("lines"))
    assert ConfigNode.decode(content).config == {"retention.ms": "5", "segment.bytes": "1000"}
    last = cluster.brokers[1].requests[-1]
    assert isinstance(last, UpdateMetadataRequest)
    assert last.topic_states[0].configs == {"retention.ms": "5", "segment.bytes": "1000"}


@simulated
async def test_settings_of_a_broker_are_written_to_its_own_node(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    change = setting("log.retention.ms", "5")
    assert (await altered(cluster, controller, ResourceType.BROKER, "1", change))[0] is ErrorCode.NONE
    content, _ = await cluster.observer.get(znodes.broker_config_path(1))
    assert ConfigNode.decode(content).config == {"log.retention.ms": "5"}


@simulated
async def test_settings_of_brokers_that_are_not_there_are_limited(cluster: Cluster) -> None:
    """They stay in ZooKeeper for ever, and any client may store them. A broker may get some before its first start."""
    await cluster.start(1)
    controller = await cluster.controller()
    change, broker = setting("log.retention.ms", "5"), ResourceType.BROKER
    with pytest.MonkeyPatch.context() as patch:
        for module in (administration, cluster_store):
            patch.setattr(module, "BROKER_SETTINGS_MAX", 2)
        found = [await altered(cluster, controller, broker, name, change) for name in ("7", "8", "9", "7", "1")]
    text = "broker 9 is not registered, and settings of 2 brokers are stored, and no more are allowed"
    assert found.pop(2) == (ErrorCode.INVALID_REQUEST, text)
    assert [code for code, _ in found] == [ErrorCode.NONE] * 4
    assert sorted(await cluster.observer.get_children("/config/brokers")) == ["1", "7", "8"]


@simulated
async def test_invalid_settings_are_refused(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]])
    topic, broker = ResourceType.TOPIC, ResourceType.BROKER
    unknown = setting("no.such.config", "1")
    assert (await altered(cluster, controller, topic, "lines", unknown))[0] is ErrorCode.INVALID_CONFIG
    twice = (setting("a", "1"), setting("a", "2"))
    assert (await altered(cluster, controller, topic, "lines", *twice))[0] is ErrorCode.INVALID_CONFIG
    assert (await altered(cluster, controller, topic, "other"))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name in ("all", "", "-1", "1.5", "\u0661", "12345678901"):
        assert (await altered(cluster, controller, broker, name))[0] is ErrorCode.INVALID_REQUEST
    assert (await altered(cluster, controller, broker, "1234567890"))[0] is ErrorCode.NONE
    assert (await altered(cluster, controller, 3, "x"))[0] is ErrorCode.INVALID_REQUEST


@simulated
async def test_an_unknown_setting_is_removed_only_if_it_is_stored(cluster: Cluster) -> None:
    """A typing mistake was accepted, and the setting that was meant stayed. Another version may have stored it."""
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]], retention_ms="5")
    topic, unknown = ResourceType.TOPIC, setting("no.such.config", None)
    refused = (ErrorCode.INVALID_CONFIG, "no.such.config is unknown")
    assert await altered(cluster, controller, topic, "lines", unknown) == refused
    both = (setting("retention.ms", None), unknown)
    assert await altered(cluster, controller, topic, "lines", *both) == refused
    path = znodes.topic_config_path("lines")
    content, stat = await cluster.observer.get(path)
    assert ConfigNode.decode(content).config == {"retention.ms": "5"}
    stored = ConfigNode(config={"no.such.config": "1", "retention.ms": "5"})
    await cluster.observer.set(path, stored.encode(), stat.version)
    assert (await altered(cluster, controller, topic, "lines", *both))[0] is ErrorCode.NONE
    content, _ = await cluster.observer.get(path)
    assert ConfigNode.decode(content).config == {}


@pytest.mark.invariant("I28")
@simulated
async def test_allowing_unclean_elections_elects_at_once(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.change_state("lines", isr=[1], isr_incarnations={"1": "i1"})
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == -1)
    change = setting("unclean.leader.election.enable", "true")
    await altered(cluster, controller, ResourceType.TOPIC, "lines", change)
    state = await cluster.state("lines")
    assert (state.leader, state.isr, state.leader_recovery_state) == (2, [2], 1)
