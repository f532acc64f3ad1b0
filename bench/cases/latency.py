"""Latency at a fixed rate, from the time each record was due: until its acknowledgement, and until a consumer has it.

The schedule does not wait for the cluster (open loop), so a stall counts for every record that was due in it.
"""

from minibroker.bench.case import Case, CaseFailed, Measurement, Round
from minibroker.bench.cases.loaded import KILOBYTE, figures_of, metered, topic_for
from minibroker.bench.load_process import cost_of, running_load
from minibroker.bench.peers.peer import Peer

SECONDS = 6.0
SLOW_PER_S = 1_000
FAST_PER_S = 15_000
"""About half of what the slower peer takes in batches of 128 KiB on two cores of a small machine."""
LINGER_MS = 5
"""The default of both clients; at 1,000 per second both are set to 0."""
FIGURES = ("p50_ms", "p99_ms", "p999_ms", "max_ms", "samples")


class AckLatency:
    """From due to acknowledged."""

    def __init__(self, per_second: int, linger_ms: float) -> None:
        self.per_second = per_second
        self.linger_ms = linger_ms

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        async with topic_for(peer, "latency", round) as topic:
            report, costs = await metered(
                peer,
                "latency",
                "producer",
                topic=topic,
                per_second=self.per_second,
                seconds=max(1.0, SECONDS * round.volume),
                record_bytes=KILOBYTE,
                linger_ms=self.linger_ms,
            )
        return Measurement(figures_of(report, *FIGURES), costs)


class EndToEnd:
    """From due until a waiting consumer in another process has read the record."""

    async def __call__(self, peer: Peer, round: Round) -> Measurement:
        seconds = max(1.0, SECONDS * round.volume)
        async with topic_for(peer, "end-to-end", round) as topic:
            records = round_trip_records(seconds)
            async with running_load(peer, "consume", topic=topic, records=records, stamped=True) as reader:
                await reader.wait_for("ready")
                written, costs = await metered(
                    peer,
                    "latency",
                    "producer",
                    topic=topic,
                    per_second=SLOW_PER_S,
                    seconds=seconds,
                    record_bytes=KILOBYTE,
                    linger_ms=0,
                )
                read = await reader.report()
        if read["records"] < written["acknowledged"]:
            raise CaseFailed(f"{read['records']} of {written['acknowledged']} acknowledged records were read")
        return Measurement(figures_of(read, *FIGURES), [*costs, cost_of("consumer", read)])


WARM_RECORDS = 200
"""Records that a latency generator sends before the schedule starts."""


def round_trip_records(seconds: float) -> int:
    return round(SLOW_PER_S * seconds) + WARM_RECORDS


CASES = [
    Case(
        name="latency-1000",
        title="latency of 1 KB at 1,000/s, p99",
        figure="p99_ms",
        unit="ms",
        higher_is_better=False,
        about_s=9,
        run=AckLatency(SLOW_PER_S, 0),
    ),
    Case(
        name="latency-15000",
        title="latency of 1 KB at 15,000/s, p99",
        figure="p99_ms",
        unit="ms",
        higher_is_better=False,
        about_s=9,
        run=AckLatency(FAST_PER_S, LINGER_MS),
    ),
    Case(
        name="end-to-end",
        title="from due to a consumer, 1 KB at 1,000/s, p99",
        figure="p99_ms",
        unit="ms",
        higher_is_better=False,
        about_s=9,
        run=EndToEnd(),
    ),
]
