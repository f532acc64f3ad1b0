"""What a controller tells of its decisions, what it shows while it is the active one, and what it refuses to queue."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.controller import active_controller
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.controller_events import LeadershipChanged, PartitionStateReread
from minibroker.protocol.events.event_base import INFO, WARNING
from minibroker.protocol.wire.messages import DeleteTopicsRequest
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


@simulated
async def test_a_request_beyond_the_limit_of_waiting_ones_is_refused_at_once(cluster: Cluster) -> None:
    """Without ZooKeeper no request ends, and administrators' programs repeat theirs."""
    await cluster.start(1)
    controller = await cluster.controller()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active_controller, "EVENTS_MAX", 2)
        cluster.world.zookeeper.cut("controller")
        waiting = [
            asyncio.create_task(cluster.ask(controller, DeleteTopicsRequest(topic_names=[name]))) for name in ("a", "b")
        ]
        await asyncio.sleep(0.1)
        refused = await cluster.ask(controller, DeleteTopicsRequest(topic_names=["c"]))
        assert refused.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "2 requests wait for the controller already" in (refused.error_message or "")
        assert not any(each.done() for each in waiting)
        cluster.world.zookeeper.heal("controller")
        assert [(await each).error_code for each in waiting] == [ErrorCode.NONE] * 2
        after = await cluster.ask(controller, DeleteTopicsRequest(topic_names=["c"]))
        assert after.error_code == ErrorCode.NONE, "requests that have ended count no more"
