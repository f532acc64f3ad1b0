"""The answer of a fetch session, whatever its updated partitions are in: one of them must not hold up another."""

from functools import partial
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replication.events import LeaderAndIsrReceived
from minibroker.broker.replication.leader import FetchGranted
from minibroker.broker.requests.delayed_fetches import DelayedFetch
from minibroker.broker.requests.fetch_answers import watermarks_only
from minibroker.broker.requests.fetch_sessions import SESSIONS_PER_BROKER_MAX, FetchSession, FetchSessions
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.codec import FetchedRecords, decode_response_body, decode_response_frame
from minibroker.protocol.wire.messages import ApiKey, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.broker.test_fetch import TOPIC, Bench, on_a_broker, one, open_session, standing

GRANTED = FetchGranted(fetch_offset=0, end_offset=0, high_watermark=0, log_start_offset=0)
KINDS: dict[str, dict[str, bool]] = {
    "has something to send": {"has_records": True},
    "left the session": {},
    "awaits a position": {"awaits_position": True, "has_records": True},
    "is at its end": {"is_at_the_end": True},
    "is at its end, with newer watermarks": {"is_at_the_end": True, "has_newer_watermarks": True},
    "has nothing to read": {},
    "has nothing to read but newer watermarks": {"has_newer_watermarks": True},
}
SENDS = "has something to send"
GONE = "left the session"
WATERMARKS = [kind for kind, how in KINDS.items() if how.get("has_newer_watermarks")]
KEPT = ["awaits a position"]
"""It is read again when the follower has reported its position."""


def entry_of(kind: str) -> Any:
    states = {"is_at_the_end": False, "has_newer_watermarks": False, "has_records": False} | KINDS[kind]
    awaits_position = states.pop("awaits_position", False)
    state = SimpleNamespace(high_watermark=0, log_start_offset=0, low_watermark=0, log_end_offset=0)
    partition, fetch = SimpleNamespace(state=state), SimpleNamespace(fetch_offset=0)
    questions = {name: partial(bool, answer) for name, answer in states.items()}
    return SimpleNamespace(partition=partition, fetch=fetch, awaits_position=awaits_position, sent=None, **questions)


