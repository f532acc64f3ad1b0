"""What an answer says of one partition, field by field: offsets that do not exist are -1, errors have their reason.

The effects of an error of the disk are part of it: a read that fails must not only be refused, but noted.
"""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replication.leader import FetchGranted, FetchRefused
from minibroker.broker.replication.state import RemoteReplica, ReplicaState, ReplicationConfig, Role
from minibroker.broker.requests import offset_requests
from minibroker.broker.requests.fetch_answers import FetchAnswers
from minibroker.broker.requests.fetch_sessions import FetchSession, FetchSessions, SessionPartition
from minibroker.broker.requests.offset_requests import answer_list_offsets
from minibroker.broker.requests.produce import ProduceItem
from minibroker.broker.requests.replica_description import _describe_remote, _why_offline
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.message_types import PRODUCERS_BYTES_MAX
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    CurrentLeader,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsTopic,
    ProducePartition,
    ProducePartitionResponse,
    ProduceTopic,
)
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import DiskError

A3 = TopicPartition("a", 3)
HINT = CurrentLeader(leader_id=2, leader_epoch=9)
GRANTED = FetchGranted(fetch_offset=10, end_offset=20, high_watermark=15, log_start_offset=5, low_watermark=4)


class Scene:
    """A partition whose log is read as a test says, and what was noted of failures."""

    def __init__(self, found: object = None, *, is_offline: bool = False) -> None:
        self.noted: list[object] = []
        self.asked: list[object] = []
        self._found = found
        log = SimpleNamespace(topic_id="id", has_data=lambda *_: True, read=self._read, offset_for_timestamp=self._read)
        state = SimpleNamespace(
            is_offline=is_offline, high_watermark=15, log_start_offset=5, low_watermark=4, leader_epoch=8
        )
        state.epoch_history = SimpleNamespace(epoch_at=lambda offset: 7)
        log.producers = SimpleNamespace(snapshot_below=self._snapshot)
        self.partition = cast(
            Any, SimpleNamespace(topic_partition=A3, log=log, state=state, is_of_topic=lambda _: True)
        )
        self.counters = BrokerCounters()
        self.manager = cast(Any, SimpleNamespace(partitions={A3: self.partition}, check_fence=lambda: None))
        self.manager.repairs = SimpleNamespace(damaged=lambda _, reason: self.noted.append(reason))
        self.manager.disk = SimpleNamespace(read_failed=lambda _, error: self.noted.append(error))
        self.manager.image = SimpleNamespace(knows_partition=lambda topic, number: number == 4)

    def _read(self, *arguments: object) -> object:
        self.asked.append(arguments)
        if isinstance(self._found, Exception):
            raise self._found
        return self._found

    def _snapshot(self, offset: int, bytes_max: int) -> bytes:
        self.asked.append((offset, bytes_max))
        return b"producers"

    def answers(self) -> FetchAnswers:
        def hint(topic_partition: TopicPartition, topic_id: str) -> CurrentLeader:
            self.asked.append((topic_partition, topic_id))
            return HINT

        return FetchAnswers(
            leader_hint=hint,
            is_known=lambda topic_partition: topic_partition == A3,
            is_eligible=lambda *_: True,
            log_failed=lambda _, error: self.noted.append(error),
            log_damaged=lambda _, reason: self.noted.append(reason),
            now_ms=lambda: 0,
            counters=self.counters,
            observer=UNOBSERVED,
        )


SMOKE, ROT = DiskError("smoke"), CorruptLog("a.log", 7, "rot")
ROTTEN = str(ROT)


# --------------------------------------------------------------------------------------------------------------- fetch
@pytest.mark.parametrize(
    ("size", "limit", "budget", "is_first", "is_sent"),
    [
        (100, 100, 500, False, True),
        (100, 99, 500, False, False),
        (100, 99, 500, True, True),
        (100, 500, 99, False, False),
        (100, 500, 100, False, True),
        (10, 500, 500, False, True),
        (100, -1, 500, True, True),
        (100, 500, 0, True, False),
    ],
)
def test_an_answer_holds_what_fits_and_its_first_batch_whole(
    size: int, limit: int, budget: int, is_first: bool, is_sent: bool
) -> None:
    scene = Scene(SimpleNamespace(size_bytes=size, parts=(b"x" * size,)))
    fetch = FetchPartition(partition=3, fetch_offset=10, partition_max_bytes=limit)
    read = scene.answers().read(scene.partition, fetch, GRANTED, budget, is_first)
    assert (read.size_bytes, read.parts) == ((size, (b"x" * size,)) if is_sent else (0, ()))
    assert read.response == FetchPartitionResponse(
        partition_index=3, high_watermark=15, last_stable_offset=15, log_start_offset=5, low_watermark=4
    )
    assert scene.asked == ([(10, max(0, min(limit, budget)), 20)] if budget else [])


