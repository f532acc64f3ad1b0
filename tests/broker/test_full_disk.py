"""Up to where a replica on a full disk may delete."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.disk_faults import full_disk as full_disk_module
from minibroker.broker.disk_faults.full_disk import FullDisk, reported_low_watermark
from minibroker.broker.replication.events import HeadDeleted
from minibroker.broker.replication.state import Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.replica_events import SegmentsDeleted
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from minibroker.runtime.ports import BadEntry, DiskFull, FileMissing, OutOfDescriptors
from minibroker.runtime.request_channel import RequestFailed
from tests.broker.log.machine import PARTITION, Machine, append, drive, truncate


@pytest.mark.parametrize(
    ("start", "low_watermark", "error", "expected"),
    [
        (100, 60, ErrorCode.NONE, 60),
        (100, 100, ErrorCode.NONE, 100),
        (100, 101, ErrorCode.NONE, None),
        (100, -1, ErrorCode.NONE, None),
        (100, 60, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
    ],
)
def test_a_low_watermark_above_the_start_in_the_same_answer_is_ignored(
    start: int, low_watermark: int, error: ErrorCode, expected: int | None
) -> None:
    answer = ListOffsetsPartitionResponse(
        partition_index=0, error_code=error, offset=start, low_watermark=low_watermark
    )
    assert reported_low_watermark(answer) == expected


def full_disk_of(broker_id: int, partition: Any, image: Any) -> FullDisk:
    """A broker with one replica, on a full disk."""
    unused = cast(Any, None)
    return FullDisk(
        broker_id=broker_id,
        log_directory=cast(Any, SimpleNamespace(full=True, offline=False)),
        partitions={PARTITION: partition},
        image=image,
        address=unused,
        is_fenced=unused,
        dialer=unused,
    )


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (2, (2, 3), 2),
        (2, (1, 2), 2),
        (1, (1, 2), None),  # the controller does not know yet that this replica is offline
        (1, (1,), None),
        (None, (1,), 1),
        (None, (1, 2), None),
        (None, (2,), None),
    ],
)
def test_a_replica_deletes_as_its_leader_says_and_alone_only_as_the_whole_isr(
    leader: int | None, isr: tuple[int, ...], expected: int | None
) -> None:
    info = SimpleNamespace(leader=leader, isr=isr)
    image = SimpleNamespace(partition=lambda _: info, topic_id=lambda _: "its-id")
    state = SimpleNamespace(role=Role.OFFLINE, damage=None)
    log = SimpleNamespace(topic_id="its-id")
    partition: Any = SimpleNamespace(topic_partition=PARTITION, state=state, log=log)
    full_disk = full_disk_of(1, partition, image)
    assert full_disk._limit_source(partition) == expected
    state.role = Role.FOLLOWER
    assert full_disk._limit_source(partition) is None, "it is not offline"
    state.role, state.damage = Role.OFFLINE, "a bad CRC"
    assert full_disk._limit_source(partition) is None, "its log is damaged"
    state.damage, log.topic_id = None, "an-earlier-id"
    assert full_disk._limit_source(partition) is None, "another topic"


def test_a_log_that_was_cut_below_the_leaders_low_watermark_does_not_start_behind_its_end() -> None:
    """Seed 17500093 with loads: the high watermark is that of before the cut. The broker ended by an assertion."""
    _, log = Machine().open_log()
    append(log, 3)
    end = log.log_end_offset
    state = SimpleNamespace(high_watermark=end + 20, role=Role.OFFLINE, damage=None)
    partition: Any = SimpleNamespace(
        topic_partition=PARTITION, log=log, state=state, report=lambda *_, **__: None, handle=lambda event: None
    )
    full_disk = full_disk_of(1, partition, None)

    drive(full_disk._trim(partition, end + 10, LogStartReason.COPIED))

    assert (log.log_start_offset, log.log_end_offset) == (end, end)


def test_a_log_that_is_cut_while_its_start_is_recorded_does_not_start_behind_its_end() -> None:
    """It may be offered again, follow a new leader, and be offline again. The broker would end by an assertion."""
    _, log = Machine().open_log()
    append(log, 3)
    end = log.log_end_offset
    state = SimpleNamespace(high_watermark=end, role=Role.OFFLINE, damage=None)
    partition: Any = SimpleNamespace(topic_partition=PARTITION, log=log, state=state)

    async def cut_meanwhile(*_: object) -> None:
        truncate(log, 2)

    log.record_start = cut_meanwhile  # type: ignore[method-assign, assignment]
    drive(full_disk_of(1, partition, None)._trim(partition, end, LogStartReason.COPIED))
    assert (log.log_start_offset, log.log_end_offset) == (0, 2)


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("source", [1, 2, None])
def test_only_a_full_disk_of_a_broker_with_its_place_in_zookeeper_is_relieved(
    is_full: bool, is_fenced: bool, source: int | None
) -> None:
    _, log = Machine().open_log()
    partition: Any = SimpleNamespace(topic_partition=PARTITION, log=log, state=SimpleNamespace(high_watermark=0))
    full_disk = full_disk_of(1, partition, None)
    done: list[object] = []

    async def note(*what: object) -> None:
        done.append(what[0])

    patched = cast(Any, full_disk)
    patched._directory.full, patched._is_fenced = is_full, lambda: is_fenced
    patched._limit_source, patched._trim, patched._ask = lambda _: source, note, note
    drive(full_disk.relieve(Machine().clock()))
    expected: dict[int | None, list[object]] = {1: [partition], 2: [2], None: []}
    assert done == (expected[source] if is_full and not is_fenced else [])


class Answering:
    """A channel to a leader that answers as a test says, and notes the request."""

    def __init__(self, answer: ListOffsetsResponse | RequestFailed) -> None:
        self.asked: list[tuple[ListOffsetsRequest, int]] = []
        self.dialled: list[object] = []
        self._answer = answer

    def to(self, dial: Callable[[], object]) -> "Answering":
        """Stands for the class of channels."""
        self.dialled.append(dial())
        return self

    def __enter__(self) -> "Answering":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    async def ask(self, request: ListOffsetsRequest, _: object, timeout_ms: int) -> ListOffsetsResponse:
        self.asked.append((request, timeout_ms))
        if isinstance(self._answer, RequestFailed):
            raise self._answer
        return self._answer


def asking_disk(partitions: list[Any]) -> tuple[FullDisk, list[object]]:
    """Broker 1, for which the controller knows leader epoch 8 of every partition but of topic `gone`; what it trims."""
    info = SimpleNamespace(leader_epoch=8)
    image = SimpleNamespace(partition=lambda name: None if name.topic == "gone" else info)
    full_disk, trimmed = full_disk_of(1, None, image), list[object]()
    patched = cast(Any, full_disk)
    patched._partitions = {each.topic_partition: each for each in partitions}
    patched._dialer = SimpleNamespace(connect=lambda *given, **named: (*given, named))
    patched._address = lambda leader: ("leader", leader)

    async def trim(partition: Any, *how: object) -> None:
        trimmed.append((partition.topic_partition, *how))

    patched._trim = trim
    return full_disk, trimmed


NAMES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0), TopicPartition("gone", 0)]
REPLICAS = [SimpleNamespace(topic_partition=name, log=SimpleNamespace(topic_id=f"{name.topic}-id")) for name in NAMES]


def test_a_leader_is_asked_for_the_start_of_each_log_under_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what it answers of others, or without a low watermark, deletes nothing."""
    listed = {
        "a": [ListOffsetsPartitionResponse(partition_index=0, offset=9, low_watermark=7)],
        "b": [
            ListOffsetsPartitionResponse(partition_index=0, offset=9),
            ListOffsetsPartitionResponse(partition_index=5, offset=9, low_watermark=7),
        ],
    }
    topics = [ListOffsetsTopicResponse(name=name, partitions=each) for name, each in listed.items()]
    channel = Answering(ListOffsetsResponse(topics=topics))
    monkeypatch.setattr(full_disk_module, "RequestChannel", channel.to)
    full_disk, trimmed = asking_disk(REPLICAS)
    drive(full_disk._ask(2, cast(Any, REPLICAS)))
    ((request, timeout_ms),) = channel.asked
    questions = {
        topic.name: [(each.partition_index, each.current_leader_epoch, each.timestamp) for each in topic.partitions]
        for topic in request.topics
    }
    assert [topic.topic_id for topic in request.topics] == ["a-id", "b-id"]
    asked_ms = full_disk_module.ASK_MS
    assert channel.dialled == [(2, ("leader", 2), {"client_id": "broker-1", "timeout_ms": asked_ms})]
    assert (request.replica_id, timeout_ms) == (1, asked_ms)
    assert questions == {"a": [(0, 8, EARLIEST_TIMESTAMP), (1, 8, EARLIEST_TIMESTAMP)], "b": [(0, 8, -2)]}
    assert trimmed == [(NAMES[0], 7, LogStartReason.COPIED)]


