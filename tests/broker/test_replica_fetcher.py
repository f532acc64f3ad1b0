"""The positions that a follower reports in its fetches, and how long it waits for its leader's answers."""

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas.replica_fetcher import FETCHES_IN_FLIGHT_MAX, FetcherConfig, ReplicaFetcher
from minibroker.broker.replication.events import (
    AskEpochEnd,
    EpochEndAnswered,
    FetchAnswered,
    LeaderEndsAnswered,
    ReplicaEvent,
)
from minibroker.broker.replication.state import (
    AskingEpochEnd,
    AskingLeaderEnds,
    Fetching,
    FollowerPhase,
    ReplicaState,
    ReplicationConfig,
    Role,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.broker_events import LeaderSilent
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochResponse,
    Request,
    Response,
)
from minibroker.runtime.observer import UNOBSERVED, Observers
from minibroker.runtime.ports import ConnectionRefused
from minibroker.runtime.rpc import ConnectionClosed, RpcError
from minibroker.simulation.world.world import SimulatedWorld

PARTITION = TopicPartition("a", 0)


def _fetcher(dialer: object = None) -> ReplicaFetcher:
    config = FetcherConfig(
        broker_id=2,
        max_wait_ms=500,
        min_bytes=1,
        partition_max_bytes=1_000,
        response_max_bytes=1_000,
        socket_timeout_ms=1_000,
    )
    return ReplicaFetcher(
        dialer=cast(Any, dialer),
        leader_id=1,
        address=lambda _: ("broker-1", 9092),
        leader_registration=lambda _: int("20000"),  # equal, and each time another object
        on_refused=lambda leader_id, registration: None,
        broker_epoch=lambda: 7,
        config=config,
        observer=UNOBSERVED,
    )


def _follower(flushes: bool, synced_end: int) -> Any:
    state = ReplicaState(
        config=ReplicationConfig(broker_id=2, counts_only_synced=flushes),
        role=Role.FOLLOWER,
        leader_id=1,
        leader_epoch=0,
        phase=Fetching(),
        log_end_offset=5,
        synced_end_offset=synced_end,
    )
    log = SimpleNamespace(recorded_start_offset=0, topic_id="id")
    return SimpleNamespace(topic_partition=PARTITION, state=state, log=log)


@pytest.mark.parametrize(("flushes", "synced_end", "is_listed"), [(True, 3, False), (True, 5, True), (False, 0, True)])
async def test_a_new_connection_does_not_report_an_unsynced_end(
    flushes: bool, synced_end: int, is_listed: bool
) -> None:
    fetcher = _fetcher()
    fetcher.partitions[PARTITION] = _follower(flushes, synced_end)
    fetcher._list_all_again()
    assert (PARTITION in fetcher._take_positions()) is is_listed


class Wire:
    """A connection that keeps what is sent, and answers when the test says so."""

    closed = False
    is_waited_on = True

    def __init__(self) -> None:
        self.sent: list[FetchRequest] = []
        self.answers: list[Callable[[FetchResponse], None]] = []

    def send(self, body: FetchRequest, on_reply: Callable[[FetchResponse], None]) -> None:
        self.sent.append(body)
        self.answers.append(on_reply)


async def test_a_reply_does_not_answer_what_a_later_request_asked() -> None:
    """A fetch of epoch 0 is refused as fenced while one of epoch 1 is on its way: the new epoch is not fenced."""
    received: list[FetchAnswered] = []
    follower = _follower(flushes=False, synced_end=0)
    follower.handle_fetched = lambda event, _: received.append(event)
    fetcher, wire = _fetcher(), Wire()
    fetcher._connection = cast(Any, wire)
    fetcher.partitions[PARTITION] = follower

    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    follower.state.leader_epoch = 1
    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    refused = FetchPartitionResponse(partition_index=0, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    wire.answers[0](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[refused])]))
    assert not received
    granted = FetchPartitionResponse(partition_index=0, high_watermark=3)
    wire.answers[1](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[granted])]))
    assert [(event.leader_epoch, event.error_code, event.high_watermark) for event in received] == [
        (1, ErrorCode.NONE, 3)
    ]


async def test_a_reply_tells_nothing_of_a_partition_that_is_followed_no_more() -> None:
    fetcher, wire = _fetcher(), Wire()
    fetcher._connection = cast(Any, wire)
    fetcher.partitions[PARTITION] = _follower(flushes=False, synced_end=0)
    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    del fetcher.partitions[PARTITION]
    others = FetchPartitionResponse(partition_index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    left = FetchPartitionResponse(partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    wire.answers[0](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[left, others])]))
    assert fetcher._connection is wire


