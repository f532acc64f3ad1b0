"""Topics created, deleted, created again."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.controller import service
from minibroker.controller.administration import CONFIRM_SECONDS_MAX
from minibroker.controller.core.topic_creation import PARTITIONS_PER_REQUEST_MAX
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    LeaderAndIsrRequest,
    PartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
    UpdateMetadataRequest,
)
from minibroker.protocol.znodes import ConfigNode, TopicAssignment
from minibroker.runtime.ports import Watcher
from tests.controller.cluster import Candidate, Cluster, simulated


async def created(cluster: Cluster, controller: Candidate, *topics: CreatableTopic) -> list[ErrorCode]:
    response = await cluster.ask(controller, CreateTopicsRequest(topics=list(topics)))
    assert isinstance(response, CreateTopicsResponse), response
    return [ErrorCode(each.error_code) for each in response.topics]


async def deleted(
    cluster: Cluster, controller: Candidate, *names: str, timeout_ms: int = 5_000
) -> list[DeletableTopicResult]:
    response = await cluster.ask(controller, DeleteTopicsRequest(topic_names=list(names), timeout_ms=timeout_ms))
    assert isinstance(response, DeleteTopicsResponse), response
    return response.responses


async def exists(cluster: Cluster, path: str) -> bool:
    return await cluster.observer.exists(path) is not None


# --------------------------------------------------------------------------------------------------------- creation
@simulated
async def test_other_requests_run_between_the_topics_of_a_large_one(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    many = [CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1) for number in range(50)]
    all_of_them = asyncio.create_task(created(cluster, controller, *many))
    await asyncio.sleep(0)
    check = CreateTopicsRequest(topics=[CreatableTopic(name="one")], validate_only=True)
    await cluster.ask(controller, check)
    assert not await exists(cluster, znodes.topic_path("t49"))
    assert set(await all_of_them) == {ErrorCode.NONE}


@simulated
async def test_one_request_creates_a_limited_number_of_partitions(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    rest = PARTITIONS_PER_REQUEST_MAX - 10
    sizes = {"small": 10, "too-large": rest + 1, "fits": 1}
    topics = [CreatableTopic(name=name, num_partitions=sizes[name], replication_factor=1) for name in sizes]
    assert await created(cluster, controller, *topics) == [ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, ErrorCode.NONE]


@simulated
async def test_a_topic_without_numbers_gets_the_defaults_of_the_broker(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller(default_replication_factor=3, num_partitions=2)
    assert await created(cluster, controller, CreatableTopic(name="lines")) == [ErrorCode.NONE]
    content, _ = await cluster.observer.get(znodes.topic_path("lines"))
    replicas = TopicAssignment.decode(content).replicas()
    assert sorted(replicas) == [0, 1]
    assert sorted(replicas[0]) == [1, 2, 3]
    assert replicas[0][0] != replicas[1][0]


@simulated
async def test_settings_of_a_topic_are_stored_and_travel_with_its_leaders_and_metadata(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1]], segment_bytes="1000")
    content, _ = await cluster.observer.get(znodes.topic_config_path("lines"))
    assert ConfigNode.decode(content).config == {"segment.bytes": "1000"}
    topics = [
        topic
        for request in cluster.brokers[1].requests
        if isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest)
        for topic in request.topic_states
    ]
    assert len(topics) == 2
    assert all(topic.configs == {"segment.bytes": "1000"} for topic in topics)


@simulated
async def test_what_cannot_be_created_is_refused_and_the_rest_is_created(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "old", [[1]])
    codes = await created(
        cluster,
        controller,
        CreatableTopic(name="old"),
        CreatableTopic(name="too-many", replication_factor=3),
        CreatableTopic(name="fine"),
        CreatableTopic(name="twice"),
        CreatableTopic(name="twice"),
    )
    assert codes == [
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.NONE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert await cluster.observer.get_children(znodes.BROKER_TOPICS) == ["fine", "old"]


@simulated
async def test_validate_only_writes_nothing(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    request = CreateTopicsRequest(topics=[CreatableTopic(name="lines")], validate_only=True)
    response = await cluster.ask(controller, request)
    assert isinstance(response, CreateTopicsResponse)
    assert (response.topics[0].error_code, response.topics[0].topic_id) == (0, "")
    assert await cluster.observer.get_children(znodes.BROKER_TOPICS) == []


@simulated
async def test_creation_answers_though_one_broker_hangs(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    cluster.brokers[2].is_mute = True
    began = cluster.world.loop.time()
    response = await cluster.create(controller, "lines", [[1, 2]])
    assert response.topics[0].error_code == 0
    assert CONFIRM_SECONDS_MAX <= cluster.world.loop.time() - began < CONFIRM_SECONDS_MAX + 0.5
    assert cluster.brokers[1].leader_and_isr("lines", 0)
    began = cluster.world.loop.time()
    check = CreateTopicsRequest(topics=[CreatableTopic(name="more", num_partitions=1)], validate_only=True)
    await cluster.ask(controller, check)
    assert cluster.world.loop.time() - began < 0.5, "a check changes nothing that a broker would have to know"


@simulated
async def test_topic_that_another_tool_wrote_gets_leaders(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    await cluster.controller()
    assignment = TopicAssignment.of("foreign", {0: (1, 2), 1: (2, 1)})
    await cluster.observer.create(znodes.topic_path("lines"), assignment.encode())
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 1))
    assert (await cluster.state("lines", 0)).isr == [1, 2]


@simulated
async def test_a_new_topic_is_not_looked_for_in_the_list_of_all_others(cluster: Cluster) -> None:
    """Each known topic was, once for each topic that was created: beside 5,000 topics the controller stood still for
    0.2 s each time."""

    class Listed(list[str]):
        def __contains__(self, name: object) -> bool:
            raise AssertionError("this reads the whole list")

    await cluster.start(1)
    controller = await cluster.controller()
    active = controller.service._active
    assert active is not None
    read_topic_names = active.store.read_topic_names

    async def listed(watcher: Watcher) -> list[str]:
        return Listed(await read_topic_names(watcher))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(active.store, "read_topic_names", listed)
        for name in ("lines", "words"):
            await cluster.create(controller, name, [[1]])
        await cluster.world.zookeeper.settle()
        await active._reread_topics()
    assert sorted(active.state.topics) == ["lines", "words"]


@simulated
async def test_a_topic_that_cannot_be_read_does_not_disturb_the_others(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.observer.create(znodes.topic_path("broken"), b"{")
    controller = await cluster.controller()
    assert (await cluster.create(controller, "lines", [[1]])).topics[0].error_code == 0


@simulated
async def test_a_partition_state_that_cannot_be_read_is_left_alone(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2], [1, 2]])
    path = f"{znodes.partitions_path('lines')}/0/state"
    await cluster.observer.set(path, b"garbage")
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 1)[-1].leader == 2)
    await controller.stop()
    second = await cluster.candidate("other", 101)
    await cluster.until(lambda: second.service.is_active)
    await cluster.world.zookeeper.settle()
    assert (await cluster.observer.get(path))[0] == b"garbage"


# --------------------------------------------------------------------------------------------------------- deletion
@pytest.mark.invariant("I35")
@simulated
async def test_deleted_topic_leaves_nothing_behind(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2], [2, 1]])
    results = await deleted(cluster, controller, "lines", "nothing")
    assert [each.error_code for each in results] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    for path in (znodes.topic_path("lines"), znodes.topic_config_path("lines"), znodes.delete_topic_path("lines")):
        assert not await exists(cluster, path)
    for broker in cluster.brokers.values():
        assert broker.metadata("lines", 0)[-1].leader == -2
        stop = broker.stops("lines", 1)[-1]
        assert (stop.delete_partition, stop.leader_epoch) == (True, -2)


@simulated
async def test_topic_created_again_has_another_id_and_starts_at_epoch_zero(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    first = await cluster.create(controller, "lines", [[1, 2]])
    await cluster.kill_broker(2)
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0)[-1].leader_epoch == 1)
    await cluster.add_broker(2)
    await deleted(cluster, controller, "lines")
    second = await cluster.create(controller, "lines", [[1, 2]])
    assert second.topics[0].error_code == 0
    assert second.topics[0].topic_id != first.topics[0].topic_id
    stops = [request for request in cluster.brokers[1].requests if isinstance(request, StopReplicaRequest)]
    assert [topic.topic_id for request in stops for topic in request.topic_states] == [first.topics[0].topic_id]
    assert (await cluster.state("lines")).leader_epoch == 0


@simulated
async def test_deletion_waits_for_a_missing_replica_and_goes_on_when_it_returns(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.kill_broker(2)
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0)[-1].isr == [1])
    results = await deleted(cluster, controller, "lines", timeout_ms=1000)
    assert results[0].error_code == ErrorCode.REPLICA_NOT_AVAILABLE
    assert results[0].error_message == (
        "topic lines is marked for deletion, which waits for broker 2: it goes on by itself once broker 2 runs again"
    )
    assert not cluster.brokers[1].stops("lines", 0)
    again = await created(cluster, controller, CreatableTopic(name="lines"))
    assert again == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert controller.service.topic_deletions() == {"lines": results[0].error_message}
    assert await exists(cluster, znodes.delete_topic_path("lines")), "the next controller must know it, too"

    await cluster.add_broker(2)
    await cluster.until(lambda: cluster.brokers[2].stops("lines", 0))
    await cluster.world.zookeeper.settle()
    assert not await exists(cluster, znodes.topic_path("lines"))
    assert controller.service.topic_deletions() == {}


@simulated
async def test_broker_that_bounces_during_a_deletion_is_asked_again(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    cluster.brokers[2].is_mute = True
    waiting = asyncio.ensure_future(deleted(cluster, controller, "lines", timeout_ms=20_000))
    await cluster.until(lambda: cluster.brokers[1].stops("lines", 0))
    await cluster.kill_broker(2)
    back = await cluster.add_broker(2, "second")
    assert (await waiting)[0].error_code == 0
    assert back.stops("lines", 0)[-1].delete_partition
    assert not back.leader_and_isr("lines", 0)


@simulated
async def test_new_controller_goes_on_with_a_deletion(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    cluster.brokers[2].is_mute = True
    waiting = asyncio.ensure_future(deleted(cluster, controller, "lines"))
    await cluster.until(lambda: cluster.brokers[1].stops("lines", 0))
    await controller.stop()
    assert (await waiting)[0].error_code == ErrorCode.NOT_CONTROLLER
    cluster.brokers[2].is_mute = False
    cluster.brokers[2].requests.clear()
    await cluster.candidate("other", 101)
    await cluster.until(lambda: cluster.brokers[2].stops("lines", 0))
    await cluster.world.zookeeper.settle()
    assert not await exists(cluster, znodes.topic_path("lines"))
    assert not cluster.brokers[2].leader_and_isr("lines", 0)


@simulated
@pytest.mark.invariant("I35")
async def test_new_controller_creates_no_replica_again_after_a_deletion_has_begun(cluster: Cluster) -> None:
    """One replica is gone, the broker of the other fails, and so does the controller: no replica may lead again."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    cluster.brokers[2].is_mute = True
    waiting = asyncio.ensure_future(deleted(cluster, controller, "lines"))
    await cluster.until(lambda: cluster.brokers[1].stops("lines", 0))
    order_count = len(cluster.brokers[1].leader_and_isr("lines", 0))
    await cluster.kill_broker(2)
    waiting.cancel()
    await controller.stop()
    await cluster.candidate("other", 101)
    await asyncio.sleep(2)
    assert len(cluster.brokers[1].leader_and_isr("lines", 0)) == order_count
    back = await cluster.add_broker(2, "second")
    await cluster.until(lambda: back.stops("lines", 0))
    await cluster.world.zookeeper.settle()
    assert not back.leader_and_isr("lines", 0)
    assert not await exists(cluster, znodes.topic_path("lines"))