@pytest.mark.parametrize(
    ("failure", "is_offline", "code", "noted"),
    [
        (ROT, False, ErrorCode.CORRUPT_MESSAGE, ROTTEN),
        (ROT, True, ErrorCode.KAFKA_STORAGE_ERROR, ROTTEN),
        (SMOKE, False, ErrorCode.KAFKA_STORAGE_ERROR, SMOKE),
    ],
)
def test_a_log_that_cannot_be_read_is_noted_and_the_fetch_refused(
    failure: Exception, is_offline: bool, code: ErrorCode, noted: object
) -> None:
    scene = Scene(failure, is_offline=is_offline)
    fetch = FetchPartition(partition=3, fetch_offset=10, partition_max_bytes=100)
    read = scene.answers().read(scene.partition, fetch, GRANTED, 100, True)
    assert (read.size_bytes, read.response.error_code, scene.noted) == (0, code, [noted])
    assert scene.counters.failed_fetch == 1


@pytest.mark.parametrize(
    ("code", "has_hint"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, True),
        (ErrorCode.FENCED_LEADER_EPOCH, True),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, False),
        (ErrorCode.OFFSET_OUT_OF_RANGE, False),
    ],
)
def test_a_refused_fetch_names_the_leader_where_that_helps(code: ErrorCode, has_hint: bool) -> None:
    scene = Scene()
    response = scene.answers().refused(scene.partition, FetchRefused(code)).response
    assert response == FetchPartitionResponse(
        partition_index=3,
        error_code=code,
        high_watermark=-1,
        log_start_offset=5,
        current_leader=HINT if has_hint else None,
    )
    assert (scene.asked, scene.counters.failed_fetch) == ([(A3, "id")] if has_hint else [], 1)


def test_a_divergence_is_no_failure_and_tells_where_the_epoch_ended() -> None:
    scene = Scene()
    response = scene.answers().refused(scene.partition, FetchRefused(ErrorCode.NONE, diverging=(6, 12))).response
    assert response == FetchPartitionResponse(
        partition_index=3,
        high_watermark=15,
        log_start_offset=5,
        diverging_epoch=EpochEndOffset(epoch=6, end_offset=12),
    )
    assert scene.counters.failed_fetch == 0


@pytest.mark.parametrize(
    ("number", "code", "hint"),
    [(3, ErrorCode.NOT_LEADER_OR_FOLLOWER, HINT), (4, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)],
)
def test_a_partition_that_is_elsewhere_is_told_from_one_that_is_nowhere(
    number: int, code: ErrorCode, hint: CurrentLeader | None
) -> None:
    scene = Scene()
    response = scene.answers().unknown(TopicPartition("a", number), "wanted").response
    assert response == FetchPartitionResponse(partition_index=number, error_code=code, current_leader=hint)
    assert scene.asked == ([] if hint is None else [(A3, "wanted")])


def test_a_session_forgets_the_replica_of_a_deleted_topic_when_its_successor_is_fetched() -> None:
    """What the old replica knew would hide the new one, and its log could never be freed."""
    former, present = (
        cast(Any, SimpleNamespace(sessions=[], log=None, topic_partition=A3, is_of_topic=lambda _: True))
        for _ in range(2)
    )
    known = {A3: former}
    answers = SimpleNamespace(report_position=lambda *_: GRANTED, unknown=lambda *_: "unknown")
    sessions = cast(Any, SimpleNamespace(_partitions=known, _answers=answers))
    session = FetchSession(cast(Any, SimpleNamespace(id=1)), FetchRequest(replica_id=2, replica_epoch=5))
    first, second = (FetchPartition(partition=3, fetch_offset=offset) for offset in (1, 2))
    for partition, fetch in ((former, first), (former, second), (present, first)):
        known[A3] = partition
        assert FetchSessions._take_position(sessions, session, A3, "", fetch) is None
        entry = session.partitions[A3]
        assert (entry.partition, entry.fetch, entry.awaits_position) == (partition, fetch, False)
        assert list(session.updated) == [A3]
        assert partition.sessions == [session]
    assert former.sessions == []
    known.clear()
    assert cast(Any, FetchSessions._take_position(sessions, session, A3, "", first)) == "unknown"


