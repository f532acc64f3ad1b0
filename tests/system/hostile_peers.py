"""Hostile peers, in a process of their own: `python -m tests.system.hostile_peers PORT KIND SECONDS TOPIC`.

Each kind attacks until its time is over, reconnects when it is disconnected, and then prints one line: connections
made, bytes sent, bytes read.
"""

import asyncio
import os
import random
import struct
import sys
from collections.abc import Awaitable, Callable

import msgpack

KIB, MIB = 1024, 1024 * 1024
HOST = "127.0.0.1"
FETCH, PRODUCE, METADATA, DESCRIBE_REPLICA_STATE = 1, 0, 3, 1000


class Attack:
    """The state that all connections of one run share."""

    def __init__(self, port: int, topic: str) -> None:
        self.port = port
        self.topic = topic
        self.connections = 0
        self.sent = 0
        self.read = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(HOST, self.port, limit=64 * KIB)
        self.connections += 1
        return reader, writer

    async def send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        for start in range(0, len(data), 256 * KIB):
            writer.write(data[start : start + 256 * KIB])
            await writer.drain()
            self.sent += min(256 * KIB, len(data) - start)

    async def read_some(self, reader: asyncio.StreamReader) -> bool:
        data = await reader.read(64 * KIB)
        self.read += len(data)
        return bool(data)


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def request(api_key: int, body: object, correlation_id: int = 1) -> bytes:
    return framed(bytes(msgpack.packb([api_key, 0, correlation_id, "hostile", body])))


Peer = Callable[[Attack, random.Random], Awaitable[None]]


async def garbage(attack: Attack, rng: random.Random) -> None:
    reader, writer = await attack.connect()
    await attack.send(writer, rng.randbytes(rng.choice((3, 40, 4_000, 60_000))))
    await attack.read_some(reader)
    writer.close()


BODIES = [
    b"\x91" * 100_000,
    b"\x81\xa6topics" + b"\x91" * 100_000 + b"\x90",
    b"\x81\xa6topics\xdd\xff\xff\xff\xff",
    b"\x81\xa6topics\x91\x81\xa5topic\xa2\xff\xfe",
    b"\x81\xa6topics\xdc\x27\x10" + b"\xc0" * 10_000,
    bytes(msgpack.packb({"topics": [{"topic": "t", "partitions": [{"partition": {}, "fetch_offset": []}] * 10_000}]})),
    bytes(msgpack.packb([[[]] * 300_000])),
    bytes(msgpack.packb({f"{number:04d}": [] for number in range(100_000)})),
    b"",
]


async def malformed(attack: Attack, rng: random.Random) -> None:
    """Send whole frames with malformed bodies, for every kind of request, known or unknown."""
    reader, writer = await attack.connect()
    for _ in range(20):
        key = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 10, 18, 19, 20, 22, 23, 32, 44, 56, 60, 1000, 77, 2**40))
        await attack.send(writer, framed(b"\x95" + msgpack.packb(key) + b"\x00\x01\xa1h" + rng.choice(BODIES)))
    writer.write_eof()
    while await attack.read_some(reader):
        pass
    writer.close()


async def half_frames(attack: Attack, rng: random.Random) -> None:
    """Announce 16 MiB, send one, and wait."""
    reader, writer = await attack.connect()
    await attack.send(writer, struct.pack(">I", 16 * MIB) + b"\x95\x00" + bytes(MIB))
    await attack.read_some(reader)
    writer.close()


async def delayed_large(attack: Attack, rng: random.Random) -> None:
    """Send fetches of 10,000 partitions each with the longest allowed wait."""
    reader, writer = await attack.connect()
    listed = [{"partition": number % 3, "fetch_offset": 0} for number in range(10_000)]
    topics = [{"topic": attack.topic, "partitions": listed}]
    wait = {"max_wait_ms": 30_000, "min_bytes": 2**31 - 1, "max_bytes": 0}
    await attack.send(writer, request(FETCH, {**wait, "topics": topics}) * 3)
    while await attack.read_some(reader):
        pass
    writer.close()


