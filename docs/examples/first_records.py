"""Write a record and read it: the example of the README."""

import asyncio

from minibroker import Consumer, Producer, TopicPartition


async def main() -> None:
    async with Producer(bootstrap_servers="localhost:9092") as producer:
        written = await producer.send_and_wait("lines", b"value", key=b"key")
        print("written to", written.partition, "at offset", written.offset, "under epoch", written.leader_epoch)
    async with Consumer(bootstrap_servers="localhost:9092") as consumer:
        partition = TopicPartition("lines", written.partition)
        consumer.assign([partition])
        consumer.seek(partition, written.offset)
        record = await consumer.getone(timeout_ms=10_000)
        print("read from", record.partition, "at offset", record.offset, record.key, record.value)


asyncio.run(main())
