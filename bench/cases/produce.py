"""Produce throughput: records of 1 KB and 100 B, three sizes of batches, 1 and 12 partitions; acks=all, RF 3."""

from minibroker.bench.case import KAFKA, Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB, KILOBYTE, MIB, SMALL, produce_into, topic_for
from minibroker.bench.peers.peer import Peer

MANY = 1_000
"""Records of 100 B in one call of send_many, or of librdkafka's produce_batch."""


class Produce:
    """One load at full speed."""

    def __init__(
        self,
        records: int,
        record_bytes: int,
        batch_bytes: int,
        partitions: int = 1,
        client: str | None = None,
        many: int = 0,
    ) -> None:
        self.records = records
        self.record_bytes = record_bytes
        self.batch_bytes = batch_bytes
        self.partitions = partitions
        self.client = client
        """Which of the peer's clients, if not the first one."""
        self.many = many
        """Records in a call: send_many, produce_batch. 0: one by one."""

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        records = round.volume_of(self.records, 1_000)
        more: dict[str, str | int] = {} if self.client is None else {"client": self.client}
        more |= {"many": self.many} if self.many else {}
        async with topic_for(peer, "produce", round, self.partitions) as topic:
            return await produce_into(peer, topic, records, self.record_bytes, self.batch_bytes, **more)


CASES = [
    Case(
        name="produce-1kb-128kib",
        title="produce 1 KB, 128 KiB batches",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=7,
        run=Produce(200_000, KILOBYTE, 128 * KIB),
    ),
    Case(
        name="produce-1kb-1mb",
        title="produce 1 KB, 1 MB batches",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=8,
        run=Produce(300_000, KILOBYTE, MIB),
    ),
    Case(
        name="produce-1kb-16kib",
        title="produce 1 KB, 16 KiB batches",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=9,
        run=Produce(100_000, KILOBYTE, 16 * KIB),
    ),
    Case(
        name="produce-100b",
        title=f"produce 100 B, 128 KiB batches, {MANY:,} per call",
        figure="records_s",
        unit="records/s",
        higher_is_better=True,
        about_s=8,
        run=Produce(3_000_000, SMALL, 128 * KIB, many=MANY),
    ),
    Case(
        name="produce-100b-single",
        title="produce 100 B, 128 KiB batches, one per call",
        figure="records_s",
        unit="records/s",
        higher_is_better=True,
        about_s=7,
        run=Produce(1_200_000, SMALL, 128 * KIB),
    ),
    Case(
        name="produce-100b-aiokafka",
        title="produce 100 B, 128 KiB batches, aiokafka",
        figure="records_s",
        unit="records/s",
        higher_is_better=True,
        about_s=13,
        peers=(KAFKA,),
        run=Produce(400_000, SMALL, 128 * KIB, client="aiokafka"),
    ),
    Case(
        name="produce-1kb-12-partitions",
        title="produce 1 KB, 128 KiB batches, 12 partitions",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=8,
        run=Produce(200_000, KILOBYTE, 128 * KIB, partitions=12),
    ),
]