def _named(request: FetchRequest) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """The partitions that it lists, and those that leave the session."""
    listed = [(topic.topic, item.partition) for topic in request.topics for item in topic.partitions]
    forgotten = [(topic.topic, number) for topic in request.forgotten_topics_data for number in topic.partitions]
    return listed, forgotten


async def test_a_partition_that_is_followed_no_more_leaves_the_session() -> None:
    """Its leader would send the new records for nothing."""
    fetcher, wire = _fetcher(), Wire()
    follower = _follower(flushes=False, synced_end=0)
    fetcher._connection = cast(Any, wire)
    other = _follower(flushes=False, synced_end=0)
    other.topic_partition = TopicPartition("b", 0)
    fetcher.fetch_next(follower)
    fetcher.fetch_next(other)
    fetcher._send_fetch(cast(Any, wire))
    fetcher.leave(PARTITION)
    fetcher._send_fetch(cast(Any, wire))
    assert [_named(request) for request in wire.sent] == [([("a", 0), ("b", 0)], []), ([], [("a", 0)])]


async def test_a_partition_that_is_followed_again_before_the_next_fetch_stays_in_the_session() -> None:
    """Named as both, it would be copied only because the leader drops first and lists then."""
    fetcher, wire = _fetcher(), Wire()
    follower = _follower(flushes=False, synced_end=0)
    fetcher._connection = cast(Any, wire)
    fetcher.fetch_next(follower)
    fetcher._send_fetch(cast(Any, wire))
    fetcher.leave(PARTITION)
    fetcher.fetch_next(follower)
    fetcher._send_fetch(cast(Any, wire))
    assert [_named(request) for request in wire.sent] == [([("a", 0)], []), ([("a", 0)], [])]


async def test_the_next_fetch_is_sent_in_the_callback_of_the_last_reply() -> None:
    """A loop iteration in between would delay every acknowledgement."""
    follower = _follower(flushes=False, synced_end=0)
    fetcher, wire = _fetcher(), Wire()

    def append(event: FetchAnswered, _: object) -> None:
        follower.state.log_end_offset += 1
        fetcher.fetch_next(follower)

    follower.handle_fetched = append
    fetcher._connection = cast(Any, wire)
    fetcher.partitions[PARTITION] = follower
    fetcher._list_all_again()
    fetcher._send_fetch(cast(Any, wire))
    granted = FetchPartitionResponse(partition_index=0, high_watermark=3)
    wire.answers[0](FetchResponse(responses=[FetchTopicResponse(topic="a", partitions=[granted])]))
    assert len(wire.answers) == 2


async def test_a_partition_that_changed_while_no_fetch_could_be_sent_is_listed_in_the_next() -> None:
    """Otherwise it would be copied no more until its leader changes."""
    fetcher, wire = _fetcher(), Wire()
    fetcher._connection = cast(Any, wire)
    followers = [_follower(flushes=False, synced_end=0) for _ in range(FETCHES_IN_FLIGHT_MAX + 2)]
    for number, follower in enumerate(followers):
        follower.topic_partition = TopicPartition("a", number)
        fetcher.fetch_next(follower)
        fetcher._send_fetch(cast(Any, wire))
    assert len(wire.sent) == FETCHES_IN_FLIGHT_MAX
    wire.answers[0](FetchResponse())
    listed, _ = _named(wire.sent[-1])
    assert listed == [("a", FETCHES_IN_FLIGHT_MAX), ("a", FETCHES_IN_FLIGHT_MAX + 1)]


class SilentLeader:
    """Accepts connections and requests, and answers what the test answers."""

    def __init__(self) -> None:
        self.connections: list[SilentConnection] = []

    async def connect(self, *_: object, **__: object) -> "SilentConnection":
        self.connections.append(SilentConnection())
        return self.connections[-1]


class SilentConnection:
    """To a `SilentLeader`."""

    closed = False
    on_closed = None
    remote_address = ("10.0.0.1", 9092)

    def __init__(self) -> None:
        self.waiting: list[Callable[[Response | RpcError], None]] = []
        self.sent: list[Request] = []

    @property
    def is_waited_on(self) -> bool:
        return bool(self.waiting)

    def send(self, body: Request, on_reply: Callable[[Response | RpcError], None]) -> None:
        self.waiting.append(on_reply)
        self.sent.append(body)

    def answer(self, response: Response) -> None:
        self.waiting.pop(0)(response)

    def abort(self) -> None:
        self.closed = True
        while self.waiting:
            self.waiting.pop(0)(ConnectionClosed("aborted"))


def _asking(phase: FollowerPhase) -> tuple[Any, list[ReplicaEvent]]:
    """A follower that asks before it fetches, and what it is answered."""
    received: list[ReplicaEvent] = []
    follower = _follower(flushes=False, synced_end=0)
    follower.state.phase = phase
    follower.handle = received.append
    return follower, received


