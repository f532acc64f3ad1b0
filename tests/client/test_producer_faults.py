"""The producer when brokers refuse, fail, hang, or lose their answers; in simulated time."""

import asyncio
from typing import Literal

import pytest

from minibroker.client.errors import (
    BrokerError,
    DeliveryAborted,
    DeliveryTimedOut,
    FlushTimedOut,
    OutcomeUnknown,
    UnknownTopicOrPartition,
    broker_error,
)
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    MetadataResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import CLIENT, FakeCluster
from tests.client.faults import numbered, on_produce, refusal, refuse_always

# ------------------------------------------------------------------------------------------------------------ trouble
UNUSABLE_ANSWERS: dict[str, Response] = {
    "names no partition": ProduceResponse(responses=[]),
    "names another partition": ProduceResponse(
        responses=[ProduceTopicResponse(name="t", partition_responses=[ProducePartitionResponse(index=7)])]
    ),
    "refuses the whole request": ProduceResponse(error_code=ErrorCode.NOT_ENOUGH_REPLICAS),
    "refuses a request that it could not read": Response(error_code=ErrorCode.REQUEST_TIMED_OUT),
}


@pytest.mark.parametrize("case", UNUSABLE_ANSWERS)
def test_batches_are_sent_again_soon_after_an_answer_that_does_not_name_them(cluster: FakeCluster, case: str) -> None:
    """No timeout ends them: the request is answered."""
    cluster.add_topic("t", 3)
    answers = [UNUSABLE_ANSWERS[case]]

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        return answers.pop() if answers and isinstance(request.body, ProduceRequest) else None

    async def main(runtime: Runtime) -> float:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a", partition=0)
            cluster.intercept = intercept
            began = asyncio.get_running_loop().time()
            await producer.send_and_wait("t", b"b", partition=0)
            return asyncio.get_running_loop().time() - began

    assert 0 < cluster.run(main) < 0.5
    assert cluster.partition("t").values() == [b"a", b"b"]


def test_what_keeps_a_producer_from_its_first_id_is_told_while_brokers_are_asked(cluster: FakeCluster) -> None:
    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        refusal = InitProducerIdResponse(error_code=ErrorCode.REQUEST_TIMED_OUT, error_message="ids are counted")
        return refusal if isinstance(request.body, InitProducerIdRequest) else None

    async def main(runtime: Runtime) -> None:
        cluster.intercept = intercept
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send("t", b"x")
            with pytest.raises(FlushTimedOut, match="ids are counted"):
                await producer.flush(timeout_ms=1_000)
            cluster.intercept = lambda broker, request: None

    cluster.run(main)


def test_a_final_refusal_of_a_whole_request_is_the_error_of_each_batch(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 4)

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        refusal = ProduceResponse(error_code=ErrorCode.INVALID_RECORD, error_message="told")
        return refusal if isinstance(request.body, ProduceRequest) else None

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            cluster.intercept = intercept
            deliveries = [await producer.send("t", b"x", partition=index) for index in range(4)]
            for index, delivery in enumerate(deliveries):
                with pytest.raises(BrokerError, match=f"INVALID_RECORD from broker .* for t-{index} .*told"):
                    await delivery

    cluster.run(main)


