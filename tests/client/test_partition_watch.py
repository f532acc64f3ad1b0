"""The log says that no records come from a partition, and why; in simulated time."""

import asyncio
import logging

import pytest

from minibroker.client.consumer.partition_watch import LOG_AFTER_MS, ProblemLog
from minibroker.client.errors import UnknownTopicOrPartition
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill

T1 = TopicPartition("t", 1)


def refuse_fetches(cluster: FakeCluster, code: ErrorCode) -> None:
    def refuse(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, FetchRequest):
            return None
        refusal = FetchPartitionResponse(partition_index=0, error_code=int(code))
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[refusal])])

    cluster.intercept = refuse


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without the client's name in front."""
    logged = [each for each in caplog.records if each.levelno >= logging.WARNING]
    return [each.getMessage().removeprefix(f"{vars(each)['client_id']}: ") for each in logged]


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (ErrorCode.CORRUPT_MESSAGE, "start the brokers that hold a copy"),
        (ErrorCode.KAFKA_STORAGE_ERROR, "see that broker's log"),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, "the client asks the new one"),
    ],
)
def test_a_leader_that_keeps_refusing_is_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, code: ErrorCode, cure: str
) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            consumer.seek(T0, 4)
            refuse_fetches(cluster, code)
            await consumer.getmany(timeout_ms=LOG_AFTER_MS - 1_000)
            assert warnings(caplog) == []
            await consumer.getmany(timeout_ms=3_500)
            (message,) = warnings(caplog)
            assert message.startswith("no records of t-0 from offset 4 on for ")
            assert f"still trying: {code.name} from broker 1 for t-0" in message
            assert cure in message
            cluster.intercept = lambda broker, request: None
            assert await consumer.getmany(timeout_ms=5_000)
            await asyncio.sleep(2)

    with caplog.at_level(logging.INFO, "minibroker.client"):
        cluster.run(main)
    assert len(warnings(caplog)) == 1
    assert any(message.startswith("minibroker-consumer: t-0 is read again, after ") for message in caplog.messages)


def test_a_partition_without_a_leader_is_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            cluster.partition("t").elect(None)
            cluster.brokers[1].wake_fetches()
            await consumer.getmany(timeout_ms=6_000)

    cluster.run(main)
    assert any("LEADER_NOT_AVAILABLE" in message and "replicas --check" in message for message in warnings(caplog))


