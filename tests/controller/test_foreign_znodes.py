"""An unusable znode of another client affects only what it is about: orders to brokers stay valid."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from minibroker.controller.cluster_reader import ClusterReader, Deposed, shown
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core.ignored_nodes import IgnoredNodes
from minibroker.protocol import znodes
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.controller_events import NodeIgnored
from minibroker.protocol.ids import MAX_INT32, TopicPartition
from minibroker.protocol.wire.messages import (
    IGNORED_NODES_MAX,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    LeaderAndIsrRequest,
    UpdateMetadataRequest,
)
from minibroker.protocol.znodes import BrokerRegistration, ConfigNode, PartitionState
from minibroker.runtime.ports import CreateOp, NotAuthorized, Operation, Stat, Watcher
from minibroker.simulation.world.coordination import SimulatedCoordination
from tests.controller.cluster import Candidate, Cluster, FakeBroker, simulated
from tests.controller.isr_proposals import is_led

REGISTRATION = BrokerRegistration(
    host="h",
    port=1,
    endpoints=["INTERNAL://h:1"],
    listener_security_protocol_map={},
    timestamp="0",
    incarnation_id="i",
    directory_id="d",
)


def registration(**fields: Any) -> bytes:
    return msgspec.structs.replace(REGISTRATION, **fields).encode()


def assignment(replicas: dict[str, list[int]], topic_id: str = "id") -> bytes:
    return json.dumps({"topic_id": topic_id, "partitions": replicas}).encode()


FOREIGN = {
    "broker id beyond a message": ("/brokers/ids/9999999999", registration()),
    "second name of broker 1": ("/brokers/ids/01", registration(host="elsewhere", endpoints=["INTERNAL://x:1"])),
    "broker that is no number": ("/brokers/ids/x", registration()),
    "broker with an empty label": ("/brokers/ids/7", registration(endpoints=["INTERNAL://broker4..example:1"])),
    "broker with a long label": ("/brokers/ids/7", registration(endpoints=[f"INTERNAL://{'x' * 64}:1"])),
    "broker with a NUL": ("/brokers/ids/7", registration(endpoints=["INTERNAL://a\0b:1"])),
    "broker with a long listener": ("/brokers/ids/7", registration(endpoints=[f"{'N' * 600}://h:1"])),
    "broker with many listeners": ("/brokers/ids/7", registration(endpoints=[f"N{n}://h:1" for n in range(17)])),
    "broker with a line for an id": ("/brokers/ids/7", registration(incarnation_id="a\nb")),
    "topic with a path for a name": ("/brokers/topics/a b", assignment({"0": [1, 2]})),
    "topic with a long name": (f"/brokers/topics/{'x' * 250}", assignment({"0": [1, 2]})),
    "topic with a line for an id": ("/brokers/topics/foreign", assignment({"0": [1, 2]}, "a\nb")),
    "partition beyond a message": ("/brokers/topics/foreign", assignment({"9999999999": [1, 2]})),
    "replica beyond a message": ("/brokers/topics/foreign", assignment({"0": [1, 2**40]})),
    "more replicas than a message has": ("/brokers/topics/foreign", assignment({"0": list(range(101))})),
    "deletion of what no topic can be": ("/admin/delete_topics/a b", b""),
}


async def plant(cluster: Cluster, path: str, content: bytes) -> None:
    await cluster.observer.create(path, content, make_parents=True)


async def fails_over(cluster: Cluster, controller: Candidate) -> None:
    """The leader fails; another one is elected and gets LeaderAndIsr."""
    await cluster.create(controller, "lines", [[1, 2, 3]])
    await cluster.kill_broker(1)
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1:] and is_led_by_2(cluster))
    assert is_led(await cluster.state("lines")) == (2, 1, [2, 3])


def ignored(controller: Candidate) -> list[str]:
    """The paths that it has reported as ignored, each once."""
    return sorted({each.path for each in controller.events if isinstance(each, NodeIgnored)})


def is_led_by_2(cluster: Cluster) -> bool:
    return cluster.brokers[2].leader_and_isr("lines", 0)[-1].leader == 2


@pytest.mark.parametrize("path, content", FOREIGN.values(), ids=FOREIGN)
@pytest.mark.parametrize("is_first", [True, False], ids=["at takeover", "later"])
def test_an_unusable_znode_stops_no_failover(path: str, content: bytes, is_first: bool) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        if is_first:
            await plant(cluster, path, content)
        controller = await cluster.controller()
        if not is_first:
            await plant(cluster, path, content)
        await fails_over(cluster, controller)
        assert path in controller.service.ignored_nodes()
        assert shown(path) in ignored(controller)
        await cluster.observer.delete(path)
        if not path.startswith("/admin"):
            await cluster.until(lambda: path not in controller.service.ignored_nodes())

    story()


UNREADABLE = {
    "topic": znodes.topic_path("locked"),
    "settings": znodes.topic_config_path("locked"),
    "state": znodes.partition_state_path(TopicPartition("locked", 0)),
    "broker": znodes.broker_path(7),
}


@pytest.mark.parametrize("path", UNREADABLE.values(), ids=UNREADABLE)
@pytest.mark.parametrize("is_first", [True, False], ids=["at takeover", "later"])
def test_a_znode_that_brokers_may_not_read_stops_no_failover(
    path: str, is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tool gave it an ACL of its own. The controller asked for it without end, and did nothing else."""
    get = SimulatedCoordination.get

    async def readable(self: SimulatedCoordination, asked: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        if asked == path:
            raise NotAuthorized(asked)
        return await get(self, asked, watcher)

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        monkeypatch.setattr(SimulatedCoordination, "get", readable)
        controller = None if is_first else await cluster.controller()
        if path.startswith(znodes.BROKER_IDS):
            await plant(cluster, path, registration())
        else:
            await plant(cluster, znodes.topic_config_path("locked"), ConfigNode(config={}).encode())
            await plant(cluster, znodes.partition_state_path(TopicPartition("locked", 0)), b"")
            await cluster.observer.set(znodes.topic_path("locked"), assignment({"0": [2]}))
        controller = controller or await cluster.controller()
        await fails_over(cluster, controller)
        await cluster.until(lambda: path in controller.service.ignored_nodes())

    story()


def test_a_broker_whose_registration_may_not_be_read_stays_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as gone, and was told nothing: it led on beside its successor. ZooKeeper tells not even its age."""
    get, exists, path = SimulatedCoordination.get, SimulatedCoordination.exists, znodes.broker_path(1)

    async def readable(self: SimulatedCoordination, asked: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        if asked == path:
            raise NotAuthorized(asked)
        return await get(self, asked, watcher)

    async def is_there(self: SimulatedCoordination, asked: str, watcher: Watcher | None = None) -> Stat | None:
        if asked == path:
            raise NotAuthorized(asked)
        return await exists(self, asked, watcher)

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        await cluster.create(controller, "lines", [[1, 2, 3]])
        active = controller.service._active
        assert active is not None
        known = active.state.brokers[1]
        monkeypatch.setattr(SimulatedCoordination, "get", readable)
        monkeypatch.setattr(SimulatedCoordination, "exists", is_there)
        await cluster.add_broker(4)
        await cluster.until(lambda: 4 in active.state.brokers)
        assert active.state.brokers[1] == known
        assert path in controller.service.ignored_nodes()
        assert await active.store.exists(path)
        await cluster.brokers[1].unregister()
        await cluster.until(lambda: 1 not in active.state.brokers)

    story()


@pytest.mark.parametrize("has_state", [True, False], ids=["state", "no state yet"])
def test_a_topic_that_brokers_may_read_and_not_write_stops_no_failover(
    has_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another tool made it with an ACL of its own. The controller tried to write its states without end, and did
    nothing else."""
    multi, locked = SimulatedCoordination.multi, znodes.topic_path("locked")
    path = znodes.partition_state_path(TopicPartition("locked", 0))

    async def writable(self: SimulatedCoordination, operations: Sequence[Operation]) -> list[str | Stat | None]:
        for index, each in enumerate(operations):
            if not each.path.startswith(locked):
                continue
            if isinstance(each, CreateOp) and await self.exists(each.path.rpartition("/")[0]) is None:
                break  # ZooKeeper looks for the parent first
            error = NotAuthorized(each.path)
            error.index = index
            raise error
        return await multi(self, operations)

    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        if has_state:
            await cluster.create(controller, "locked", [[1, 2]])
        monkeypatch.setattr(SimulatedCoordination, "multi", writable)
        if not has_state:
            await plant(cluster, znodes.topic_config_path("locked"), ConfigNode(config={}).encode())
            await plant(cluster, locked, assignment({"0": [1, 2], "1": [2]}))
        await fails_over(cluster, controller)
        assert path in controller.service.ignored_nodes()
        if has_state:
            assert is_led(await cluster.state("locked")) == (1, 0, [1, 2])
            assert cluster.brokers[2].leader_and_isr("locked", 0)[-1].leader == 1

    story()


@simulated
async def test_a_topic_node_that_is_not_understood_keeps_its_name_and_stops_no_failover(cluster: Cluster) -> None:
    """Its creation was tried without end, and the controller did nothing else."""
    await cluster.start(1, 2, 3)
    await plant(cluster, znodes.topic_path("odd"), b"{")
    controller = await cluster.controller()
    answer = await cluster.ask(controller, CreateTopicsRequest(topics=[CreatableTopic(name="odd")]))
    assert isinstance(answer, CreateTopicsResponse)
    assert [each.error_code for each in answer.topics] == [ErrorCode.TOPIC_ALREADY_EXISTS]
    assert (await cluster.observer.get(znodes.topic_path("odd")))[0] == b"{"
    await fails_over(cluster, controller)


def test_the_list_of_ignored_nodes_has_a_limit_and_is_kept_up_to_date() -> None:
    nodes = IgnoredNodes()
    for number in range(IGNORED_NODES_MAX + 5):
        nodes.add(f"/brokers/topics/{number:04d}", "why")
    assert len(nodes.nodes()) == IGNORED_NODES_MAX
    nodes.add("/brokers/topics/0000", "another reason")
    assert nodes.nodes()["/brokers/topics/0000"] == "another reason"


def test_foreign_names_hide_no_state_and_no_topic_that_is_missed() -> None:
    state, topic = znodes.partition_state_path(TopicPartition("zeta", 0)), znodes.topic_path("yota")
    nodes = IgnoredNodes()
    for number in range(IGNORED_NODES_MAX):
        nodes.add(f"/brokers/topics/{number:04d}", "why")
    nodes.add(state, "set back")
    nodes.add_removed(topic, "removed")
    assert list(nodes.nodes())[:3] == [topic, state, "/brokers/topics/0000"]
    assert len(nodes.nodes()) == IGNORED_NODES_MAX
    nodes.add("/brokers/topics/9999", "why")
    assert "/brokers/topics/9999" not in nodes.nodes()
    nodes.listed("/brokers/topics", ["zeta"])
    assert list(nodes.nodes()) == [topic, state]
    nodes.remove(topic)
    nodes.listed("/brokers/topics", [])
    assert nodes.nodes() == {}


READ: dict[str, tuple[str, bytes | None, Callable[[ClusterReader], Awaitable[object]]]] = {
    "broker": ("/brokers/ids/7", registration(), lambda reader: reader.read_brokers(lambda: None)),
    "topic": ("/brokers/topics/t", assignment({"0": [1]}), lambda reader: reader.read_topics(["t"])),
    "settings": (
        "/config/topics/t",
        ConfigNode(config={}).encode(),
        lambda reader: reader.read_config("/config/topics/t"),
    ),
    "settings that are removed": ("/config/brokers/1", None, lambda reader: reader.read_config("/config/brokers/1")),
}


@pytest.mark.parametrize(("path", "repaired", "read"), READ.values(), ids=READ)
def test_a_znode_that_was_repaired_is_no_longer_listed(
    path: str, repaired: bytes | None, read: Callable[[ClusterReader], Awaitable[object]]
) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start()
        reader = ClusterReader(cluster.observer, ControllerFence(controller_epoch=1, epoch_version=1))
        await plant(cluster, path, b"damaged")
        if not path.startswith(znodes.TOPIC_CONFIGS):
            await plant(cluster, znodes.topic_config_path("t"), ConfigNode(config={}).encode())
        await read(reader)
        assert list(reader.ignored_nodes.nodes()) == [path]
        await (cluster.observer.delete(path) if repaired is None else cluster.observer.set(path, repaired))
        await read(reader)
        assert reader.ignored_nodes.nodes() == {}

    story()


FORGED = TopicPartition("forged", 0)
STATES: dict[str, dict[str, Any]] = {
    "leader epoch beyond a message": {"leader_epoch": 2**40},
    "last leader epoch": {"leader_epoch": MAX_INT32},
    "controller epoch beyond a message": {"controller_epoch": 2**40},
    "controller epoch that was never given": {"controller_epoch": 1_000},
    "member beyond a message": {"isr": [1, 2**40]},
}


@pytest.mark.parametrize("fields", STATES.values(), ids=STATES)
@pytest.mark.parametrize("is_first", [True, False], ids=["at takeover", "later"])
def test_a_forged_state_stops_only_its_own_partition(fields: dict[str, Any], is_first: bool) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        await cluster.create(controller, "forged", [[1, 2, 3]])
        await cluster.change_state("forged", **fields)
        if is_first:
            await controller.stop()
            controller = await cluster.controller(name="next", broker_id=101)
        await fails_over(cluster, controller)
        assert controller.service.is_active
        path = znodes.partition_state_path(FORGED)
        assert set(controller.service.ignored_nodes()) <= {path}
        assert ignored(controller) == list(controller.service.ignored_nodes())
        if is_first:
            assert controller.service.ignored_nodes()[path]

    story()


@simulated
async def test_only_the_active_controller_lists_the_znodes_that_it_leaves_alone(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    await plant(cluster, "/brokers/topics/broken", b"no assignment")
    controller = await cluster.controller()
    other = await cluster.candidate(name="other", broker_id=102)
    await cluster.until(lambda: list(controller.service.ignored_nodes()) == ["/brokers/topics/broken"])
    assert other.service.ignored_nodes() == {}
    await controller.stop()
    assert controller.service.ignored_nodes() == {}


@simulated
async def test_a_topic_whose_state_cannot_be_read_is_deleted_and_created_again(cluster: Cluster) -> None:
    await cluster.start(1)
    first = await cluster.controller()
    await cluster.create(first, "lines", [[1]])
    await first.stop()
    await cluster.observer.set(znodes.partition_state_path(TopicPartition("lines", 0)), b"garbage")
    second = await cluster.candidate("second", 101)
    await cluster.until(lambda: second.service.is_active)
    await cluster.ask(second, DeleteTopicsRequest(topic_names=["lines"]))
    await cluster.create(second, "lines", [[1]])
    assert (await cluster.state("lines")).leader == 1


@simulated
async def test_a_topic_is_deleted_with_all_that_others_put_below_its_nodes(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "lines", [[1, 2, 3]])
    for path in ("/brokers/topics/lines/partitions/0/state/x/y", "/config/topics/lines/x", "/brokers/topics/lines/z"):
        await plant(cluster, path, b"")
    await cluster.ask(controller, DeleteTopicsRequest(topic_names=["lines"]))
    await plant(cluster, "/admin/delete_topics/lines/x", b"")
    await cluster.until(lambda: _is_gone(cluster, "/admin/delete_topics/lines"))
    assert await _is_gone(cluster, "/brokers/topics/lines")
    assert await _is_gone(cluster, "/config/topics/lines")


async def _is_gone(cluster: Cluster, path: str) -> bool:
    return await cluster.observer.exists(path) is None


@simulated
async def test_a_state_of_a_later_epoch_without_any_controller_epoch_deposes(cluster: Cluster) -> None:
    await cluster.start()
    reader = ClusterReader(cluster.observer, ControllerFence(controller_epoch=1, epoch_version=1))
    state = PartitionState(leader=1, leader_epoch=0, controller_epoch=7, isr=[1])
    await plant(cluster, znodes.partition_state_path(FORGED), state.encode())
    with pytest.raises(Deposed, match="/controller_epoch is gone"):
        await reader.read_leaderships([FORGED])


@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "set back"])
def test_a_controller_epoch_that_was_set_back_is_raised_again(is_removed: bool) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        await plant(cluster, znodes.CONTROLLER_EPOCH, znodes.format_number(40))
        controller = await cluster.controller()
        await cluster.create(controller, "before", [[1, 2, 3]])
        await controller.stop()
        if is_removed:
            await cluster.observer.delete(znodes.CONTROLLER_EPOCH)
        else:
            await cluster.observer.set(znodes.CONTROLLER_EPOCH, znodes.format_number(3))
        successor = await cluster.candidate(name="next", broker_id=101, contests=False)
        successor.own_broker.highest_epoch = 41
        successor.service.registered(1, "incarnation of next")
        await cluster.until(lambda: successor.service.controller_epoch == 42 and successor.service.is_active)
        await cluster.kill_broker(1)
        await cluster.until(lambda: _is_led_by(cluster, "before", 2))

    story()