def test_a_partition_that_leaves_a_session_is_not_looked_at_again() -> None:
    session = FetchSession(cast(Any, SimpleNamespace(id=1)), FetchRequest(replica_id=2, replica_epoch=5))
    partition = cast(Any, SimpleNamespace(sessions=[session]))
    fetch = FetchPartition(partition=3, fetch_offset=0)
    session.partitions[A3] = SessionPartition(partition, fetch)
    session.updated[A3] = None
    for _ in range(2):
        session.drop(A3)
        assert (session.partitions, session.updated, partition.sessions) == ({}, {}, [])


OFFSETS = {"high_watermark": 5_000, "log_start_offset": 4_000, "low_watermark": 3_000}


@pytest.mark.parametrize(
    ("sent", "is_newer"),
    [
        (None, True),
        ({}, False),
        ({"high_watermark": 4_999}, True),
        ({"log_start_offset": 3_999}, True),
        ({"low_watermark": 2_999}, True),
    ],
    ids=["nothing-sent", "the-same", "high-watermark", "log-start", "low-watermark"],
)
def test_a_follower_is_told_each_change_of_an_offset_once(sent: dict[str, int] | None, is_newer: bool) -> None:
    state = SimpleNamespace(**{name: int(str(offset)) for name, offset in OFFSETS.items()})
    entry = SessionPartition(cast(Any, SimpleNamespace(state=state)), FetchPartition(partition=3, fetch_offset=0))
    if sent is not None:
        entry.sent = FetchGranted(0, 9_000, **{**OFFSETS, **sent})
    assert entry.has_newer_watermarks() == is_newer


@pytest.mark.parametrize(
    ("changed", "is_at_the_end"),
    [
        ({}, True),
        ({"log_end_offset": 5_001}, False),
        ({"leader_epoch": 9}, False),
        ({"role": Role.FOLLOWER}, False),
        ({"fenced": True}, False),
    ],
    ids=["at-the-end", "records", "epoch", "deposed", "fenced"],
)
def test_a_follower_has_nothing_to_be_sent_only_at_the_end_of_its_leaders_log(
    changed: dict[str, Any], is_at_the_end: bool
) -> None:
    state = {"log_end_offset": 5_000, "leader_epoch": 8, "role": Role.LEADER, "fenced": False, **changed}
    fetch = FetchPartition(partition=3, fetch_offset=5_000, current_leader_epoch=8)
    entry = SessionPartition(cast(Any, SimpleNamespace(state=SimpleNamespace(**state))), fetch)
    assert entry.is_at_the_end() == is_at_the_end


# ------------------------------------------------------------------------------------------------------------- offsets
@pytest.mark.parametrize(
    ("found", "is_offline", "expected", "noted"),
    [
        ((1_000, 12), False, {"timestamp": 1_000, "offset": 12, "leader_epoch": 7}, []),
        (None, False, {"timestamp": -1, "offset": -1, "leader_epoch": -1}, []),
        (SMOKE, False, {"error_code": ErrorCode.KAFKA_STORAGE_ERROR}, [SMOKE]),
        (ROT, False, {"error_code": ErrorCode.CORRUPT_MESSAGE, "error_message": f"a-3: {ROT}"}, [ROTTEN]),
        (ROT, True, {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "error_message": f"a-3: {ROT}"}, [ROTTEN]),
    ],
    ids=["found", "none-so-late", "disk-error", "damage", "damage-and-offline"],
)
def test_an_offset_is_found_by_time_or_the_failure_noted(
    found: object, is_offline: bool, expected: dict[str, Any], noted: list[object]
) -> None:
    scene = Scene(found, is_offline=is_offline)
    asked = ListOffsetsPartition(partition_index=3, timestamp=-7)
    answer = offset_requests._by_time(scene.manager, scene.partition, asked, 15)
    assert answer == ListOffsetsPartitionResponse(partition_index=3, **expected)
    assert (scene.asked, scene.noted) == ([(0, 15)], noted)


