"""Delayed fetches and sessions: when they are answered, and their cleanup (for the records read:
test_read_requests)."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.broker import Broker
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import FollowerFetched
from minibroker.broker.replication.leader import FetchGranted, FetchRefused
from minibroker.broker.requests.delayed_fetches import FEW_PARTITIONS, MAX_WAIT_MS
from minibroker.broker.requests.fetch import READ_MIN_BYTES, READ_PER_ITERATION_BYTES, ReadBudget
from minibroker.broker.requests.fetch_sessions import SESSIONS_PER_BROKER_MAX, FetchSession
from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.broker_authentication import MECHANISM, NONCE_BYTES, BrokerName, ClientExchange
from minibroker.protocol.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from minibroker.runtime.ports import DiskError
from minibroker.simulation.cluster import PORT, SimulatedCluster
from tests.runtime.wire_scene import Peer, light

Case = Callable[["Bench"], Coroutine[Any, Any, None]]
TOPIC = "t"
WAIT = 2_000


class Bench:
    """Two brokers, and the one partition of topic `t` that broker 1 leads; only the case writes to it."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(seed=11, brokers=2, settings={"replica.lag.time.max.ms": "1000"})
        self.index = 0
        self.now = self.cluster.world.loop.time

    async def open(self) -> None:
        self.cluster.start_all()
        await self.cluster.until_ready()
        async with AdminClient(
            bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime()
        ) as admin:
            await admin.create_topic(TOPIC, partitions=2, configs={"min.insync.replicas": "1"})
        leaders = {index: self.cluster.leader(TOPIC, index) for index in (0, 1)}
        self.index = next(index for index, leader in leaders.items() if leader == 1)
        await self.cluster.until(lambda: bool(self.partition.sessions), what="the follower's fetch session")

    @property
    def broker(self) -> Broker:
        return self.cluster.brokers[1]

    @property
    def partition(self) -> Partition:
        return self.broker.manager.partitions[TopicPartition(TOPIC, self.index)]

    async def produce(self, count: int, size: int = 100) -> None:
        runtime = self.cluster.client_runtime()
        async with Producer(bootstrap_servers=self.cluster.bootstrap_servers, runtime=runtime, linger_ms=0) as producer:
            for _ in range(count):
                await producer.send_and_wait(TOPIC, b"x" * size, partition=self.index)

    async def peer(self, machine: str = "peer") -> Peer:
        network = self.cluster.world.runtime(machine).network
        _, protocol = await network.connect(Peer, "broker-1", PORT, 5_000)
        assert isinstance(protocol, Peer)
        return protocol

    async def follower(self) -> Peer:
        """A peer that is authenticated as broker 2."""
        peer = await self.peer()
        registration = self.cluster.brokers[2].registration
        assert registration.broker_epoch is not None
        name = BrokerName(broker_id=2, broker_epoch=registration.broker_epoch, incarnation_id="any")
        exchange = ClientExchange(self.cluster.brokers[2].secret.key, name, 1, bytes(NONCE_BYTES))
        peer.ask(SaslHandshakeRequest(mechanism=MECHANISM), 7)
        peer.ask(SaslAuthenticateRequest(auth_bytes=exchange.first()), 8)
        challenge = (await self.answer(peer, 8))["auth_bytes"]
        peer.ask(SaslAuthenticateRequest(auth_bytes=exchange.final(challenge)), 9)
        exchange.check((await self.answer(peer, 9))["auth_bytes"])
        peer.answers.clear()
        return peer

    async def answer(self, peer: Peer, correlation_id: int, seconds: float = 60) -> dict[str, Any]:
        await self.cluster.until(lambda: _answer(peer, correlation_id) is not None, seconds, f"answer {correlation_id}")
        found = _answer(peer, correlation_id)
        assert found is not None
        return found

    async def nothing_waits(self) -> None:
        """Wait until no fetch of a client waits; those of followers always do."""
        server = self.broker.server
        await self.cluster.until(lambda: server.delayed_cost_bytes == 0, what="nothing being delayed")
        assert not self.partition.waiting_fetches


def _answer(peer: Peer, correlation_id: int) -> dict[str, Any] | None:
    return next((body for number, body in peer.answers if number == correlation_id), None)


def on_a_broker(case: Case) -> Callable[[], None]:
    def test() -> None:
        bench = Bench()

        async def play() -> None:
            await bench.open()
            await case(bench)

        bench.cluster.world.run(play())

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


