"""Controller services over a simulated ZooKeeper: elections, failover, fencing, lost answers, sessions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.controller.active_controller import ActiveController
from minibroker.controller.cluster_reader import Deposed, Resigned
from minibroker.controller.cluster_store import ClusterStore
from minibroker.controller.controller_election import Candidate as Identity
from minibroker.controller.controller_election import ControllerFence, contest
from minibroker.controller.core.election import PartitionChange
from minibroker.controller.service import RESIGNED_SECONDS
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.broker_events import NodeMissing
from minibroker.protocol.events.controller_events import ControllerResigned
from minibroker.protocol.wire.messages import (
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from minibroker.runtime.ports import CoordinationError, CoordinationUnavailable
from tests.controller.cluster import Cluster, simulated
from tests.controller.facts import T0, leadership
from tests.controller.isr_proposals import alter_partition, altered, is_led


def test_a_watch_that_fires_often_queues_one_read_until_that_read_runs() -> None:
    """The queue has no other limit."""
    kept = SimpleNamespace(_queued_reads=set(), _queue=asyncio.Queue())

    async def read() -> None:
        """Never awaited."""

    watchers = [ActiveController._watcher(cast(Any, kept), name, read) for name in ("brokers", "topics", "brokers")]
    for watcher in watchers * 2:
        watcher()
    assert kept._queue.qsize() == 2
    kept._queued_reads.discard("brokers")
    watchers[0]()
    assert kept._queue.qsize() == 3


# ------------------------------------------------------------------------------------------------------- elections
@simulated
async def test_first_candidate_wins_epoch_one(cluster: Cluster) -> None:
    await cluster.start(1)
    first = await cluster.controller()
    second = await cluster.candidate("other", 101)
    await cluster.world.zookeeper.settle()
    assert first.service.controller_epoch == 1
    assert not second.service.is_active


@simulated
async def test_new_topic_gets_leaders_and_every_broker_gets_them(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    response = await cluster.create(controller, "lines", [[1, 2, 3], [2, 3, 1]])
    assert [each.error_code for each in response.topics] == [0]
    state = await cluster.state("lines", 1)
    assert is_led(state) == (2, 0, [2, 3, 1])
    assert state.isr_incarnations == {"1": "i1", "2": "i2", "3": "i3"}
    for broker in cluster.brokers.values():
        order = broker.leader_and_isr("lines", 1)[-1]
        assert (order.leader, order.leader_epoch, order.is_new) == (2, 0, True)
        assert broker.metadata("lines", 1)[-1].leader == 2


@pytest.mark.invariant("I27", "I28")
@simulated
async def test_dead_leader_is_replaced_from_the_isr(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
    assert is_led(await cluster.state("lines")) == (2, 1, [2, 3])
    assert cluster.brokers[3].metadata("lines", 0)[-1].offline_replicas == [1]


@simulated
async def test_broker_that_returns_gets_all_orders_but_is_not_put_into_the_isr(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.kill_broker(3)
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0)[-1].isr == [1, 2])
    back = await cluster.add_broker(3, "second")
    await cluster.until(lambda: back.leader_and_isr("lines", 0))
    assert back.leader_and_isr("lines", 0)[-1].isr == [1, 2]
    assert not back.leader_and_isr("lines", 0)[-1].is_new
    assert isinstance(back.requests[0], UpdateMetadataRequest)
    assert back.metadata("lines", 0)


@pytest.mark.invariant("I31", "I38")
@simulated
async def test_leader_that_bounces_within_one_watch_latency_is_replaced(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    old_epoch = cluster.brokers[1].broker_epoch
    cluster.world.pause("controller")
    await cluster.kill_broker(1)
    back = await cluster.add_broker(1, "second")
    cluster.world.resume("controller")
    await cluster.until(lambda: back.leader_and_isr("lines", 0))
    assert is_led(await cluster.state("lines")) == (2, 1, [2, 3])
    assert {request.broker_epoch for request in back.requests if isinstance(request, LeaderAndIsrRequest)} == {
        back.broker_epoch
    }
    assert back.broker_epoch > old_epoch


@simulated
async def test_same_incarnation_under_a_new_registration_keeps_its_leadership(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    broker = cluster.brokers[1]
    cluster.world.pause("controller")
    await cluster.world.spawn(broker.host, broker.unregister())
    await cluster.world.spawn(broker.host, broker.register())
    broker.requests.clear()
    cluster.world.resume("controller")
    await cluster.until(lambda: broker.leader_and_isr("lines", 0))
    assert is_led(await cluster.state("lines")) == (1, 0, [1, 2, 3])


@simulated
async def test_preferred_leader_is_restored_five_seconds_after_taking_over(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.change_state("lines", leader=2, leader_epoch=1)
    await controller.stop()
    second = await cluster.candidate("other", 101)
    await cluster.until(lambda: second.service.is_active)
    await asyncio.sleep(4.5)
    assert (await cluster.state("lines")).leader == 2
    await asyncio.sleep(1)
    assert is_led(await cluster.state("lines")) == (1, 2, [1, 2])


@pytest.mark.invariant("I18")
@simulated
async def test_of_candidates_that_contest_together_one_wins(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.observer.create(znodes.CONTROLLER_EPOCH, b"0")
    candidates = [await cluster.candidate(f"candidate{each}", each, contests=False) for each in range(100, 110)]
    clock = cluster.world.runtime("observer").clock
    identity = Identity(broker_id=1, incarnation_id="i")
    contests = [contest(each.coordination, clock, identity, lambda: None) for each in candidates]
    won = await asyncio.gather(*contests)
    assert [fence.controller_epoch for fence in won if fence is not None] == [1]
    content, _ = await cluster.observer.get(znodes.CONTROLLER_EPOCH)
    assert content == b"1"


# -------------------------------------------------------------------------------------------------------- failover
@pytest.mark.invariant("I27", "I28", "I38")
@simulated
async def test_new_controller_finishes_the_elections_of_the_failed_one(cluster: Cluster) -> None:
    """The leader and the controller fail together: half of the elections were written, no broker has got one."""
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3], [1, 3, 2]])
    cluster.world.kill("controller")
    await cluster.kill_broker(1)
    await cluster.change_state("lines", 0, leader=2, leader_epoch=1, isr=[2, 3])
    cluster.world.zookeeper.expire_session(controller.coordination.session_id)
    for broker in cluster.brokers.values():
        broker.requests.clear()

    second = await cluster.candidate("other", 101)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 1))
    assert second.service.controller_epoch == 2
    assert is_led(await cluster.state("lines", 0)) == (2, 1, [2, 3])
    assert is_led(await cluster.state("lines", 1)) == (3, 1, [3, 2])
    for broker in cluster.brokers.values():
        assert broker.leader_and_isr("lines", 0)[-1].leader_epoch == 1
        assert broker.metadata("lines", 1)[-1].leader_epoch == 1


@simulated
async def test_at_failover_metadata_reaches_every_broker_before_any_leadership(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await controller.stop()
    for broker in cluster.brokers.values():
        broker.requests.clear()
    await cluster.candidate("other", 101)
    for broker in cluster.brokers.values():
        await cluster.until(lambda broker=broker: broker.leader_and_isr("lines", 0))  # type: ignore[misc]
        first = broker.requests[0]
        assert isinstance(first, UpdateMetadataRequest)
        assert [live.id for live in first.live_brokers] == [1, 2, 3]
        assert first.controller_epoch == 2


@simulated
async def test_a_controller_that_stops_cleanly_is_succeeded_at_once(cluster: Cluster) -> None:
    await cluster.start(1)
    first = await cluster.controller()
    second = await cluster.candidate("other", 101)
    await first.stop()
    await cluster.until(lambda: second.service.is_active, seconds=0.5)
    assert second.service.controller_epoch == 2
    assert not first.service.is_active


# --------------------------------------------------------------------------------------------------------- fencing
@pytest.mark.invariant("I18", "I29", "I30")
@simulated
async def test_writes_of_a_deposed_controller_are_refused(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    zombie = ClusterStore(cluster.observer, ControllerFence(controller_epoch=1, epoch_version=1))
    assert (await cluster.observer.get(znodes.CONTROLLER_EPOCH))[1].version == 1
    await controller.stop()
    second = await cluster.candidate("other", 101)
    await cluster.until(lambda: second.service.controller_epoch == 2)

    before = leadership(1, 1, 2, 3, epoch=0, version=0)
    change = PartitionChange(
        partition=T0, before=before, after=leadership(2, 2, 3, epoch=1, version=0), reason="zombie"
    )
    with pytest.raises(Deposed):
        await zombie.write_leaderships([change])
    with pytest.raises(Deposed):
        await zombie.mark_deleted("lines")
    with pytest.raises(Deposed):
        await zombie.erase_topic("lines")
    with pytest.raises(Deposed):
        await zombie.write_config(znodes.topic_config_path("lines"), lambda before: before)
    assert is_led(await cluster.state("lines")) == (1, 0, [1, 2, 3])
    assert await cluster.observer.get_children(znodes.DELETE_TOPICS) == []


@pytest.mark.invariant("I18", "I29", "I30")
@simulated
async def test_a_controller_paused_beyond_its_session_changes_nothing_when_it_resumes(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    zombie = await cluster.controller()
    await cluster.create(zombie, "lines", [[1, 2, 3]])
    second = await cluster.candidate("other", 101)
    cluster.world.pause("controller")
    cluster.world.zookeeper.expire_session(zombie.coordination.session_id)
    await cluster.until(lambda: second.service.is_active)
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
    orders = {each: cluster.brokers[each].orders_of(1) for each in cluster.brokers}
    cluster.world.resume("controller")
    await asyncio.sleep(2)
    assert is_led(await cluster.state("lines")) == (2, 1, [2, 3])
    assert not zombie.service.is_active
    assert {each: cluster.brokers[each].orders_of(1) for each in cluster.brokers} == orders


@pytest.mark.invariant("I29")
@simulated
async def test_past_the_session_deadline_a_controller_answers_and_sends_nothing(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.zookeeper.cut("controller")
    await asyncio.sleep(2.0)
    assert controller.service.is_active
    await asyncio.sleep(1.5)
    assert not controller.service.is_active
    response = await cluster.ask(controller, alter_partition(cluster, 1, 1, 2))
    assert response.error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.invariant("I29")
@simulated
async def test_past_the_session_deadline_what_waits_for_a_broker_is_not_sent_again(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller(request_timeout_ms=500)
    broker = cluster.brokers[1]
    broker.is_mute = True
    await cluster.create(controller, "lines", [[1, 2]])
    cluster.world.zookeeper.cut("controller")
    await asyncio.sleep(2.0)
    count = len(broker.requests)
    assert count > 3
    await asyncio.sleep(1.5)
    count = len(broker.requests)
    await asyncio.sleep(1)
    assert len(broker.requests) == count
    cluster.world.zookeeper.heal("controller")


@simulated
async def test_expired_controller_contests_again_when_it_is_registered_again(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    cluster.world.zookeeper.expire_session(controller.coordination.session_id)
    await cluster.until(lambda: controller.service.controller_epoch is None)
    await asyncio.sleep(2)
    assert controller.service.controller_epoch is None
    controller.service.registered(7, "incarnation of controller")
    await cluster.until(lambda: controller.service.is_active)
    assert controller.service.controller_epoch == 2


@simulated
async def test_a_registration_that_ends_before_it_is_contested_is_no_candidacy(cluster: Cluster) -> None:
    await cluster.start(1)
    candidate = await cluster.candidate(contests=False)
    candidate.service.registered(1, "incarnation of controller")
    candidate.service.session_lost()
    await asyncio.sleep(2)
    assert candidate.service.controller_epoch is None
    candidate.service.registered(7, "incarnation of controller")
    await cluster.until(lambda: candidate.service.is_active)


@simulated
async def test_a_controller_that_resigns_lets_others_try_first(cluster: Cluster) -> None:
    await cluster.start(1)

    async def run(active: ActiveController) -> None:
        raise Resigned("another may do better")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ActiveController, "run", run)
        candidate = await cluster.candidate()
        await cluster.until(lambda: candidate.events)
        await asyncio.sleep(RESIGNED_SECONDS - 0.5)
        resigned = [each for each in candidate.events if isinstance(each, ControllerResigned)]
        assert [(each.controller_epoch, each.reason) for each in resigned] == [(1, "another may do better")]
        assert candidate.service.controller_epoch is None
        assert await cluster.observer.exists(znodes.CONTROLLER) is None
    await cluster.until(lambda: candidate.service.is_active)
    assert candidate.service.controller_epoch == 2


@simulated
async def test_a_broker_is_told_of_its_own_registration_that_a_read_found_gone(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    for name in ("1", "10", "nonsense"):
        controller.service._broker_gone(name)
    assert controller.own_broker.told == []
    controller.service._broker_gone("100")
    assert controller.own_broker.told == ["its registration is gone"]


@pytest.mark.invariant("I18")
@simulated
async def test_a_controller_znode_of_the_own_session_without_its_epoch_is_contested_again(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    controller.service.session_lost()
    controller.service.registered(1, "incarnation of controller")
    await cluster.until(lambda: controller.service.is_active)
    assert controller.service.controller_epoch == 2


@pytest.mark.invariant("I29", "I30")
@simulated
async def test_a_state_written_by_a_newer_controller_deposes_the_older_one(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.observer.set(znodes.CONTROLLER_EPOCH, znodes.format_number(9))
    await cluster.change_state("lines", controller_epoch=9)
    await cluster.kill_broker(2)
    await cluster.until(lambda: controller.service.controller_epoch == 10)
    assert controller.service.is_active


# ---------------------------------------------------------------------------------------------------- lost answers
@pytest.mark.invariant("I8", "I27", "I38")
@simulated
async def test_election_whose_answer_was_lost_is_adopted_once(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.zookeeper.lose_next_reply("controller")
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
    assert is_led(await cluster.state("lines")) == (2, 1, [2, 3])
    assert await cluster.version("lines") == 1
    result = await altered(cluster, controller, alter_partition(cluster, 2, 2, epoch=1, version=1))
    assert (result.error_code, result.partition_epoch) == (0, 2)


@pytest.mark.invariant("I27")
@simulated
async def test_contest_whose_answer_was_lost_is_recognised_as_won(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.observer.create(znodes.CONTROLLER_EPOCH, b"0")
    cluster.world.zookeeper.lose_next_reply("controller")
    controller = await cluster.controller()
    await cluster.world.zookeeper.settle()
    assert controller.service.is_active
    content, stat = await cluster.observer.get(znodes.CONTROLLER_EPOCH)
    assert (int(content), stat.version, controller.service.controller_epoch) == (1, 1, 1)


@simulated
async def test_first_election_is_sent_as_new_after_a_lost_answer(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    cluster.world.zookeeper.lose_next_reply("controller", times=2)
    await cluster.create(controller, "lines", [[1, 2]])
    assert [each.is_new for each in cluster.brokers[1].leader_and_isr("lines", 0)] == [True]


@simulated
async def test_topic_whose_creation_was_not_answered_is_created_once(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    cluster.world.zookeeper.lose_next_reply("controller")
    response = await cluster.create(controller, "lines", [[1, 2, 3]])
    assert response.topics[0].error_code == 0
    content, _ = await cluster.observer.get(znodes.topic_path("lines"))
    assert znodes.TopicAssignment.decode(content).topic_id == response.topics[0].topic_id


@pytest.mark.invariant("I8", "I38")
@simulated
async def test_a_state_that_another_client_changed_is_read_and_decided_again(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3], [1, 2, 3]])
    await cluster.change_state("lines", 0, isr=[1, 3])
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[3].leader_and_isr("lines", 0)[-1].leader == 3)
    assert is_led(await cluster.state("lines", 0)) == (3, 1, [3])
    assert is_led(await cluster.state("lines", 1)) == (2, 1, [2, 3])
    assert await cluster.version("lines", 1) == 1


@simulated
async def test_election_waits_out_a_short_zookeeper_outage(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    cluster.world.zookeeper.drop_connection("controller")
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2, seconds=2)
    assert controller.service.controller_epoch == 1


@simulated
async def test_a_bug_ends_run_and_the_controller_resigns(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    candidate = await cluster.candidate("other", 101)
    await cluster.until(lambda: cluster.brokers[1].requests)
    active = controller.service._active
    assert active is not None
    active.state.brokers.clear()  # corrupt its state: the broker's channel exists already
    await cluster.add_broker(2)
    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup, match="unhandled errors"):
            await controller.task
    await cluster.until(lambda: candidate.service.is_active, seconds=1)


@simulated
async def test_a_removed_parent_znode_is_created_again(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.observer.delete(znodes.DELETE_TOPICS)
    controller = await cluster.controller()
    await cluster.until(lambda: cluster.brokers[1].requests)
    assert await cluster.observer.exists(znodes.DELETE_TOPICS) is not None
    assert NodeMissing(path=znodes.DELETE_TOPICS) in controller.events


@simulated
async def test_after_an_unexpected_error_zookeeper_is_asked_again(cluster: Cluster) -> None:
    await cluster.start(1)
    store = ClusterStore(cluster.observer, ControllerFence(controller_epoch=1, epoch_version=1))
    answers: list[Exception | str] = [CoordinationError("session moved"), CoordinationUnavailable("no link"), "fine"]

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert await store.patiently(ask) == "fine"