QUESTION = AskEpochEnd(leader_epoch=0, epoch=0)
SOON_SECONDS = 0.5
LONG_SECONDS = 2.0
"""Longer than the socket timeout and the longest wait of a fetch together."""


@pytest.mark.parametrize(
    ("phase", "answered"), [(AskingEpochEnd(0), EpochEndAnswered), (AskingLeaderEnds(), LeaderEndsAnswered)]
)
def test_a_question_without_an_answer_ends_the_connection(phase: FollowerPhase, answered: type[ReplicaEvent]) -> None:
    """No fetch is in flight then: the follower asked where to truncate, and its leader lost the connection unnoticed
    (seed 17151914)."""

    async def check() -> None:
        leader = SilentLeader()
        follower, received = _asking(phase)
        fetcher = _fetcher(leader)
        if isinstance(phase, AskingEpochEnd):
            fetcher.ask_epoch_end(follower, QUESTION)
        else:
            fetcher.ask_leader_ends(follower, 0)
        running = asyncio.create_task(fetcher.run())
        await asyncio.sleep(SOON_SECONDS)
        assert not received
        await asyncio.sleep(LONG_SECONDS)
        assert [type(each) for each in received] == [answered]
        assert [each.closed for each in leader.connections] == [True, False]
        running.cancel()

    SimulatedWorld().run(check())


def test_a_question_on_a_connection_that_was_idle_has_the_whole_time() -> None:
    """Its time begins when it is sent, not with the answer before."""

    async def check() -> None:
        leader = SilentLeader()
        follower, received = _asking(AskingEpochEnd(0))
        fetcher = _fetcher(leader)
        fetcher.ask_epoch_end(follower, QUESTION)
        running = asyncio.create_task(fetcher.run())
        await asyncio.sleep(SOON_SECONDS)
        [connection] = leader.connections
        connection.answer(OffsetForLeaderEpochResponse())
        await asyncio.sleep(5 * LONG_SECONDS)
        fetcher.ask_epoch_end(follower, QUESTION)
        await asyncio.sleep(SOON_SECONDS)
        assert not connection.closed
        assert len(received) == 1
        running.cancel()

    SimulatedWorld().run(check())


def _ask_epoch_end(fetcher: ReplicaFetcher) -> None:
    fetcher.ask_epoch_end(_asking(AskingEpochEnd(0))[0], QUESTION)


def _ask_leader_ends(fetcher: ReplicaFetcher) -> None:
    fetcher.ask_leader_ends(_asking(AskingLeaderEnds())[0], 0)


def _fetch(fetcher: ReplicaFetcher) -> None:
    fetcher.fetch_next(_follower(flushes=False, synced_end=0))


async def _running(
    ask: Callable[[ReplicaFetcher], None],
) -> tuple[ReplicaFetcher, SilentConnection, "asyncio.Task[None]"]:
    """A fetcher that has asked a silent leader this, over its only connection."""
    leader = SilentLeader()
    fetcher = _fetcher(leader)
    ask(fetcher)
    running = asyncio.create_task(fetcher.run())
    await asyncio.sleep(SOON_SECONDS)
    [connection] = leader.connections
    return fetcher, connection, running


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("ask", [_ask_epoch_end, _ask_leader_ends, _fetch], ids=["epoch end", "leader ends", "fetch"])
def test_each_request_names_the_id_of_its_topic(ask: Callable[[ReplicaFetcher], None]) -> None:
    """One that was slow was taken for one about the next topic of that name, which begins with the same epoch."""

    async def check() -> None:
        _, connection, running = await _running(ask)
        [request] = connection.sent
        assert [topic.topic_id for topic in cast(Any, request).topics] == ["id"]
        running.cancel()

    SimulatedWorld().run(check())


@pytest.mark.invariant("I36")
@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (_ask_epoch_end, OffsetForLeaderEpochResponse()),
        (_ask_leader_ends, ListOffsetsResponse()),
        (_fetch, FetchResponse()),
    ],
    ids=["epoch end", "leader ends", "fetch"],
)
def test_a_leader_that_answers_is_not_silent_though_there_is_always_a_request_that_waits(
    ask: Callable[[ReplicaFetcher], None], answer: Response
) -> None:
    """Under load the next request is always sent before the last one is answered. The connection would be given up, and
    dialled again, every few seconds."""

    async def check() -> None:
        fetcher, connection, running = await _running(ask)
        for _ in range(8):
            ask(fetcher)
            await asyncio.sleep(SOON_SECONDS)
            assert not connection.closed
            assert len(connection.waiting) == 2
            connection.answer(answer)
        running.cancel()

    SimulatedWorld().run(check())


