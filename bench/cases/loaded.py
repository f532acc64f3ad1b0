"""Helpers of the cases on a warm cluster: a topic for a round, a load on it, and the cost of that load.

Owns: that figures of both peers are measured in the same way. Leaves to others: the single cases.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from minibroker.bench.case import CaseFailed, Measurement, ProcessCost, Round
from minibroker.bench.load_process import cost_of, run_load, running_load
from minibroker.bench.peers.peer import BROKERS, Peer
from minibroker.bench.process_cost import Meter

KIB, MIB = 1024, 1_000_000
KILOBYTE, SMALL = 1_000, 100
"""Sizes of records."""
FILL_BATCH_BYTES = 128 * KIB
FILES_GONE_S, FILES_GONE_POLL_S = 30.0, 0.05


@asynccontextmanager
async def topic_for(peer: Peer, name: str, round: Round, partitions: int = 1) -> AsyncIterator[str]:
    """A topic for this round. It is deleted afterwards with all files, before most of it was written to the disk."""
    topic = f"{name}-{round.label}"
    await peer.make_topic(topic, partitions)
    try:
        yield topic
    finally:
        await peer.delete_topic(topic)
        await _files_gone(peer, topic)


async def _files_gone(peer: Peer, topic: str) -> None:
    """Both kinds of brokers rename a deleted partition's folder and remove it later: wait, so that this is not
    measured."""
    deadline = time.monotonic() + FILES_GONE_S
    while any(any(peer.log_directory(number).glob(f"{topic}-*")) for number in range(1, BROKERS + 1)):
        if time.monotonic() > deadline:
            raise CaseFailed(f"files of {topic} are still there {FILES_GONE_S:g} s after it was deleted")
        await asyncio.sleep(FILES_GONE_POLL_S)


async def metered(peer: Peer, load: str, role: str, **arguments: Any) -> tuple[dict[str, Any], list[ProcessCost]]:
    """Run a generator; its report, and the cost of it and of every process of the cluster from its 'started' on."""
    async with running_load(peer, load, **arguments) as running:
        await running.wait_for("first" if load == "consume" else "started")
        meter = Meter(peer.pids())
        report = await running.report()
        return report, [*meter.read(), cost_of(role, report)]


def per_gigabyte(costs: list[ProcessCost], bytes_: int) -> dict[str, float]:
    """CPU seconds a GB of payload: of all processes of the cluster together, and of the generators."""
    cluster = sum(cost.cpu_s for cost in costs if is_of_cluster(cost.role))
    clients = sum(cost.cpu_s for cost in costs if not is_of_cluster(cost.role))
    brokers = [cost.peak_rss_mb for cost in costs if cost.role.startswith("broker")]
    return {
        "cluster_cpu_s_per_gb": cluster / bytes_ * 1e9,
        "client_cpu_s_per_gb": clients / bytes_ * 1e9,
        "broker_peak_rss_mb": max(brokers, default=0.0),
    }


def is_of_cluster(role: str) -> bool:
    return role.startswith("broker") or role == "zookeeper"


def figures_of(report: dict[str, Any], *names: str) -> dict[str, float]:
    return {name: round(float(report[name]), 3) for name in names if name in report}


async def produce_into(
    peer: Peer, topic: str, records: int, record_bytes: int, batch_bytes: int, **more: Any
) -> Measurement:
    """At full speed. Raises CaseFailed if the replicas do not hold what was acknowledged."""
    arguments = {"topic": topic, "records": records, "record_bytes": record_bytes, "batch_bytes": batch_bytes}
    report, costs = await metered(peer, "produce", "producer", **arguments, **more)
    if report["acknowledged"] != records:
        raise CaseFailed(f"{report['acknowledged']} of {records} records were acknowledged")
    _check_replicas(peer, topic, records * record_bytes)
    figures = figures_of(report, "mb_s", "records_s", "seconds")
    return Measurement(figures | per_gigabyte(costs, report["bytes"]), costs)


def _check_replicas(peer: Peer, topic: str, payload_bytes: int) -> None:
    """Nothing is compressed, so each replica's files are at least as long as what was written."""
    for broker_id in range(1, BROKERS + 1):
        found = sum(path.stat().st_size for path in peer.log_directory(broker_id).glob(f"{topic}-*/*.log"))
        if found < payload_bytes:
            raise CaseFailed(f"broker {broker_id} holds {found} bytes of {topic}, {payload_bytes} were acknowledged")


async def filled_topic(
    peer: Peer, round: Round, name: str, records: int, record_bytes: int, partitions: int = 1
) -> str:
    """A topic that is filled in the first round and kept: reading does not change it."""
    topic = round.kept.get(name)
    if topic is None:
        topic = f"filled-{name}-{round.label}"
        round.progress(f"filling {topic}")
        await peer.make_topic(topic, partitions)
        sizes = {"records": records, "record_bytes": record_bytes, "batch_bytes": FILL_BATCH_BYTES}
        await run_load(peer, "produce", topic=topic, **sizes)
        await asyncio.sleep(1.0)  # the last high watermark reaches the followers, and the load's leftovers end
        round.kept[name] = topic
    return topic
