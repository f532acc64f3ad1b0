"""What a controller tells of its decisions, what it shows while it is the active one, and what it refuses to queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minibroker.controller import active_controller
from minibroker.controller.active_controller import ActiveController
from minibroker.controller.cluster_reader import ClusterReader, Deposed
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core.events import LeadershipsWritten
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.broker_events import NodeMissing
from minibroker.protocol.events.controller_events import (
    BrokerFailureConfirmed,
    BrokerFailureNotConfirmed,
    ControllerElected,
    ControllerResigned,
    LeadershipChanged,
    PartitionStateReread,
    TopicDeleted,
)
from minibroker.protocol.events.event_base import INFO, WARNING, ClusterEvent
from minibroker.protocol.wire.messages import DeleteTopicsRequest, Response
from tests.controller.cluster import Candidate, Cluster, simulated


def told(controller: Candidate) -> list[str]:
    """What was reported of leaderships since the last question."""
    events = [each for each in controller.events if isinstance(each, LeadershipChanged | PartitionStateReread)]
    controller.events.clear()
    return [each.text() for each in events]


@simulated
async def test_each_written_leadership_is_told_with_its_reason(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2], [2, 1]])
    assert [line.rpartition(": ")[0] for line in told(controller)] == [
        "lines-0: leader None -> 1, epoch None -> 0, ISR None -> [1, 2]",
        "lines-1: leader None -> 2, epoch None -> 0, ISR None -> [2, 1]",
    ]
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
    assert sorted(told(controller)) == [
        "lines-0: leader 1 -> 2, epoch 0 -> 1, ISR [1, 2] -> [2]: broker 1 is gone",
        "lines-1: leader 2, epoch 0 -> 1, ISR [2, 1] -> [2]: broker 1 is gone",
    ]


@simulated
async def test_a_topic_that_is_gone_is_told_once_and_not_known_any_more(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.ask(controller, DeleteTopicsRequest(topic_names=["lines"], timeout_ms=5_000))
    assert [each.topic for each in controller.events if isinstance(each, TopicDeleted)] == ["lines"]


@simulated
async def test_a_leadership_is_told_as_bad_below_the_topics_minimum_or_the_default(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller(default_min_insync_replicas=2)
    await cluster.create(controller, "defaulted", [[1, 2]])
    await cluster.create(controller, "lines", [[1, 2]], min_insync_replicas="1")
    controller.events.clear()
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2)
    levels = {each.topic: each.level for each in controller.events if isinstance(each, LeadershipChanged)}
    assert levels == {"defaulted": WARNING, "lines": INFO}


@simulated
async def test_a_state_that_another_client_wrote_is_told(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.change_state("lines", isr=[1, 3])
    controller.events.clear()
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[3].leader_and_isr("lines", 0)[-1].leader == 3)
    reread, elected = told(controller)
    assert reread.startswith("lines-0: had changed in ZooKeeper: ") and "in_sync_replicas=(1, 3)" in reread
    assert elected == "lines-0: leader 1 -> 3, epoch 0 -> 1, ISR [1, 3] -> [3]: state had changed in ZooKeeper"


@simulated
async def test_past_the_session_deadline_a_controller_shows_nothing_of_its_state(cluster: Cluster) -> None:
    """Another one may be active, and know better which topics are left and which znodes are damaged."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    forged = znodes.topic_path("forged")
    await cluster.observer.create(forged, b"damaged")
    await cluster.kill_broker(2)
    await cluster.ask(controller, DeleteTopicsRequest(topic_names=["lines"], timeout_ms=1_000))
    assert list(controller.service.topic_deletions()) == ["lines"]
    assert list(controller.service.ignored_nodes()) == [forged]
    cluster.world.zookeeper.cut("controller")
    await asyncio.sleep(3.5)
    assert not controller.service.is_active
    assert controller.service.topic_deletions() == {}
    assert controller.service.ignored_nodes() == {}
    never_active = await cluster.candidate("other", 101, contests=False)
    assert never_active.service.topic_deletions() == {}
    assert never_active.service.ignored_nodes() == {}


