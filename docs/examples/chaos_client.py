"""A program that is the load of `minibroker chaos run --client`: one producer and one consumer that tell all they do.

Any language will do: a line before each call of the client, and one after it (docs/CHAOS.md, a load of your own).
"""

import asyncio
import itertools
import json
import os
import signal
from typing import Any

from minibroker import Consumer, MinibrokerError, Producer, TopicPartition

TOPIC = os.environ["CHAOS_TOPIC"]
SERVERS = os.environ["CHAOS_BOOTSTRAP_SERVERS"]
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(int(os.environ["CHAOS_PARTITIONS"]))]
PAUSE_SECONDS = 1 / float(os.environ["CHAOS_RATE"])
numbers = itertools.count()


def tell(process: str, kind: str, call: str, **fields: Any) -> None:
    print(json.dumps({"process": process, "type": kind, "f": call, **fields}), flush=True)


def outcome(error: MinibrokerError) -> dict[str, str]:
    """`fail` means: certainly not written."""
    return {"kind": "info" if error.maybe_written else "fail", "error": f"{type(error).__name__}: {error}"}


async def produce(stopping: asyncio.Event) -> None:
    """After an error, or an unknown outcome, the producer is replaced by one with another name."""
    for life in itertools.count():
        process = f"writer-{life}"
        try:
            async with Producer(bootstrap_servers=SERVERS, delivery_timeout_ms=10_000) as producer:
                await send_until(stopping, producer, process)
        except MinibrokerError:
            await asyncio.sleep(0.5)
        if stopping.is_set():
            return


async def send_until(stopping: asyncio.Event, producer: Producer, process: str) -> None:
    for number in itertools.count():
        if stopping.is_set():
            return
        partition, value, index = PARTITIONS[number % len(PARTITIONS)], f"{process}/{number}", next(numbers)
        sent = {"key": str(partition), "value": value}
        tell(process, "invoke", "send", index=index, sent=[sent])
        try:
            done = await producer.send_and_wait(TOPIC, value.encode(), partition=partition.partition)
        except MinibrokerError as error:
            found = outcome(error)
            tell(process, found["kind"], "send", operation=index, sent=[sent], error=found["error"])
            raise
        tell(process, "ok", "send", operation=index, sent=[{**sent, "offset": done.offset}])
        await asyncio.sleep(PAUSE_SECONDS)


async def consume() -> None:
    for life in itertools.count():
        process = f"reader-{life}"
        try:
            async with Consumer(bootstrap_servers=SERVERS) as consumer:
                consumer.assign(PARTITIONS)
                while True:
                    await poll(consumer, process)
        except MinibrokerError:
            await asyncio.sleep(0.5)


async def poll(consumer: Consumer, process: str) -> None:
    index = next(numbers)
    tell(process, "invoke", "poll", index=index)
    try:
        found = await consumer.getmany(timeout_ms=300)
    except MinibrokerError as error:
        tell(process, "fail", "poll", operation=index, error=outcome(error)["error"])
        raise
    polled = [
        {"key": str(partition), "value": (record.value or b"").decode(), "offset": record.offset}
        for partition, records in found.items()
        for record in records
    ]
    tell(process, "ok", "poll", operation=index, polled=polled)


async def main() -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    reading = asyncio.create_task(consume())
    await produce(stopping)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


asyncio.run(main())
