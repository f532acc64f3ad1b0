"""The report on a terminal: verdict, a table of partitions, the findings. rich is imported only here."""

import sys
from typing import TYPE_CHECKING

from minibroker.audit.checks.findings import PartitionResult, PartitionVerdict, ReplicaSummary, Severity
from minibroker.audit.reports.report import AuditOutcome, AuditReport, describe
from minibroker.protocol.counted import counted
from minibroker.protocol.printable_text import printable

if TYPE_CHECKING:
    from rich.console import Console

PARTITIONS_SHOWN = 40
PIPED_WIDTH = 200
"""A file or a pipe has no width; rich would fold cells at 80 columns."""
FINDINGS_SHOWN = 40
OUTCOME_STYLE = {
    AuditOutcome.CONSISTENT: "bold green",
    AuditOutcome.INCONSISTENT: "bold red",
    AuditOutcome.UNPROVEN: "bold yellow",
    AuditOutcome.UNDECODABLE: "bold yellow",
}
VERDICT_STYLE = {
    PartitionVerdict.INCONSISTENT: "red",
    PartitionVerdict.UNPROVEN: "yellow",
    PartitionVerdict.UNDECODABLE: "yellow",
    PartitionVerdict.IDENTICAL: "green",
}
WORST_FIRST = list(PartitionVerdict)


def print_report(report: AuditReport, console: "Console | None" = None) -> None:
    """Print what a reader wants to know first."""
    from rich.console import Console
    from rich.table import Table

    console = console or Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("PARTITION", "left"), ("VERDICT", "left"), ("JUDGED", "right"), ("ACKED", "right")):
        table.add_column(heading, justify="right" if justify == "right" else "left", overflow="fold")
    table.add_column("REPLICAS", overflow="fold")
    shown = sorted(report.partitions, key=lambda each: (WORST_FIRST.index(each.verdict), each.topic, each.partition))
    for result in shown[:PARTITIONS_SHOWN]:
        table.add_row(
            f"{result.topic}-{result.partition}",
            result.verdict,
            f"{result.compared_offsets}/{result.total_offsets}",
            _acked(result),
            "\n".join(_replicas(result)),
            style=VERDICT_STYLE.get(result.verdict, ""),
        )
    console.print(table)
    if len(shown) > PARTITIONS_SHOWN:
        console.print(f"and {counted(len(shown) - PARTITIONS_SHOWN, 'more partition')}, none worse than these")
    for item in report.findings[:FINDINGS_SHOWN]:
        style = "red" if item.severity is Severity.ERROR else "dim"
        console.print(
            printable(f"{item.severity}: {describe(item)}"), style=style, markup=False, highlight=False, soft_wrap=True
        )
    if len(report.findings) > FINDINGS_SHOWN:
        console.print(
            f"and {counted(len(report.findings) - FINDINGS_SHOWN, 'more finding')}: see the report files (--output)"
        )
    statistics = report.statistics
    console.print(
        f"{counted(statistics.replicas, 'replica')} on {counted(statistics.brokers, 'broker')},"
        f" {counted(statistics.batches, 'batch')},"
        f" {statistics.bytes / 1e6:.1f} MB, engine {report.meta.engine}, {statistics.seconds:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    style = OUTCOME_STYLE[report.outcome]
    console.print(printable(report.summary), style=style, markup=False, highlight=False, soft_wrap=True)


def _acked(result: PartitionResult) -> str:
    return f"{result.acked_in_place}/{result.acked_records}" if result.acked_records else "-"


def _replicas(result: PartitionResult) -> list[str]:
    """A line for each, in the order of brokers, also for one that should be there."""
    lines = {replica.broker: _replica(replica) for replica in result.replicas}
    lines |= {broker: f"broker {broker}: missing" for broker in result.absent_replicas}
    return [lines[broker] for broker in sorted(lines)]


def _replica(replica: ReplicaSummary) -> str:
    high_watermark = "?" if replica.high_watermark is None else str(replica.high_watermark)
    epoch = "-" if replica.last_epoch is None else str(replica.last_epoch)
    offsets = f"offsets {replica.log_start_offset} to {replica.log_end_offset}"
    return f"broker {replica.broker}: {offsets}, high watermark {high_watermark}, epoch {epoch}"
