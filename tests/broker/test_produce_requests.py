"""The answer to a producer for everything that can be wrong with a Produce request."""

import asyncio
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.requests.produce import ANSWERED_KEPT_MAX, DECODED_BYTES_MAX, DECODED_RECORDS_MAX, ProduceHandler
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import decode_records
from minibroker.protocol.wire import messages as m
from minibroker.runtime.rpc import ConnectionClosed
from tests.broker.requests import TOPIC, ClusterClient, batch, in_cluster, produce_request
from tests.undecodable import beyond_all_times, undecodable


def test_an_acknowledged_batch_names_its_offset_and_epoch() -> None:
    async def check(client: ClusterClient) -> None:
        first = await client.produce(records=batch(b"a", b"b"))
        second = await client.produce(records=batch(b"c"))
        assert (first.error_code, first.base_offset, first.leader_epoch) == (0, 0, 0)
        assert second.base_offset == 2

    in_cluster(check)


def test_produce_to_an_unknown_topic_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        answer = await client.produce(topic="nowhere")
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    in_cluster(check)


def test_a_follower_names_the_leader_and_appends_nothing() -> None:
    async def check(client: ClusterClient) -> None:
        follower = client.followers[0]
        answer = await client.produce(follower)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader is not None
        assert answer.current_leader.leader_id == client.leader
        replica = client.cluster.replica(follower, TOPIC)
        assert replica is not None
        assert replica.state.log_end_offset == 0

    in_cluster(check)


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_an_invalid_acks_value_is_refused(acks: int) -> None:
    async def check(client: ClusterClient) -> None:
        assert (await client.produce(acks=acks)).error_code == ErrorCode.INVALID_REQUIRED_ACKS

    in_cluster(check)


def test_records_for_another_topic_of_the_same_name_are_refused() -> None:
    """A request that was held up while its topic was deleted and made again must not be written to the new topic."""

    async def check(client: ClusterClient) -> None:
        topic_id = (await client.ask(client.leader, m.MetadataRequest(), m.MetadataResponse)).topics[0].topic_id
        offsets = []
        for named in ("another", "", topic_id):
            data = m.ProducePartition(index=0, records=batch(b"value"))
            body = m.ProduceRequest(topic_data=[m.ProduceTopic(name=TOPIC, topic_id=named, partition_data=[data])])
            answer = (await client.ask(client.leader, body, m.ProduceResponse)).responses[0].partition_responses[0]
            offsets.append((answer.error_code, answer.base_offset))
        assert offsets == [(ErrorCode.INCONSISTENT_TOPIC_ID, -1), (0, 0), (0, 1)]

    in_cluster(check)


def test_a_flipped_bit_is_refused_before_the_log() -> None:
    async def check(client: ClusterClient) -> None:
        records = batch(b"value")
        records[-1] ^= 1
        answer = await client.produce(records=records)
        assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
        assert "t-0" in (answer.error_message or "")
        assert (await client.produce()).base_offset == 0

    in_cluster(check)


@pytest.mark.parametrize(("count", "code"), [(1, ErrorCode.INVALID_RECORD), (DECODED_RECORDS_MAX + 1, ErrorCode.NONE)])
def test_undecodable_records_are_refused_in_small_batches(count: int, code: ErrorCode) -> None:
    """A batch of more records is accepted by its CRC and its count."""

    async def check(client: ClusterClient) -> None:
        answer = await client.produce(records=undecodable(batch(*[b"value"] * count)))
        assert answer.error_code == code
        if code:
            assert "the payload does not decode" in (answer.error_message or "")
            assert (await client.produce()).base_offset == 0

    in_cluster(check)


@pytest.mark.parametrize(("more_bytes", "code"), [(0, ErrorCode.INVALID_RECORD), (1, ErrorCode.NONE)])
def test_undecodable_records_are_refused_in_batches_of_the_usual_size(more_bytes: int, code: ErrorCode) -> None:
    """Millions of headers in one larger record took 400 MB to decode."""

    async def check(client: ClusterClient) -> None:
        fill = DECODED_BYTES_MAX + more_bytes - len(batch(bytes(100_000))) + 100_000
        records = undecodable(batch(bytes(fill)))
        assert len(records) == DECODED_BYTES_MAX + more_bytes
        assert (await client.produce(records=records)).error_code == code

    in_cluster(check, {"message.max.bytes": str(DECODED_BYTES_MAX + 1)})


def test_an_entry_of_a_request_holds_one_batch() -> None:
    async def check(client: ClusterClient) -> None:
        answer = await client.produce(records=batch(b"a") + batch(b"b"))
        assert answer.error_code == ErrorCode.INVALID_RECORD

    in_cluster(check)