async def _is_led_by(cluster: Cluster, topic: str, leader: int) -> bool:
    return (await cluster.state(topic)).leader == leader


@simulated
async def test_a_received_epoch_that_leaves_no_room_for_elections_is_ignored(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    candidate = await cluster.candidate(contests=False)
    candidate.own_broker.highest_epoch = MAX_INT32
    candidate.service.registered(1, "incarnation")
    await cluster.until(lambda: candidate.service.controller_epoch == 1)


@pytest.mark.parametrize("is_first", [True, False], ids=["at takeover", "later"])
def test_an_exchanged_topic_id_causes_no_order_to_replace_the_logs(is_first: bool) -> None:
    @simulated
    async def story(cluster: Cluster) -> None:
        await cluster.start(1, 2, 3)
        controller = await cluster.controller()
        await cluster.create(controller, "forged", [[1, 2, 3]])
        path = znodes.topic_path("forged")
        original, _ = await cluster.observer.get(path)
        await cluster.observer.set(path, assignment({"0": [1, 2, 3]}, "another"))
        if is_first:
            await controller.stop()
            controller = await cluster.controller(name="next", broker_id=101)
        await fails_over(cluster, controller)
        assert "another" not in topic_ids(cluster.brokers[2], "forged")
        if is_first:
            assert "of another topic id than another" in controller.service.ignored_nodes()[path]
        await cluster.observer.set(path, original)
        await controller.stop()
        await cluster.controller(name="last", broker_id=102)
        await cluster.until(lambda: _is_led_by(cluster, "forged", 2))

    story()


def topic_ids(broker: FakeBroker, topic: str) -> set[str]:
    """The ids of this topic in orders to the broker."""
    return {
        state.topic_id
        for request in broker.requests
        if isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest)
        for state in request.topic_states
        if state.topic_name == topic
    }