def fetch(bench: Bench, offset: int = 0, partitions: int = 1, topic: str = TOPIC, **fields: Any) -> FetchRequest:
    """A fetch of the one partition, listed once or more often."""
    entry = FetchPartition(partition=bench.index, fetch_offset=offset, partition_max_bytes=2**30)
    listed = [entry] * partitions
    values: dict[str, Any] = {"max_wait_ms": WAIT, "topics": [FetchTopic(topic=topic, partitions=listed)], **fields}
    return FetchRequest(**values)


def one(body: dict[str, Any]) -> dict[str, Any]:
    """The answer's first partition."""
    found: dict[str, Any] = body["responses"][0]["partitions"][0]
    return found


# ---------------------------------------------------------------------------------------------------------- consumers
@on_a_broker
async def test_a_fetch_waits_no_longer_than_the_broker_allows(bench: Bench) -> None:
    peer = await bench.peer()
    began = bench.now()
    peer.ask(fetch(bench, max_wait_ms=2**31 - 1), 1)
    peer.ask(fetch(bench, max_wait_ms=-5), 2)
    await bench.answer(peer, 2, 0.2)
    await bench.answer(peer, 1)
    assert bench.now() - began == pytest.approx(MAX_WAIT_MS / 1000, abs=0.1)


@on_a_broker
async def test_only_fetches_of_few_partitions_wait_for_min_bytes(bench: Bench) -> None:
    """Otherwise each append would check all of the very many partitions of a fetch."""
    few, many = await bench.peer(), await bench.peer()
    few.ask(fetch(bench, min_bytes=1_000, max_wait_ms=20_000), 1)
    many.ask(fetch(bench, min_bytes=1_000_000, max_wait_ms=20_000, partitions=FEW_PARTITIONS + 1), 2)
    await asyncio.sleep(0.1)
    await bench.produce(1)
    await bench.answer(many, 2, 0.5)
    assert not few.answers
    await bench.produce(8)
    await bench.answer(few, 1, 0.5)
    await bench.nothing_waits()


@pytest.mark.parametrize("max_bytes", [3_000, 2**30])
def test_a_fetch_does_not_wait_for_more_than_an_answer_may_hold(max_bytes: int) -> None:
    """It waited for its whole time before each answer, whatever there was to read: the limit of the request, or of what
    one client may leave unread, was below its min_bytes."""

    async def case(bench: Bench) -> None:
        await bench.produce(6, size=1_000 if max_bytes < 2**20 else 900_000)
        peer = await bench.peer()
        peer.ask(fetch(bench, min_bytes=5_000_000, max_wait_ms=20_000, max_bytes=max_bytes), 1)
        await bench.answer(peer, 1, 0.5)
        await bench.nothing_waits()

    on_a_broker(case)()


@on_a_broker
async def test_waiting_fetches_of_a_lost_connection_are_dropped(bench: Bench) -> None:
    peers = [await bench.peer() for _ in range(3)]
    for peer in peers:
        peer.ask(fetch(bench, max_wait_ms=30_000), 1)
        peer.ask(fetch(bench, max_wait_ms=30_000), 2)
    await asyncio.sleep(0.2)
    assert len(bench.partition.waiting_fetches) == 6
    assert bench.broker.server.delayed_cost_bytes > 0
    aborted_at = bench.now()
    for peer in peers:
        peer.transport.abort()
    await bench.nothing_waits()
    assert bench.now() - aborted_at < 1
    assert bench.broker.manager.fetches.delayed_count() == 1


@on_a_broker
async def test_above_the_waiting_limit_a_fetch_returns_at_once_and_its_connection_pauses(bench: Bench) -> None:
    crowd = [await bench.peer() for _ in range(8)]
    for number, peer in enumerate(crowd):
        peer.ask(fetch(bench, max_wait_ms=20_000, partitions=4_000), number)
    await asyncio.sleep(5)
    answered = [peer for peer in crowd if peer.answers]
    assert 0 < len(answered) < len(crowd)
    assert bench.broker.server.delayed_cost_bytes <= bench.broker.server.limits.waiting_max_bytes
    answered[0].send(light(77))
    await asyncio.sleep(5)
    assert _answer(answered[0], 77) is None, "its connection is not read for the time of the wait"
    modest = await bench.peer()
    modest.ask(fetch(bench, max_wait_ms=1_000), 1)
    await asyncio.sleep(0.9)
    assert not modest.answers, "a small one waits for its max_wait_ms"
    await bench.answer(modest, 1, 0.3)
    await bench.answer(answered[0], 77, 20)


