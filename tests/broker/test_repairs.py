"""How often a damaged replica is fetched again, and when that begins without another order."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.configuration.config import load_config
from minibroker.broker.configuration.topic_config import TopicConfig, resolve_topic_config
from minibroker.broker.disk_faults.disk_errors import BLOCKED_RETRY_MS
from minibroker.broker.disk_faults.repairs import REPAIRS_MAX, Repairs
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replication.state import Role
from minibroker.protocol.events.replica_events import RepairBegun, RepairGivenUp, ReplicaRepaired
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors

HOUR_MS = 3_600_000


class Replica:
    """A replica that keeps what it reports."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self.reported: list[tuple[object, dict[str, object]]] = []
        self.state = SimpleNamespace(
            damage="a bit has flipped", leader_epoch=5, role=Role.OFFLINE, config=SimpleNamespace(broker_id=1)
        )
        self.log = SimpleNamespace(topic_id="id")

    def report(self, event: object, **fields: object) -> None:
        self.reported.append((event, fields))


class RepairedBroker:
    """Its replicas are damaged when a test says so, and each repair begins at once."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.set_aside: list[TopicPartition] = []
        self.counters = BrokerCounters()
        self.replicas: dict[TopicPartition, Replica] = {}
        config = load_config(None, ["broker.id=1", "log.dirs=/data", "zookeeper.connect=zookeeper:2181"], {})
        self.topic_config = resolve_topic_config(config, {})
        self.info: object = None
        """What the controller says of every partition."""
        self.present_topic_id: str | None = "id"
        self.error: DiskError | None = None
        """Raised instead of setting a log aside."""
        self.told: list[object] = []
        directory = SimpleNamespace(
            may_set_aside=True,
            set_log_aside=self.set_log_aside,
            set_aside={},
            remove_set_aside=lambda _: False,
            full=False,
            offline=False,
        )
        disk = SimpleNamespace(
            on_changed=lambda: None,
            failed=self.told.append,
            log_blocked=lambda *blocked: self.told.append(blocked),
        )
        self.repairs = Repairs(
            broker_id=1,
            log_directory=cast(Any, directory),
            partitions=cast(Any, self.replicas),
            opened=cast(Any, self.opened),
            topic_config=lambda _: self.topic_config,
            partition_changed=lambda _: None,
            disk=cast(Any, disk),
            image=cast(Any, self),
            now_ms=lambda: self.now_ms,
            counters=self.counters,
        )

    def set_log_aside(self, topic_partition: TopicPartition) -> None:
        if self.error is not None:
            raise self.error
        self.set_aside.append(topic_partition)

    def partition(self, _: TopicPartition) -> object:
        return self.info

    def topic_id(self, _: str) -> str | None:
        return self.present_topic_id

    def opened(self, topic_partition: TopicPartition, _: str, __: TopicConfig) -> Replica:
        self.replicas[topic_partition] = Replica(topic_partition)
        return self.replicas[topic_partition]

    def damage_at(self, now_ms: int, number: int = 0) -> list[tuple[object, dict[str, object]]]:
        """A replica is damaged; returns what is reported of its repair."""
        self.now_ms = now_ms
        topic_partition = TopicPartition("a", number)
        damaged = self.replicas.setdefault(topic_partition, Replica(topic_partition))
        damaged.reported.clear()
        follows: Any = self.repairs.reset(cast(Any, damaged), "id", self.topic_config)
        return list(follows.reported)


BEGUN: list[tuple[object, dict[str, object]]] = [(RepairBegun, {})]
GIVEN_UP: list[tuple[object, dict[str, object]]] = [(RepairGivenUp, {"times": 4})]


def test_a_replica_that_is_damaged_four_times_within_an_hour_stays_offline() -> None:
    """Its disk, or its leader's log, is faulty. Another replica of the broker is repaired all the same."""
    broker = RepairedBroker()
    assert [broker.damage_at(at) for at in (0, 1_000, 2_000)] == [BEGUN] * 3
    assert broker.damage_at(HOUR_MS - 1) == GIVEN_UP
    assert (len(broker.set_aside), broker.counters.repairs_begun) == (3, 3)
    assert broker.damage_at(HOUR_MS - 1, number=1) == BEGUN


def test_a_repair_ends_although_no_log_was_set_aside_because_its_directory_was_gone() -> None:
    """Once it was never reported as done."""
    broker = RepairedBroker()
    broker.damage_at(0)
    (follows,) = broker.replicas.values()
    follows.state.damage = None
    broker.info = SimpleNamespace(isr=(2,), leader_epoch=5)
    broker.repairs.finish()
    assert broker.counters.repairs_done == 0
    broker.info = SimpleNamespace(isr=(1, 2), leader_epoch=5)
    for _ in range(2):
        broker.repairs.finish()
    assert (follows.reported[1:], broker.counters.repairs_done) == ([(ReplicaRepaired, {})], 1)