def test_a_leader_that_has_not_answered_yet_is_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Long before its silence is an error."""
    cluster.intercept = lambda broker, request: isinstance(request.body, ListOffsetsRequest) or None

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=LOG_AFTER_MS + 1_500)

    cluster.run(main)
    (message,) = warnings(caplog)
    where = "t-0 from a position that is not known yet on"
    assert message.startswith(f"no records of {where} for 3 s, still trying: no broker has answered yet")


def test_an_unreachable_cluster_is_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            for broker in cluster.brokers:
                cluster.kill(broker)
            await consumer.getmany(timeout_ms=9_000)

    cluster.run(main)
    assert any("no records of t-0 from offset 0 on" in message for message in warnings(caplog))


def test_a_quiet_topic_and_a_slow_reader_are_not_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, max_partition_fetch_bytes=100, metadata_max_age_ms=3_600_000) as consumer:
            await consumer.getmany(timeout_ms=20_000)
            fill(cluster, 500)
            await asyncio.sleep(700)  # longer than idle connections stay open
            assert not consumer.connection_state(T0).healthy, "its leader was not asked for metadata either"

    cluster.run(main, seconds_max=1_000)
    assert warnings(caplog) == []


def test_a_partition_that_is_refused_is_logged_beside_one_that_is_full(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """The user reads neither: the full one needs no fetch, the other one gets none, and has not recovered."""
    cluster.add_topic("t", 2)
    cluster.partition("t", 1).leader = cluster.partition("t", 0).leader
    refused = FetchPartitionResponse(partition_index=1, error_code=int(ErrorCode.CORRUPT_MESSAGE))

    def refuse_one(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, FetchRequest):
            return None
        (topic,) = cluster.brokers[broker].fetch(request.body).responses
        answers = [refused if each.partition_index == 1 else each for each in topic.partitions]
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=answers)])

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, max_partition_fetch_bytes=100) as consumer:
            await asyncio.sleep(10)
            cursors = consumer._cursors
            assert [cursors[each].has_room for each in (T0, T1)] == [False, True]

    fill(cluster, 500)
    cluster.intercept = refuse_one
    cluster.run(main)
    logged = warnings(caplog)
    assert logged
    assert all(each.startswith("no records of t-1 from offset 0 on for ") for each in logged)
    assert "still trying: CORRUPT_MESSAGE from broker 1 for t-1" in logged[0]


def test_a_fetch_that_fails_as_a_whole_is_the_reason_for_its_partitions(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.intercept = lambda broker, request: (
        Response(error_code=int(ErrorCode.REQUEST_TIMED_OUT)) if isinstance(request.body, FetchRequest) else None
    )

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            with pytest.raises(TimeoutError, match="last error: REQUEST_TIMED_OUT"):
                await consumer.getone(timeout_ms=10_000)

    cluster.run(main)
    logged = warnings(caplog)
    assert logged
    assert "still trying: REQUEST_TIMED_OUT" in logged[0]


def test_an_unknown_topic_is_logged_before_it_is_an_error(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime) as consumer:
            began = loop.time()
            asking = asyncio.ensure_future(consumer.partitions_for("nosuch"))
            await asyncio.sleep(2)
            (message,) = warnings(caplog)
            assert message.startswith("waiting up to 5 s for topic 'nosuch' to appear: UNKNOWN_TOPIC_OR_PARTITION")
            with pytest.raises(UnknownTopicOrPartition):
                await asking
            assert loop.time() - began < 7

    cluster.run(main)


def test_waiting_for_the_offsets_of_an_unknown_partition_names_its_own_limit(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            with pytest.raises(UnknownTopicOrPartition):
                await consumer.end_offsets([TopicPartition("t", 50)], timeout_ms=30_000)

    cluster.run(main)
    (message,) = warnings(caplog)
    assert message.startswith("waiting up to 5 s for the offsets of t-50: UNKNOWN_TOPIC_OR_PARTITION")


def test_waiting_for_offsets_without_an_answer_is_logged(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, ListOffsetsRequest):
            return None
        refusal = ListOffsetsPartitionResponse(partition_index=0, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[refusal])])

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            cluster.intercept = refuse
            with pytest.raises(TimeoutError):
                await consumer.end_offsets([T0], timeout_ms=4_000)

    cluster.run(main)
    (message,) = warnings(caplog)
    assert message.startswith("waiting up to 4 s for the offsets of t-0: NOT_LEADER_OR_FOLLOWER from broker 1 for t-0")


def test_a_short_search_for_offsets_is_not_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    refused = list[int]()

    def refuse_twice(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, ListOffsetsRequest) or len(refused) == 2:
            return None
        refused.append(broker)
        refusal = ListOffsetsPartitionResponse(partition_index=0, error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[refusal])])

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            cluster.intercept = refuse_twice
            assert await consumer.end_offsets([T0], timeout_ms=4_000) == {T0: 0}

    cluster.run(main)
    assert (len(refused), warnings(caplog)) == (2, [])


def test_a_problem_is_logged_less_and_less_often_and_forgotten_when_over() -> None:
    problems = ProblemLog()
    assert problems.look([T0], 0.0) == ({}, [])
    assert problems.look([T0, T1], LOG_AFTER_MS) == ({T0: 3.0}, [])
    assert problems.look([T0, T1], LOG_AFTER_MS + 1) == ({}, [])
    assert problems.look([T0], 2 * LOG_AFTER_MS - 1) == ({}, []), "t-1 was never logged"
    logged_s = [now_s for now_s in range(4, 301) if problems.look([T0], now_s * 1000.0)[0]]
    assert logged_s == [6, 12, 24, 48, 96, 156, 216, 276]
    assert problems.look([], 70_000.0) == ({}, ["t-0 is read again, after 70 s"])
    assert problems.look([T0], 80_000.0) == ({}, [])
    assert problems.look([T0], 80_000.0 + LOG_AFTER_MS + 750) == ({T0: 3.75}, [])