@pytest.mark.parametrize(
    ("replica_id", "timestamp", "error_code", "has_producers"),
    [
        (2, EARLIEST_TIMESTAMP, ErrorCode.NONE, True),
        (2, LATEST_TIMESTAMP, ErrorCode.NONE, False),
        (-1, EARLIEST_TIMESTAMP, ErrorCode.NONE, False),
        (2, EARLIEST_TIMESTAMP, ErrorCode.NOT_LEADER_OR_FOLLOWER, False),
    ],
)
def test_only_a_follower_that_asks_where_a_log_starts_gets_the_producers_below(
    replica_id: int, timestamp: int, error_code: ErrorCode, has_producers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene()
    plain = ListOffsetsPartitionResponse(partition_index=3, offset=5, error_code=error_code)
    monkeypatch.setattr(offset_requests, "_list_offsets", lambda *_, is_follower: plain)
    asked = ListOffsetsTopic(name="a", partitions=[ListOffsetsPartition(partition_index=3, timestamp=timestamp)])
    ((answer,),) = [
        each.partitions
        for each in answer_list_offsets(scene.manager, ListOffsetsRequest(replica_id=replica_id, topics=[asked])).topics
    ]
    told = ListOffsetsPartitionResponse(partition_index=3, offset=5, producers=b"producers", low_watermark=4)
    assert answer == (told if has_producers else plain)


@pytest.mark.parametrize(("entries", "shares"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4)])
def test_the_partitions_of_a_request_share_the_room_for_producers(
    entries: int, shares: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower asks for both ends of each of them."""
    scene = Scene()
    plain = ListOffsetsPartitionResponse(partition_index=3, offset=5)
    monkeypatch.setattr(offset_requests, "_list_offsets", lambda *_, is_follower: plain)
    listed = [ListOffsetsPartition(partition_index=3, timestamp=EARLIEST_TIMESTAMP)] * entries
    answer_list_offsets(
        scene.manager, ListOffsetsRequest(replica_id=2, topics=[ListOffsetsTopic(name="a", partitions=listed)])
    )
    assert scene.asked == [(5, PRODUCERS_BYTES_MAX // shares)] * entries


# ------------------------------------------------------------------------------------------------------------- produce
@pytest.mark.parametrize(
    ("code", "base_offset", "epoch", "message"),
    [
        (ErrorCode.NONE, 12, 8, None),
        (ErrorCode.NONE, 0, 0, None),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, None, None, "not here"),
        (ErrorCode.REQUEST_TIMED_OUT, None, 8, "too late"),
    ],
)
def test_the_answer_to_a_batch_says_where_it_is_or_why_not(
    code: ErrorCode, base_offset: int | None, epoch: int | None, message: str | None
) -> None:
    answered: list[ProducePartitionResponse] = []
    hints: list[object] = []

    def hint(*named: object) -> CurrentLeader:
        hints.append(named)
        return HINT

    pending = SimpleNamespace(item_answered=answered.append, handler=SimpleNamespace(leader_hint=hint))
    data = ProducePartition(index=3, records=bytearray())
    item = ProduceItem(cast(Any, pending), ProduceTopic(name="a", topic_id="id", partition_data=[data]), data)
    scene = Scene()
    scene.partition.state.leader_epoch = epoch
    item.resolve(code, base_offset, message, scene.partition)
    is_elsewhere = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answered == [
        ProducePartitionResponse(
            index=3,
            error_code=code,
            base_offset=-1 if base_offset is None else base_offset,
            log_start_offset=5,
            error_message=None if message is None else f"a-3: {message}",
            current_leader=HINT if is_elsewhere else None,
            leader_epoch=-1 if epoch is None else epoch,
        )
    ]
    assert (item.answer, item.is_answered) == (answered[0], True)
    assert hints == ([(A3, "id")] if is_elsewhere else [])


# ------------------------------------------------------------------------------------------------- replicas, described
@pytest.mark.parametrize(
    ("damage", "reason", "expected"),
    [
        ("a bit flipped", "no space left", "a bit flipped"),
        ("a bit flipped", None, "a bit flipped"),
        (None, "no space left", "no space left"),
        (None, None, "it found no file descriptor"),
    ],
)
def test_an_offline_replica_says_why(damage: str | None, reason: str | None, expected: str) -> None:
    manager = SimpleNamespace(log_directory=SimpleNamespace(health=SimpleNamespace(reason=reason)))
    partition = SimpleNamespace(state=SimpleNamespace(damage=damage))
    assert _why_offline(cast(Any, manager), cast(Any, partition)) == expected


@pytest.mark.parametrize(("end", "told", "lag"), [(None, -1, -1), (0, 0, 9), (9, 9, 0), (12, 12, 0)])
def test_the_lag_of_a_follower_is_told_unless_its_end_is_unknown(end: int | None, told: int, lag: int) -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=1), log_end_offset=9)
    remote = RemoteReplica(last_caught_up_ms=0, last_fetch_ms=0, leader_end_at_last_fetch=0, log_end_offset=end)
    described = _describe_remote(state, 2, remote, 5_000)
    assert (described.log_end_offset, described.lag) == (told, lag)
    assert described.lag is not False, "msgspec writes a boolean as such"
