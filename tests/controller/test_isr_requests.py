"""AlterPartition over a simulated ZooKeeper: written, answered, sent to all; retried, raced, stale, lost. And other
requests that wait when their controller ends."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    AlterPartitionRequest,
    CreatableTopic,
    CreateTopicsRequest,
)
from tests.controller.cluster import Cluster, simulated
from tests.controller.isr_proposals import alter_partition, altered, is_led


@simulated
async def test_isr_change_is_written_answered_and_sent_to_all(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    result = await altered(cluster, controller, alter_partition(cluster, 1, 1, 2))
    assert (result.error_code, result.isr, result.partition_epoch, result.leader_epoch) == (0, [1, 2], 1, 0)
    assert is_led(await cluster.state("lines")) == (1, 0, [1, 2])
    await cluster.until(lambda: cluster.brokers[3].metadata("lines", 0)[-1].isr == [1, 2])
    assert len(cluster.brokers[1].leader_and_isr("lines", 0)) == 1


@pytest.mark.invariant("I8", "I38")
@simulated
async def test_retried_isr_change_succeeds_without_another_write(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    request = alter_partition(cluster, 1, 1, 2)
    await altered(cluster, controller, request)
    result = await altered(cluster, controller, request)
    assert (result.error_code, result.partition_epoch) == (0, 1)
    assert await cluster.version("lines") == 1


@pytest.mark.invariant("I8", "I38")
@simulated
async def test_isr_change_that_lost_a_race_is_refused_and_the_leader_gets_the_state(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.change_state("lines", isr=[1, 3])
    result = await altered(cluster, controller, alter_partition(cluster, 1, 1, 2))
    assert result.error_code == ErrorCode.INVALID_UPDATE_VERSION
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0)[-1].isr == [1, 3])
    assert is_led(await cluster.state("lines")) == (1, 0, [1, 3])


@pytest.mark.invariant("I38")
@simulated
async def test_leader_with_a_stale_version_gets_the_state_again(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await altered(cluster, controller, alter_partition(cluster, 1, 1, 2))
    result = await altered(cluster, controller, alter_partition(cluster, 1, 1, 3))
    assert result.error_code == ErrorCode.INVALID_UPDATE_VERSION
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0)[-1].isr == [1, 2])


@pytest.mark.invariant("I29", "I31")
@simulated
async def test_request_of_an_earlier_registration_is_refused(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    request = alter_partition(cluster, 1, 1, 2)
    stale = AlterPartitionRequest(broker_id=1, broker_epoch=request.broker_epoch - 1, topics=request.topics)
    response = await cluster.ask(controller, stale)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH


@simulated
async def test_isr_change_whose_answer_was_lost_succeeds(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.zookeeper.lose_next_reply("controller")
    result = await altered(cluster, controller, alter_partition(cluster, 1, 1, 2))
    assert (result.error_code, result.partition_epoch) == (0, 1)


@simulated
async def test_requests_that_wait_when_the_session_ends_get_not_controller(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.zookeeper.cut("controller")
    waiting = asyncio.ensure_future(cluster.ask(controller, alter_partition(cluster, 1, 1, 2)))
    await asyncio.sleep(1)
    controller.service.session_lost()
    assert (await waiting).error_code == ErrorCode.NOT_CONTROLLER


@simulated
async def test_a_request_that_waits_for_a_takeover_is_answered_when_the_session_ends(cluster: Cluster) -> None:
    """Else it would wait for its whole timeout, while another controller could serve it."""
    await cluster.start(1)
    controller = await cluster.candidate()
    await cluster.until(lambda: controller.service.is_active)
    cluster.world.zookeeper.cut("controller")
    waiting = asyncio.ensure_future(cluster.ask(controller, CreateTopicsRequest(topics=[CreatableTopic(name="lines")])))
    await asyncio.sleep(1)
    assert not waiting.done()
    controller.service.session_lost()
    assert (await waiting).error_code == ErrorCode.NOT_CONTROLLER
