"""What a producer's calls must not do: each wrong behaviour, played by a stand-in, is found."""

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from minibroker.client.errors import DeliveryAborted, DeliveryTimedOut, RecordTooLarge, UndeliveredRecords
from minibroker.client.producer.deliveries import RecordMetadata
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.load_options import TOPIC
from minibroker.simulation.swarm.loads.watched_producer import DrawnRecord, WatchedProducer
from tests.simulation.loads.still_scene import still_scene

PARTITION = TopicPartition(TOPIC, 0)
SETTINGS: dict[str, Any] = {
    "acks": "all",
    "enable_idempotence": True,
    "delivery_timeout_ms": 1_000,
    "max_block_ms": 300,
    "max_request_size": 2_000,
    "buffer_memory": 4_096,
    "partitioner": lambda key, count: 0,
}


class StandInDelivery:
    """A delivery with this outcome, or with none."""

    timestamp_ms = 5
    done = True

    def __init__(self, error: Exception | None = None) -> None:
        self.topic_partition = PARTITION
        self.error = error

    def result(self) -> RecordMetadata:
        if self.error is not None:
            raise self.error
        return RecordMetadata(TOPIC, 0, 3, 0, 5)


class StandInProducer:
    """A producer whose calls do what the test says."""

    buffered_bytes = 0

    def __init__(self, delivery: StandInDelivery, send_error: Exception | None = None) -> None:
        self.delivery = delivery
        self.send_error = send_error
        self.flush_error: Exception | None = None

    async def send(self, *record: object) -> StandInDelivery:
        if self.send_error is not None:
            raise self.send_error
        return self.delivery

    async def flush(self) -> None:
        if self.flush_error is not None:
            raise self.flush_error


def watching(producer: StandInProducer) -> tuple[History, WatchedProducer]:
    """The checks of this producer, and where they note what they find."""
    history = History()
    watched = WatchedProducer(still_scene(history), "writer", False, SETTINGS)
    watched._producer = producer  # type: ignore[assignment]
    return history, watched


def findings(producer: StandInProducer, record: DrawnRecord | None = None) -> list[str]:
    """Of one `send` and one `flush`."""
    history, watched = watching(producer)

    async def send_and_flush() -> None:
        try:
            await watched.send(record or DrawnRecord(name="one-", topic=TOPIC, value=b"one-", key=b"k"))
        except RecordTooLarge:
            return
        await watched.flush()

    asyncio.run(send_and_flush())
    return [f"{found.invariant} {found.text}" for found in history.findings]


def test_right_behaviour_is_no_finding() -> None:
    assert findings(StandInProducer(StandInDelivery())) == []
    told = StandInProducer(StandInDelivery(DeliveryTimedOut("too late")))
    told.flush_error = UndeliveredRecords(1, DeliveryTimedOut("too late"))
    assert findings(told) == []


def test_flush_that_leaves_a_record_without_outcome_is_found() -> None:
    delivery = StandInDelivery()
    delivery.done = False
    assert "no outcome after a flush" in findings(StandInProducer(delivery))[0]


def test_flush_that_hides_a_failure_or_makes_one_up_is_found() -> None:
    assert "told of none" in findings(StandInProducer(StandInDelivery(DeliveryTimedOut("too late"))))[0]
    made_up = StandInProducer(StandInDelivery())
    made_up.flush_error = UndeliveredRecords(1, DeliveryTimedOut("too late"))
    assert "told of lost records" in findings(made_up)[0]


def test_memory_in_use_after_a_flush_is_found() -> None:
    producer = StandInProducer(StandInDelivery())
    producer.buffered_bytes = 1
    assert "1 bytes are in use" in findings(producer)[0]


def test_other_partition_than_the_partitioners_is_found() -> None:
    delivery = StandInDelivery()
    delivery.topic_partition = TopicPartition(TOPIC, 1)
    assert "client: partition" in findings(StandInProducer(delivery))[0]


@pytest.mark.parametrize(("value_bytes", "is_found"), [(100, True), (2_000, False)])
def test_refusal_of_a_record_that_fits_is_found(value_bytes: int, is_found: bool) -> None:
    record = DrawnRecord(name="one-", topic=TOPIC, value=b"." * value_bytes)
    found = findings(StandInProducer(StandInDelivery(), RecordTooLarge("too large")), record)
    assert any("client: size" in each for each in found) is is_found


def test_record_that_is_acknowledged_without_an_offset_is_found() -> None:
    delivery = StandInDelivery()
    delivery.result = lambda: RecordMetadata(TOPIC, 0, None, 0, 5)  # type: ignore[method-assign]
    assert "without an offset" in findings(StandInProducer(delivery))[0]


@pytest.mark.parametrize("is_told", [True, False])
def test_send_many_that_hides_the_error_of_a_record_is_found(is_told: bool) -> None:
    error = DeliveryTimedOut("too late")

    class StandInDeliveries:
        done = True

        def __await__(self) -> Generator[Any, None, None]:
            if is_told:
                raise error
            yield from ()

        def first_error(self) -> DeliveryTimedOut:
            return error

    history, watched = watching(StandInProducer(StandInDelivery()))
    asyncio.run(watched._wait_for_all(StandInDeliveries()))  # type: ignore[arg-type]
    assert [each.invariant for each in history.findings] == ([] if is_told else ["client: send_many"])


@pytest.mark.parametrize("is_told", [True, False])
def test_cancelled_program_that_is_not_told_of_lost_records_is_found(is_told: bool) -> None:
    producer = StandInProducer(StandInDelivery(DeliveryAborted("closed")))

    async def leave(self: object, kind: object, error: BaseException, trace: object) -> None:
        if is_told:
            error.add_note("besides, the producer could not deliver everything")

    history, watched = watching(producer)
    watched._impatience.cancels_program = lambda: True  # type: ignore[method-assign]

    async def send_and_close() -> None:
        await watched.send(DrawnRecord(name="one-", topic=TOPIC, value=b"one-", key=b"k"))
        await watched._checked_close()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(StandInProducer, "__aexit__", leave, raising=False)
        asyncio.run(send_and_close())
    assert ["close told of none" in each.text for each in history.findings] == ([] if is_told else [True])