def test_a_leader_that_cannot_be_asked_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = Answering(RequestFailed("silence"))
    monkeypatch.setattr(full_disk_module, "RequestChannel", channel.to)
    full_disk, trimmed = asking_disk(REPLICAS)
    drive(full_disk._ask(2, cast(Any, REPLICAS)))
    cast(Any, full_disk)._address = lambda _: None
    drive(full_disk._ask(2, cast(Any, REPLICAS)))
    assert (len(channel.asked), trimmed) == (1, [])


def test_each_leader_is_asked_of_all_its_replicas_in_requests_of_limited_size() -> None:
    count = 2 * full_disk_module.ASKED_MAX + 1
    replicas = [SimpleNamespace(topic_partition=TopicPartition("a", number)) for number in range(count)]
    full_disk, _ = asking_disk(replicas)
    asked: list[tuple[int, list[int]]] = []

    async def ask(leader: int, partitions: list[Any]) -> None:
        asked.append((leader, [each.topic_partition.partition for each in partitions]))

    patched = cast(Any, full_disk)
    patched._is_fenced, patched._ask = lambda: False, ask
    patched._limit_source = lambda partition: 3 if partition.topic_partition.partition == 4 else 2
    drive(full_disk.relieve(Machine().clock()))
    numbers = [number for number in range(count) if number != 4]
    size = full_disk_module.ASKED_MAX
    assert asked == [(2, numbers[:size]), (2, numbers[size:]), (3, [4])]


