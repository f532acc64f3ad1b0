"""Loads a Kafka cluster through its Python clients, as a user would write it: confluent-kafka, or aiokafka where named.

PYTHON-OF-THE-CLIENTS -m minibroker.bench.load.kafka_load produce '{"bootstrap_servers": "127.0.0.1:9092", ...}'
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import uvloop
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from minibroker.bench.load.generator import (
    LINGER_MS,
    STAMP,
    WARM_RECORDS,
    LoadStopwatch,
    Pacer,
    arguments,
    latencies,
    producing_report,
    reading_report,
    report,
    send_event,
)
from minibroker.bench.load.kafka_failover import failover
from minibroker.bench.load.kafka_settings import CONSUMER, PRODUCER, QUEUE_MESSAGES

SILENCE_S = 20.0
SEND_POLL_EVERY = 1_000
AIOKAFKA_REQUEST_BYTES = 4 << 20


class Unacknowledged(Exception):
    """Records were rejected or lost."""


class DeliveryOutcomes:
    """Counts deliveries."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.errors: list[str] = []

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(str(error))

    def check(self, expected: int) -> None:
        if self.errors or self.acknowledged != expected:
            raise Unacknowledged(f"{self.acknowledged} of {expected} acknowledged; {self.errors[:2]}")


def produce(
    bootstrap_servers: str,
    topic: str,
    records: int,
    record_bytes: int,
    batch_bytes: int,
    keys: int = 0,
    client: str = "confluent-kafka",
    buffer_bytes: int | None = None,
    warm_records: int = WARM_RECORDS,
    linger_ms: float = LINGER_MS,
    many: int = 0,
) -> dict[str, Any]:
    """At full speed, acks=all; `keys` > 0 uses this many keys in turn, spread as Java's clients spread them.

    `many` > 0 passes this many records to one call of produce_batch, with one callback for all.
    """
    if client == "aiokafka":
        return uvloop.run(_produce_aiokafka(bootstrap_servers, topic, records, record_bytes, batch_bytes))
    value = os.urandom(record_bytes)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "linger.ms": linger_ms,
            "batch.size": batch_bytes,
            "message.max.bytes": max(1_000_000, batch_bytes + 1_000),
            "partitioner": "murmur2_random",
        }
        | PRODUCER
        | ({} if buffer_bytes is None else {"queue.buffering.max.kbytes": buffer_bytes >> 10})
    )
    named: list[bytes | None] = [b"key-%06d" % number for number in range(keys)] or [None]
    warm = DeliveryOutcomes()
    _produce(producer, topic, value, named, warm_records, warm)
    warm.check(warm_records)
    outcomes = DeliveryOutcomes()
    send_event("started")
    watch = LoadStopwatch()
    if many:
        _produce_many(producer, topic, value, many, records, outcomes)
    else:
        _produce(producer, topic, value, named, records, outcomes)
    cost = watch.read()
    outcomes.check(records)
    return producing_report(cost, records, record_bytes, warm_records)


def _produce(
    producer: Producer, topic: str, value: bytes, named: list[bytes | None], records: int, outcomes: DeliveryOutcomes
) -> None:
    count, on_delivery = len(named), outcomes.on_delivery
    for number in range(records):
        while True:
            try:
                producer.produce(topic, value, key=named[number % count], on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
        if number % SEND_POLL_EVERY == 0:
            producer.poll(0)
    producer.flush()


def _produce_many(
    producer: Producer, topic: str, value: bytes, many: int, records: int, outcomes: DeliveryOutcomes
) -> None:
    """Waits until the queue has room for a whole call: rejected records are the largest cost in librdkafka's client."""
    for first in range(0, records, many):
        messages = [{"value": value} for _ in range(min(many, records - first))]
        while len(producer) > QUEUE_MESSAGES - many:
            producer.poll(0.01)
        accepted = producer.produce_batch(topic, messages, on_delivery=outcomes.on_delivery)
        if accepted != len(messages):
            raise Unacknowledged(f"{accepted} of {len(messages)} records were accepted")
        producer.poll(0)
    producer.flush()


async def _produce_aiokafka(
    bootstrap_servers: str, topic: str, records: int, record_bytes: int, batch_bytes: int
) -> dict[str, Any]:
    from aiokafka import AIOKafkaProducer

    value = os.urandom(record_bytes)
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap_servers,
        acks="all",
        linger_ms=LINGER_MS,
        max_batch_size=batch_bytes,
        max_request_size=AIOKAFKA_REQUEST_BYTES,
    ) as producer:
        for _ in range(WARM_RECORDS):
            await producer.send(topic, value)
        await producer.flush()
        send_event("started")
        watch = LoadStopwatch()
        for _ in range(records):
            last = await producer.send(topic, value)
        await producer.flush()
        cost = watch.read()
        await last  # raises if it was not acknowledged; the bench also counts the topic's records
    return producing_report(cost, records, record_bytes, WARM_RECORDS)


