"""A state that another tool has removed or set back contradicts what is known of its partition.

No leader is elected for it until it is repaired: a leader epoch that is given twice has two leaders.
"""

from __future__ import annotations

import asyncio

import pytest

from minibroker.controller.core.controller_state import LOG_EPOCH_MAX
from minibroker.protocol import znodes
from minibroker.protocol.events.controller_events import NodeIgnored
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import DeleteTopicsRequest
from minibroker.protocol.witness import PartitionWitness, WitnessNode, shard_of, witness_path
from minibroker.protocol.znodes import TopicAssignment
from tests.controller.cluster import Candidate, Cluster, simulated

PARTITION = TopicPartition("lines", 0)
STATE = znodes.partition_state_path(PARTITION)
TOPIC = znodes.topic_path("lines")


async def topic_id(cluster: Cluster) -> str:
    content, _ = await cluster.observer.get(znodes.topic_path("lines"))
    return TopicAssignment.decode(content).topic_id


async def note(cluster: Cluster, broker_id: int, topic_id: str, leader_epoch: int) -> None:
    """A leader's note of the partition."""
    noted = PartitionWitness(
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        log_start_offset=0,
        committed_offset=9,
        digest="",
        noted_at_ms=1,
    )
    node = WitnessNode(partitions={str(PARTITION): noted})
    await cluster.observer.create(witness_path(broker_id, shard_of(PARTITION)), node.encode(), make_parents=True)


async def remove_topic(cluster: Cluster) -> bytes:
    """As another tool does; returns what the node held."""
    content, _ = await cluster.observer.get(TOPIC)
    for path in (STATE, znodes.partition_path(PARTITION), znodes.partitions_path("lines"), TOPIC):
        await cluster.observer.delete(path)
    return content


async def has_state(cluster: Cluster) -> bool:
    return await cluster.observer.exists(STATE) is not None


async def before_removal(cluster: Cluster) -> Candidate:
    """Three brokers, one topic, its controller."""
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.until(lambda: has_state(cluster))
    return controller


async def next_controller(cluster: Cluster) -> Candidate:
    """After it has had time to elect leaders."""
    controller = await cluster.controller(name="next", broker_id=101)
    await asyncio.sleep(5)
    return controller