def test_a_repair_ends_without_a_report_if_its_topic_is_deleted() -> None:
    broker = RepairedBroker()
    broker.damage_at(0)
    topic_partition = TopicPartition("a", 0)
    broker.replicas[topic_partition] = of_a_later_topic = Replica(topic_partition)
    of_a_later_topic.state.damage = None
    broker.info = SimpleNamespace(isr=(1, 2), leader_epoch=5)
    for _ in range(2):
        broker.repairs.finish()
    assert (of_a_later_topic.reported, broker.counters.repairs_done) == ([], 0)


def test_a_repair_counts_for_an_hour() -> None:
    broker = RepairedBroker()
    for at in (0, 1_000, 2_000):
        broker.damage_at(at)
    assert broker.damage_at(HOUR_MS) == BEGUN
    assert broker.damage_at(HOUR_MS + 999) == GIVEN_UP


@pytest.mark.parametrize(
    ("leader", "isr", "leader_epoch", "topic_id", "begins"),
    [
        (2, (2, 3), 6, "id", True),
        (2, (2, 3), 5, "id", False),
        (2, (1, 2), 6, "id", False),
        (1, (1,), 6, "id", False),
        (None, (2,), 6, "id", False),
        (2, (2, 3), 6, "of a later topic", False),
    ],
    ids=["led by another", "no later epoch", "still a member", "leads", "no leader", "another topic"],
)
def test_a_replica_that_was_offline_when_it_got_the_order_to_begin_its_repair_begins_without_another_one(
    leader: int | None, isr: tuple[int, ...], leader_epoch: int, topic_id: str, begins: bool
) -> None:
    """The controller sends none, for to it the replica is still offline; what it said must be what that order said."""
    broker, partition = RepairedBroker(), TopicPartition("a", 0)
    damaged = broker.replicas[partition] = Replica(partition)
    broker.repairs.out_of_use(cast(Any, damaged))
    broker.info = SimpleNamespace(leader=leader, isr=isr, leader_epoch=leader_epoch)
    broker.present_topic_id = topic_id
    broker.repairs.go_on()
    assert broker.set_aside == ([partition] if begins else [])


@pytest.mark.parametrize(
    ("error", "goes_on"), [(DiskError("broken"), False), (DiskFull("no room"), True), (OutOfDescriptors("none"), True)]
)
def test_a_repair_that_cannot_begin_is_told_and_begins_when_there_is_room(error: DiskError, goes_on: bool) -> None:
    """Also when there is a descriptor again: the controller sends no second order (seed 17500141)."""
    broker, partition = RepairedBroker(), TopicPartition("a", 0)
    broker.error = error
    assert broker.damage_at(0) == []
    assert broker.told == [error]
    broker.error = None
    broker.info = SimpleNamespace(leader=2, isr=(2, 3), leader_epoch=6)
    broker.repairs.go_on()
    assert broker.set_aside == ([partition] if goes_on else [])


@pytest.mark.parametrize("error", [OutOfDescriptors("none"), BadEntry("a mount point"), DiskFull("no room")])
def test_a_repair_whose_new_log_cannot_be_created_waits_until_it_can(
    error: DiskError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the controller is told that it may be created: without a log no replica is offline."""
    broker, partition = RepairedBroker(), TopicPartition("a", 0)

    def opened(*_: object) -> Replica:
        raise error

    monkeypatch.setattr(broker.repairs, "_opened", opened)
    assert broker.damage_at(0) == []
    assert (broker.told, broker.set_aside) == ([(partition, error)], [partition])
    broker.info = SimpleNamespace(leader=2, isr=(2, 3), leader_epoch=6)
    broker.repairs.go_on()
    assert broker.set_aside == [partition]


def test_a_repair_whose_directory_cannot_be_renamed_is_tried_again_until_the_entry_is_gone() -> None:
    """An operator moves it away. The replica stayed offline until its broker was started again."""
    broker, partition = RepairedBroker(), TopicPartition("a", 0)
    broker.info = SimpleNamespace(leader=2, isr=(2, 3), leader_epoch=6)
    broker.error = BadEntry("cannot rename /data/a-0: operation not permitted")
    assert broker.damage_at(0) == []
    for at in (1, BLOCKED_RETRY_MS, 2 * BLOCKED_RETRY_MS - 1):
        broker.now_ms = at
        broker.repairs.go_on()
    assert broker.told == [broker.error] * 2
    broker.error = None
    broker.now_ms = 2 * BLOCKED_RETRY_MS
    broker.repairs.go_on()
    assert broker.set_aside == [partition]


def test_attempts_that_could_not_begin_do_not_count_as_repairs() -> None:
    """An entry in the way for a minute, or a full disk, would keep the replica offline for an hour."""
    broker = RepairedBroker()
    broker.info = SimpleNamespace(leader=2, isr=(2, 3), leader_epoch=6)
    broker.error = BadEntry("cannot rename /data/a-0: operation not permitted")
    broker.damage_at(0)
    for attempt in range(1, 2 * REPAIRS_MAX):
        broker.now_ms = attempt * BLOCKED_RETRY_MS
        broker.repairs.go_on()
    broker.error = None
    assert [broker.damage_at(broker.now_ms) for _ in range(REPAIRS_MAX)] == [BEGUN] * REPAIRS_MAX
    assert broker.damage_at(broker.now_ms) == GIVEN_UP
