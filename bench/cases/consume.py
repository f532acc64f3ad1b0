"""Consume throughput: hot (in the brokers' page cache), cold (from the disk), and concurrently with a producer."""

import asyncio
import os
from pathlib import Path

from minibroker.bench.case import MINIBROKER, Case, CaseFailed, Measurement, ProcessCost, Round
from minibroker.bench.cases.loaded import (
    FILL_BATCH_BYTES,
    KILOBYTE,
    SMALL,
    figures_of,
    filled_topic,
    metered,
    per_gigabyte,
    topic_for,
)
from minibroker.bench.load_process import cost_of, running_load
from minibroker.bench.peers.peer import BROKERS, Peer

HOT_BYTES = 400_000_000
MIXED_RECORDS = 150_000
FIGURES = ("mb_s", "records_s", "seconds")
READ_BYTES = 1 << 20
FROM_DISK_MIN = 0.5
"""A cold round with less than half from the disk was not cold, and gets a note."""
FROM_DISK_MAX = 0.02
"""A hot round with more than this from the disk was not hot."""


class Consume:
    """Read a topic from its start. `ways` are minibroker's: getmany returns objects, getmany_batches columns."""

    def __init__(self, record_bytes: int, *, cold: bool = False) -> None:
        self.record_bytes = record_bytes
        self.cold = cold

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        records = round.volume_of(HOT_BYTES // self.record_bytes, 10_000)
        topic = await filled_topic(peer, round, f"{self.record_bytes}b", records, self.record_bytes)
        figures: dict[str, float] = {}
        costs: list[ProcessCost] = []
        notes: list[str] = []
        ways = ("getmany_batches", "getmany") if peer.name == MINIBROKER else ("consume",)
        for way in ways if round.number % 2 == 0 else reversed(ways):
            if self.cold:
                drop_page_cache(peer, topic)
            else:
                await asyncio.to_thread(fill_page_cache, peer, topic)
            before = _read_from_disk(peer)
            report, costs_now = await metered(peer, "consume", f"consumer {way}", topic=topic, records=records, way=way)
            share = (_read_from_disk(peer) - before) / report["bytes"]
            if report["records"] < records:
                raise CaseFailed(f"only {report['records']} of {records} records were read")
            if self.cold and share < FROM_DISK_MIN:
                notes.append(f"{way}: only {share:.0%} came from the disk: the page cache was not dropped")
            if not self.cold and share > FROM_DISK_MAX:
                notes.append(f"{way}: {share:.0%} came from the disk: the page cache is too small for a hot read")
            found = figures_of(report, *FIGURES) | per_gigabyte(costs_now, report["timed_bytes"])
            prefix = "getmany_" if way == "getmany" else ""
            figures |= {prefix + name: value for name, value in found.items()} | {f"{prefix}from_disk": share}
            costs += costs_now
        return Measurement(figures, costs, notes)


def drop_page_cache(peer: Peer, topic: str) -> None:
    """Write the topic's files to the disk and ask the kernel to drop them from its cache."""
    for broker_id in range(1, BROKERS + 1):
        for path in sorted(peer.log_directory(broker_id).glob(f"{topic}-*/*")):
            _drop(path)


def fill_page_cache(peer: Peer, topic: str) -> None:
    """Read the topic's files: a kernel may have reclaimed pages not read for half a minute (DAMON), and between two
    rounds of one peer there is a round of the other."""
    for broker_id in range(1, BROKERS + 1):
        for path in sorted(peer.log_directory(broker_id).glob(f"{topic}-*/*")):
            with path.open("rb", buffering=0) as file:
                while file.read(READ_BYTES):
                    pass


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _read_from_disk(peer: Peer) -> int:
    """Bytes read from the disk for the brokers so far (proc(5): io)."""
    found = 0
    for role, pid in peer.pids().items():
        if role.startswith("broker"):
            lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            found += next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
    return found


class Mixed:
    """A producer at full speed, and a consumer that follows it from the first record."""

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        records = round.volume_of(MIXED_RECORDS, 1_000)
        async with (
            topic_for(peer, "mixed", round) as topic,
            running_load(peer, "consume", topic=topic, records=records) as reader,
        ):
            await reader.wait_for("ready")
            sizes = {"records": records, "record_bytes": KILOBYTE, "batch_bytes": FILL_BATCH_BYTES}
            written, costs = await metered(peer, "produce", "producer", topic=topic, **sizes)
            read = await reader.report()
        figures = figures_of(read, *FIGURES)
        figures |= {f"produce_{name}": value for name, value in figures_of(written, *FIGURES).items()}
        costs.append(cost_of("consumer", read))
        return Measurement(figures | per_gigabyte(costs, written["bytes"]), costs)


CASES = [
    Case(
        name="consume-1kb",
        title="consume 1 KB, hot",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=5,
        run=Consume(KILOBYTE),
    ),
    Case(
        name="consume-100b",
        title="consume 100 B, hot",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=7,
        run=Consume(SMALL),
    ),
    Case(
        name="consume-1kb-cold",
        title="consume 1 KB, cold",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=8,
        run=Consume(KILOBYTE, cold=True),
    ),
    Case(
        name="mixed",
        title="produce and consume 1 KB at once, read",
        figure="mb_s",
        unit="MB/s",
        higher_is_better=True,
        about_s=8,
        run=Mixed(),
    ),
]
