"""How fast a replicated log in Python can be on this machine, without being a broker.

A leader and two followers as processes, pull replication, acks=all, a CRC-32C and one write to the page cache per
replica: the work of every such log. There are no records, elections, recovery, settings or errors; whatever a broker
does beyond this is its own cost.

    python -m minibroker.bench.load.bare_data_path FOLDER FRAME_BYTES TOTAL_BYTES
"""

import asyncio
import json
import multiprocessing
import os
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import cast

import uvloop
from crc32c import crc32c

HEAD = struct.Struct("<IBBQ")
"""Length of the body, kind, sender, a number (its meaning depends on the kind)."""
APPEND, APPENDED, FETCH, DATA = range(4)
FOLLOWERS = (1, 2)
IN_FLIGHT = 5
"""As many requests as a producer has in flight."""
RECEIVE_BYTES = 8 << 20
ROOM_BYTES_MIN = 2 << 20
REPLY_BYTES_MAX = 1 << 20
KEPT_FRAMES = 64
"""More than can be in flight, so every follower finds the frames it fetches."""


class FramedConnection(asyncio.BufferedProtocol):
    """Splits received bytes into frames, without a copy; `handle(connection, kind, sender, number, body)` gets each."""

    def __init__(self, handle: "Callable[[FramedConnection, int, int, int, memoryview], None]") -> None:
        self._handle = handle
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._read = self._written = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport does not declare it
        self.transport.set_write_buffer_limits(high=64 << 20)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._read and RECEIVE_BYTES - self._written < ROOM_BYTES_MIN:
            rest = self._written - self._read
            self._buffer[:rest] = self._buffer[self._read : self._written]
            self._read, self._written = 0, rest
        return self._buffer[self._written :]

    def buffer_updated(self, nbytes: int) -> None:
        self._written += nbytes
        while self._written - self._read >= HEAD.size:
            length, kind, sender, number = HEAD.unpack_from(self._buffer, self._read)
            end = self._read + HEAD.size + length
            if end > self._written:
                break
            body = self._buffer[self._read + HEAD.size : end]
            self._read = end
            self._handle(self, kind, sender, number, body)
        if self._read == self._written:
            self._read = self._written = 0

    def send(self, kind: int, sender: int, number: int, *parts: bytes) -> None:
        self.transport.writelines([HEAD.pack(sum(map(len, parts)), kind, sender, number), *parts])


class BareLeader:
    """Appends, answers fetches, and acknowledges what both followers hold."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        self._end = 0
        self._recent: deque[tuple[int, bytes]] = deque(maxlen=KEPT_FRAMES)
        self._follower_ends = dict.fromkeys(FOLLOWERS, 0)
        self._waiting: dict[int, tuple[FramedConnection, int]] = {}
        self._unacknowledged: deque[tuple[int, FramedConnection, int]] = deque()

    def handle(self, connection: FramedConnection, kind: int, sender: int, number: int, body: memoryview) -> None:
        if kind == APPEND:
            data = bytes(body)
            crc32c(data)
            os.write(self._file, data)
            self._recent.append((self._end, data))
            self._end += len(data)
            self._unacknowledged.append((self._end, connection, number))
            waiting, self._waiting = self._waiting, {}
            for follower, offset in waiting.values():
                self._reply(follower, offset)
        else:
            self._follower_ends[sender] = number
            high_watermark = min(self._follower_ends.values())
            while self._unacknowledged and self._unacknowledged[0][0] <= high_watermark:
                _, producer, frame = self._unacknowledged.popleft()
                producer.send(APPENDED, 0, frame)
            if number < self._end:
                self._reply(connection, number)
            else:
                self._waiting[sender] = (connection, number)

    def _reply(self, follower: FramedConnection, offset: int) -> None:
        parts: list[bytes] = []
        size = 0
        for start, data in self._recent:
            if start >= offset and size < REPLY_BYTES_MAX:
                parts.append(data)
                size += len(data)
        follower.send(DATA, 0, min(self._follower_ends.values()), *parts)


def run_leader(path: Path, ready: Connection) -> None:
    async def serve() -> None:
        leader = BareLeader(path)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: FramedConnection(leader.handle), "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(serve())


def run_follower(path: Path, number: int, port: int) -> None:
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    end = 0

    def handle(connection: FramedConnection, kind: int, sender: int, high_watermark: int, body: memoryview) -> None:
        nonlocal end
        crc32c(body)
        os.write(file, body)
        end += len(body)
        connection.send(FETCH, number, end)

    async def follow() -> None:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: FramedConnection(handle), "127.0.0.1", port)
        connection.send(FETCH, number, 0)
        await loop.create_future()  # until the process is terminated

    uvloop.run(follow())


async def produce(port: int, frame_bytes: int, frames: int) -> float:
    """Seconds until the last frame was acknowledged."""
    loop = asyncio.get_running_loop()
    frame = os.urandom(frame_bytes)
    sent = acknowledged = 0
    done = loop.create_future()

    def handle(connection: FramedConnection, kind: int, sender: int, number: int, body: memoryview) -> None:
        nonlocal acknowledged
        acknowledged += 1
        send()
        if acknowledged == frames:
            done.set_result(None)

    def send() -> None:
        nonlocal sent
        while sent < frames and sent - acknowledged < IN_FLIGHT:
            connection.send(APPEND, 0, sent, frame)
            sent += 1

    _, connection = await loop.create_connection(lambda: FramedConnection(handle), "127.0.0.1", port)
    started = time.perf_counter()
    send()
    await done
    return time.perf_counter() - started


def main() -> None:
    directory, frame_bytes, total_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    processes = multiprocessing.get_context("spawn")
    our_end, child_end = processes.Pipe()
    running = [processes.Process(target=run_leader, args=(directory / "leader.log", child_end), daemon=True)]
    running[0].start()
    port = our_end.recv()
    for number in FOLLOWERS:
        arguments = (directory / f"follower-{number}.log", number, port)
        running.append(processes.Process(target=run_follower, args=arguments, daemon=True))
        running[-1].start()
    try:
        uvloop.run(produce(port, frame_bytes, IN_FLIGHT))  # ends when both followers have answered: the warm-up
        frames = max(1, total_bytes // frame_bytes)
        seconds = uvloop.run(produce(port, frame_bytes, frames))
    finally:
        for process in running:
            process.terminate()
            process.join()
    print(json.dumps({"mb_s": frames * frame_bytes / seconds / 1e6, "seconds": seconds}))


if __name__ == "__main__":
    main()
