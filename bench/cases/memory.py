"""Memory and CPU of processes under a continuous load: resident memory each second, CPU seconds a GB by role.

Owns: the load (a topic is filled at full speed, deleted, and the next one begun, so that the disk stays small), the
samples, and whether memory is flat. Ten minutes; one in a quick run.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from statistics import median
from typing import Any

from minibroker.bench.case import KAFKA, Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB
from minibroker.bench.load_process import run_load
from minibroker.bench.peers.kafka_peer import KafkaPeer
from minibroker.bench.peers.peer import Peer
from minibroker.bench.process_cost import use_of

SECONDS = 600
SECONDS_MIN = 60
RECORDS = 300_000
"""Of one topic: 0.3 GB per replica."""
RECORD_BYTES = 1_000
BATCH_BYTES = 128 * KIB
SAMPLE_S = 1.0
SETTLED_FROM = 0.2
"""The first fifth fills caches and allocators, and does not have to be flat."""
SMALL_HEAP = "256m"


class Samples:
    """Resident memory of every process of a cluster, sampled while a load runs."""

    def __init__(self) -> None:
        self.rss_mb: dict[str, list[float]] = {}

    @asynccontextmanager
    async def taken(self, peer: Peer) -> AsyncIterator[None]:
        task = asyncio.create_task(self._sample(peer))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sample(self, peer: Peer) -> None:
        while True:
            for role, pid in peer.pids().items():
                use = use_of(pid)
                if use is not None:
                    self.rss_mb.setdefault(role, []).append(use.rss_mb)
            await asyncio.sleep(SAMPLE_S)


async def run(peer: Peer, round: Round) -> Measurement:
    await peer.start()
    samples, spent = Samples(), Spending()
    seconds = round.volume_of(SECONDS, SECONDS_MIN)
    deadline = time.monotonic() + seconds
    number = 0
    async with samples.taken(peer):
        while time.monotonic() < deadline:
            round.progress(f"{max(0.0, deadline - time.monotonic()):.0f} s left, {spent.gb:.1f} GB written")
            await fill_topic(peer, f"memory-{number}", spent)
            number += 1
    return Measurement(figures(samples.rss_mb) | spent.figures())


async def fill_topic(peer: Peer, topic: str, spent: "Spending") -> None:
    await peer.make_topic(topic)
    leader = await peer.leader_of(topic)
    before = {role: use_of(pid) for role, pid in peer.pids().items()}
    report = await run_load(
        peer, "produce", topic=topic, records=RECORDS, record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES
    )
    for role, pid in peer.pids().items():
        use, earlier = use_of(pid), before.get(role)
        if use is not None and earlier is not None:
            spent.add(role, leader, use.cpu_s - earlier.cpu_s)
    spent.add_load(report)
    await peer.delete_topic(topic)


class Spending:
    """CPU seconds by the role of a process for the written topic."""

    def __init__(self) -> None:
        self.gb = 0.0
        self.cpu_s: dict[str, float] = {}

    def add(self, role: str, leader: int, cpu_s: float) -> None:
        if role.startswith("broker-"):
            role = "leader" if role == f"broker-{leader}" else "followers"
        self.cpu_s[role] = self.cpu_s.get(role, 0.0) + cpu_s

    def add_load(self, report: dict[str, Any]) -> None:
        self.add("client", 0, float(report["cpu_s"]))
        self.gb += report["bytes"] / 1e9

    def figures(self) -> dict[str, float]:
        cluster = sum(cpu_s for role, cpu_s in self.cpu_s.items() if role != "client")
        spent = [*sorted(self.cpu_s.items()), ("cluster", cluster)]
        return {f"{role}_cpu_s_per_gb": round(cpu_s / self.gb, 3) for role, cpu_s in spent} | {"gb": round(self.gb, 2)}


def figures(rss_mb: dict[str, list[float]]) -> dict[str, float]:
    """Of the largest broker: its median and maximum, and how much it grew."""
    brokers = [values for role, values in sorted(rss_mb.items()) if role.startswith("broker-") and values]
    zookeeper = rss_mb.get("zookeeper", [])
    return {
        "broker_rss_mb": round(max(median(settled(values)) for values in brokers), 1),
        "broker_peak_rss_mb": round(max(max(values) for values in brokers), 1),
        "broker_growth_mb": round(max(growth(settled(values)) for values in brokers), 1),
        "zookeeper_rss_mb": round(median(zookeeper), 1) if zookeeper else 0.0,
        "samples": float(max(len(values) for values in brokers)),
    }


def settled(values: Sequence[float]) -> Sequence[float]:
    return values[int(len(values) * SETTLED_FROM) :]


def growth(values: Sequence[float]) -> float:
    """The median of the last third minus that of the first: the gain of memory that is not flat."""
    third = max(1, len(values) // 3)
    return median(values[-third:]) - median(values[:third])


async def run_small_heap(peer: Peer, round: Round) -> Measurement:
    """Kafka with a heap as small as minibroker's brokers."""
    small = KafkaPeer(round.directory / "small-heap", heap=SMALL_HEAP)
    try:
        return await run(small, round)
    finally:
        await small.stop()


CASES = (
    Case(
        name="memory",
        title="memory of the largest broker under load",
        figure="broker_rss_mb",
        unit="MB",
        higher_is_better=False,
        about_s=620,
        run=run,
        own_cluster=True,
        rounds=1,
    ),
    Case(
        name="memory-kafka-256m",
        title=f"the same with -Xmx{SMALL_HEAP}",
        figure="broker_rss_mb",
        unit="MB",
        higher_is_better=False,
        about_s=640,
        run=run_small_heap,
        peers=(KAFKA,),
        own_cluster=True,
        rounds=1,
    ),
)