def test_batches_of_a_partition_in_one_request_are_answered_in_their_order() -> None:
    """Decision 0012: the refused batch has its answer first, but its place in the answer is still the second."""

    async def check(client: ClusterClient) -> None:
        broken = batch(b"broken")
        broken[-1] ^= 1
        parts = [m.ProducePartition(index=0, records=each) for each in (batch(b"a", b"b"), broken, batch(b"c"))]
        body = m.ProduceRequest(topic_data=[m.ProduceTopic(name=TOPIC, partition_data=parts)])
        reply = await client.ask(client.leader, body, m.ProduceResponse)
        answers = [(each.error_code, each.base_offset) for each in reply.responses[0].partition_responses]
        assert answers == [(0, 0), (ErrorCode.CORRUPT_MESSAGE, -1), (0, 2)]

    in_cluster(check)


def test_a_record_timestamp_beyond_64_bits_is_refused() -> None:
    async def check(client: ClusterClient) -> None:
        answer = await client.produce(records=beyond_all_times())
        assert answer.error_code == ErrorCode.INVALID_RECORD
        assert "timestamp" in (answer.error_message or "")

    in_cluster(check)


def test_a_batch_above_the_topics_limit_is_too_large() -> None:
    async def check(client: ClusterClient) -> None:
        answer = await client.produce(records=batch(b"x" * 3_000))
        assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "max.message.bytes=2048" in (answer.error_message or "")

    in_cluster(check, {"message.max.bytes": "2048"})


@pytest.mark.invariant("I24")
def test_acks_all_is_answered_only_when_the_in_sync_replicas_have_it() -> None:
    async def check(client: ClusterClient) -> None:
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        waiting = asyncio.create_task(client.produce())
        await asyncio.sleep(1)
        assert not waiting.done()
        for follower in client.followers:
            client.cluster.world.resume(f"broker-{follower}")
        answer = await waiting
        assert answer.error_code == 0
        leader = client.cluster.replica(client.leader, TOPIC)
        assert leader is not None
        assert leader.state.high_watermark >= answer.base_offset + 1

    in_cluster(check)


def test_acks_one_does_not_wait_for_followers() -> None:
    async def check(client: ClusterClient) -> None:
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        async with asyncio.timeout(1):
            answer = await client.produce(acks=1)
        assert (answer.error_code, answer.base_offset) == (0, 0)

    in_cluster(check)


@pytest.mark.invariant("I26")
def test_a_timed_out_request_fails_and_its_record_may_still_appear() -> None:
    async def check(client: ClusterClient) -> None:
        for follower in client.followers:
            client.cluster.world.pause(f"broker-{follower}")
        answer = await client.produce(timeout_ms=500)
        assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert "ISR=" in (answer.error_message or "")
        for follower in client.followers:
            client.cluster.world.resume(f"broker-{follower}")
        fetched = await client.fetch(wait_ms=5_000)
        assert decode_records(fetched.records)[0].value == b"v"

    in_cluster(check)


def handler_of(handle: Callable[[Any], None], now_ms: Callable[[], int]) -> ProduceHandler:
    """All requests are for one partition, which `handle`s what it receives."""
    log = SimpleNamespace(config=SimpleNamespace(max_message_bytes=1_000), producers=None)
    partition = SimpleNamespace(topic_partition="t-0", log=log, is_of_topic=lambda _: True, handle=handle)
    return ProduceHandler(
        find_partition=lambda _: cast(Any, partition),
        leader_hint=lambda *_: None,
        is_known=lambda _: True,
        now_ms=now_ms,
        counters=BrokerCounters(),
    )


@pytest.mark.invariant("I26")
def test_requests_of_the_same_millisecond_expire_in_their_order() -> None:
    """Several producers, or one with several partitions, send with the same timeout all the time."""
    now_ms, expired = 1_000, list[str]()
    handler = handler_of(lambda _: None, lambda: now_ms)
    for name in ("first", "second", "third"):
        request = SimpleNamespace(respond=lambda _, name=name: expired.append(name))
        handler.handle(cast(Any, request), produce_request(batch(b"value"), timeout_ms=50))
    now_ms += 49
    handler.expire()
    assert expired == []
    now_ms += 1
    handler.expire()
    assert expired == ["first", "second", "third"]


def test_the_deadline_of_an_answered_request_is_dropped_before_it_is_due() -> None:
    """Otherwise a broker would keep the requests of half a minute."""
    handled: list[Any] = []
    handler = handler_of(lambda event: handled.extend(event.tokens), lambda: 1_000)
    for _ in range(10):
        request = SimpleNamespace(respond=lambda _: None)
        handler.handle(cast(Any, request), produce_request(batch(b"value"), timeout_ms=30_000))
    for item in handled:
        item.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    handler.expire()
    assert handler._deadlines == []


