"""Controlled shutdowns of brokers, and log directories that fail and recover."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ApiKey,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionError,
    TopicPartitions,
    UpdateMetadataRequest,
)
from minibroker.simulation.world.message_holds import responses
from tests.controller.cluster import Candidate, Cluster, simulated


async def shut_down(
    cluster: Cluster, controller: Candidate, broker_id: int, offline: list[TopicPartitions] | None = None
) -> dict[str, list[int]]:
    """Shut the broker down, and return what it still leads."""
    epoch = cluster.brokers[broker_id].broker_epoch
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=epoch, offline_partitions=offline)
    response = await cluster.ask(controller, request)
    assert isinstance(response, ControlledShutdownResponse), response
    return {topic.topic_name: topic.partitions for topic in response.remaining_partitions}


def partitions(*numbers: int) -> list[TopicPartitions]:
    return [TopicPartitions(topic_name="lines", partitions=list(numbers))]


@pytest.mark.invariant("I27", "I34")
@simulated
async def test_stopping_broker_hands_over_its_leaderships_and_leaves_every_isr(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3], [2, 1, 3]])
    assert await shut_down(cluster, controller, 1) == {}
    led = await cluster.state("lines", 0)
    followed = await cluster.state("lines", 1)
    assert (led.leader, led.leader_epoch, led.isr) == (2, 1, [2, 3])
    assert (followed.leader, followed.leader_epoch, followed.isr) == (2, 1, [2, 3])
    broker = cluster.brokers[1]
    await cluster.until(lambda: broker.stops("lines", 1))
    assert (broker.stops("lines", 1)[-1].delete_partition, broker.stops("lines", 1)[-1].leader_epoch) == (False, 1)
    assert broker.leader_and_isr("lines", 0)[-1].leader == 2
    assert not broker.stops("lines", 0)


@pytest.mark.invariant("I34")
@simulated
async def test_all_brokers_learn_that_one_is_shutting_down(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await shut_down(cluster, controller, 1)

    def received() -> dict[int, bool]:
        last = cluster.brokers[2].requests[-1]
        assert isinstance(last, UpdateMetadataRequest)
        return {each.id: each.shutting_down for each in last.live_brokers}

    await cluster.until(lambda: cluster.brokers[2].requests and received() == {1: True, 2: False})


@simulated
async def test_partitions_that_no_other_broker_can_lead_are_named(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2], [1, 2]])
    await cluster.change_state("lines", 0, isr=[1], isr_incarnations={"1": "i1"})
    await cluster.create(controller, "single", [[1]])
    assert await shut_down(cluster, controller, 1) == {"lines": [0]}
    assert (await cluster.state("lines", 0)).leader == 1
    assert (await cluster.state("single", 0)).leader == 1


@simulated
async def test_broker_that_stopped_may_come_back_and_lead(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await shut_down(cluster, controller, 1)
    await cluster.kill_broker(1)
    await cluster.add_broker(1, "second")
    await cluster.until(lambda: any(isinstance(each, UpdateMetadataRequest) for each in cluster.brokers[1].requests))
    assert (await cluster.create(controller, "lines", [[1, 2]])).topics[0].error_code == 0
    assert (await cluster.state("lines")).isr == [1, 2]


@pytest.mark.invariant("I29")
@simulated
async def test_request_to_stop_an_earlier_registration_is_refused(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    stale = ControlledShutdownRequest(broker_id=1, broker_epoch=cluster.brokers[1].broker_epoch - 1)
    assert (await cluster.ask(controller, stale)).error_code == ErrorCode.STALE_BROKER_EPOCH


@simulated
async def test_partitions_of_a_failed_directory_are_moved_and_the_others_stay(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3], [1, 2, 3]])
    assert await shut_down(cluster, controller, 1, partitions(0)) == {}
    moved, kept = await cluster.state("lines", 0), await cluster.state("lines", 1)
    assert (moved.leader, moved.isr) == (2, [2, 3])
    assert (kept.leader, kept.isr) == (1, [1, 2, 3])
    await cluster.until(lambda: cluster.brokers[3].metadata("lines", 0)[-1].offline_replicas == [1])


@pytest.mark.invariant("I38")
@simulated
async def test_replicas_that_recover_can_lead_again(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2], [1, 2]])
    await cluster.change_state("lines", 1, isr=[1], isr_incarnations={"1": "i1"})
    await shut_down(cluster, controller, 1, partitions(0, 1))
    alone = await cluster.state("lines", 1)
    assert (alone.leader, alone.isr) == (-1, [1])
    cluster.brokers[1].requests.clear()
    followed = await cluster.state("lines", 0)
    assert await shut_down(cluster, controller, 1, []) == {}
    assert await cluster.state("lines", 0) == followed, "it needs no new epoch"
    again = await cluster.state("lines", 1)
    assert (again.leader, again.leader_epoch) == (1, 2)
    broker = cluster.brokers[1]
    await cluster.until(lambda: all(broker.leader_and_isr("lines", number) for number in (0, 1)))
    assert broker.leader_and_isr("lines", 0)[-1].leader == 2
    assert broker.leader_and_isr("lines", 1)[-1].leader == 1


@simulated
async def test_replicas_of_a_broker_that_registers_again_are_no_longer_offline(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await shut_down(cluster, controller, 1, partitions(0))
    cluster.world.pause("controller")
    await cluster.kill_broker(1)
    await cluster.add_broker(1, "second")
    cluster.world.resume("controller")
    await cluster.until(lambda: cluster.brokers[1].metadata("lines", 0))
    await cluster.world.zookeeper.settle()
    assert cluster.brokers[2].metadata("lines", 0)[-1].offline_replicas == []


@simulated
async def test_storage_error_in_an_answer_moves_the_partition(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    error = PartitionError(topic_name="lines", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.brokers[1].answers[LeaderAndIsrRequest] = LeaderAndIsrResponse(partition_errors=[error])
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
    assert (await cluster.state("lines")).isr == [2]


@pytest.mark.invariant("I34")
@simulated
async def test_a_controller_that_stops_first_sends_the_new_leaders_to_the_others(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.candidate_of(1)
    await cluster.until(lambda: controller.service.is_active)
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.network.slow_links["broker1", "broker3"] = 0.05
    await shut_down(cluster, controller, 1)
    assert cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2
    assert cluster.brokers[3].leader_and_isr("lines", 0)[-1].leader == 2


@simulated
async def test_controller_that_stops_does_not_wait_long_for_a_broker_that_hangs(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.candidate_of(1)
    await cluster.until(lambda: controller.service.is_active)
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.pause("broker3")
    async with asyncio.timeout(1):
        await shut_down(cluster, controller, 1)


@pytest.mark.invariant("I42")
@simulated
async def test_a_refusal_that_comes_after_the_reports_of_the_recovery_takes_no_replica_offline(
    cluster: Cluster,
) -> None:
    """The answer was held up on its connection, and the reports came on others. Nothing is reported any more: the only
    replica would lead nothing until its broker was started again."""
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.until(lambda: cluster.brokers[1].requests)
    cluster.world.network.count_frames(match=lambda _: False)  # from now on responses are matched with requests
    cluster.world.network.reset_connections("controller", "broker1")
    refusal = cluster.world.network.hold("broker1", "controller", responses(ApiKey.LEADER_AND_ISR), times=1)
    error = PartitionError(topic_name="lines", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.brokers[1].answers[LeaderAndIsrRequest] = LeaderAndIsrResponse(partition_errors=[error])
    await cluster.create(controller, "lines", [[1]])
    await refusal.caught()
    cluster.brokers[1].answers.clear()
    for offline in (partitions(0), [], []):
        await shut_down(cluster, controller, 1, offline)
        await asyncio.sleep(0.2)
    refusal.release()
    await asyncio.sleep(1)
    assert (await cluster.state("lines")).leader == 1
    assert cluster.brokers[1].leader_and_isr("lines", 0)[-1].leader == 1


@pytest.mark.invariant("I42")
@simulated
async def test_a_report_that_comes_behind_a_later_one_takes_no_replica_offline(cluster: Cluster) -> None:
    """The connection of an attempt hung, the next one got through, and then what was left of the first one came. The
    broker has nothing more to report, so the only replica would lead nothing until its broker was started again."""
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]])
    epoch = cluster.brokers[1].broker_epoch
    answers = []
    for number, offline in ((1, partitions(0)), (3, []), (2, partitions(0)), (4, [])):
        request = ControlledShutdownRequest(
            broker_id=1, broker_epoch=epoch, offline_partitions=offline, report_number=number
        )
        answers.append((await cluster.ask(controller, request)).error_code)
        assert (await cluster.state("lines")).leader == (-1 if number == 1 else 1)
    assert answers == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
    await cluster.brokers[1].unregister()
    await cluster.brokers[1].register()
    epoch = cluster.brokers[1].broker_epoch
    await cluster.until(lambda: cluster.brokers[1].requests[-1].broker_epoch == epoch)  # type: ignore[attr-defined]
    first = ControlledShutdownRequest(broker_id=1, broker_epoch=epoch, offline_partitions=[], report_number=1)
    assert (await cluster.ask(controller, first)).error_code == ErrorCode.NONE, "of another process"
