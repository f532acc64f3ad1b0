"""The steady producer of minibroker_failover, for Kafka."""

import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from minibroker.bench.load.generator import BEAT_S, NS_PER_S, failover_report, send_event, wait_for_command

READ_WAIT_S = 10.0
UNDELIVERED_S = 60.0
FAST_FAILOVER = {
    "request.timeout.ms": 3_000,
    "retry.backoff.ms": 50,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 200,
    "log_level": 0,
}
"""So that librdkafka's back-off (a second by default) does not count against Kafka."""


def failover(bootstrap_servers: str, topic: str, record_bytes: int, pace_ms: float) -> dict[str, Any]:
    """acks=all, idempotent, linger 0; one record each `pace_ms`, whatever happens to the others."""
    acknowledged: list[tuple[int, int, int]] = []
    errors: list[str] = []
    padding = b"." * (record_bytes - 20)
    settings = {"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0, "enable.idempotence": True}
    producer = Producer(settings | FAST_FAILOVER)
    ended = threading.Event()

    def wait_for_end() -> None:
        wait_for_command()
        ended.set()

    def send(number: int) -> None:
        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(str(error))
            elif number >= 0:
                acknowledged.append((time.monotonic_ns(), number, message.offset()))

        producer.produce(topic, (b"%020d" % number if number >= 0 else b"warm") + padding, on_delivery=on_delivery)

    send(-1)
    producer.flush()
    threading.Thread(target=wait_for_end, daemon=True).start()
    send_event("started")
    number, first_ns = 0, time.monotonic_ns()
    beat_ns = first_ns
    while not ended.is_set():
        send(number)
        number += 1
        due_ns = first_ns + round(number * pace_ms * 1e6)
        while (remaining_ns := due_ns - time.monotonic_ns()) > 0:
            producer.poll(remaining_ns / NS_PER_S)
        producer.poll(0)
        if time.monotonic_ns() - beat_ns > BEAT_S * NS_PER_S:
            beat_ns = time.monotonic_ns()
            send_event("beat", acknowledged=len(acknowledged), last_ns=acknowledged[-1][0] if acknowledged else 0)
    producer.flush(UNDELIVERED_S)
    return failover_report(acknowledged, errors, _read_back(bootstrap_servers, topic))


def _read_back(bootstrap_servers: str, topic: str) -> list[tuple[int, bytes]]:
    """Offset and value of every record."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), READ_WAIT_S)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[tuple[int, bytes]] = []
    while not found or found[-1][0] + 1 < end:
        message = consumer.poll(READ_WAIT_S)
        if message is None:
            break  # the comparison finds what is missing
        if message.error() is not None:
            raise KafkaException(message.error())
        found.append((message.offset(), message.value()))
    consumer.close()
    return found