@simulated
async def test_a_state_of_an_earlier_version_that_names_no_topic_id_counts(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "old", [[1, 2, 3]])
    await cluster.change_state("old", topic_id="")
    await controller.stop()
    await cluster.controller(name="next", broker_id=101)
    await cluster.kill_broker(1)
    await cluster.until(lambda: _is_led_by(cluster, "old", 2))
    assert (await cluster.state("old")).topic_id != ""


@simulated
async def test_a_forged_controller_epoch_is_refused_with_the_cure(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    await plant(cluster, znodes.CONTROLLER_EPOCH, znodes.format_number(MAX_INT32))
    candidate = await cluster.candidate()
    await cluster.world.zookeeper.settle()
    assert not candidate.service.is_active
    await cluster.observer.set(znodes.CONTROLLER_EPOCH, znodes.format_number(7))
    await cluster.until(lambda: candidate.service.controller_epoch == 8)


@simulated
async def test_a_topic_that_another_tool_removes_during_its_election_stops_no_failover(cluster: Cluster) -> None:
    await cluster.start(1, 2, 3)
    controller = await cluster.controller()
    await cluster.create(controller, "removed", [[1, 2, 3]])
    await cluster.create(controller, "lines", [[1, 2, 3]])
    hold = cluster.world.zookeeper.hold("controller", lambda request: request.kind == "write", times=1)
    await cluster.kill_broker(1)
    await hold.caught()
    partition = TopicPartition("removed", 0)
    paths = [znodes.partition_state_path(partition), znodes.partition_path(partition)]
    for path in [*paths, znodes.partitions_path("removed"), znodes.topic_path("removed")]:
        await cluster.observer.delete(path)
    hold.release()
    await cluster.until(lambda: cluster.brokers[2].leader_and_isr("lines", 0)[-1:] and is_led_by_2(cluster))
    await cluster.kill_broker(2)
    await cluster.until(lambda: cluster.brokers[3].leader_and_isr("lines", 0)[-1].leader == 3)
    assert await cluster.observer.exists(znodes.topic_path("removed")) is None