async def test_the_read_budget_is_whole_again_in_the_next_iteration_of_the_loop() -> None:
    budget = ReadBudget()
    full = budget.room
    for _ in range(2):
        budget.took(READ_PER_ITERATION_BYTES // 2)
        assert budget.room == full // 2
        await asyncio.sleep(0)
        assert budget.room == full
    for _ in range(3):
        budget.took(READ_PER_ITERATION_BYTES)
    assert budget.room == READ_MIN_BYTES, "an answer gets a few batches whatever others took"
    budget.took(0)
    await asyncio.sleep(0)
    assert budget.room == full


@on_a_broker
async def test_consumers_that_catch_up_together_share_the_read_budget(bench: Bench) -> None:
    await bench.produce(12, size=1_000_000)
    peers = [await bench.peer() for _ in range(12)]
    bench.cluster.world.network.latency.extra_mean = 0.0
    everything = fetch(bench, max_bytes=2**30)
    for peer in peers:
        peer.ask(everything, 1)
    for peer in peers:
        await bench.answer(peer, 1)
    sizes = sorted(len(one(peer.answers[0][1])["records"]) for peer in peers)
    assert sizes[0] >= 1_000_000, "at least one batch, so that each consumer makes progress"
    assert sizes[-1] <= READ_PER_ITERATION_BYTES


@on_a_broker
async def test_a_broker_without_the_replica_tells_a_wrong_address_from_an_unknown_partition(bench: Bench) -> None:
    """The first sends the client to the leader; after the second it waits for news of the topic."""
    async with AdminClient(
        bootstrap_servers=bench.cluster.bootstrap_servers, runtime=bench.cluster.client_runtime()
    ) as admin:
        await admin.create_topic("alone", partitions=2, replication_factor=1, configs={"min.insync.replicas": "1"})
    bench.index = next(index for index in (0, 1) if bench.cluster.leader("alone", index) == 2)
    peer = await bench.peer()
    peer.ask(fetch(bench, topic="alone"), 1)
    peer.ask(fetch(bench, topic="unknown"), 2)
    elsewhere, unknown = one(await bench.answer(peer, 1)), one(await bench.answer(peer, 2))
    assert elsewhere["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert elsewhere["current_leader"]["leader_id"] == 2
    assert (unknown["error_code"], unknown["current_leader"]) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)


@pytest.mark.invariant("I37")
@on_a_broker
async def test_a_follower_without_a_session_reports_its_position_once_a_request(bench: Bench) -> None:
    """When its answer is made, the position is old: it would count as caught up at a time when it was not."""
    bench.cluster.kill(2)
    peer = await bench.follower()
    broker_epoch = bench.cluster.brokers[1].image.broker_epoch(2)
    handled: list[float] = []
    with pytest.MonkeyPatch.context() as patch:
        handle_fetch = Partition.handle_fetch

        def noted(partition: Partition, event: FollowerFetched) -> FetchGranted | FetchRefused:
            handled.append(event.now_ms)
            return handle_fetch(partition, event)

        patch.setattr(Partition, "handle_fetch", noted)
        peer.ask(fetch(bench, replica_id=2, replica_epoch=broker_epoch, session_epoch=-1, max_wait_ms=1_000), 1)
        assert one(await bench.answer(peer, 1, 2))["error_code"] == ErrorCode.NONE
    assert len(handled) == 1


@on_a_broker
async def test_a_waiting_fetch_ends_at_once_when_the_broker_is_fenced(bench: Bench) -> None:
    """By no request: the answer must not wait for the next one."""
    peer = await bench.peer()
    peer.ask(fetch(bench, max_wait_ms=20_000), 1)
    await asyncio.sleep(0.2)
    bench.broker.manager.fence()
    assert one(await bench.answer(peer, 1, 0.1))["error_code"] == ErrorCode.NOT_LEADER_OR_FOLLOWER


# ----------------------------------------------------------------------------------------------------------- sessions
def standing(bench: Bench, epoch: int, session_id: int = 0, **fields: Any) -> FetchRequest:
    """A request in a session of broker 2, with its current broker epoch unless `fields` differ."""
    broker_epoch = bench.broker.image.broker_epoch(2)
    values = {
        "replica_id": 2,
        "replica_epoch": broker_epoch,
        "session_id": session_id,
        "session_epoch": epoch,
        **fields,
    }
    return fetch(bench, **values)


async def open_session(bench: Bench) -> tuple[Peer, dict[str, Any]]:
    """A follower, and the answer to its first fetch, of request 1."""
    peer = await bench.follower()
    peer.ask(standing(bench, 0, max_wait_ms=0), 1)
    return peer, await bench.answer(peer, 1, 0.5)


@pytest.mark.parametrize("connection_id", [0, 1, 2**31 - 1, 2**31, 2**31 + 5, 2**40])
def test_a_sessions_id_fits_the_wire_and_is_never_that_of_no_session(connection_id: int) -> None:
    connection = cast(Any, SimpleNamespace(id=connection_id))
    assert 0 < FetchSession(connection, FetchRequest()).id < 2**31


@on_a_broker
async def test_a_session_lists_its_partitions_once(bench: Bench) -> None:
    bench.cluster.kill(2)
    peer, opened = await open_session(bench)
    assert opened["error_code"] == 0
    assert opened["session_id"] > 0
    peer.ask(standing(bench, 1, opened["session_id"], topics=[], max_wait_ms=20_000), 2)
    await asyncio.sleep(0.5)
    assert len(peer.answers) == 1, "nothing is new"
    await bench.produce(1)
    answer = await bench.answer(peer, 2, 0.5)
    assert len(one(answer)["records"]) > 100


@pytest.mark.invariant("I36")
@on_a_broker
async def test_a_position_that_is_listed_again_is_told_the_watermarks_again(bench: Bench) -> None:
    """The follower lists it without a reply (its log start was recorded), and drops what is told of the position that
    it listed before: without new records it would not learn the high watermark (seed 17354891)."""
    bench.cluster.kill(2)
    peer, opened = await open_session(bench)
    assert one(opened)["high_watermark"] == 0
    peer.ask(standing(bench, 1, opened["session_id"], max_wait_ms=20_000), 2)
    assert one(await bench.answer(peer, 2, 0.5))["high_watermark"] == 0


@on_a_broker
async def test_a_forgotten_partition_leaves_its_session(bench: Bench) -> None:
    """Else a replica that follows another leader now would get, and refuse, every record of this one."""
    bench.cluster.kill(2)
    peer, opened = await open_session(bench)
    forgotten = [ForgottenTopic(topic=TOPIC, partitions=[bench.index])]
    again = standing(bench, 1, opened["session_id"], topics=[], forgotten_topics_data=forgotten, max_wait_ms=2_000)
    peer.ask(again, 2)
    await bench.produce(1)
    assert (await bench.answer(peer, 2, 3))["responses"] == []


@on_a_broker
async def test_a_partition_whose_position_is_refused_leaves_its_session(bench: Bench) -> None:
    """The follower answers no more for it; what its leader sent would be for nothing."""
    bench.cluster.kill(2)
    peer, opened = await open_session(bench)
    listed = [FetchPartition(partition=bench.index, fetch_offset=0, current_leader_epoch=99)]
    topics = [FetchTopic(topic=TOPIC, partitions=listed)]
    peer.ask(standing(bench, 1, opened["session_id"], topics=topics), 2)
    assert one(await bench.answer(peer, 2, 0.5))["error_code"] == ErrorCode.UNKNOWN_LEADER_EPOCH
    peer.ask(standing(bench, 2, opened["session_id"], topics=[], max_wait_ms=2_000), 3)
    await bench.produce(1)
    assert (await bench.answer(peer, 3, 3))["responses"] == []


@on_a_broker
async def test_a_session_that_waits_is_told_at_once_of_a_partition_that_fails(bench: Bench) -> None:
    """Its follower would else believe in this leader for the whole of its wait."""
    bench.cluster.kill(2)
    peer, opened = await open_session(bench)
    peer.ask(standing(bench, 1, opened["session_id"], topics=[], max_wait_ms=20_000), 2)
    await asyncio.sleep(0.5)
    bench.broker.manager.disk.log_failed(bench.partition, DiskError("input/output error"))
    assert one(await bench.answer(peer, 2, 0.5))["error_code"] != ErrorCode.NONE


async def after_a_full_answer(bench: Bench, batches_in_the_first: int) -> tuple[list[int], dict[str, Any]]:
    """Open a session of two partitions, with room for one batch in an answer, and report the first one's position.

    Returns the partitions, and what the second answer says of the one partition it tells of.
    """
    runtime = bench.cluster.client_runtime()
    async with AdminClient(bootstrap_servers=bench.cluster.bootstrap_servers, runtime=runtime) as admin:
        await admin.create_topic("several", partitions=4)
    led = [index for index in range(4) if bench.cluster.leader("several", index) == 1]
    async with Producer(bootstrap_servers=bench.cluster.bootstrap_servers, runtime=runtime) as producer:
        for index in led[:1] * batches_in_the_first + led[1:]:
            await producer.send_and_wait("several", b"x", partition=index)
    peer = await bench.follower()
    listed = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=2**30) for index in led]
    topics = [FetchTopic(topic="several", partitions=listed)]
    peer.ask(standing(bench, 0, max_wait_ms=0, max_bytes=1, topics=topics), 1)
    opened = await bench.answer(peer, 1, 0.5)
    answered = {each["partition_index"]: bool(each["records"]) for each in opened["responses"][0]["partitions"]}
    assert answered == {led[0]: True, led[1]: False}
    position = FetchPartition(partition=led[0], fetch_offset=1, partition_max_bytes=2**30)
    topics = [FetchTopic(topic="several", partitions=[position])]
    peer.ask(standing(bench, 1, opened["session_id"], max_wait_ms=20_000, max_bytes=1, topics=topics), 2)
    return led, one(await bench.answer(peer, 2, 0.5))


