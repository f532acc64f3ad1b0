"""A steady producer during a failover: when each record was acknowledged, which failed, what is in the log.

Owns: the pace, the times, and reading everything back at the end. A line on stdin ends it; it does not know of the
kill.
"""

import asyncio
import time
from typing import Any

from minibroker import Consumer, Delivery, MinibrokerError, Producer, TopicPartition
from minibroker.bench.load.generator import BEAT_S, NS_PER_S, failover_report, send_event, wait_for_command

READ_WAIT_MS = 10_000
UNDELIVERED_MS = 60_000
"""Time by which each sent record has its outcome."""


async def failover(bootstrap_servers: str, topic: str, record_bytes: int, pace_ms: float) -> dict[str, Any]:
    """acks=all, idempotent, linger 0, defaults otherwise; one record each `pace_ms`, whatever happens to the others."""
    acknowledged: list[tuple[int, int, int]] = []
    errors: list[str] = []
    unsettled: asyncio.Queue[tuple[int, Delivery] | None] = asyncio.Queue()
    padding = b"." * (record_bytes - 20)

    async def settle() -> None:
        """In order: one partition acknowledges in order."""
        while (sent := await unsettled.get()) is not None:
            number, delivery = sent
            try:
                written = await delivery
                assert written.offset is not None, "acks=all returns the offset"
                acknowledged.append((time.monotonic_ns(), number, written.offset))
            except MinibrokerError as error:
                errors.append(f"{type(error).__name__}: {error}")

    async def beat() -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            send_event("beat", acknowledged=len(acknowledged), last_ns=acknowledged[-1][0] if acknowledged else 0)

    async with Producer(bootstrap_servers=bootstrap_servers, linger_ms=0) as producer:
        await producer.send_and_wait(topic, b"warm" + padding)
        ending = asyncio.create_task(asyncio.to_thread(wait_for_command))
        background = [asyncio.create_task(settle()), asyncio.create_task(beat())]
        send_event("started")
        number, first_ns = 0, time.monotonic_ns()
        while not ending.done():
            try:
                unsettled.put_nowait((number, await producer.send(topic, b"%020d" % number + padding)))
            except MinibrokerError as error:
                errors.append(f"{type(error).__name__}: {error}")
            number += 1
            due_ns = first_ns + round(number * pace_ms * 1e6)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / NS_PER_S))
        unsettled.put_nowait(None)
        await asyncio.wait_for(background[0], UNDELIVERED_MS / 1000)
        background[1].cancel()
    found = await _read_back(bootstrap_servers, topic)
    return failover_report(acknowledged, errors, found)


async def _read_back(bootstrap_servers: str, topic: str) -> list[tuple[int, bytes]]:
    """Offset and value of every record."""
    partition = TopicPartition(topic, 0)
    found: list[tuple[int, bytes]] = []
    async with Consumer(bootstrap_servers=bootstrap_servers, auto_offset_reset="earliest") as reader:
        reader.assign([partition])
        end = (await reader.end_offsets([partition]))[partition]
        while not found or found[-1][0] + 1 < end:
            fetched = await reader.getmany(timeout_ms=READ_WAIT_MS)
            if not fetched:
                raise MinibrokerError(f"only {len(found)} of {end} records could be read back")
            found += [(record.offset, record.value or b"") for record in fetched[partition]]
    return found
