"""Orders of events around the first record at or after a time: what it rests on may be odd or rotten."""

import contextlib
from collections.abc import AsyncGenerator

from minibroker.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
)
from minibroker.protocol.record_batch import build_batch
from minibroker.runtime.rpc import RpcError
from tests.mutants.judged import Directed, Stage, on_stage
from tests.mutants.schedules.words import administrator, batch, convict, say
from tests.undecodable import beyond_all_times, undecodable

FAR_AHEAD_MS = 1 << 50
ODD = "odd"


@contextlib.asynccontextmanager
async def _odd_topic(directed: Directed) -> AsyncGenerator[None]:
    """Its records are under no promise: the judges' own consumer would stop at what nobody can decode."""
    async with administrator(directed) as admin:
        await admin.create_topic(ODD, partitions=1, replication_factor=3)
        await directed.until(lambda: len(directed.cluster.in_sync_replicas(ODD)) == 3, "a full ISR")
        yield
        await admin.delete_topic(ODD)


def _leader(directed: Directed) -> int:
    leader = directed.cluster.leader(ODD)
    assert leader is not None, "no leader"
    return leader


async def _first_from(directed: Directed, timestamp_ms: int) -> ListOffsetsPartitionResponse:
    """What the leader answers."""
    asked = ListOffsetsPartition(partition_index=0, timestamp=timestamp_ms)
    reply = await say(
        directed, _leader(directed), ListOffsetsRequest(topics=[ListOffsetsTopic(name=ODD, partitions=[asked])])
    )
    assert isinstance(reply, ListOffsetsResponse)
    return reply.topics[0].partitions[0]


async def _send(directed: Directed, records: bytearray) -> None:
    data = ProducePartition(index=0, records=records)
    await say(directed, _leader(directed), ProduceRequest(topic_data=[ProduceTopic(name=ODD, partition_data=[data])]))


@on_stage(Stage())
async def by_time_into_what_nobody_can_decode(directed: Directed) -> None:
    """A foreign client with a bug: the CRC of a large batch is right, its records are not. Somebody seeks by time."""
    async with _odd_topic(directed):
        await _send(directed, batch(b"first"))
        await _send(directed, undecodable(build_batch([(None, b"x", FAR_AHEAD_MS, ())] * 40)))
        answer = await _first_from(directed, FAR_AHEAD_MS)
        if (answer.error_code, answer.offset) != (0, 1):
            convict(directed, "I22", f"by time: error {answer.error_code}, offset {answer.offset}, not offset 1")


@on_stage(Stage())
async def by_time_where_a_time_leaves_64_bits(directed: Directed) -> None:
    """A foreign client adds up wrong, in a small batch and in a large one. Somebody seeks by a time far ahead."""
    async with _odd_topic(directed):
        await _send(directed, batch(b"first"))
        await _send(directed, beyond_all_times())
        await _send(directed, beyond_all_times(40))
        try:
            answer = await _first_from(directed, FAR_AHEAD_MS)
        except RpcError as error:
            convict(directed, "I23", f"by time: {error}")
        else:
            if (answer.error_code, answer.offset) != (0, 1):
                convict(directed, "I23", f"by time: error {answer.error_code}, offset {answer.offset}, not offset 1")
