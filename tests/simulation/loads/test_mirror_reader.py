"""A copy that a reader keeps shows each truncation of which it was not told."""

from collections import Counter
from typing import Literal

from minibroker.client.consumer.records import Record
from minibroker.client.errors import LogTruncated, Where
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.mirror_reader import READER_ACTS, MirrorReader

PARTITION = TopicPartition("a", 0)


class Played:
    """A mirror whose consumer is played by the test."""

    def __init__(self, on_truncation: Literal["raise", "reset"]) -> None:
        self.history, self.seen, self.sought = History(), Counter[str](), list[int]()
        self.mirror = MirrorReader(SimulatedCluster(0), self.history, [PARTITION], on_truncation, self.seen)
        self.mirror._consumer = self  # type: ignore[assignment]
        self.found: dict[TopicPartition, list[Record]] = {}

    async def getmany(self, *partitions: TopicPartition, timeout_ms: float) -> dict[TopicPartition, list[Record]]:
        return self.found

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append(offset)

    def take(self, *records: tuple[int, bytes]) -> None:
        self.mirror._take({PARTITION: [Record("a", 0, offset, 0, 0, None, value) for offset, value in records]})

    async def tell(self, divergent_offset: int | None) -> None:
        await self.mirror._told(LogTruncated(Where(topic_partition=PARTITION), 2, divergent_offset))

    @property
    def findings(self) -> list[str]:
        return [each.text for each in self.history.findings]


async def test_a_reader_that_heeds_what_it_is_told_holds_the_log() -> None:
    played = Played("raise")
    played.take((0, b"a"), (1, b"lost"))
    await played.tell(1)
    played.take((1, b"b"))
    played.mirror.compare(PARTITION, {0: b"a", 1: b"b"})
    assert played.findings == []
    assert played.sought == [1]
    assert played.seen == {READER_ACTS[0]: 1}


async def test_a_reader_may_be_set_back_only_if_it_wants_that() -> None:
    for on_truncation, count in (("reset", 0), ("raise", 1)):
        played = Played(on_truncation)  # type: ignore[arg-type]
        played.take((0, b"a"), (1, b"lost"), (1, b"b"))
        played.mirror.compare(PARTITION, {0: b"a", 1: b"b"})
        assert len(played.findings) == count, on_truncation


async def test_a_truncation_that_was_not_told_is_found() -> None:
    played = Played("raise")
    played.take((0, b"a"), (1, b"lost"))
    played.mirror.compare(PARTITION, {0: b"a", 1: b"b"})
    assert "never told that offset 1 is another" in played.findings[0]


async def test_gaps_wrong_offsets_and_records_before_the_seek_are_found() -> None:
    played = Played("raise")
    played.take((0, b"a"), (2, b"c"))
    await played.tell(9)
    played.found = {PARTITION: [Record("a", 0, 3, 0, 0, None, b"d")]}
    await played.tell(1)
    for text, found in zip(("1 was next", "9 is not below", "before it sought"), played.findings, strict=True):
        assert text in found
