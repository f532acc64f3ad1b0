"""A consumer believes a reply only if it holds what was asked for: these offsets, without a gap, of this topic."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.consumer_errors import UNFIT_FETCHES_MAX
from minibroker.client.errors import LogTruncated, MinibrokerError, MisplacedRecords, TopicMadeAgain, UndecodableRecords
from minibroker.client.limits import Deadline
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import (
    CurrentLeader,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, Take, earliest, fill, numbered, take_batches, take_many
from tests.undecodable import undecodable


def batch_at(offset: int, epoch: int = 0, count: int = 10) -> bytes:
    values = numbered(offset, offset + count)
    return bytes(build_batch([(None, value, 0, ()) for value in values], base_offset=offset, leader_epoch=epoch))


def answer_with(cluster: FakeCluster, broken: Callable[[FetchRequest], bytes | None]) -> None:
    """What every leader sends instead, where `broken` returns something."""

    def intercept(broker: int, request: IncomingRequest) -> Any:
        body = request.body
        records = broken(body) if isinstance(body, FetchRequest) else None
        if records is None:
            return None
        partition = FetchPartitionResponse(partition_index=0, high_watermark=100, records=memoryview(records))
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])])

    cluster.intercept = intercept


MISPLACED = {
    "behind the asked offset": (batch_at(20), r"the first batch holds offsets 20 to 29"),
    "before it": (batch_at(0), r"the first batch holds offsets 0 to 9"),
    "a lower leader epoch": (batch_at(10, epoch=0), r"leader epoch 0 follows epoch 2"),
    "an epoch above the leader's": (batch_at(10, epoch=9), r"leader epoch 9 is above the leader's 2"),
}


@pytest.mark.invariant("I22")
@pytest.mark.parametrize("case", MISPLACED)
def test_batches_that_were_not_requested_are_an_error_and_never_returned(cluster: FakeCluster, case: str) -> None:
    """A bit of a header in the leader's log, or an index of it: the batch is sound by its CRC, and it is another."""
    records, text = MISPLACED[case]
    for _ in range(2):
        cluster.partition("t").elect(1)
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert [(await consumer.getone(timeout_ms=1_000)).value for _ in range(10)] == numbered(0, 10)
            answer_with(cluster, lambda body: records)
            fill(cluster, 20)
            refreshed = cluster.asked(MetadataRequest)
            with pytest.raises(MisplacedRecords, match=text) as raised:
                await consumer.getone(timeout_ms=10_000)
            assert (raised.value.topic_partition, raised.value.offset, raised.value.broker_id) == (T0, 10, 1)
            assert "from broker 1 for t-0 (epoch 2" in str(raised.value)
            assert cluster.asked(MetadataRequest) > refreshed, "perhaps another broker leads meanwhile"
            cluster.intercept = lambda broker, request: None
            assert (await consumer.getone(timeout_ms=10_000)).value == b"000010"

    cluster.run(main)


def test_a_partition_that_an_answer_leaves_out_is_refused_and_asked_for_again_with_pauses(cluster: FakeCluster) -> None:
    """It once looked like a quiet topic, and was asked for as fast as answers came."""
    fill(cluster, 10)
    others = [
        FetchTopicResponse(topic="t", partitions=[FetchPartitionResponse(partition_index=9, high_watermark=100)]),
        FetchTopicResponse(topic="u", partitions=[FetchPartitionResponse(partition_index=0, high_watermark=100)]),
    ]

    def intercept(broker: int, request: IncomingRequest) -> Any:
        return FetchResponse(responses=others) if isinstance(request.body, FetchRequest) else None

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            cluster.intercept = intercept
            with pytest.raises(MinibrokerError, match=r"broker 1 for t-0 .*the answer to a fetch leaves it out"):
                await consumer.getone(timeout_ms=5_000)
            assert consumer.connection_state(T0).state == "refused"
            assert cluster.asked(FetchRequest) < 500
            cluster.intercept = lambda broker, request: None
            assert (await consumer.getone(timeout_ms=10_000)).value == b"000000"

    cluster.run(main)


