"""Process each record of one partition exactly once, into a partition of another topic.

What is done is in the output itself: each record there carries the offset of the record that it was made of. A process
that starts first takes the name of its predecessor, writes a marker, and reads what stands before it. No record of a
predecessor can follow the marker, however long a request of it was on its way, so nothing is done twice. Each record is
acknowledged before the next one is sent, so nothing is left out.

    python exactly_once.py localhost:9092 words lengths
"""

import asyncio
import hashlib
import sys
from collections.abc import Awaitable, Callable

from minibroker import Consumer, Producer, TopicPartition

SOURCE_OFFSET = "source-offset"
WINDOW = 1_000
"""How many records of the output are read at a time, from its end on."""


async def process(
    servers: str, source: TopicPartition, output: TopicPartition, work: Callable[[bytes], Awaitable[bytes]]
) -> None:
    """Runs until it is cancelled. Any error ends it: start it again then. ProducerFenced: another one runs already."""
    producer = Producer(bootstrap_servers=servers, producer_name=producer_name(source, output), linger_ms=0)
    consumer = Consumer(bootstrap_servers=servers)
    async with producer, consumer:
        marker = await producer.send_and_wait(output.topic, None, partition=output.partition)
        assert marker.offset is not None
        consumer.assign([source])
        done = await last_source_offset(servers, output, marker.offset)
        if done is None:
            await consumer.seek_to_beginning(source)
        else:
            consumer.seek(source, done + 1)
        async for record in consumer:
            result = await work(record.value)
            headers = {SOURCE_OFFSET: b"%d" % record.offset}
            await producer.send_and_wait(output.topic, result, partition=output.partition, headers=headers)


def producer_name(source: TopicPartition, output: TopicPartition) -> str:
    """The same for each process of this work, and of no other work. A name has 100 characters at most, a topic 249."""
    digest = hashlib.sha256(f"{source} {output}".encode()).hexdigest()
    return f"{output.topic[:50]}-{output.partition}-{digest[:32]}"


async def last_source_offset(servers: str, output: TopicPartition, end: int) -> int | None:
    """The source offset of the last result before `end`; None if there is none."""
    async with Consumer(bootstrap_servers=servers) as consumer:
        consumer.assign([output])
        first = (await consumer.beginning_offsets([output]))[output]
        while end > first:
            start = max(first, end - WINDOW)
            consumer.seek(output, start)
            last = None
            while (position := await consumer.position(output)) < end:
                found = await consumer.getmany(timeout_ms=1_000, max_records=end - position)
                for record in found.get(output, []):
                    last = dict(record.headers).get(SOURCE_OFFSET, last)
            if last is not None:
                return int(last)
            end = start
    return None


async def length(value: bytes) -> bytes:
    """The work of this example."""
    return b"%d" % len(value)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: exactly_once.py HOST:PORT SOURCE_TOPIC OUTPUT_TOPIC")
    servers, source_topic, output_topic = sys.argv[1:]
    asyncio.run(process(servers, TopicPartition(source_topic, 0), TopicPartition(output_topic, 0), length))
