"""The cost of an audit of the files, compared with a plain walk of two processes over the same files.

Owns: the files (three replicas of one topic in small batches, stopped cleanly), the order (walk, local, Spark,
repeatedly) and the ratios. The times that an audit reports of itself (`timings`) are used as they are: Spark's start is
separate.
"""

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

from minibroker.bench.case import MINIBROKER, Case, Measurement, Round
from minibroker.bench.cases.loaded import KIB
from minibroker.bench.child import output_of
from minibroker.bench.load_process import run_load
from minibroker.bench.peers.peer import BROKERS, Peer
from minibroker.bench.walking import segment_files, walk

TOPIC = "audited"
RECORDS = 2_000_000
"""Of 1 KB: 2 GB per replica, 6 GB in all."""
RECORD_BYTES = 1_000
BATCH_BYTES = 16 * KIB
ALTERNATIONS = 3
PROCESSES = 2
AUDIT_TIMEOUT_S = 900.0
WORK = ("discover_ms", "scan_ms", "compare_ms")
"""The phases that depend on the logs' size; start and stop of Spark are separate."""


async def run(peer: Peer, round: Round) -> Measurement:
    records = round.volume_of(RECORDS, at_least=20_000)
    await peer.start()
    await peer.make_topic(TOPIC, 1)
    round.progress(f"writing {records * RECORD_BYTES * BROKERS / 1e9:.1f} GB")
    await run_load(peer, "produce", topic=TOPIC, records=records, record_bytes=RECORD_BYTES, batch_bytes=BATCH_BYTES)
    await peer.stop(wipe=False)
    directories = [peer.log_directory(broker_id) for broker_id in range(1, BROKERS + 1)]
    return await audits(directories, round)


async def audits(directories: list[Path], round: Round) -> Measurement:
    """Run each several times, in turn, and take medians. Raises CaseFailed if an audit finds an error."""
    files = segment_files(directories)
    walks: list[float] = []
    local: list[float] = []
    spark: list[float] = []
    starts: list[float] = []
    for number in range(ALTERNATIONS):
        round.progress(f"walking, {number + 1} of {ALTERNATIONS}")
        walked = await walk(files, PROCESSES)
        walks.append(walked.mb_s)
        for engine, rates in (("local", local), ("spark", spark)):
            round.progress(f"auditing ({engine}), {number + 1} of {ALTERNATIONS}")
            timings = await audit(engine, directories)
            rates.append(walked.bytes / sum(timings[name] for name in WORK) / 1e3)
            if engine == "spark":
                starts.append(timings["start_ms"] / 1e3)
    ratios = {
        f"{engine}_of_plain_walk": median(rate / walked for rate, walked in zip(rates, walks, strict=True))
        for engine, rates in (("local", local), ("spark", spark))
    }
    figures = {
        "spark_mb_s": median(spark),
        "local_mb_s": median(local),
        "walk_mb_s": median(walks),
        "spark_start_s": median(starts),
        "gb": walked.bytes / 1e9,
    }
    return Measurement({name: rounded(value) for name, value in (figures | ratios).items()})


def rounded(value: float) -> float:
    return round(value, 3)


async def audit(engine: str, directories: list[Path]) -> dict[str, Any]:
    """The timings of one audit. Raises CaseFailed unless it proved the replicas equal."""
    command = [sys.executable, "-m", "minibroker", "audit", "--engine", engine, "--json", *map(str, directories)]
    output = await output_of(f"the audit ({engine})", command, AUDIT_TIMEOUT_S)
    timings: dict[str, Any] = json.loads(output)["timings"]
    return timings


CASES = (
    Case(
        name="audit",
        title="audit by Spark, of a plain walk with CRC by two processes",
        figure="spark_of_plain_walk",
        unit="x",
        higher_is_better=True,
        about_s=240,
        run=run,
        peers=(MINIBROKER,),
        own_cluster=True,
        rounds=1,
    ),
)