@pytest.mark.invariant("I22")
def test_records_before_a_gap_are_returned(cluster: FakeCluster) -> None:
    fill(cluster, 30)

    def without_the_second(body: FetchRequest) -> bytes | None:
        return batch_at(0) + batch_at(20) if body.topics[0].partitions[0].fetch_offset == 0 else None

    answer_with(cluster, without_the_second)

    async def main(runtime: Runtime) -> list[bytes | None]:
        async with earliest(cluster, runtime) as consumer:
            return [(await consumer.getone(timeout_ms=2_000)).value for _ in range(30)]

    assert cluster.run(main) == numbered(0, 30)


@pytest.mark.invariant("I22")
def test_nothing_behind_a_batch_that_does_not_belong_is_taken(cluster: FakeCluster) -> None:
    """The rest would continue what is before it. It is asked for again: nothing else of this answer is believed."""
    fill(cluster, 30)
    asked: list[int] = []

    def with_a_stray(body: FetchRequest) -> bytes | None:
        asked.append(body.topics[0].partitions[0].fetch_offset)
        return batch_at(0) + batch_at(20) + batch_at(10) if asked[-1] == 0 else None

    answer_with(cluster, with_a_stray)

    async def main(runtime: Runtime) -> list[bytes | None]:
        async with earliest(cluster, runtime) as consumer:
            return [(await consumer.getone(timeout_ms=2_000)).value for _ in range(30)]

    assert cluster.run(main) == numbered(0, 30)
    assert 10 in asked


def test_a_leader_that_recovers_soon_raises_no_error(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, 10)
    answers = [batch_at(20)] * (UNFIT_FETCHES_MAX - 1)
    answer_with(cluster, lambda body: answers.pop() if answers else None)

    async def main(runtime: Runtime) -> list[bytes | None]:
        async with earliest(cluster, runtime) as consumer:
            return await take_many(consumer)

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        assert cluster.run(main) == numbered(0, 10)
    logged = [each.message for each in caplog.records]
    assert len(logged) == UNFIT_FETCHES_MAX - 1, "an operator reads of each answer, for the leader's log has damage"
    assert all("the first batch holds offsets 20 to 29" in line for line in logged)


# --------------------------------------------------------------------------------------- undecodable batches
def with_an_undecodable_batch(cluster: FakeCluster) -> None:
    """0 to 9 and 20 to 29 are fine."""
    fill(cluster, 10)
    partition = cluster.partition("t")
    partition.append(bytes(undecodable(build_batch([(None, b"x", 0, ())] * 10))))
    fill(cluster, 10)


@pytest.mark.parametrize("take", [take_many, take_batches])
def test_an_undecodable_batch_is_an_error_until_a_seek(cluster: FakeCluster, take: Take) -> None:
    with_an_undecodable_batch(cluster)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert await take(consumer) == numbered(0, 10)
            fetches = cluster.asked(FetchRequest)
            for _ in range(3):
                with pytest.raises(UndecodableRecords, match=r"offsets 10 to 19 of t-0 .* seek\(20\)") as raised:
                    await take(consumer)
            assert cluster.asked(FetchRequest) <= fetches + 1, "fetching it again would not help"
            error = raised.value
            assert (error.topic_partition, error.offset, error.end_offset, error.retriable) == (T0, 10, 20, False)
            consumer.seek(T0, error.end_offset)
            assert await take(consumer) == numbered(20, 30)

    cluster.run(main)


@pytest.mark.parametrize("take", [take_many, take_batches])
@pytest.mark.parametrize("check_crcs", [True, False])
def test_with_on_undecodable_skip_the_batch_is_skipped_and_that_is_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, take: Take, check_crcs: bool
) -> None:
    with_an_undecodable_batch(cluster)

    async def main(runtime: Runtime) -> list[bytes | None]:
        found: list[bytes | None] = []
        async with earliest(cluster, runtime, on_undecodable="skip", check_crcs=check_crcs) as consumer:
            while len(found) < 20:
                found += await take(consumer)
            assert await consumer.position(T0) == 30
        return found

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        assert cluster.run(main) == numbered(0, 10) + numbered(20, 30)
    (line,) = [each.message for each in caplog.records]
    assert "skipped: " in line
    assert "t-0" in line


