"""What becomes of each order of the controller: the answer, what was done, and what was not begun at all."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.configuration.config import load_config
from minibroker.broker.replicas import erased_replicas
from minibroker.broker.replicas.erased_replicas import ErasedReplicas
from minibroker.broker.replicas.replica_orders import ReplicaOrders
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import NONE, TopicPartition
from minibroker.protocol.wire import messages as m
from minibroker.protocol.wire.control_messages import LEADER_EPOCH_DURING_DELETE
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import DiskError

A3 = TopicPartition("a", 3)
SMOKE = DiskError("smoke")
BLOCKED = (A3, SMOKE)
OK, STORAGE = ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR


class Scene:
    """Broker 1, which has partition a-3 in leader epoch 5, and what was done with it."""

    def __init__(self, error: DiskError | None = None) -> None:
        self.done: list[object] = []
        self.error = error
        state = ReplicaState(config=ReplicationConfig(broker_id=1), leader_epoch=5, partition_epoch=7)
        self.state = state
        self.partition: Any = SimpleNamespace(state=state, log=SimpleNamespace(topic_id="id"))
        self.partition.handle = lambda event: self.done.append(event)
        self.partition.configure = lambda *_: self.done.append("configured")
        config = load_config(None, ["broker.id=1", "log.dirs=/data", "zookeeper.connect=zookeeper:2181"], {})
        self.replicas: Any = SimpleNamespace(config=config, partitions={A3: self.partition}, now_ms=lambda: 9)
        self.replicas.check_fence = lambda: self.done.append("fence checked")
        self.replicas.unfence = lambda: self.done.append("unfenced")
        self.replicas.replication_config = lambda _: None
        self.replicas.opened, self.replicas.drop = self._opened, self._drop
        self.directory: Any = SimpleNamespace(offline=False, wholeness=SimpleNamespace(missing=set()), path="/data")
        self.directory.set_aside, self.directory.remove_set_aside = {}, self._remove_set_aside
        disk = SimpleNamespace(log_blocked=lambda *blocked: self.done.append(blocked))
        repairs = SimpleNamespace(reset=self._reset)
        self.orders = ReplicaOrders(
            self.replicas, cast(Any, self.directory), cast(Any, disk), cast(Any, repairs), UNOBSERVED
        )

    def _opened(self, name: TopicPartition, topic_id: str, _: object) -> Any:
        if self.error is not None:
            raise self.error
        self.done.append(("opened", name, topic_id))
        return self.partition

    def _remove_set_aside(self, name: TopicPartition, topic_id: str) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(("removed", name, topic_id))

    def _drop(self, name: TopicPartition, reason: str) -> None:
        if self.error is not None:
            raise self.error
        self.done.append(("dropped", name, reason))

    def _reset(self, partition: Any, *_: object) -> Any:
        self.done.append("reset")
        self.state.damage, self.state.role = None, Role.NONE
        return partition

    def lead(self, **fields: Any) -> ErrorCode:
        """Answer to an order in which broker 2 leads epoch 6, unless `fields` differ."""
        topic_id = fields.pop("topic_id", "id")
        values = {
            "partition_index": 3,
            "controller_epoch": 1,
            "leader": 2,
            "leader_epoch": 6,
            "isr": [2],
            "partition_epoch": 8,
            "replicas": [1, 2],
            **fields,
        }
        topic = m.LeaderAndIsrTopic(
            topic_name="a", topic_id=topic_id, partition_states=[m.LeaderAndIsrPartition(**values)]
        )
        request = m.LeaderAndIsrRequest(controller_id=2, controller_epoch=1, broker_epoch=3, topic_states=[topic])
        (answer,) = self.orders.leader_and_isr(request).partition_errors
        assert (answer.topic_name, answer.partition_index) == ("a", 3)
        assert self.done[:2] == ["fence checked", "unfenced"]
        del self.done[:2]
        return ErrorCode(answer.error_code)

    def stop(self, leader_epoch: int, *, delete: bool, topic_id: str = "id") -> ErrorCode:
        state = m.StopReplicaPartition(partition_index=3, leader_epoch=leader_epoch, delete_partition=delete)
        topic = m.StopReplicaTopic(topic_name="a", topic_id=topic_id, partition_states=[state])
        request = m.StopReplicaRequest(controller_id=2, controller_epoch=1, broker_epoch=3, topic_states=[topic])
        (answer,) = self.orders.stop_replica(request).partition_errors
        assert (answer.topic_name, answer.partition_index) == ("a", 3)
        return ErrorCode(answer.error_code)


FOLLOW = ev.LeaderAndIsrReceived(
    now_ms=9, leader_id=2, leader_epoch=6, partition_epoch=8, in_sync_replicas=(2,), assignment=(1, 2)
)
OPENED = ("opened", A3, "id")


@pytest.mark.parametrize(
    ("fields", "code", "done"),
    [
        ({}, OK, [OPENED, "configured", FOLLOW]),
        ({"replicas": [2, 3]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, []),
        ({"leader": 1, "isr": [2]}, ErrorCode.INVALID_REQUEST, []),
        ({"isr": [2, 2]}, ErrorCode.INVALID_REQUEST, []),
        ({"replicas": [1, 2, 1]}, ErrorCode.INVALID_REQUEST, []),
        ({"topic_id": ""}, ErrorCode.INVALID_REQUEST, []),
        ({"leader_epoch": 4}, ErrorCode.STALE_CONTROLLER_EPOCH, [OPENED]),
        ({"leader": NONE, "topic_id": "other"}, OK, []),
    ],
    ids=[
        *("follow", "not-assigned", "leads-outside-the-isr", "isr-twice", "assigned-twice", "no-topic-id", "stale"),
        "no-leader-and-no-log",
    ],
)
def test_an_order_is_carried_out_only_if_it_can_be_meant_for_this_replica(
    fields: dict[str, Any], code: ErrorCode, done: list[object]
) -> None:
    """A broker that is twice in an ISR would count twice for min.insync.replicas. A log without a topic id is not
    found again: the next start calls it damaged, and behind a power cut removes it."""
    scene = Scene()
    assert scene.lead(**fields) == code
    assert scene.done == done


def test_a_log_that_cannot_be_opened_is_noted_and_told_to_the_controller() -> None:
    """A replica that no one remembers would never be offered again, when there is a file descriptor."""
    scene = Scene(SMOKE)
    assert (scene.lead(), scene.done) == (STORAGE, [BLOCKED])


def test_nothing_is_opened_in_a_directory_that_is_offline() -> None:
    scene = Scene()
    scene.directory.offline = True
    assert (scene.lead(), scene.done) == (STORAGE, [])


@pytest.mark.parametrize(
    ("damage", "fields", "code", "done"),
    [
        ("a bad CRC", {}, OK, [OPENED, "reset", "configured", FOLLOW]),
        ("a bad CRC", {"isr": [1, 2]}, STORAGE, [OPENED]),
        (None, {}, STORAGE, [OPENED]),
    ],
    ids=["damaged", "damaged-member", "offline"],
)
def test_an_offline_replica_follows_only_after_a_repair_that_harms_no_one(
    damage: str | None, fields: dict[str, Any], code: ErrorCode, done: list[object]
) -> None:
    scene = Scene()
    scene.state.damage, scene.state.role = damage, Role.OFFLINE
    assert (scene.lead(**fields), scene.done) == (code, done)


def test_an_order_whose_effects_fail_on_the_disk_is_answered_so() -> None:
    scene = Scene()
    scene.partition.handle = lambda event: setattr(scene.state, "role", Role.OFFLINE)
    assert scene.lead() == STORAGE


STOP_AND_FORGET = ev.ReplicaStopped(leader_epoch=None)
DROPPED = ("dropped", A3, "the topic is being deleted")


@pytest.mark.parametrize(
    ("leader_epoch", "delete", "topic_id", "code", "done"),
    [
        (5, False, "id", OK, [ev.ReplicaStopped(leader_epoch=5)]),
        (6, False, "id", OK, [ev.ReplicaStopped(leader_epoch=6)]),
        (4, False, "id", ErrorCode.FENCED_LEADER_EPOCH, []),
        (4, True, "id", ErrorCode.FENCED_LEADER_EPOCH, []),
        (LEADER_EPOCH_DURING_DELETE, True, "id", OK, [STOP_AND_FORGET, DROPPED]),
        (LEADER_EPOCH_DURING_DELETE, True, "", OK, [STOP_AND_FORGET, DROPPED]),
        (LEADER_EPOCH_DURING_DELETE, True, "other", OK, []),
    ],
)
def test_a_replica_is_stopped_and_deleted_as_ordered(
    leader_epoch: int, delete: bool, topic_id: str, code: ErrorCode, done: list[object]
) -> None:
    scene = Scene()
    assert (scene.stop(leader_epoch, delete=delete, topic_id=topic_id), scene.done) == (code, done)


def _offline(scene: Scene) -> None:
    scene.directory.offline = True


def _failing(scene: Scene) -> None:
    scene.error = SMOKE


@pytest.mark.parametrize(
    ("prepare", "done"), [(_offline, []), (_failing, [STOP_AND_FORGET, BLOCKED])], ids=["offline", "failing"]
)
def test_a_log_that_cannot_be_deleted_is_told_to_the_controller_which_asks_again(
    prepare: Callable[[Scene], None], done: list[object]
) -> None:
    scene = Scene()
    prepare(scene)
    assert (scene.stop(LEADER_EPOCH_DURING_DELETE, delete=True), scene.done) == (STORAGE, done)


@pytest.mark.parametrize(
    ("prepare", "code", "done"),
    [(lambda _: None, OK, [("removed", A3, "id")]), (_offline, STORAGE, []), (_failing, STORAGE, [BLOCKED])],
    ids=["well", "offline", "failing"],
)
def test_a_damaged_log_that_was_set_aside_is_deleted_without_its_replica(
    prepare: Callable[[Scene], None], code: ErrorCode, done: list[object]
) -> None:
    """The process ended before there was another log; the copy stayed for ever."""
    scene = Scene()
    prepare(scene)
    scene.replicas.partitions.clear()
    scene.directory.set_aside[A3] = ["a path"]
    for order in (4, LEADER_EPOCH_DURING_DELETE):
        assert scene.stop(order, delete=False) == OK
    assert scene.stop(LEADER_EPOCH_DURING_DELETE, delete=True, topic_id="") == OK, "any topic's may be meant"
    assert scene.done == []
    assert (scene.stop(LEADER_EPOCH_DURING_DELETE, delete=True), scene.done) == (code, done)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_late_order_does_not_create_what_was_deleted_and_a_new_topic_of_that_name_is_another(is_here: bool) -> None:
    scene = Scene()
    if not is_here:
        scene.replicas.partitions.clear()
    assert scene.stop(LEADER_EPOCH_DURING_DELETE, delete=True) == OK
    scene.done.clear()
    assert (scene.lead(), scene.done) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    assert scene.lead(topic_id="new") == OK
    assert scene.done[0] == ("opened", A3, "new")


def test_of_the_deleted_replicas_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where topics are made and deleted all day, the memory of them must not grow as long as the broker runs."""
    monkeypatch.setattr(erased_replicas, "REPLICAS_MAX", 2)
    erased = ErasedReplicas()
    for topic_id in ("first", "second", "third", "third"):
        erased.note(topic_id, A3)
    assert [each for each in ("first", "second", "third") if (each, A3) in erased] == ["second", "third"]
