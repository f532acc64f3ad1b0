"""Orders of events around bytes that rot on a disk, and who may still be believed."""

import asyncio

from minibroker.protocol.record_batch import read_header
from tests.mutants.judged import Directed, Stage, on_stage
from tests.mutants.schedules.words import host, read_all

COLD = {"log.tail.cache.bytes": "0", "log.segment.bytes": "1024"}
"""Everything is read from the disk, and most of it lies in closed segments."""
BASE_OFFSET, EPOCH, PAYLOAD = 7, 15, -3
"""Bytes of a batch: the lowest of its base offset and of its leader epoch, both outside of the CRC, and one inside."""


async def _fill(directed: Directed, count: int = 40) -> None:
    for number in range(count):
        await directed.produce(f"{number}")


def _rot(directed: Directed, broker_id: int, batch: int, byte: int) -> int:
    """Flip a bit of a batch in the first segment; its base offset."""
    storage = directed.world.machine(host(broker_id)).storage
    path = directed.replica(broker_id).log.segments[0].log_path
    content = bytes(storage.find_file(path).content)
    position = 0
    for _ in range(batch):
        position += read_header(content, position).size_bytes
    header = read_header(content, position)
    storage.flip_bit(path, position + byte + (header.size_bytes if byte < 0 else 0))
    return header.base_offset


@on_stage(Stage(settings=COLD))
async def leader_reads_a_flipped_offset(directed: Directed) -> None:
    """A bit of a base offset flips in a closed segment of the leader; a consumer reads it all."""
    await _fill(directed)
    _rot(directed, directed.leader, 3, BASE_OFFSET)
    await read_all(directed)
    await asyncio.sleep(3.0)


@on_stage(Stage(settings=COLD))
async def leader_reads_a_flipped_payload(directed: Directed) -> None:
    """Bytes inside the CRC rot on the leader: leadership moves, and it repairs itself."""
    await _fill(directed)
    _rot(directed, directed.leader, 3, PAYLOAD)
    await read_all(directed)
    await asyncio.sleep(3.0)