def latency(
    bootstrap_servers: str,
    topic: str,
    per_second: int,
    seconds: float,
    record_bytes: int,
    linger_ms: float,
) -> dict[str, Any]:
    """Open loop: a record is sent when it is due, whatever happened to earlier ones, and its latency counts from then
    on.

    A separate thread waits for the outcomes, so that each is noticed at once; it sleeps in librdkafka.
    """
    padding = os.urandom(record_bytes - STAMP.size)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "linger.ms": linger_ms,
        }
        | PRODUCER
    )
    outcomes = DeliveryOutcomes()
    for _ in range(WARM_RECORDS // 10):
        producer.produce(topic, STAMP.pack(0) + padding, on_delivery=outcomes.on_delivery)
        producer.flush()
    outcomes.check(WARM_RECORDS // 10)
    waits: list[int] = []
    errors: list[str] = []

    def send(due: int, records: int) -> None:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is None:
                waits.append(time.monotonic_ns() - due)
            else:
                errors.append(str(error))

        value = STAMP.pack(due) + padding
        for _ in range(records):
            producer.produce(topic, value, on_delivery=on_delivery)

    pacer = Pacer(per_second, seconds, send)
    expected = pacer.records

    def wait_for_outcomes() -> None:
        deadline = time.monotonic() + seconds + SILENCE_S
        while len(waits) + len(errors) < expected and time.monotonic() < deadline:
            producer.poll(0.5)

    waiting = threading.Thread(target=wait_for_outcomes)
    send_event("started", records=expected)
    watch = LoadStopwatch()
    pacer.start()
    waiting.start()
    waiting.join()
    cost = watch.read()
    if errors or len(waits) != expected:
        raise Unacknowledged(f"{len(waits)} of {expected} acknowledged; {errors[:2]}")
    return latencies(waits) | cost | {"acknowledged": len(waits), "warm_records": WARM_RECORDS // 10}


def consume(
    bootstrap_servers: str,
    topic: str,
    records: int,
    way: str = "consume",
    partitions: int = 1,
    stamped: bool = False,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Read this many records from the start of the topic; the stopwatch starts at the first. Every value is
    accessed."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        | CONSUMER
        | (settings or {})
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    send_event("ready")
    waits: list[int] = []
    seen = volume = first_seen = first_volume = 0
    watch = None
    while seen < records:
        # consume() waits until it has the requested number
        found = consumer.consume(1 if watch is None or stamped else min(1_000, records - seen), SILENCE_S)
        if not found:
            raise Unacknowledged(f"only {seen} of {records} records came")
        for message in found:
            if message.error() is not None:
                raise KafkaException(message.error())
            value = message.value()
            seen += 1
            volume += len(value)
            if stamped and (due := STAMP.unpack_from(value)[0]):
                waits.append(time.monotonic_ns() - due)
        if watch is None:
            watch, first_seen, first_volume = LoadStopwatch(), seen, volume
            send_event("first")
    assert watch is not None
    cost = watch.read()
    consumer.close()
    return reading_report(cost, (seen, volume), (first_seen, first_volume), waits)


LOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "produce": produce,
    "latency": latency,
    "consume": consume,
    "failover": failover,
}


def main() -> None:
    load, parameters = arguments()
    try:
        report(LOADS[load](**parameters))
    except (KafkaException, Unacknowledged) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
