"""The report as one self-contained HTML page without external scripts, fonts or pictures."""

from collections.abc import Iterable
from html import escape
from itertools import chain, repeat

from minibroker.audit.checks.findings import Finding, PartitionResult, PartitionVerdict, Severity, cause_key
from minibroker.audit.reports.partition_picture import LEGEND, picture
from minibroker.audit.reports.report import AuditReport

ROWS_MAX = 2_000
PICTURES_MAX = 200
_WORST_FIRST = tuple(PartitionVerdict)
_FINE = (PartitionVerdict.LAGGING, PartitionVerdict.IDENTICAL, PartitionVerdict.SINGLE, PartitionVerdict.EMPTY)
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24;
  background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600 }
.consistent { background: #dafbe1 } .inconsistent { background: #ffebe9 } .unproven { background: #fff8c5 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; vertical-align: top }
td.number, th.number { text-align: right } tr.bad > td { background: #fff1ef } tr.doubt > td { background: #fffbe0 }
summary { cursor: pointer } svg { width: 100%; max-width: 40rem; font: 11px system-ui, sans-serif }
svg text { fill: currentColor } svg text.flawed { fill: #b42318; font-weight: 600 }
.agrees { fill: #4aa564 } .alone { fill: #8c959f } .above { fill: #b4dfc1 }
.differs { fill: #cf222e } .missing { fill: #fff; stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 3 2 }
rect.unproven { fill: #d4a72c } .legend svg { width: 1.6rem; vertical-align: middle }
.legend span { margin-right: 1.2rem; white-space: nowrap } .error { color: #b42318 } .note { color: #57606a }
code { font-size: .85em; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } .consistent { background: #12361f }
  .inconsistent { background: #4b1113 } .unproven { background: #3b2e04 } tr.bad > td { background: #2d1214 }
  tr.doubt > td { background: #262105 } .above { fill: #23593a } .missing { fill: #0d1117 }
  th, td { border-color: #30363d } svg text.flawed { fill: #ff7b72 }
  .error { color: #ff7b72 } .note { color: #8b949e } }
"""


def html_page(report: AuditReport) -> str:
    """The whole page."""
    statistics = report.statistics
    facts = (
        ("Brokers", statistics.brokers),
        ("Partitions, replicas", f"{statistics.partitions}, {statistics.replicas}"),
        ("Batches, bytes", f"{statistics.batches:,}, {statistics.bytes:,}"),
        ("Offsets compared", f"{statistics.compared_offsets:,} of {statistics.total_offsets:,}"),
        ("Acknowledged records in place", f"{statistics.acked_in_place:,} of {statistics.acked_records:,}"),
        ("Engine, seconds", f"{report.meta.engine}, {statistics.seconds}"),
        ("Started", report.meta.started),
        ("Directories", ", ".join(report.meta.directories)),
        ("Versions", ", ".join(f"{name} {version}" for name, version in report.meta.versions.items())),
    )
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">',
            f"<title>minibroker audit: {escape(report.outcome)}</title><style>{_STYLE}</style></head><body>",
            "<h1>minibroker audit</h1>",
            f'<p class="verdict {escape(report.outcome)}">{escape(report.summary)}</p>',
            "<h2>Findings</h2>",
            _findings(report.findings),
            "<h2>Partitions</h2>",
            _partitions(report.partitions),
            "<h2>Checks</h2>",
            _table(
                ("Check", "Result", "Findings", "Notes"),
                (
                    (each.check, "holds" if each.success else "broken", str(each.unexpected_count), str(each.notes))
                    for each in report.results
                ),
                ("" if each.success else "bad" for each in report.results),
            ),
            "<h2>This audit</h2>",
            _table((), ((name, str(value)) for name, value in facts)),
            "</body></html>",
            "",
        )
    )


def _partition(result: PartitionResult) -> tuple[str, ...]:
    replicas = "".join(f"broker {broker}: missing; " for broker in result.absent_replicas) + "; ".join(
        f"broker {replica.broker}: offsets {replica.log_start_offset} to {replica.log_end_offset}, high watermark"
        f" {'unknown' if replica.high_watermark is None else replica.high_watermark},"
        f" {'stopped cleanly' if replica.cleanly_stopped else 'not stopped cleanly'}"
        for replica in result.replicas
    )
    acked = f"{result.acked_in_place} of {result.acked_records}" if result.acked_records else "none given"
    compared = f"{result.compared_offsets} of {result.total_offsets}"
    return f"{result.topic}-{result.partition}", result.verdict, compared, acked, replicas


def _partitions(results: tuple[PartitionResult, ...]) -> str:
    """The worst first, each with a picture; where there are many, sound partitions have none."""
    ordered = sorted(results, key=lambda result: _WORST_FIRST.index(result.verdict))
    pictured = ordered[:PICTURES_MAX]
    keys = "".join(
        f'<span><svg viewBox="0 0 24 14"><rect class="{css}" x="1" y="1" width="22" height="12"/></svg> {escape(text)}'
        "</span>"
        for css, text in LEGEND
    )
    pictures = "".join(_partition_heading(result) for result in pictured if result.verdict not in _FINE)
    fine = "".join(_partition_heading(result) for result in pictured if result.verdict in _FINE)
    folded = f"<details><summary>Pictures of partitions without errors</summary>{fine}</details>" if fine else ""
    more = f"<p>{len(ordered) - ROWS_MAX:,} more are in the JSON.</p>" if len(ordered) > ROWS_MAX else ""
    table = _table(
        ("Partition", "Verdict", "Compared", "Acknowledged", "Replicas"),
        (_partition(result) for result in ordered[:ROWS_MAX]),
        (_css(result) for result in ordered[:ROWS_MAX]),
    )
    return f'<p class="legend">{keys}</p>{pictures}{folded}{table}{more}'


def _partition_heading(result: PartitionResult) -> str:
    return f"<h3>{escape(f'{result.topic}-{result.partition}: {result.verdict}')}</h3>{picture(result)}"


def _css(result: PartitionResult) -> str:
    if result.verdict in (PartitionVerdict.INCONSISTENT, PartitionVerdict.UNDECODABLE):
        return "bad"
    return "" if result.verdict in _FINE else "doubt"


def _findings(findings: tuple[Finding, ...]) -> str:
    """Errors first, grouped by kind, causes before consequences; notes are collapsed."""
    if not findings:
        return "<p>None.</p>"
    ordered = sorted(findings, key=cause_key)
    errors = [item for item in ordered if item.severity is Severity.ERROR]
    notes = [item for item in ordered if item.severity is not Severity.ERROR]
    shown = _finding_table(errors) if errors else "<p>No errors.</p>"
    if notes:
        shown += f"<details><summary>Notes: {len(notes):,}, all allowed</summary>{_finding_table(notes)}</details>"
    return shown


def _finding_table(findings: list[Finding]) -> str:
    rows = "".join(_finding(item) for item in findings[:ROWS_MAX])
    head = "".join(f"<th>{name}</th>" for name in ("", "Kind", "Where", "Offsets", "File and position", "What"))
    more = f"<p>{len(findings) - ROWS_MAX:,} more are in the JSON.</p>" if len(findings) > ROWS_MAX else ""
    return f"<table><tr>{head}</tr>{rows}</table>{more}"


def _finding(item: Finding) -> str:
    where = "" if item.topic is None else f"{item.topic}-{item.partition}"
    if item.broker is not None:
        where += f" broker {item.broker}"
    offsets = "" if item.offset is None else str(item.offset)
    if item.end_offset is not None and item.offset is not None and item.end_offset > item.offset + 1:
        offsets += f" to {item.end_offset - 1}"
    place = "" if item.file is None else item.file + ("" if item.position is None else f" at {item.position}")
    css = "error" if item.severity is Severity.ERROR else "note"
    cells = (where.strip(), offsets)
    return (
        f'<tr><td class="{css}">{escape(item.severity)}</td><td>{escape(item.kind)}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + f"<td><code>{escape(place)}</code></td><td>{escape(item.message)}</td></tr>"
    )


def _table(headings: Iterable[str], rows: Iterable[tuple[str, ...]], classes: Iterable[str] = ()) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr{f' class={css!r}' if css else ''}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row, css in zip(rows, chain(classes, repeat("")), strict=False)
    )
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"