class Answered:
    """A session with these partitions in `updated`, in this order, and the answer to its request."""

    def __init__(self, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        self.frames: list[Any] = []
        self.numbers = {kind: number for number, kind in enumerate(KINDS)}
        self.session = FetchSession(cast(Any, SimpleNamespace(id=1)), FetchRequest())
        for kind in kinds:
            name = TopicPartition("t", self.numbers[kind])
            self.session.updated[name] = None
            if kind != GONE:
                self.session.partitions[name] = entry_of(kind)
        sessions = FetchSessions(
            partitions={},
            answers=cast(Any, None),
            waiting=cast(Any, SimpleNamespace(answered=lambda _: None)),
            response_max_bytes=1_000,
            counters=cast(Any, SimpleNamespace(replication_bytes_out=0)),
        )
        monkeypatch.setattr(sessions, "_answer_entry", self._answer_entry)
        request: Any = SimpleNamespace(correlation_id=7, respond_frame=self.frames.append)
        self.is_answered = sessions.answer(DelayedFetch(request, FetchRequest(), self.session), force=False)

    def _answer_entry(
        self, session: FetchSession, entry: Any, budget: int, first: bool
    ) -> tuple[FetchedRecords | None, bool]:
        if not entry.has_records():
            return None, False
        return watermarks_only(self.numbers[SENDS], GRANTED), True

    @property
    def told(self) -> set[str]:
        """The partitions of which the answer tells."""
        _, body = decode_response_frame(b"".join(self.frames[0])[4:])
        answer = decode_response_body(ApiKey.FETCH, body)
        assert isinstance(answer, FetchResponse)
        numbers = [each.partition_index for topic in answer.responses for each in topic.partitions]
        return {list(KINDS)[number] for number in numbers}

    @property
    def updated(self) -> set[str]:
        return {list(KINDS)[name.partition] for name in self.session.updated}


@pytest.mark.parametrize("first", list(KINDS))
def test_no_partition_in_front_holds_up_those_behind_it(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for rest in permutations([kind for kind in KINDS if kind != first], 3):
        answered = Answered((first, *rest), monkeypatch)
        kinds = {first, *rest}
        assert answered.is_answered == (SENDS in kinds), kinds
        if answered.is_answered:
            assert answered.told == kinds & {SENDS, *WATERMARKS}
            assert answered.updated == kinds & set(KEPT)


def test_newer_watermarks_alone_do_not_end_the_wait_and_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = Answered(tuple(kind for kind in KINDS if kind != SENDS), monkeypatch)
    assert not answered.is_answered
    assert answered.updated == {*WATERMARKS, *KEPT}


@pytest.mark.parametrize("were_records_sent", [True, False])
def test_what_was_told_counts_only_if_the_follower_lists_what_it_has_copied(were_records_sent: bool) -> None:
    """If it lists a position for another reason, it drops what is still on its way to it (seed 17354891)."""
    name = TopicPartition("t", 0)
    partition: Any = SimpleNamespace(sessions=[], topic_partition=name, is_of_topic=lambda topic_id: topic_id == "id")
    sessions = FetchSessions(
        partitions={name: partition},
        answers=cast(Any, SimpleNamespace(report_position=lambda *_: GRANTED)),
        waiting=cast(Any, None),
        response_max_bytes=1_000,
        counters=cast(Any, None),
    )
    session = FetchSession(cast(Any, SimpleNamespace(id=1)), FetchRequest())
    assert sessions._take_position(session, name, "id", FetchPartition(partition=0, fetch_offset=0)) is None
    entry = session.partitions[name]
    entry.sent, entry.awaits_position = GRANTED, were_records_sent
    assert sessions._take_position(session, name, "id", FetchPartition(partition=0, fetch_offset=0)) is None
    assert session.partitions[name] is entry
    assert entry.sent is (GRANTED if were_records_sent else None)


def test_a_session_that_ends_in_any_way_rings_for_no_one_any_more() -> None:
    """Otherwise the alarm of its last wait rings for a follower that is gone."""
    ended, answered = list[int](), list[object]()
    waiting = SimpleNamespace(
        session_ended=lambda session: ended.append(session.replica_id),
        answered=answered.append,
        delay_of_follower=lambda delayed, session: None,
    )
    sessions = FetchSessions(
        partitions={},
        answers=cast(Any, None),
        waiting=cast(Any, waiting),
        response_max_bytes=1_000,
        counters=cast(Any, SimpleNamespace(replication_bytes_out=0)),
    )

    def open_session(connection: Any, replica_id: int) -> None:
        request = SimpleNamespace(connection=connection, respond=lambda _: None, send_answers=lambda: None)
        sessions.handle(cast(Any, request), FetchRequest(replica_id=replica_id, session_epoch=0, max_wait_ms=500))

    class Connection:
        id = 1

    first, *more = (Connection() for _ in range(SESSIONS_PER_BROKER_MAX + 2))
    open_session(first, 2)
    open_session(first, 3)
    assert ended == [2], "its connection has another session now"
    sessions.connection_closed(cast(Any, first))
    assert ended == [2, 3]
    for connection in more:
        open_session(connection, 4)
    assert ended == [2, 3, 4], "it had too many"
    assert sessions.waiting_count == SESSIONS_PER_BROKER_MAX


@pytest.mark.invariant("I36")
@on_a_broker
async def test_a_leader_that_leads_again_tells_the_watermarks_again(bench: Bench) -> None:
    """Another broker led for a moment, and the follower has the records from there. It drops what this one had sent in
    its former leader epoch: without new records it would not learn the high watermark."""
    bench.cluster.kill(2)
    state = bench.partition.state
    assert state.leader_epoch is not None
    former = state.leader_epoch

    def elect(leader: int, leader_epoch: int) -> None:
        order = LeaderAndIsrReceived(
            now_ms=bench.partition.now_ms(),
            leader_id=leader,
            leader_epoch=leader_epoch,
            partition_epoch=state.partition_epoch + 1,
            in_sync_replicas=(leader,),
            assignment=state.assignment,
        )
        bench.partition.handle(order)

    elect(1, former)
    peer, opened = await open_session(bench)
    peer.ask(standing(bench, 1, opened["session_id"], topics=[], max_wait_ms=20_000), 2)
    await bench.produce(1)
    assert one(await bench.answer(peer, 2, 0.5))["high_watermark"] == 1
    elect(2, former + 1)
    elect(1, former + 2)
    position = FetchPartition(
        partition=bench.index, fetch_offset=1, current_leader_epoch=former + 2, last_fetched_epoch=former
    )
    topics = [FetchTopic(topic=TOPIC, partitions=[position])]
    peer.ask(standing(bench, 2, opened["session_id"], topics=topics, max_wait_ms=20_000), 3)
    assert one(await bench.answer(peer, 3, 0.5))["high_watermark"] == 1
