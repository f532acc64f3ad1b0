"""The same load over 1, 100 and 1,000 partitions, spread by keys."""

from minibroker.bench.case import Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB, KILOBYTE, produce_into
from minibroker.bench.peers.peer import Peer

RECORDS = 150_000
KEYS = 10_000
"""Enough for every partition to get its share."""
BUFFER_BYTES = 256 << 20
"""The same on both sides: a batch of 128 KiB for each of 1,000 partitions, and as much again."""


class KeyedProduce:
    """Keyed records over so many partitions. The topic is made once: a thousand partitions take seconds to make."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        key = f"keyed-{self.partitions}"
        if key not in round.kept:
            topic = f"{key}-{round.label}"  # a first attempt may have failed half-way
            await peer.make_topic(topic, self.partitions)
            round.kept[key] = topic
        records = round.volume_of(RECORDS, 1_000)
        return await produce_into(
            peer, round.kept[key], records, KILOBYTE, 128 * KIB, keys=KEYS, buffer_bytes=BUFFER_BYTES, warm_records=KEYS
        )


CASES = [
    Case(
        name=f"partitions-{count}",
        title=f"produce 1 KB keyed, {count:,} partition{'s' * (count > 1)}",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        run=KeyedProduce(count),
    )
    for count in (1, 100, 1_000)
]