@pytest.mark.invariant("I27")
@simulated
async def test_a_new_controller_leaves_a_partition_alone_that_was_led_and_has_no_state(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    named = await topic_id(cluster)
    await note(cluster, 2, named, leader_epoch=4)
    await note(cluster, 3, named, leader_epoch=7)
    await controller.stop()
    await cluster.observer.delete(STATE)
    controller = await next_controller(cluster)
    assert not await has_state(cluster)
    assert "above 7" in controller.service.ignored_nodes()[STATE]
    await cluster.kill_broker(1)
    await asyncio.sleep(5)
    assert not await has_state(cluster)


@pytest.mark.parametrize("noted", ["nothing", "an earlier topic", "what no controller can parse", "no shard"])
def test_a_partition_that_was_never_led_is_new(noted: str) -> None:
    """A controller may end between writing a topic and its states."""

    @simulated
    async def story(cluster: Cluster) -> None:
        controller = await before_removal(cluster)
        if noted == "an earlier topic":
            await note(cluster, 2, "another id", leader_epoch=7)
        elif noted == "what no controller can parse":
            await cluster.observer.create(witness_path(2, shard_of(PARTITION)), b"{", make_parents=True)
        elif noted == "no shard":
            await cluster.observer.create("/witness/2", b"", make_parents=True)
            await cluster.observer.create("/witness/notes", b"", make_parents=True)
        await controller.stop()
        await cluster.observer.delete(STATE)
        controller = await next_controller(cluster)
        assert (await cluster.state("lines")).leader_epoch == 0
        assert controller.service.ignored_nodes() == {}

    story()


@simulated
async def test_a_state_removed_under_a_controller_is_not_begun_again(cluster: Cluster) -> None:
    """This controller knows that the partition was led, whether or not a leader has noted it."""
    controller = await before_removal(cluster)
    await cluster.observer.delete(STATE)
    await cluster.kill_broker(1)
    await cluster.until(lambda: STATE in controller.service.ignored_nodes())
    await cluster.kill_broker(2)
    await asyncio.sleep(5)
    assert not await has_state(cluster)
    assert controller.service.is_active


@simulated
async def test_a_deletion_that_had_begun_goes_on_and_names_no_state(cluster: Cluster) -> None:
    """Its states go first."""
    controller = await before_removal(cluster)
    await note(cluster, 1, await topic_id(cluster), leader_epoch=0)
    await controller.stop()
    await cluster.observer.create(znodes.delete_topic_path("lines"), znodes.DELETION_BEGUN, make_parents=True)
    await cluster.observer.delete(STATE)
    controller = await next_controller(cluster)
    assert [each for each in controller.events if isinstance(each, NodeIgnored)] == []
    assert await cluster.observer.exists(znodes.topic_path("lines")) is None


@simulated
async def test_a_topic_whose_state_was_removed_can_be_deleted_and_created_again(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    await note(cluster, 1, await topic_id(cluster), leader_epoch=0)
    await controller.stop()
    await cluster.observer.delete(STATE)
    controller = await next_controller(cluster)
    await cluster.ask(controller, DeleteTopicsRequest(topic_names=["lines"]))
    assert [broker.metadata("lines", 0)[-1].leader for broker in cluster.brokers.values()] == [-2, -2, -2]
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.until(lambda: has_state(cluster))
    assert controller.service.ignored_nodes() == {}


@pytest.mark.invariant("I17", "I27")
@simulated
async def test_a_new_controller_leaves_a_state_alone_that_is_older_than_a_leader_has_noted(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    await note(cluster, 2, await topic_id(cluster), leader_epoch=3)
    await controller.stop()
    before = await cluster.observer.get(STATE)
    controller = await next_controller(cluster)
    await cluster.kill_broker(1)
    await asyncio.sleep(5)
    assert await cluster.observer.get(STATE) == before
    assert "above 3" in controller.service.ignored_nodes()[STATE]
    assert witness_path(2, shard_of(PARTITION)) in controller.service.ignored_nodes()[STATE]


@pytest.mark.parametrize("leader_epoch", [0, 1])
def test_a_state_as_new_as_the_notes_counts(leader_epoch: int) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        controller = await before_removal(cluster)
        await cluster.change_state("lines", leader_epoch=1)
        await note(cluster, 2, await topic_id(cluster), leader_epoch)
        await note(cluster, 3, "another id", leader_epoch=7)
        await note(cluster, 4, await topic_id(cluster), leader_epoch=LOG_EPOCH_MAX + 1)
        await controller.stop()
        controller = await next_controller(cluster)
        await cluster.kill_broker(1)
        await cluster.until(lambda: is_led_by(cluster, 2))
        assert controller.service.ignored_nodes() == {}

    story()


async def is_led_by(cluster: Cluster, broker_id: int) -> bool:
    return (await cluster.state("lines")).leader == broker_id


@pytest.mark.invariant("I17", "I27")
@simulated
async def test_a_topic_that_is_removed_and_put_back_under_a_controller_does_not_begin_again(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    await note(cluster, 1, await topic_id(cluster), leader_epoch=0)
    content = await remove_topic(cluster)
    await asyncio.sleep(1)
    await cluster.observer.create(TOPIC, content)
    await cluster.until(lambda: STATE in controller.service.ignored_nodes())
    await asyncio.sleep(5)
    assert not await has_state(cluster)


@pytest.mark.invariant("I17", "I27")
@simulated
async def test_an_older_state_that_is_written_under_a_controller_is_not_built_upon(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    older, _ = await cluster.observer.get(STATE)
    await cluster.kill_broker(1)
    await cluster.until(lambda: is_led_by(cluster, 2))
    await cluster.observer.set(STATE, older)
    await cluster.kill_broker(2)
    await cluster.until(lambda: STATE in controller.service.ignored_nodes())
    await asyncio.sleep(5)
    assert (await cluster.observer.get(STATE))[0] == older
    assert "above 1" in controller.service.ignored_nodes()[STATE]
    assert controller.service.is_active


@simulated
async def test_a_topic_that_another_tool_removed_is_reported_until_it_is_there_again(cluster: Cluster) -> None:
    """Brokers hold its records, and nothing else says so."""
    controller = await before_removal(cluster)
    named = await topic_id(cluster)
    content = await remove_topic(cluster)
    await cluster.until(lambda: TOPIC in controller.service.ignored_nodes())
    assert f"topic id {named}" in controller.service.ignored_nodes()[TOPIC]
    await cluster.create(controller, "other", [[1, 2, 3]])
    assert TOPIC in controller.service.ignored_nodes(), "it is listed without the removed one"
    await cluster.observer.create(TOPIC, content)
    await cluster.until(lambda: TOPIC not in controller.service.ignored_nodes())


@simulated
async def test_a_removed_topic_is_reported_no_more_once_its_name_is_created_again(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    await remove_topic(cluster)
    await cluster.until(lambda: TOPIC in controller.service.ignored_nodes())
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.until(lambda: has_state(cluster))
    assert controller.service.ignored_nodes() == {}


@simulated
async def test_a_topic_that_was_deleted_is_not_reported(cluster: Cluster) -> None:
    controller = await before_removal(cluster)
    await cluster.ask(controller, DeleteTopicsRequest(topic_names=["lines"]))
    await cluster.create(controller, "other", [[1, 2, 3]])
    assert controller.service.ignored_nodes() == {}
