"""The report of one audit as data, and as JSON and Parquet. html_page.py makes the page, terminal.py the text output.

Owns: the overall verdict, the checks with their counts, the statistics. Pure except for `write_report`.
"""

import os
from collections.abc import Callable, Iterable
from enum import StrEnum

import msgspec

from minibroker.audit.checks.findings import (
    CHECKS,
    Finding,
    Kind,
    PartitionResult,
    PartitionVerdict,
    Severity,
    cause_key,
)
from minibroker.audit.errors import AuditError
from minibroker.audit.reports.timings import Timings
from minibroker.protocol.counted import counted

CONSISTENT_EXIT, FINDINGS_EXIT = 0, 10
SAMPLE_MAX = 20
JSON_FILE, PARQUET_FILE, HTML_FILE = "report.json", "findings.parquet", "report.html"


class AuditOutcome(StrEnum):
    """The verdict on everything that was audited."""

    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"
    UNPROVEN = "unproven"
    UNDECODABLE = "undecodable"
    """The replicas agree, but hold records whose producer packed them so that they cannot be decoded."""


class Statistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the audit covered."""

    brokers: int
    partitions: int
    replicas: int
    batches: int
    bytes: int
    compared_offsets: int
    total_offsets: int
    acked_records: int
    acked_in_place: int
    errors: int
    notes: int
    seconds: float


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check over all partitions."""

    check: str
    success: bool
    unexpected_count: int
    notes: int
    sample: tuple[str, ...]


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """How the audit was run."""

    run_id: str
    started: str
    engine: str
    directories: tuple[str, ...]
    acked: str | None
    allow_unproven: bool = False
    versions: dict[str, str]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result of one audit; this is the JSON."""

    success: bool
    outcome: AuditOutcome
    summary: str
    statistics: Statistics
    timings: Timings
    results: tuple[CheckResult, ...]
    partitions: tuple[PartitionResult, ...]
    findings: tuple[Finding, ...]
    """All of them, those of the partitions included: errors first, causes before consequences."""
    meta: Meta

    @property
    def exit_code(self) -> int:
        """0 consistent (or unproven, where allowed), 10 findings or unproven; 1 is AuditError's."""
        allowed = self.outcome is AuditOutcome.UNPROVEN and self.meta.allow_unproven
        allowed = allowed and not _undecodable_batches(self.findings)
        return CONSISTENT_EXIT if self.success or allowed else FINDINGS_EXIT


def make_report(
    results: Iterable[PartitionResult],
    directory_findings: Iterable[Finding],
    brokers: int,
    seconds: float,
    timings: Timings,
    meta: Meta,
) -> AuditReport:
    """Add up the partitions' results and the findings outside of partitions."""
    partitions = tuple(results)
    all_findings = [*directory_findings, *(item for result in partitions for item in result.findings)]
    findings = tuple(sorted(all_findings, key=cause_key))
    outcome = _outcome(findings)
    statistics = _statistics(partitions, findings, brokers, seconds)
    return AuditReport(
        success=outcome is AuditOutcome.CONSISTENT,
        outcome=outcome,
        summary=_summary(outcome, partitions, statistics, findings),
        statistics=statistics,
        timings=timings,
        results=tuple(_check(check, kinds, findings) for check, kinds in CHECKS.items()),
        partitions=partitions,
        findings=findings,
        meta=meta,
    )


def _outcome(findings: Iterable[Finding]) -> AuditOutcome:
    errors = {item.kind for item in findings if item.severity is Severity.ERROR}
    if errors - {Kind.UNPROVEN, Kind.UNDECODABLE_RECORDS}:
        return AuditOutcome.INCONSISTENT
    if Kind.UNPROVEN in errors:
        return AuditOutcome.UNPROVEN
    return AuditOutcome.UNDECODABLE if errors else AuditOutcome.CONSISTENT


def _undecodable_batches(findings: Iterable[Finding]) -> int:
    return sum(1 for item in findings if item.kind is Kind.UNDECODABLE_RECORDS)


def _statistics(
    partitions: tuple[PartitionResult, ...], findings: tuple[Finding, ...], brokers: int, seconds: float
) -> Statistics:
    replicas = [replica for result in partitions for replica in result.replicas]
    errors = sum(1 for item in findings if item.severity is Severity.ERROR)
    return Statistics(
        brokers=brokers,
        partitions=len(partitions),
        replicas=len(replicas),
        batches=sum(replica.batches for replica in replicas),
        bytes=sum(replica.bytes for replica in replicas),
        compared_offsets=sum(result.compared_offsets for result in partitions),
        total_offsets=sum(result.total_offsets for result in partitions),
        acked_records=sum(result.acked_records for result in partitions),
        acked_in_place=sum(result.acked_in_place for result in partitions),
        errors=errors,
        notes=len(findings) - errors,
        seconds=round(seconds, 3),
    )