async def delayed_small(attack: Attack, rng: random.Random) -> None:
    """Send very many fetches of a few partitions without waiting for answers."""
    reader, writer = await attack.connect()
    listed = [{"partition": number % 3, "fetch_offset": 0} for number in range(50)]
    topics = [{"topic": attack.topic, "partitions": listed}]
    wait = {"max_wait_ms": 30_000, "min_bytes": 2**31 - 1, "max_bytes": 0}
    await attack.send(writer, request(FETCH, {**wait, "topics": topics}) * 200)
    while await attack.read_some(reader):
        pass
    writer.close()


async def slow_readers(attack: Attack, rng: random.Random) -> None:
    """Fetch everything, read nothing."""
    _, writer = await attack.connect()
    listed = [{"partition": number, "fetch_offset": 0, "partition_max_bytes": 50 * MIB} for number in range(3)]
    body = {"max_bytes": 50 * MIB, "topics": [{"topic": attack.topic, "partitions": listed}]}
    await attack.send(writer, request(FETCH, body) * 5)
    await asyncio.sleep(3_600)
    writer.close()


async def flood(attack: Attack, rng: random.Random) -> None:
    """Open connections and send nothing."""
    reader, writer = await attack.connect()
    await attack.read_some(reader)
    writer.close()


async def large_produce(attack: Attack, rng: random.Random) -> None:
    """Send requests of 16 MiB: one huge invalid batch, or a million empty ones."""
    reader, writer = await attack.connect()
    room = 16 * MIB - 200
    if rng.random() < 0.5:
        data = [{"index": 0, "records": bytes(room)}]
        body: object = {"topic_data": [{"name": attack.topic, "partition_data": data}]}
    else:
        data = [{"index": 0, "records": b""}] * 9_999
        body = {"topic_data": [{"name": attack.topic, "partition_data": data}] * (room // 190_000)}
    await attack.send(writer, request(PRODUCE, body))
    await attack.read_some(reader)
    writer.close()


async def false_followers(attack: Attack, rng: random.Random) -> None:
    """Claim to be a broker and open fetch sessions."""
    reader, writer = await attack.connect()
    listed = [{"partition": number % 3, "fetch_offset": 0} for number in range(5_000)]
    topics = [{"topic": attack.topic, "partitions": listed}]
    body = {"replica_id": 2, "replica_epoch": 1, "session_epoch": 0, "max_wait_ms": 30_000, "topics": topics}
    await attack.send(writer, request(FETCH, body) * 3)
    while await attack.read_some(reader):
        pass
    writer.close()


async def large_answers(attack: Attack, rng: random.Random) -> None:
    """Send small requests with large answers, and do not read them."""
    _, writer = await attack.connect()
    await attack.send(writer, request(METADATA, {}) * 300 + request(DESCRIBE_REPLICA_STATE, {}) * 300)
    await asyncio.sleep(3_600)
    writer.close()


KINDS: dict[str, tuple[Peer, int]] = {
    "garbage": (garbage, 40),
    "malformed": (malformed, 20),
    "half_frames": (half_frames, 100),
    "delayed_large": (delayed_large, 300),
    "delayed_small": (delayed_small, 900),
    "slow_readers": (slow_readers, 200),
    "flood": (flood, 2_000),
    "large_produce": (large_produce, 8),
    "false_followers": (false_followers, 200),
    "large_answers": (large_answers, 300),
}
"""The function of one peer, and the number of peers at a time."""


async def run(port: int, kind: str, seconds: float, topic: str) -> None:
    attack = Attack(port, topic)
    peer, count = KINDS[kind]

    async def repeat(number: int) -> None:
        rng = random.Random(f"{kind}/{number}")
        while True:
            try:
                await peer(attack, rng)
            except OSError:
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(repeat(number)) for number in range(count)]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(f"{attack.connections} connections, {attack.sent} bytes sent, {attack.read} bytes read", flush=True)
    os._exit(0)  # the kernel closes thousands of sockets faster than we can


if __name__ == "__main__":
    asyncio.run(run(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]))
