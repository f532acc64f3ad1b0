"""Orders of events around lookups by time, over odd batches or a rotten time index."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from minibroker.protocol.files.checkpoints import TIME_INDEX_ENTRY_BYTES, TIME_INDEX_SUFFIX, decode_time_index
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from minibroker.runtime.rpc import RpcError
from tests.mutants.directed_run import ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import admin_client, batch, host, report, send_to
from tests.undecodable import beyond_all_times, undecodable

FAR_AHEAD_MS = 1 << 50
ODD = "odd"
RECORDS, STEP_MS = 20, 1_000
BYTE, BIT = 6, 2
"""Of a time in an index: 1024 ms, so that an entry seems older than the batch before its own, and not than the entry."""


@contextlib.asynccontextmanager
async def _odd_topic(directed: DirectedRun, replicas: int = 3) -> AsyncGenerator[None]:
    """A topic with records under no promise: the checkers' own consumer would stop at undecodable ones."""
    async with admin_client(directed) as admin:
        await admin.create_topic(ODD, partitions=1, replication_factor=replicas)
        await directed.until(lambda: len(directed.cluster.in_sync_replicas(ODD)) == replicas, "a full ISR")
        yield
        await admin.delete_topic(ODD)


def _leader(directed: DirectedRun) -> int:
    leader = directed.cluster.leader(ODD)
    assert leader is not None, "no leader"
    return leader


async def _first_from(directed: DirectedRun, timestamp_ms: int) -> ListOffsetsPartitionResponse:
    """What the leader answers."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    reply = await send_to(
        directed, _leader(directed), ListOffsetsRequest(topics=[ListOffsetsTopic(name=ODD, partitions=[asked])])
    )
    assert isinstance(reply, ListOffsetsResponse)
    return reply.topics[0].partitions[0]


async def _send(directed: DirectedRun, records: bytearray) -> None:
    data = ProducePartition(index=0, records=records)
    await send_to(
        directed, _leader(directed), ProduceRequest(topic_data=[ProduceTopic(name=ODD, partition_data=[data])])
    )


@with_setup(ClusterSetup())
async def by_time_into_undecodable_records(directed: DirectedRun) -> None:
    """A foreign client with a bug: the CRC of a large batch is right, its records are not. A client seeks by time."""
    async with _odd_topic(directed):
        await _send(directed, batch(b"first"))
        await _send(directed, undecodable(build_batch([(None, b"x", FAR_AHEAD_MS, ())] * 40)))
        answer = await _first_from(directed, FAR_AHEAD_MS)
        if (answer.error_code, answer.offset) != (0, 1):
            report(directed, "I22", f"by time: error {answer.error_code}, offset {answer.offset}, not offset 1")


@with_setup(ClusterSetup())
async def by_time_with_a_timestamp_beyond_64_bits(directed: DirectedRun) -> None:
    """A foreign client computes wrong timestamps, in a small and in a large batch. A client seeks by a time far ahead."""
    async with _odd_topic(directed):
        await _send(directed, batch(b"first"))
        await _send(directed, beyond_all_times())
        await _send(directed, beyond_all_times(40))
        try:
            answer = await _first_from(directed, FAR_AHEAD_MS)
        except RpcError as error:
            report(directed, "I23", f"by time: {error}")
        else:
            if (answer.error_code, answer.offset) != (0, 1):
                report(directed, "I23", f"by time: error {answer.error_code}, offset {answer.offset}, not offset 1")


@with_setup(ClusterSetup(settings={"log.index.interval.bytes": "100", "log.scrub.bytes.per.second": "0"}))
async def by_time_with_a_rotten_time_index(directed: DirectedRun) -> None:
    """While its broker is stopped, a bit of one entry in a time index flips. A client seeks by each time."""
    async with _odd_topic(directed, replicas=1):
        for number in range(RECORDS):
            await _send(directed, build_batch([(None, b"%d" % number, STEP_MS * number, ())]))
        leader = _leader(directed)
        path = directed.replica(leader, TopicPartition(ODD, 0)).log.segments[0].path + TIME_INDEX_SUFFIX
        directed.cluster.stop(leader)
        await directed.until(lambda: leader not in directed.cluster.alive(), "its end")
        storage = directed.world.machine(host(leader)).storage
        entries = decode_time_index(bytes(storage.find_file(path).content))
        rotten = next(number for number, entry in enumerate(entries) if entry.timestamp_ms & (256 << BIT))
        storage.flip_bit(path, rotten * TIME_INDEX_ENTRY_BYTES + BYTE, BIT)
        directed.cluster.start(leader)
        await directed.until(lambda: directed.cluster.leader(ODD) == leader, "it leads again")
        await asyncio.sleep(1.0)
        for number in range(RECORDS):
            answer = await _first_from(directed, STEP_MS * number)
            if (answer.error_code, answer.offset) != (0, number):
                text = f"by time {STEP_MS * number}: error {answer.error_code}, offset {answer.offset}, not {number}"
                report(directed, "I22", text)
