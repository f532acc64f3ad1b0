"""The same load over 1, 100 and 1,000 partitions, spread by keys."""

from minibroker.bench.case import MINIBROKER, Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB, KILOBYTE, produce_into, topic_for
from minibroker.bench.peers.peer import Peer

RECORDS = 150_000
RECORDS_OVER_MANY = 1_000_000
"""Over a thousand partitions, minibroker: some eight batches for each, so that filling them does not dominate."""
RECORDS_OVER_MANY_KAFKA = 40_000
"""What Kafka can write in a round there: a few MB/s on two cores. Both figures are rates."""
MANY = 1_000
KEYS = 10_000
"""Enough for every partition to get its share."""
LOADS = ((1, 5, None, 8), (100, 50, 5, 15), (MANY, 1_000, 3, 60))
"""Partitions, linger in ms, rounds, about_s. The same load over more partitions fills each batch more slowly: in 5 ms a
thousandth of the load would be one or two records, and the case would measure requests, most of all on Kafka. There are
fewer rounds where Kafka needs half a minute for a round or a topic."""
BUFFER_BYTES = 256 << 20
"""The same for both clients: a batch of 128 KiB for each of 1,000 partitions, and as much again."""


class KeyedProduce:
    """Keyed records over this many partitions. The topic is created once: a thousand partitions take seconds to create.

    With the most partitions, minibroker then writes as many records without keys to one partition, to measure the cost
    of spreading.
    """

    def __init__(self, partitions: int, linger_ms: float) -> None:
        self.partitions = partitions
        self.linger_ms = linger_ms

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        key = f"keyed-{self.partitions}"
        if key not in round.kept:
            topic = f"{key}-{round.label}"  # an earlier attempt may have failed halfway
            await peer.make_topic(topic, self.partitions)
            round.kept[key] = topic
        records = round.volume_of(self._records(peer), 1_000)
        more = {"keys": KEYS, "buffer_bytes": BUFFER_BYTES, "warm_records": KEYS, "linger_ms": self.linger_ms}
        keyed = await produce_into(peer, round.kept[key], records, KILOBYTE, 128 * KIB, **more)
        if self.partitions < MANY or peer.name != MINIBROKER:
            return keyed
        await round.settle()
        async with topic_for(peer, "without-keys", round) as topic:
            plain = await produce_into(peer, topic, records, KILOBYTE, 128 * KIB, buffer_bytes=BUFFER_BYTES)
        share = keyed.figures["mb_s"] / plain.figures["mb_s"]
        return Measurement(keyed.figures | {"one_partition_mb_s": plain.figures["mb_s"], "of_one": share}, keyed.costs)

    def _records(self, peer: Peer) -> int:
        if self.partitions < MANY:
            return RECORDS
        return RECORDS_OVER_MANY if peer.name == MINIBROKER else RECORDS_OVER_MANY_KAFKA


CASES = [
    Case(
        name=f"partitions-{count}",
        title=f"produce 1 KB keyed, {count:,} partition{'s' * (count > 1)}, linger {linger_ms} ms",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        run=KeyedProduce(count, linger_ms),
        rounds=rounds,
        about_s=about_s,
    )
    for count, linger_ms, rounds, about_s in LOADS
]