def test_stale_metadata_is_corrected_by_the_hint_in_a_refusal(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            stale = cluster.brokers[1].handle_metadata_now("t")
            for broker in cluster.brokers.values():
                broker.metadata_of = stale  # all brokers lag: only the refusal has the new leader
            cluster.partition("t").elect(2)
            metadata = await producer.send_and_wait("t", b"b")
            assert metadata.leader_epoch == 1

    cluster.run(main)
    assert cluster.partition("t").values() == [b"a", b"b"]


def test_records_name_the_topic_that_they_are_for(cluster: FakeCluster) -> None:
    """An attempt that comes late must not be written to a topic that was made again meanwhile (KIP-516)."""
    named = []

    def note(_: int, request: IncomingRequest) -> None:
        if isinstance(request.body, ProduceRequest):
            named.append(request.body.topic_data[0].topic_id)

    async def main(runtime: Runtime) -> None:
        cluster.intercept = note
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.make_again("t")
            assert (await producer.send_and_wait("t", b"b")).offset == 0

    cluster.run(main)
    assert cluster.partition("t").values() == [b"b"]
    assert named[:2] == ["id-of-t"] * 2
    assert named[-1] == cluster.topic_ids["t"] != "id-of-t"


def test_an_unknown_topic_hides_no_other_one(cluster: FakeCluster) -> None:
    """What is asked for once is asked for with each of the later metadata."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(UnknownTopicOrPartition):
                await producer.send("misspelt", b"x")
            await producer.send_and_wait("t", b"a")

    cluster.run(main)
    assert cluster.partition("t").values() == [b"a"]


def test_metadata_of_an_older_epoch_does_not_lead_back(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=100, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            stale = cluster.brokers[1].handle_metadata_now("t")
            cluster.partition("t").elect(2)
            await producer.send_and_wait("t", b"b")
            for broker in cluster.brokers.values():
                broker.metadata_of = stale
            await asyncio.sleep(1)
            before = cluster.asked(ProduceRequest)
            await producer.send_and_wait("t", b"c")
            assert cluster.asked(ProduceRequest) == before + 1, "the old leader was asked again"

    cluster.run(main)


@pytest.mark.invariant("I25")
def test_a_lost_answer_does_not_write_twice(cluster: FakeCluster) -> None:
    on_produce(cluster, False)

    async def main(runtime: Runtime) -> int | None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            return (await producer.send_and_wait("t", b"once")).offset

    assert cluster.run(main) == 0, "the retry gets the offset of the first attempt"
    assert cluster.partition("t").values() == [b"once"]


@pytest.mark.invariant("I21", "I25")
def test_five_requests_in_flight_survive_a_lost_connection_in_order(cluster: FakeCluster) -> None:
    """B40."""
    on_produce(cluster, None, None, None, False)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1_024, runtime=runtime) as producer:
            deliveries = [await producer.send("t", value) for value in numbered(2_000)]
            for number, delivery in enumerate(deliveries):
                assert (await delivery).offset == number

    cluster.run(main)
    assert cluster.partition("t").values() == numbered(2_000)


def test_a_killed_leader_loses_and_reorders_no_record(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1_024, runtime=runtime) as producer:
            for number, value in enumerate(numbered(3_000)):
                await producer.send("t", value)
                if number == 1_500:
                    cluster.kill(1)
                    asyncio.get_running_loop().call_later(3, cluster.partition("t").elect, 2)

    cluster.run(main)
    assert cluster.partition("t").values() == numbered(3_000)


@pytest.mark.parametrize("is_registered", [False, True], ids=["killed", "unreachable, but registered"])
def test_writes_go_on_soon_after_an_election(cluster: FakeCluster, is_registered: bool) -> None:
    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            if is_registered:
                cluster.world.network.reject(CLIENT, "broker1")
            else:
                cluster.kill(1)
            loop.call_later(5, cluster.partition("t").elect, 2)
            start = loop.time()
            await producer.send_and_wait("t", b"b")
            return loop.time() - start

    assert cluster.run(main) < 6.5


def test_a_paused_leader_that_was_replaced_is_not_waited_for(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.world.pause("broker1")
            loop.call_later(3, cluster.partition("t").elect, 2)
            start = loop.time()
            await producer.send_and_wait("t", b"b")
            return loop.time() - start

    assert cluster.run(main) < 6


def test_a_leader_that_answers_all_but_writes_is_left_after_the_election(cluster: FakeCluster) -> None:
    """Its connection is fine, so only the age of the request shows that something may have changed: after a second."""
    cluster.intercept = lambda broker, request: (broker == 1 and isinstance(request.body, ProduceRequest)) or None

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            loop.call_later(2, cluster.partition("t").elect, 2)
            start = loop.time()
            await producer.send_and_wait("t", b"a")
            return loop.time() - start

    assert cluster.run(main) < 2.8


def test_a_leader_that_falls_silent_after_other_writes_is_left_as_soon(cluster: FakeCluster) -> None:
    """A record without linger is sent within the call, and nothing else of the producer is due before a minute."""

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            await asyncio.sleep(10)
            cluster.intercept = lambda broker, request: (
                (broker == 1 and isinstance(request.body, ProduceRequest)) or None
            )
            loop.call_later(0.5, cluster.partition("t").elect, 2)
            delivery = await producer.send("t", b"b")
            await asyncio.sleep(2)
            assert delivery.result().leader_epoch == 1

    cluster.run(main)


@pytest.mark.parametrize("fault", [False, ErrorCode.NOT_ENOUGH_REPLICAS], ids=["lost", "refused"])
def test_a_batch_is_sent_again_when_its_back_off_ends(cluster: FakeCluster, fault: Literal[False] | ErrorCode) -> None:
    """Nothing else happens then that would cause it: the connection is open again, and the metadata have come."""

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            retry_backoff_ms=1_500,
            retry_backoff_max_ms=1_500,
            runtime=runtime,
        ) as producer:
            await producer.send_and_wait("t", b"a")
            on_produce(cluster, fault)
            start = loop.time()
            await producer.send_and_wait("t", b"b")
            return loop.time() - start

    assert 1 < cluster.run(main) < 2
    assert cluster.partition("t").values() == [b"a", b"b"]


def test_a_leader_that_has_not_answered_within_the_request_timeout_is_asked_again(cluster: FakeCluster) -> None:
    on_produce(cluster, True)

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, request_timeout_ms=3_000, runtime=runtime) as producer:
            start = loop.time()
            await producer.send_and_wait("t", b"a")
            return loop.time() - start

    assert 3 <= cluster.run(main) < 4
    assert cluster.partition("t").values() == [b"a"]


def test_a_restarted_leader_is_found_again(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.kill(1)
            loop.call_later(20, cluster.start_broker, 1)
            await producer.send_and_wait("t", b"b")

    cluster.run(main)
    assert cluster.partition("t").values() == [b"a", b"b"]


def test_a_delivery_deadline_names_the_last_refusal(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)
    cluster.partition("t").isr = [1]

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=3_000, runtime=runtime
        ) as producer:
            with pytest.raises(DeliveryTimedOut) as caught:
                await producer.send_and_wait("t", b"x")
            text = str(caught.value)
            assert "t-0 timed out after 3 s" in text
            assert "last error: NOT_ENOUGH_REPLICAS from broker 1 for t-0 (epoch 0, ISR [1])" in text
            assert caught.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
            assert not caught.value.maybe_written

    cluster.run(main)


@pytest.mark.parametrize(
    ("first_answer", "fate"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, "nothing was written"),
        (
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "it may still have been written: attempt 1 was answered with NOT_ENOUGH_REPLICAS_AFTER_APPEND",
        ),
        (False, "it may still have been written: attempt 1 got no answer"),
    ],
)
def test_a_producer_that_is_closed_says_which_attempt_may_have_written(
    cluster: FakeCluster, first_answer: ErrorCode | Literal[False], fate: str
) -> None:
    """The later attempts are refused, and nothing else tells the user of the first one."""
    answers = [first_answer]

    def refuse(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, ProduceRequest):
            return None
        answer = answers.pop() if answers else ErrorCode.NOT_ENOUGH_REPLICAS
        return answer if answer is False else refusal(request, answer)

    cluster.intercept = refuse

    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        await producer.start()
        delivery = await producer.send("t", b"x")
        with pytest.raises(FlushTimedOut):
            await producer.close(timeout_ms=3_000)
        with pytest.raises(DeliveryAborted) as caught:
            await delivery
        text = f"the producer was closed before 1 record for t-0 was acknowledged ({fate})"
        assert str(caught.value).partition("; last error: ")[0] == text
        assert caught.value.maybe_written == (fate != "nothing was written")

    cluster.run(main)


@pytest.mark.invariant("I25")
def test_closing_ends_each_wait_for_a_record_that_is_given_up(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        await producer.start()
        on_produce(cluster, *[True] * 50)
        waiting = asyncio.create_task(producer.send_and_wait("t", b"x"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        with pytest.raises(FlushTimedOut):
            await producer.close(timeout_ms=100)
        with pytest.raises(DeliveryAborted):
            await asyncio.wait_for(waiting, 0.1)
        assert producer.metrics().records_failed == 1
        assert producer.metrics().buffered_bytes == 0

    cluster.run(main)


def test_after_a_sent_batch_expired_the_next_one_has_a_new_producer_epoch(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=1_000, runtime=runtime
        ) as producer:
            await producer.send_and_wait("t", b"a")
            cluster.intercept = lambda broker, request: isinstance(request.body, ProduceRequest) or None
            with pytest.raises(DeliveryTimedOut) as caught:
                await producer.send_and_wait("t", b"lost")
            assert caught.value.maybe_written
            cluster.intercept = lambda broker, request: None
            cluster.kill(1)  # requests in flight end as lost
            cluster.partition("t").elect(2)
            await producer.send_and_wait("t", b"b")

    cluster.run(main)
    written = [(header.producer_epoch, header.base_sequence) for header in cluster.partition("t").headers()]
    assert written == [(0, 0), (1, 0)]
    assert cluster.asked(InitProducerIdRequest) == 2


def test_a_final_refusal_is_raised_as_it_is(cluster: FakeCluster) -> None:
    on_produce(cluster, ErrorCode.INVALID_RECORD)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(type(broker_error(ErrorCode.INVALID_RECORD))) as caught:
                await producer.send_and_wait("t", b"x")
            assert caught.value.code is ErrorCode.INVALID_RECORD
            assert (await producer.send_and_wait("t", b"y")).offset == 0

    cluster.run(main)


def test_a_fenced_producer_takes_a_fresh_identity(cluster: FakeCluster) -> None:
    on_produce(cluster, None, ErrorCode.INVALID_PRODUCER_EPOCH)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            with pytest.raises(type(broker_error(ErrorCode.INVALID_PRODUCER_EPOCH))):
                await producer.send_and_wait("t", b"b")
            await producer.send_and_wait("t", b"c")

    cluster.run(main)
    ids = [header.producer_id for header in cluster.partition("t").headers()]
    assert ids[0] != ids[1]


def test_a_batch_that_went_unanswered_is_sent_again_as_a_retry(cluster: FakeCluster) -> None:
    answers: list[bool | None] = [False]
    cluster.intercept = lambda broker, request: (
        answers.pop() if isinstance(request.body, ProduceRequest) and answers else None
    )

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            assert (await producer.send_and_wait("t", b"x")).offset == 0

    cluster.run(main)
    asked = [body for _, body in cluster.requests[ProduceRequest] if isinstance(body, ProduceRequest)]
    assert [body.topic_data[0].partition_data[0].retry for body in asked] == [False, True]


@pytest.mark.invariant("I21")
def test_a_duplicate_without_an_offset_is_no_success(cluster: FakeCluster) -> None:
    """There is no proof that the record is in the log; here it is not."""
    on_produce(cluster, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(OutcomeUnknown) as raised:
                await producer.send_and_wait("t", b"x")
            assert raised.value.maybe_written
            assert (await producer.send_and_wait("t", b"y")).offset == 0

    cluster.run(main)
    assert cluster.partition("t").values() == [b"y"]


def test_a_broker_that_knows_no_topics_yet_does_not_erase_metadata(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=100, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")
            known = cluster.brokers[1].handle_metadata_now("nosuch")
            assert isinstance(known, MetadataResponse)
            for broker in cluster.brokers.values():
                broker.metadata_of = known
            await asyncio.sleep(1)
            await producer.send_and_wait("t", b"b")

    cluster.run(main)
    assert TopicPartition("t", 0) in cluster.partitions
    assert cluster.asked(MetadataRequest) > 2
