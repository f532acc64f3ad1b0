"""Loads a minibroker cluster through the public client, as a user would write it.

python -m minibroker.bench.load.minibroker_load produce '{"bootstrap_servers": "127.0.0.1:9092", ...}'
"""

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from minibroker import Consumer, Delivery, MinibrokerError, Producer, TopicPartition
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
from minibroker.bench.load.minibroker_failover import failover

SILENCE_MS = 20_000
"""A consumer that receives nothing for this long has lost records: the round fails."""


async def produce(
    bootstrap_servers: str,
    topic: str,
    records: int,
    record_bytes: int,
    batch_bytes: int,
    keys: int = 0,
    buffer_bytes: int | None = None,
    warm_records: int = WARM_RECORDS,
    linger_ms: float = LINGER_MS,
    many: int = 0,
) -> dict[str, Any]:
    """At full speed, acks=all; `keys` > 0 uses this many keys in turn, `many` > 0 passes this many records per call."""
    value = os.urandom(record_bytes)
    more: dict[str, Any] = {} if buffer_bytes is None else {"buffer_memory": buffer_bytes}
    more |= {"batch_size": batch_bytes, "max_request_size": max(1_048_576, batch_bytes)}
    async with Producer(bootstrap_servers=bootstrap_servers, linger_ms=linger_ms, **more) as producer:
        for number in range(warm_records):
            await producer.send(topic, value, key=_key(number, keys))
        await producer.flush()
        send_event("started")
        watch = LoadStopwatch()
        if keys:
            named = [_key(number, keys) for number in range(keys)]
            for number in range(records):
                await producer.send(topic, value, key=named[number % keys])
        elif many:
            for first in range(0, records, many):
                await producer.send_many(topic, [value] * min(many, records - first))
        else:
            for _ in range(records):
                await producer.send(topic, value)
        await producer.flush()  # raises if one of them was not acknowledged
        cost = watch.read()
    return producing_report(cost, records, record_bytes, warm_records)


def _key(number: int, keys: int) -> bytes | None:
    return b"key-%06d" % (number % keys) if keys else None


async def latency(
    bootstrap_servers: str,
    topic: str,
    per_second: int,
    seconds: float,
    record_bytes: int,
    linger_ms: float,
) -> dict[str, Any]:
    """Open loop: a record is sent when it is due, whatever happened to earlier ones, and its latency counts from then
    on."""
    loop = asyncio.get_running_loop()
    padding = os.urandom(record_bytes - STAMP.size)
    sent: asyncio.Queue[tuple[int, Delivery]] = asyncio.Queue()
    late: deque[int] = deque()
    late_ones = asyncio.Event()
    async with Producer(bootstrap_servers=bootstrap_servers, linger_ms=linger_ms) as producer:
        for _ in range(WARM_RECORDS // 10):
            await producer.send_and_wait(topic, STAMP.pack(0) + padding)

        def send(due: int, records: int) -> None:
            value = STAMP.pack(due) + padding
            for _ in range(records):
                delivery = None if late else producer.try_send(topic, value)
                if delivery is None:
                    late.append(due)
                    late_ones.set()
                else:
                    sent.put_nowait((due, delivery))

        async def send_late_ones() -> None:
            """Send, in order, the records for which try_send would have had to wait."""
            while True:
                await late_ones.wait()
                while late:
                    sent.put_nowait((late[0], await producer.send(topic, STAMP.pack(late[0]) + padding)))
                    late.popleft()
                late_ones.clear()

        pacer = Pacer(per_second, seconds, lambda due, records: loop.call_soon_threadsafe(send, due, records))
        sending_late = asyncio.create_task(send_late_ones())
        send_event("started", records=pacer.records)
        watch = LoadStopwatch()
        pacer.start()
        waits = []
        for _ in range(pacer.records):  # one partition acknowledges in order: awaiting in order delays nothing
            due, delivery = await sent.get()
            await delivery
            waits.append(time.monotonic_ns() - due)
        cost = watch.read()
        sending_late.cancel()
    return latencies(waits) | cost | {"acknowledged": len(waits), "warm_records": WARM_RECORDS // 10}


async def consume(
    bootstrap_servers: str,
    topic: str,
    records: int,
    way: str = "getmany_batches",
    partitions: int = 1,
    stamped: bool = False,
    settings: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Read this many records from the start of the topic; the stopwatch starts at the first one.

    `way` is getmany (a Record object each) or getmany_batches (columns). Every value is accessed: lengths are summed.
    """
    waits: list[int] = []
    seen = volume = 0
    async with Consumer(
        bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest", **(settings or {})
    ) as reader:
        reader.assign([TopicPartition(topic, number) for number in range(partitions)])
        send_event("ready")
        watch = None
        first_seen = first_volume = 0
        while seen < records:
            if way == "getmany_batches":
                values = [batch.values for batch in await reader.getmany_batches(timeout_ms=SILENCE_MS)]
            else:
                found = await reader.getmany(timeout_ms=SILENCE_MS, max_records=1_000)
                values = [[record.value for record in each] for each in found.values()]
            if not values:
                raise MinibrokerError(f"only {seen} of {records} records came")
            for column in values:
                seen += len(column)
                volume += sum(map(len, column))  # type: ignore[arg-type]
                if stamped:
                    now = time.monotonic_ns()
                    dues = [STAMP.unpack_from(value)[0] for value in column if value is not None]
                    waits += [now - due for due in dues if due]
            if watch is None:
                watch, first_seen, first_volume = LoadStopwatch(), seen, volume
                send_event("first")
        assert watch is not None
        cost = watch.read()
    return reading_report(cost, (seen, volume), (first_seen, first_volume), waits)


LOADS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "produce": produce,
    "latency": latency,
    "consume": consume,
    "failover": failover,
}


def main() -> None:
    load, parameters = arguments()
    try:
        report(uvloop.run(LOADS[load](**parameters)))
    except MinibrokerError as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
