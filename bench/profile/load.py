"""The load that is profiled, as a separate process: `python -m minibroker.bench.profile.load produce|consume ...`.

Owns: one producer or consumer of the public API, as a user would write it, until it is terminated. It reads and writes
one partition, so that every request takes the same path.
"""

import asyncio
import signal
import sys

from minibroker import Consumer, Producer, TopicPartition

READ_WAIT_MS = 1_000


async def produce(servers: str, topic: str, record_bytes: int, batch_bytes: int, stop: asyncio.Event) -> None:
    """At full speed, acks=all; a failed delivery ends it."""
    value = bytes(range(256)) * (record_bytes // 256 + 1)
    value = value[:record_bytes]
    async with Producer(bootstrap_servers=servers, batch_size=batch_bytes) as producer:
        while not stop.is_set():
            for _ in range(1_000):
                if producer.try_send(topic, value) is None:
                    await producer.send(topic, value)
            await asyncio.sleep(0)


async def consume(servers: str, topic: str, stop: asyncio.Event) -> None:
    """Record by record from the start to the end, repeatedly."""
    partition = TopicPartition(topic, 0)
    async with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([partition])
        end = (await consumer.end_offsets([partition]))[partition]
        consumer.seek(partition, 0)
        read = 0
        while not stop.is_set():
            for records in (await consumer.getmany(timeout_ms=READ_WAIT_MS, max_records=1_000)).values():
                read += len(records)
            if read >= end:
                consumer.seek(partition, 0)
                read = 0


async def _main(arguments: list[str]) -> None:
    import uvloop

    assert isinstance(asyncio.get_running_loop(), uvloop.Loop)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    load, servers, topic = arguments[:3]
    if load == "produce":
        await produce(servers, topic, int(arguments[3]), int(arguments[4]), stop)
    else:
        await consume(servers, topic, stop)


if __name__ == "__main__":
    import uvloop

    uvloop.run(_main(sys.argv[1:]))