NAMES = [f"t{number}" for number in range(300)]


@simulated
async def test_a_request_beyond_the_limit_of_waiting_ones_is_refused_at_once(cluster: Cluster) -> None:
    """Without ZooKeeper no request ends, and administrators' programs repeat theirs."""
    await cluster.start(1)
    controller = await cluster.controller()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active_controller, "EVENTS_MAX", len(NAMES))
        cluster.world.zookeeper.cut("controller")
        waiting = [
            asyncio.create_task(cluster.ask(controller, DeleteTopicsRequest(topic_names=[name]))) for name in NAMES
        ]
        await asyncio.sleep(0.1)
        for _ in range(3):
            refused = await cluster.ask(controller, DeleteTopicsRequest(topic_names=["c"]))
            assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
            assert "300 requests wait for the controller already" in (refused.error_message or "")
        assert not any(each.done() for each in waiting)
        cluster.world.zookeeper.heal("controller")
        assert [(await each).error_code for each in waiting] == [ErrorCode.NONE] * len(NAMES)
        after = await cluster.ask(controller, DeleteTopicsRequest(topic_names=["c"]))
        assert after.error_code == ErrorCode.NONE, "requests that have ended, or were refused, count no more"


# ------------------------------------------------------------------------------------------ the controllers themselves
def of(kind: type[ClusterEvent], controller: Candidate) -> list[str]:
    return [each.text() for each in controller.events if isinstance(each, kind)]


@simulated
async def test_a_new_controller_tells_what_it_found(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    first = await cluster.controller()
    await cluster.create(first, "lines", [[1, 2], [2, 1]])
    assert of(ControllerElected, first) == [
        "took over as controller of epoch 1: brokers [1, 2], topics: 0, partitions: 0, deletions: 0"
    ]
    await cluster.kill_broker(2)
    await cluster.ask(first, DeleteTopicsRequest(topic_names=["lines"], timeout_ms=1_000))
    await first.stop()
    second = await cluster.controller(name="next", broker_id=101)
    await cluster.until(lambda: of(ControllerElected, second))
    assert of(ControllerElected, second) == [
        "took over as controller of epoch 2: brokers [1], topics: 1, partitions: 2, deletions: 1"
    ]


ANSWER_SECONDS = 6.0


async def lose_the_session(cluster: Cluster, controller: Candidate) -> None:
    cluster.world.zookeeper.expire_session(controller.coordination.session_id)


async def remove_the_znode(cluster: Cluster, controller: Candidate) -> None:
    await cluster.observer.delete(znodes.CONTROLLER)


async def get_no_answers(cluster: Cluster, controller: Candidate) -> None:
    for broker in cluster.brokers.values():
        broker.is_mute = True
    await asyncio.sleep(2 * ANSWER_SECONDS)


RESIGNATIONS: dict[str, tuple[Callable[[Cluster, Candidate], Awaitable[None]], str]] = {
    "session": (lose_the_session, "this broker's registration is over"),
    "znode": (remove_the_znode, "/controller is no longer this broker's"),
    "silence": (get_no_answers, "brokers [1, 2] do not answer it for 6 s, most of those there are"),
}


@pytest.mark.parametrize(("cause", "reason"), RESIGNATIONS.values(), ids=RESIGNATIONS)
def test_a_controller_that_resigns_tells_why(
    cause: Callable[[Cluster, Candidate], Awaitable[None]], reason: str
) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2)
        controller = await cluster.controller(answer_timeout_ms=int(1000 * ANSWER_SECONDS))
        await cluster.create(controller, "lines", [[1, 2]])
        await cause(cluster, controller)
        await cluster.until(lambda: of(ControllerResigned, controller))
        assert of(ControllerResigned, controller) == [f"resigned as controller of epoch 1: {reason}"]

    story()