def _summary(
    outcome: AuditOutcome,
    partitions: tuple[PartitionResult, ...],
    statistics: Statistics,
    findings: tuple[Finding, ...],
) -> str:
    compared = _compared(partitions, statistics, agree=outcome is AuditOutcome.CONSISTENT)
    acked = ""
    if statistics.acked_records:
        acked = f"; {statistics.acked_in_place} of {statistics.acked_records} acknowledged records are in place"
    batches = _undecodable_batches(findings)
    number = f"{'is' if batches == 1 else 'are'} {counted(batches, 'batch')}"
    undecodable = f"{number} with records that cannot be decoded" if batches else ""
    if outcome is AuditOutcome.INCONSISTENT:
        return f"inconsistent: {counted(statistics.errors, 'finding')}, first {findings[0].kind}; {compared}{acked}"
    if outcome is AuditOutcome.UNPROVEN:
        count = sum(1 for result in partitions if result.verdict is PartitionVerdict.UNPROVEN)
        why = (
            f"{counted(count, 'partition')} could not be compared"
            if count
            else "no source shows that everything is present"
        )
        if undecodable:
            why += f", and there {undecodable}"
        return f"unproven: nothing contradicts, but {why}; {compared}{acked}"
    if outcome is AuditOutcome.UNDECODABLE:
        return f"consistent, but there {undecodable}; {compared}{acked}"
    if not any(len(result.replicas) > 1 for result in partitions):
        return f"consistent, but no partition has two replicas here: nothing was compared{acked}"
    return f"consistent: {compared}{acked}"


def _compared(partitions: tuple[PartitionResult, ...], statistics: Statistics, *, agree: bool) -> str:
    """How much was compared, and what was not."""
    compared = sum(len(result.compared_replicas) for result in partitions)
    partition_count = sum(1 for result in partitions if result.compared_replicas)
    text = (
        f"{counted(compared, 'replica')} of {counted(partition_count, 'partition')} were compared below their"
        f" committed offsets ({statistics.compared_offsets} of {statistics.total_offsets} offsets)"
        f"{', all agree' if agree else ''}"
    )
    witnessed = sum(1 for result in partitions if result.witnessed_replicas)
    if witnessed:
        hold = "holds" if witnessed == 1 else "hold"
        text += f"; {witnessed} of {counted(len(partitions), 'partition')} {hold} what the witness noted"
    empty = sum(1 for result in partitions for each in result.replicas if each.batches == 0)
    left = max(0, statistics.replicas - compared - empty)
    text += f"; {counted(empty, 'replica')} {'is' if empty == 1 else 'are'} empty" if empty else ""
    were = "was" if left == 1 else "were"
    return f"{text}; {counted(left, 'replica')} {were} compared with no other" if left else text


def _check(check: str, kinds: tuple[Kind, ...], findings: tuple[Finding, ...]) -> CheckResult:
    own = [item for item in findings if item.kind in kinds]
    errors = [item for item in own if item.severity is Severity.ERROR]
    return CheckResult(
        check=check,
        success=not errors,
        unexpected_count=len(errors),
        notes=len(own) - len(errors),
        sample=tuple(describe(item) for item in errors[:SAMPLE_MAX]),
    )


def describe(item: Finding) -> str:
    """One line with all fields."""
    where = [f"{item.topic}-{item.partition}"] if item.topic is not None else []
    if item.broker is not None:
        where.append(f"broker {item.broker}")
    if item.offset is not None:
        where.append(f"offset {item.offset}")
    if item.file is not None:
        where.append(item.file if item.position is None else f"{item.file} at {item.position}")
    place = f" [{', '.join(where)}]" if where else ""
    return f"{item.kind}{place}: {item.message}"


def forget_report(directory: str) -> None:
    """Remove the files of an earlier report: if this audit cannot run, they would be taken for its result. Raises
    AuditError."""
    for name in (JSON_FILE, PARQUET_FILE, HTML_FILE):
        try:
            os.unlink(os.path.join(directory, name))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise AuditError(f"{error.filename}, of an earlier audit, cannot be removed: {error.strerror}") from None


def write_report(report: AuditReport, directory: str, html: Callable[[AuditReport], str]) -> list[str]:
    """Write JSON, page and Parquet; returns one sentence for each file that could not be written."""
    os.makedirs(directory, exist_ok=True)
    content = msgspec.json.format(msgspec.json.encode(report), indent=2)
    with open(os.path.join(directory, JSON_FILE), "wb") as file:
        file.write(content + b"\n")
    with open(os.path.join(directory, HTML_FILE), "w", encoding="utf-8") as page:
        page.write(html(report))
    try:
        write_parquet(report, os.path.join(directory, PARQUET_FILE))
    except ImportError:
        return [f"{PARQUET_FILE} was not written: pyarrow is missing (pip install 'minibroker[spark]')"]
    return []


def write_parquet(report: AuditReport, path: str) -> None:
    """One row per finding."""
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        [
            ("kind", pa.string()),
            ("severity", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("broker", pa.int32()),
            ("others", pa.list_(pa.int32())),
            ("offset", pa.int64()),
            ("end_offset", pa.int64()),
            ("file", pa.string()),
            ("position", pa.int64()),
            ("message", pa.string()),
        ]
    )
    rows = [{name: getattr(item, name) for name in schema.names} for item in report.findings]
    plain = [{**row, "kind": str(row["kind"]), "severity": str(row["severity"])} for row in rows]
    parquet.write_table(pa.Table.from_pylist(plain, schema=schema), path)