def test_a_request_that_waits_does_not_keep_all_later_ones_that_were_answered() -> None:
    """Its follower may stand still for as long as its client waits, and other partitions take thousands a second."""
    handled: list[Any] = []
    handler = handler_of(lambda event: handled.extend(event.tokens), lambda: 1_000)
    for number in range(5_000):
        request = SimpleNamespace(respond=lambda _: None)
        handler.handle(cast(Any, request), produce_request(batch(b"value"), timeout_ms=30_000 + number))
        if number:
            handled.pop().refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        handler.expire()
    assert len(handler._deadlines) <= ANSWERED_KEPT_MAX + 1
    handled.pop().refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    handler.expire()
    assert handler._deadlines == []


def test_a_request_that_waits_for_its_answer_keeps_no_records() -> None:
    """The memory of waiting requests is limited, and counts none: a follower that stands still for half a minute would
    otherwise keep all records of that time. An answered request stays in the heap behind one that waits, too. A batch
    that is a duplicate waits, too, and is not appended."""

    class Records(bytearray):
        """A bytearray with weak references."""

    waiting: list[Any] = []
    handler = handler_of(lambda event: waiting.extend(event.tokens), lambda: 1_000)
    kept: list[weakref.ref[Records]] = []
    for _ in range(2):
        records = Records(batch(b"value"))
        kept.append(weakref.ref(records))
        request = SimpleNamespace(respond=lambda _: None, body=produce_request(records))
        handler.handle(cast(Any, request), request.body)
        del records, request
    assert [each() for each in kept] == [None, None]
    waiting[1].refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    handler.expire()
    assert len(handler._deadlines) == 2


@pytest.mark.invariant("I24", "I37")
def test_below_min_isr_waiting_and_new_requests_fail_at_once() -> None:
    async def check(client: ClusterClient) -> None:
        first, second = client.followers
        for follower in (first, second):
            client.cluster.kill(follower)
        waiting = asyncio.create_task(client.produce(timeout_ms=60_000))
        answer = await asyncio.wait_for(waiting, 10)
        assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        refused = await client.produce()
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert f"missing brokers: {first}, {second}" in (refused.error_message or "")
        leader = client.cluster.replica(client.leader, TOPIC)
        assert leader is not None
        assert leader.state.log_end_offset == 1, "the refused batch left nothing"
        assert leader.state.high_watermark == 0

    in_cluster(check)


def test_acks_none_gets_no_answer_but_writes_the_record() -> None:
    async def check(client: ClusterClient) -> None:
        connection = await client.connection(client.leader)
        connection.send_without_reply(produce_request(batch(b"quiet"), acks=0))
        fetched = await client.fetch(wait_ms=5_000)
        assert decode_records(fetched.records)[0].value == b"quiet"
        assert not connection.closed

    in_cluster(check)


def test_acks_none_that_fails_closes_the_connection() -> None:
    async def check(client: ClusterClient) -> None:
        connection = await client.connection(client.followers[0])
        connection.send_without_reply(produce_request(batch(b"lost"), acks=0))
        with pytest.raises(ConnectionClosed):
            await connection.request(m.ApiVersionsRequest(), 5_000)

    in_cluster(check)


def test_a_leader_past_its_zookeeper_deadline_acknowledges_nothing() -> None:
    async def check(client: ClusterClient) -> None:
        old = client.leader
        client.cluster.world.zookeeper.cut(f"broker-{old}")
        await asyncio.sleep(4)
        answer = await client.produce(old, acks=1)
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        client.cluster.world.zookeeper.heal()
        await client.cluster.until(lambda: client.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="healed")
        assert client.leader != old

    in_cluster(check)


def test_a_full_disk_refuses_clearly_moves_the_leader_and_heals() -> None:
    async def check(client: ClusterClient) -> None:
        full = client.leader
        storage = client.cluster.world.machine(f"broker-{full}").storage
        storage.fail("append", is_full=True)
        answer = await client.produce(acks=1)
        assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await client.cluster.until(lambda: client.cluster.leader(TOPIC) not in (None, full), 5, what="another leader")
        assert (await client.produce()).error_code == 0
        storage.heal()
        await client.cluster.until(lambda: client.cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR again")

    in_cluster(check)


def test_an_io_error_takes_the_log_directory_offline_for_good() -> None:
    async def check(client: ClusterClient) -> None:
        broken = client.leader
        storage = client.cluster.world.machine(f"broker-{broken}").storage
        storage.fail("append", times=1)
        assert (await client.produce(acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await client.cluster.until(lambda: client.cluster.leader(TOPIC) not in (None, broken), 5, what="another leader")
        assert (await client.produce()).error_code == 0
        assert (await client.produce(broken, acks=1)).error_code == ErrorCode.KAFKA_STORAGE_ERROR

    in_cluster(check)