@simulated
async def test_a_controller_that_is_deposed_in_the_middle_tells_what_it_has_decided(cluster: Cluster) -> None:
    """No other controller tells it: the successor finds the decision already written."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    controller.events.clear()
    active = controller.service._active
    assert active is not None
    tell = active._describe

    def tell_and_lose_the_session(written: LeadershipsWritten) -> None:
        tell(written)
        raise Deposed("the ZooKeeper session is over")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active, "_describe", tell_and_lose_the_session)
        await cluster.kill_broker(1)
        await cluster.until(lambda: of(ControllerResigned, controller))
    assert "lines-0: leader 1 -> 2, epoch 0 -> 1, ISR [1, 2] -> [2]: broker 1 is gone" in told(controller)


@simulated
async def test_a_controller_whose_process_was_killed_tells_nothing_more(cluster: Cluster) -> None:
    """The simulation would show what no process can have done."""
    await cluster.start(1)
    controller = await cluster.controller()
    active = controller.service._active
    assert active is not None

    async def decide_and_wait() -> None:
        active._reports.append(NodeMissing(path="/a"))
        await asyncio.Event().wait()

    active._queue.put_nowait(decide_and_wait)
    await asyncio.sleep(1)
    cluster.world.kill("controller")
    await asyncio.sleep(1)
    assert NodeMissing(path="/a") not in controller.events


# --------------------------------------------------------------------------------------------------- failed brokers
@pytest.mark.parametrize("fails", [2, 1], ids=["broker", "controller"])
@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_failure_and_a_doubtful_one_are_told_and_only_the_first_is_counted(fails: int, is_confirmed: bool) -> None:
    """By the controller, or by the candidate that takes its place."""

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3, 4)
        controller = await cluster.candidate_of(1)
        await cluster.until(lambda: controller.service.is_active)
        candidate = await cluster.candidate_of(3)
        await asyncio.sleep(2)
        for broker in cluster.brokers.values():
            broker.is_refused = is_confirmed
        cluster.world.kill(f"broker{fails}")
        await asyncio.sleep(0.5)
        witness = candidate if fails == 1 else controller
        name = "the controller, broker 1," if fails == 1 else "broker 2"
        found = of(BrokerFailureConfirmed, witness), of(BrokerFailureNotConfirmed, witness)
        if is_confirmed:
            assert [text.partition(":")[0] for text in found[0]] == [f"{name} is dead"]
            assert found[1] == []
        else:
            consequence = "waiting for its session" if fails == 1 else "asking again"
            text = f"{name} refuses connections, and no other broker confirms it: {consequence}"
            assert found == ([], [text])
        assert witness.own_broker.told.count("a broker failed") == int(is_confirmed)
        refusal = f"broker 1 of epoch {cluster.brokers[1].broker_epoch} refused"
        assert (refusal in candidate.own_broker.told) == (fails == 1)

    story()


@simulated
async def test_a_registration_that_goes_while_all_are_read_is_named(cluster: Cluster) -> None:
    """The controller's own broker must learn it from this read, if it is the one that is gone."""
    await cluster.start(1, 2)
    gone: list[str] = []
    reader = ClusterReader(
        cluster.observer, ControllerFence(controller_epoch=1, epoch_version=1), on_broker_gone=gone.append
    )
    hold = cluster.world.zookeeper.hold("observer", lambda request: request.path == znodes.broker_path(1))
    reading = asyncio.create_task(reader.read_brokers(lambda: None))
    await hold.caught()
    await cluster.brokers[1].unregister()
    hold.release()
    assert sorted(await reading) == [2]
    assert gone == ["1"]


async def test_an_answer_that_is_no_longer_waited_for_is_dropped() -> None:
    """Its request has timed out, or was answered when the controller resigned."""
    loop = asyncio.get_running_loop()
    waiting, answered, cancelled = (loop.create_future() for _ in range(3))
    answered.set_result(Response())
    cancelled.cancel()
    controller: Any = SimpleNamespace(_waiting={1: waiting, 2: answered, 3: cancelled})
    for request_id in (1, 2, 3, 4):
        ActiveController._answer(controller, request_id, Response(error_code=7))
    assert waiting.result().error_code == 7
    assert answered.result().error_code == 0