@on_a_broker
async def test_records_that_did_not_fit_come_with_the_next_answer(bench: Bench) -> None:
    """Even if that answer sent newer watermarks of the partition: a follower stayed behind until it left the ISR."""
    led, answer = await after_a_full_answer(bench, batches_in_the_first=1)
    assert (answer["partition_index"], bool(answer["records"])) == (led[1], True)


@on_a_broker
async def test_a_served_partition_moves_behind_those_that_wait(bench: Bench) -> None:
    """Otherwise two partitions that always have more records would keep all others of their follower waiting."""
    led, answer = await after_a_full_answer(bench, batches_in_the_first=3)
    assert (answer["partition_index"], bool(answer["records"])) == (led[1], True)


@on_a_broker
async def test_a_request_of_another_session_or_epoch_is_refused(bench: Bench) -> None:
    peer = await bench.follower()
    peer.ask(standing(bench, 3, 999), 1)
    assert (await bench.answer(peer, 1, 0.5))["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    peer.ask(standing(bench, 0, max_wait_ms=0), 2)
    opened = await bench.answer(peer, 2, 0.5)
    peer.ask(standing(bench, 5, opened["session_id"]), 3)
    assert (await bench.answer(peer, 3, 0.5))["error_code"] == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@on_a_broker
async def test_a_new_request_of_a_session_ends_the_one_that_waits(bench: Bench) -> None:
    """So the follower gets an answer to each of its requests."""
    peer, opened = await open_session(bench)
    peer.ask(standing(bench, 1, opened["session_id"], topics=[], max_wait_ms=30_000), 2)
    await asyncio.sleep(0.5)
    assert len(peer.answers) == 1
    peer.ask(standing(bench, 2, opened["session_id"], topics=[], max_wait_ms=1_000), 3)
    await bench.answer(peer, 2, 0.2)
    await bench.answer(peer, 3, 1.5)


@on_a_broker
async def test_reopening_a_session_answers_the_request_waiting_in_the_old_one(bench: Bench) -> None:
    """A follower counts its requests in flight: a missing answer would stop it forever."""
    peer, opened = await open_session(bench)
    peer.ask(standing(bench, 1, opened["session_id"], topics=[], max_wait_ms=30_000), 2)
    await asyncio.sleep(0.5)
    peer.ask(standing(bench, 0, max_wait_ms=0), 3)
    ended = await bench.answer(peer, 2, 0.2)
    assert (ended["error_code"], ended["responses"]) == (0, [])
    await bench.answer(peer, 3, 0.2)


@on_a_broker
async def test_a_session_ends_with_its_connection(bench: Bench) -> None:
    before = len(bench.partition.sessions)
    peer = await bench.follower()
    peer.ask(standing(bench, 0, max_wait_ms=30_000), 1)
    await asyncio.sleep(0.5)
    assert len(bench.partition.sessions) == before + 1
    peer.transport.abort()
    await bench.cluster.until(lambda: len(bench.partition.sessions) == before, 1)
    await bench.nothing_waits()


@on_a_broker
async def test_sessions_per_broker_are_limited(bench: Bench) -> None:
    """Lost connections that are not yet detected do not keep old sessions forever."""
    bench.cluster.kill(2)
    await asyncio.sleep(0.1)
    peers = [await bench.follower() for _ in range(SESSIONS_PER_BROKER_MAX + 2)]
    for peer in peers:
        peer.ask(standing(bench, 0, max_wait_ms=30_000), 1)
        await asyncio.sleep(0.1)
    assert len(bench.partition.sessions) == SESSIONS_PER_BROKER_MAX
    assert peers[0].answers, "its waiting request was answered"
    opened = peers[0].answers[0][1]["session_id"]
    peers[0].ask(standing(bench, 1, opened, topics=[]), 2)
    assert (await bench.answer(peers[0], 2, 0.5))["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
