"""The same load over 1, 100 and 1,000 partitions, spread by keys."""

from minibroker.bench.case import Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB, KILOBYTE, produce_into
from minibroker.bench.peers.peer import Peer

RECORDS = 150_000
KEYS = 10_000
"""Enough for every partition to get its share."""
LOADS = ((1, 5, None, 8), (100, 50, 5, 15), (1_000, 1_000, 3, 60))
"""Partitions, linger in ms, rounds, about_s. The same load over more partitions fills each batch more slowly: in 5 ms
a thousandth of the load would be a record or two, and both sides would measure requests; Kafka most of all.
Fewer rounds where Kafka needs half a minute for a round or a topic."""
BUFFER_BYTES = 256 << 20
"""The same on both sides: a batch of 128 KiB for each of 1,000 partitions, and as much again."""


class KeyedProduce:
    """Keyed records over so many partitions. The topic is made once: a thousand partitions take seconds to make."""

    def __init__(self, partitions: int, linger_ms: float) -> None:
        self.partitions = partitions
        self.linger_ms = linger_ms

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        key = f"keyed-{self.partitions}"
        if key not in round.kept:
            topic = f"{key}-{round.label}"  # a first attempt may have failed half-way
            await peer.make_topic(topic, self.partitions)
            round.kept[key] = topic
        records = round.volume_of(RECORDS, 1_000)
        more = {"keys": KEYS, "buffer_bytes": BUFFER_BYTES, "warm_records": KEYS, "linger_ms": self.linger_ms}
        return await produce_into(peer, round.kept[key], records, KILOBYTE, 128 * KIB, **more)


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