@pytest.mark.parametrize(
    ("is_full", "role", "damage", "is_here", "expected"),
    [
        (True, Role.OFFLINE, None, True, True),
        (False, Role.OFFLINE, None, True, False),
        (True, Role.FOLLOWER, None, True, False),
        (True, Role.OFFLINE, "a bad CRC", True, False),
        (True, Role.OFFLINE, None, False, False),
    ],
)
def test_a_replica_is_trimmed_only_while_lack_of_room_alone_keeps_it_offline(
    is_full: bool, role: Role, damage: str | None, is_here: bool, expected: bool
) -> None:
    partition: Any = SimpleNamespace(topic_partition=PARTITION, state=SimpleNamespace(role=role, damage=damage))
    full_disk = full_disk_of(1, partition if is_here else SimpleNamespace(), None)
    cast(Any, full_disk)._directory.full = is_full
    assert full_disk._is_idle(partition) == expected


def test_deleted_files_of_a_full_disk_are_reported_and_told_to_the_core() -> None:
    _, log = Machine().open_log()
    append(log, 40)
    events, handled = list[object](), list[object]()
    end = log.log_end_offset
    state = SimpleNamespace(high_watermark=end, role=Role.OFFLINE, damage=None)
    partition: Any = SimpleNamespace(topic_partition=PARTITION, log=log, state=state, handle=handled.append)
    partition.report = lambda kind, **fields: events.append((kind, fields))
    full_disk = full_disk_of(1, partition, None)
    for _ in range(2):
        drive(full_disk._trim(partition, end, LogStartReason.RETENTION))
    first = log.segments[0].base_offset
    assert first > 0
    assert events == [(SegmentsDeleted, {"offset": first, "reason": "retention on a full disk"})]
    assert handled == [HeadDeleted(first_offset=first)]


@pytest.mark.parametrize(
    "error", [DiskFull("no space left"), OutOfDescriptors("too many open files"), BadEntry("it is a directory")]
)
def test_a_replica_that_cannot_record_its_start_holds_up_no_other(error: Exception) -> None:
    """On some file systems even the deletion of files needs room."""
    trimmed = list[object]()

    async def trim_one(partition: Any, *_: object) -> None:
        trimmed.append(partition)
        raise error

    disk = full_disk_of(1, None, None)
    cast(Any, disk)._trim_one = trim_one
    for partition in REPLICAS:
        drive(disk._trim(cast(Any, partition), 0, LogStartReason.COPIED))
    assert trimmed == REPLICAS


def test_a_log_of_which_a_file_is_gone_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """In each round again: the disk stayed full for ever."""
    looked_at, trimmed = list[object](), list[object]()

    def start_of(log: object, *_: object) -> int:
        looked_at.append(log)
        if len(looked_at) == 1:
            raise FileMissing("00.log is not there")
        return 5

    async def trim(partition: Any, *_: object) -> None:
        trimmed.append(partition.log)

    monkeypatch.setattr(full_disk_module, "retention_start", start_of)
    replicas = [
        SimpleNamespace(topic_partition=each, log=each, state=SimpleNamespace(high_watermark=9)) for each in "ab"
    ]
    disk = full_disk_of(1, None, None)
    patched = cast(Any, disk)
    patched._partitions, patched._limit_source = dict(enumerate(replicas)), lambda _: 1
    patched._trim, patched._is_fenced = trim, lambda: False
    drive(disk.relieve(Machine().clock()))
    assert (looked_at, trimmed) == (["a", "b"], ["b"])