@simulated
async def test_half_erased_topic_is_erased_to_the_end(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1], [1]])
    await controller.stop()
    await cluster.observer.create(znodes.delete_topic_path("lines"), b"")
    await cluster.observer.delete(f"{znodes.partitions_path('lines')}/0/state")
    await cluster.observer.delete(f"{znodes.partitions_path('lines')}/0")
    await cluster.candidate("other", 101)

    async def is_gone() -> bool:
        return not await exists(cluster, znodes.topic_path("lines"))

    await cluster.until(is_gone)
    assert not await exists(cluster, znodes.delete_topic_path("lines"))


@simulated
async def test_a_half_erased_topic_is_not_created_again_while_its_deletion_waits(cluster: Cluster) -> None:
    """Otherwise its epochs would begin at 0 again, under the same topic id (seed 3299)."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await controller.stop()
    state_path = znodes.partition_state_path(TopicPartition("lines", 0))
    await cluster.observer.create(znodes.delete_topic_path("lines"), b"")
    await cluster.observer.delete(state_path)
    await cluster.observer.delete(state_path.removesuffix("/state"))
    await cluster.kill_broker(2)
    cluster.brokers[1].requests.clear()
    await cluster.candidate("other", 101)
    await cluster.world.zookeeper.settle()
    assert not await exists(cluster, state_path)
    assert not cluster.brokers[1].leader_and_isr("lines", 0)
    await cluster.add_broker(2)
    await cluster.until(lambda: cluster.brokers[2].stops("lines", 0))
    await cluster.world.zookeeper.settle()
    assert not await exists(cluster, znodes.topic_path("lines"))


@simulated
async def test_marker_of_a_topic_that_does_not_exist_is_removed(cluster: Cluster) -> None:
    await cluster.start(1)
    await cluster.controller()
    await cluster.observer.create(znodes.delete_topic_path("nothing"), b"")
    await cluster.world.zookeeper.settle()
    assert await cluster.observer.get_children(znodes.DELETE_TOPICS) == []


@simulated
async def test_replica_that_could_not_be_deleted_holds_the_deletion(cluster: Cluster) -> None:
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    error = PartitionError(topic_name="lines", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.brokers[2].answers[StopReplicaRequest] = StopReplicaResponse(partition_errors=[error])
    results = await deleted(cluster, controller, "lines", timeout_ms=1000)
    assert results[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "brokers [2] have not deleted it yet" in (results[0].error_message or "")
    assert await exists(cluster, znodes.topic_path("lines"))


@simulated
async def test_deletion_may_be_forbidden(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller(delete_topic_enable=False)
    await cluster.create(controller, "lines", [[1]])
    assert (await deleted(cluster, controller, "lines"))[0].error_code == ErrorCode.INVALID_REQUEST
    assert await exists(cluster, znodes.topic_path("lines"))


@simulated
async def test_erasure_whose_answers_are_lost_ends_all_the_same(cluster: Cluster) -> None:
    await cluster.start(1)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1], [1]])
    cluster.world.zookeeper.lose_next_reply("controller", times=3)
    assert (await deleted(cluster, controller, "lines", timeout_ms=30_000))[0].error_code == 0
    assert not await exists(cluster, znodes.topic_path("lines"))


@simulated
async def test_no_request_waits_longer_than_the_limit(cluster: Cluster) -> None:
    """A broker has room for two hundred requests that wait. A deletion that waits for a dead broker would hold one for
    as long as its client says, up to 24 days, though the client be gone."""
    await cluster.start(1, 2)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2]])
    await cluster.kill_broker(2)
    await cluster.until(lambda: cluster.brokers[1].leader_and_isr("lines", 0)[-1].isr == [1])
    begun = asyncio.get_running_loop().time()
    results = await deleted(cluster, controller, "lines", timeout_ms=2**31 - 1)
    assert asyncio.get_running_loop().time() - begun == pytest.approx(service.TIMEOUT_MS_MAX / 1000, abs=0.1)
    assert results[0].error_code == ErrorCode.REPLICA_NOT_AVAILABLE, "the answer says what it waits for"