def test_a_skipped_batch_at_the_end_moves_the_position_behind_it(cluster: FakeCluster) -> None:
    cluster.partition("t").append(bytes(undecodable(build_batch([(None, b"x", 0, ())]))))

    async def main(runtime: Runtime) -> int:
        async with earliest(cluster, runtime, on_undecodable="skip") as consumer:
            assert await consumer.getmany(timeout_ms=1_000) == {}
            return await consumer.position(T0)

    assert cluster.run(main) == 1


# ------------------------------------------------------------------------------------------------- topics made again
async def read(consumer: Consumer, count: int) -> list[bytes | None]:
    return [(await consumer.getone(timeout_ms=20_000)).value for _ in range(count)]


def other_records(cluster: FakeCluster, count: int) -> None:
    values = [(None, b"other-%06d" % number, 0, ()) for number in range(count)]
    for value in values:
        cluster.partition("t").append(bytes(build_batch([value])))
    cluster.brokers[1].wake_fetches()


@pytest.mark.invariant("I22")
def test_a_topic_created_again_is_read_by_the_reset_policy_and_that_is_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> list[bytes | None]:
        async with earliest(cluster, runtime) as consumer:
            assert await read(consumer, 5) == numbered(0, 5), "in the middle of a batch"
            cluster.make_again("t")
            other_records(cluster, 30)
            for _ in range(5):  # they were decoded before the deletion was known
                if (record := await consumer.getone(timeout_ms=20_000)).value == b"other-000000":
                    return [record.value, *await read(consumer, 29)]
            return await read(consumer, 30)

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        assert cluster.run(main) == [b"other-%06d" % number for number in range(30)]
    (line,) = [each.message for each in caplog.records]
    assert "the topic of t-0 was deleted and created again: position " in line


def truncate(cluster: FakeCluster) -> None:
    cluster.partition("t").truncate_to(0)
    cluster.partition("t").elect(2)


@pytest.mark.invariant("I22")
@pytest.mark.parametrize(
    ("change", "settings", "error"),
    [
        (lambda cluster: cluster.make_again("t"), {}, None),
        (lambda cluster: cluster.make_again("t"), {"auto_offset_reset": "none"}, TopicMadeAgain),
        (truncate, {"on_truncation": "reset"}, None),
        (truncate, {}, LogTruncated),
    ],
    ids=["made again", "made again, halting", "truncated", "truncated, halting"],
)
def test_records_of_a_log_that_has_changed_are_not_returned_though_they_were_decoded(
    cluster: FakeCluster, change: Callable[[FakeCluster], None], settings: dict[str, Any], error: type[Exception] | None
) -> None:
    """Nor do they move the position: it would be one in the other log."""
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, metadata_max_age_ms=200, **settings) as consumer:
            consumer.seek(T0, 0)
            assert await read(consumer, 5) == numbered(0, 5), "in the middle of a batch"
            change(cluster)
            other_records(cluster, 30)
            await asyncio.sleep(5)
            if error is None:
                assert await read(consumer, 30) == [b"other-%06d" % number for number in range(30)]
            else:
                with pytest.raises(error):
                    await consumer.getone(timeout_ms=1_000)

    cluster.run(main)


@pytest.mark.invariant("I22")
@pytest.mark.parametrize(
    ("change", "error"), [(lambda cluster: cluster.make_again("t"), TopicMadeAgain), (truncate, LogTruncated)]
)
def test_a_call_that_waits_is_told_at_once_that_the_log_has_changed(
    cluster: FakeCluster, change: Callable[[FakeCluster], None], error: type[Exception]
) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> float:
        async with earliest(cluster, runtime, auto_offset_reset="none", metadata_max_age_ms=200) as consumer:
            consumer.seek(T0, 0)
            await read(consumer, 10)
            waiting = asyncio.create_task(consumer.getmany(timeout_ms=60_000))
            await asyncio.sleep(0)
            change(cluster)
            began = asyncio.get_running_loop().time()
            with pytest.raises(error):
                await waiting
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < 1.5


