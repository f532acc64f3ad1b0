"""Write a record and read it: the example of the README."""

import asyncio

from minibroker import Consumer, Producer


async def main() -> None:
    async with Producer(bootstrap_servers="localhost:9092") as producer:
        metadata = await producer.send_and_wait("lines", b"value", key=b"key")
        print("written to", metadata.partition, "at offset", metadata.offset, "under epoch", metadata.leader_epoch)
    async with Consumer("lines", bootstrap_servers="localhost:9092", auto_offset_reset="earliest") as consumer:
        record = await consumer.getone(timeout_ms=10_000)
        print("read from", record.partition, "at offset", record.offset, record.key, record.value)


asyncio.run(main())
