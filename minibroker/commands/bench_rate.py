"""`minibroker bench --rate`: writes to a running cluster at a constant rate, for those who break it meanwhile.

Owns: the options that go with --rate, and what is printed. Leaves to others: writing (`bench/steady_writing`).
"""

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_COULD_NOT,
    EXIT_FINE,
    EXIT_INTERRUPTED,
    CommandFailed,
    ProgressLine,
    print_json,
    run_async,
)
from minibroker.protocol.counted import counted

if TYPE_CHECKING:
    from minibroker.bench.steady_writing import SteadyReport, SteadyWriter

RATE_MAX = 20_000
"""One process sends about so many single records per second without falling behind."""
SECONDS = 60.0
RECORD_BYTES_MAX = 1_000_000
DELIVERY_TIMEOUT_MS = 60_000
"""An outage is longer than any failover by then."""
AFTER_INTERRUPT_MS = 1_000


def write_steadily(
    servers: str, topic: str, per_second: int, seconds: float, record_bytes: int, *, as_json: bool
) -> int:
    """Returns the exit code: 1 unless all was acknowledged."""
    began = time.time()
    run = _Run(servers, topic, per_second, seconds, record_bytes)
    interrupted = False
    try:
        run_async(run.whole(), fast_loop=True)
    except KeyboardInterrupt:
        interrupted = True
        ProgressLine.erase()
    report = run.report
    if report is None:
        return EXIT_INTERRUPTED
    if as_json:
        print_json(_as_json(report, topic, run.partitions, per_second, began))
    else:
        _print(report, topic, run.partitions, per_second, began)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FINE if report.acknowledged == report.sent else EXIT_COULD_NOT


class _Run:
    def __init__(self, servers: str, topic: str, per_second: int, seconds: float, record_bytes: int) -> None:
        self._servers, self._topic, self._per_second = servers, topic, per_second
        self._seconds, self._record_bytes = seconds, record_bytes
        self._progress = ProgressLine()
        self.partitions = 0
        self.report: SteadyReport | None = None

    async def whole(self) -> None:
        from minibroker.bench.steady_writing import SteadyWriter
        from minibroker.client.errors import MinibrokerError
        from minibroker.client.producer.producer import Producer
        from minibroker.opened_client import FIRST_ANSWER_MS, opened, require_topics_that_stay

        producer = Producer(
            bootstrap_servers=self._servers,
            client_id="minibroker-bench-rate",
            linger_ms=0,
            delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            max_block_ms=DELIVERY_TIMEOUT_MS,
            bootstrap_timeout_ms=FIRST_ANSWER_MS,
        )
        try:
            async with opened(producer, self._servers):
                await require_topics_that_stay(producer._cluster, [self._topic], DELIVERY_TIMEOUT_MS)
                self.partitions = len(producer._cluster.metadata.topics[self._topic].partitions)
                writer = SteadyWriter(producer, self._topic, self.partitions, self._per_second, self._record_bytes)
                await self._write(writer)
        except MinibrokerError as error:
            raise CommandFailed(str(error)) from None

    async def _write(self, writer: "SteadyWriter") -> None:
        import asyncio

        timeout_ms: float | None = None
        try:
            await writer.write(self._seconds, self._show)
        except asyncio.CancelledError:
            timeout_ms = AFTER_INTERRUPT_MS
            raise
        finally:
            self.report = await writer.settle(timeout_ms)
            self._progress.clear()

    def _show(self, report: "SteadyReport") -> None:
        if self._progress.due():
            done = f"{report.seconds:.0f} s: {report.acknowledged} of {report.sent} records acknowledged"
            self._progress.show(f"{done}, longest gap {report.gap_s:.3f} s")


def _print(report: "SteadyReport", topic: str, partitions: int, per_second: int, began: float) -> None:
    parts = "1 partition" if partitions == 1 else f"{partitions} partitions in turn"
    click.echo(
        f"{report.acknowledged} of {report.sent} records acknowledged in {report.seconds:.1f} s"
        f" ({per_second}/s were due, to {parts} of {topic})"
    )
    if report.p50_ms is not None:
        click.echo(f"latency: p50 {report.p50_ms:g} ms, p99 {report.p99_ms:g} ms, longest {report.longest_ms:g} ms")
    moment = datetime.fromtimestamp(began + report.gap_began_s)
    due_ms = 1000 * partitions / per_second
    click.echo(
        f"longest gap between acknowledgements: {report.gap_s:.3f} s, of {topic}-{report.gap_partition}, from"
        f" {moment:%H:%M:%S}.{moment.microsecond // 1000:03d} (each partition got a record every {due_ms:g} ms)"
    )
    if report.first_error is not None:
        which = f"{counted(report.failed, 'record')} {'was' if report.failed == 1 else 'were'}"
        click.echo(f"error: {which} not acknowledged; the first: {report.first_error}", err=True)


def _as_json(report: "SteadyReport", topic: str, partitions: int, per_second: int, began: float) -> dict[str, object]:
    import msgspec

    facts = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in msgspec.to_builtins(report).items()
    }
    moment = datetime.fromtimestamp(began + report.gap_began_s).astimezone()
    return {
        "topic": topic,
        "partitions": partitions,
        "per_second": per_second,
        **facts,
        "gap_began": moment.isoformat(timespec="milliseconds"),
    }