@pytest.mark.invariant("I22")
def test_without_a_policy_a_topic_created_again_halts_until_a_seek(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The error tells it, and no warning before it: `consume` printed the same sentence twice."""
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, auto_offset_reset="none") as consumer:
            consumer.seek(T0, 0)
            await read(consumer, 10)
            cluster.make_again("t")
            other_records(cluster, 30)
            for _ in range(2):
                with pytest.raises(TopicMadeAgain, match="t-0 was deleted and created again: position 10") as raised:
                    await consumer.getone(timeout_ms=20_000)
            assert (raised.value.topic_partition, raised.value.position) == (T0, 10)
            consumer.seek(T0, 3)
            assert await read(consumer, 1) == [b"other-000003"]

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        cluster.run(main)
    assert caplog.records == []


@pytest.mark.invariant("I22")
def test_new_leader_of_a_topic_created_again_is_not_asked_about_the_deleted_one(cluster: FakeCluster) -> None:
    """The consumer knows the leader epoch of the new topic, from a refusal, before it knows its id: where the deleted
    topic's epoch ends there means no LogTruncated (seed 34000004 with loads)."""
    fill(cluster, 10)

    def come_to_know(_: int, request: IncomingRequest) -> Any:
        if isinstance(request.body, OffsetForLeaderEpochRequest):
            cluster.topic_ids["t"] = "id-of-t-again"

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, auto_offset_reset="none") as consumer:
            consumer.seek(T0, 0)
            await read(consumer, 10)
            cluster.make_again("t")
            cluster.topic_ids["t"] = "id-of-t"
            cluster.partition("t").elect(1)
            cluster.intercept = come_to_know
            other_records(cluster, 5)
            with pytest.raises(TopicMadeAgain):
                await consumer.getone(timeout_ms=20_000)

    cluster.run(main)
    assert cluster.asked(OffsetForLeaderEpochRequest)


def test_latest_goes_to_the_end_of_a_topic_created_again(cluster: FakeCluster) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> int:
        async with earliest(cluster, runtime, auto_offset_reset="latest") as consumer:
            await consumer.seek_to_beginning()
            await read(consumer, 10)
            cluster.make_again("t")
            other_records(cluster, 30)
            assert await consumer.getmany(timeout_ms=5_000) == {}
            return await consumer.position(T0)

    assert cluster.run(main) == 30


def test_a_lagging_broker_does_not_bring_back_the_deleted_topic(cluster: FakeCluster) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> list[bytes | None]:
        async with earliest(cluster, runtime, metadata_max_age_ms=100) as consumer:
            await read(consumer, 10)
            known = cluster.brokers[2].handle_metadata_now("t")
            cluster.make_again("t")
            cluster.brokers[2].metadata_of = known
            cluster.brokers[3].metadata_of = known
            other_records(cluster, 5)
            found = await read(consumer, 5)
            assert await consumer.getmany(timeout_ms=3_000) == {}
            return found

    assert cluster.run(main) == [b"other-%06d" % number for number in range(5)]


def test_a_late_refusal_that_names_the_leader_of_the_deleted_topic_does_not_mislead_a_consumer(
    cluster: FakeCluster,
) -> None:
    """Its leader epoch is above that of the new topic, whose metadata would never be accepted again. It comes while the
    position in the new topic is being asked for: then the old fetch is not abandoned yet."""
    fill(cluster, 10)
    held: list[IncomingRequest] = []
    hint = CurrentLeader(leader_id=3, leader_epoch=7)
    refusal = FetchPartitionResponse(
        partition_index=0, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=hint
    )

    def hold(_: int, request: IncomingRequest) -> bool | None:
        if not isinstance(request.body, FetchRequest) or held:
            return None
        held.append(request)
        return True

    async def main(runtime: Runtime) -> list[bytes | None]:
        async with earliest(cluster, runtime) as consumer:
            await read(consumer, 10)
            cluster.intercept = hold
            cluster.brokers[1].answer_waiting()
            await asyncio.sleep(0.05)
            cluster.make_again("t")
            await consumer._cluster.refresh(Deadline(1_000))
            held[0].respond(FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[refusal])]))
            await asyncio.sleep(1)
            other_records(cluster, 5)
            return await read(consumer, 5)

    assert cluster.run(main) == [b"other-%06d" % number for number in range(5)]


def test_a_fetch_names_the_topic_by_its_id(cluster: FakeCluster) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await read(consumer, 10)

    cluster.run(main)
    asked = [body for _, body in cluster.requests[FetchRequest] if isinstance(body, FetchRequest)]
    assert {topic.topic_id for body in asked for topic in body.topics} == {"id-of-t"}