# -------------------------------------------------------------------------------------------------------- connections
def test_a_leader_that_cannot_be_reached_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is tried again and again."""
    caplog.set_level(logging.INFO)
    dialled: list[object] = []

    class Refusing:
        async def connect(self, *asked: object, **options: object) -> None:
            dialled.append(asked)
            raise ConnectionRefused("connection refused")

    async def dial() -> None:
        fetcher = _fetcher(Refusing())
        fetcher.partitions[PARTITION] = cast(Any, None)
        fetcher._work.set()
        running = asyncio.create_task(fetcher.run())
        await asyncio.sleep(5)
        running.cancel()

    SimulatedWorld().run(dial())
    assert len(dialled) > 5
    lines = [each.getMessage() for each in caplog.records if each.name.startswith("minibroker")]
    assert lines == ["broker 1 cannot be reached: connection refused"]


@pytest.mark.parametrize(("ends", "is_lost"), [("lost", True), ("silent", False), ("not needed", False)])
def test_only_a_lost_connection_is_dialled_again_at_its_address(ends: str, is_lost: bool) -> None:
    """One whose leader is silent may lead to a host that answers no more."""

    reported: list[object] = []

    async def watch() -> tuple[bool, float]:
        fetcher, loop = _fetcher(), asyncio.get_running_loop()
        fetcher._connection = cast(Any, SimpleNamespace(is_waited_on=ends == "silent"))
        fetcher._registered = (20_000, ("broker-1", 9092))
        fetcher._waits_since, fetcher._observer = loop.time(), Observers(reported.append)
        if ends != "not needed":
            fetcher.partitions[TopicPartition("a", 0)] = cast(Any, None)
        if ends == "lost":
            loop.call_later(1, fetcher._lost.set)
        return await fetcher._watch(), loop.time()

    assert SimulatedWorld().run(watch())[0] is is_lost
    assert reported == ([LeaderSilent(leader=1)] if ends == "silent" else [])


@pytest.mark.invariant("I35")
async def test_a_closed_connection_leaves_no_fetch_that_an_answer_could_end() -> None:
    """Else a new connection would believe that one is on its way already, and send one less at a time."""
    fetcher, aborted = _fetcher(), list[bool]()
    assert fetcher._close() is None
    connection = SimpleNamespace(remote_address=("leader", 1), on_closed=lambda: None)
    connection.abort = lambda: aborted.append(connection.on_closed is None)
    fetcher._connection, fetcher._in_flight = cast(Any, connection), FETCHES_IN_FLIGHT_MAX
    assert fetcher._close() == ("leader", 1)
    assert (fetcher._connection, fetcher._in_flight, aborted) == (None, 0, [True])


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_partition_that_is_left_leaves_nothing_behind(is_listed: bool) -> None:
    """Else a fetch would list it again, and its leader send it for nothing. What the session holds is forgotten."""
    fetcher, other = _fetcher(), TopicPartition("b", 1)
    replica = _follower(False, 0)
    for name in (PARTITION, other):
        fetcher.partitions[name] = replica
        fetcher._questions[name] = AskEpochEnd(leader_epoch=0, epoch=0)
        fetcher._ends_wanted[name], fetcher._to_list[name] = 0, None
        if is_listed:
            fetcher._positions[name] = (0, 5, 1)
    fetcher.leave(PARTITION)
    kept = (fetcher.partitions, fetcher._questions, fetcher._ends_wanted, fetcher._to_list)
    assert [list(cast(Any, each)) for each in kept] == [[other]] * 4
    assert (list(fetcher._positions), list(fetcher._forgotten)) == (([other], [PARTITION]) if is_listed else ([], []))
    fetcher.leave(PARTITION)
    assert list(fetcher._forgotten) == ([PARTITION] if is_listed else [])


@pytest.mark.parametrize(
    ("code", "is_lost"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, False),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, False),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, True),
    ],
)
async def test_a_session_that_ended_begins_anew_and_any_other_refusal_ends_the_connection(
    code: ErrorCode, is_lost: bool
) -> None:
    """A refusal of the whole connection would be repeated for every fetch on it."""
    fetcher = _fetcher()
    fetcher._lost = asyncio.Event()
    fetcher.partitions[PARTITION] = _follower(False, 0)
    fetcher._positions[PARTITION], fetcher._forgotten[TopicPartition("b", 1)] = (0, 5, 1), None
    fetcher._session_id, fetcher._session_epoch = 9, 4
    fetcher._on_session_error(code)
    assert (fetcher._session_id, fetcher._session_epoch) == (0, 0)
    assert (fetcher._positions, fetcher._forgotten) == ({}, {})
    assert (fetcher._lost.is_set(), list(fetcher._to_list)) == (is_lost, [] if is_lost else [PARTITION])
