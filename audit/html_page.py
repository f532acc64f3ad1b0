"""The report as one self-contained HTML page: no script, no font, no picture from elsewhere."""

from collections.abc import Iterable
from html import escape

from minibroker.audit.findings import Finding, PartitionResult, Severity
from minibroker.audit.report import AuditReport

ROWS_MAX = 2_000
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; color: #1b1f24;
  background: #fff }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.verdict { padding: .8rem 1rem; border-radius: .4rem; font-weight: 600 }
.consistent { background: #dafbe1 } .inconsistent { background: #ffebe9 } .unproven { background: #fff8c5 }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #d8dee4; vertical-align: top }
td.number, th.number { text-align: right } .error { color: #b42318 } .note { color: #57606a }
code { font-size: .85em; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { background: #0d1117; color: #e6edf3 } .consistent { background: #12361f }
  .inconsistent { background: #4b1113 } .unproven { background: #3b2e04 } th, td { border-color: #30363d }
  .error { color: #ff7b72 } .note { color: #8b949e } }
"""


def html_page(report: AuditReport) -> str:
    """The whole page."""
    statistics = report.statistics
    facts = (
        ("Brokers", statistics.brokers),
        ("Partitions, replicas", f"{statistics.partitions}, {statistics.replicas}"),
        ("Batches, bytes", f"{statistics.batches:,}, {statistics.bytes:,}"),
        ("Offsets judged", f"{statistics.judged_offsets:,} of {statistics.total_offsets:,}"),
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
            _table((), ((name, str(value)) for name, value in facts)),
            "<h2>Checks</h2>",
            _table(
                ("Check", "Result", "Findings", "Notes"),
                (
                    (each.check, "holds" if each.success else "broken", str(each.unexpected_count), str(each.notes))
                    for each in report.results
                ),
            ),
            "<h2>Partitions</h2>",
            _table(
                ("Partition", "Verdict", "Judged", "Acknowledged", "Replicas"),
                (_partition(result) for result in report.partitions[:ROWS_MAX]),
            ),
            "<h2>Findings</h2>",
            _findings(report.findings),
            "</body></html>",
            "",
        )
    )


def _partition(result: PartitionResult) -> tuple[str, ...]:
    replicas = "; ".join(
        f"broker {replica.broker}: offsets {replica.log_start_offset} to {replica.log_end_offset}, high watermark"
        f" {'unknown' if replica.high_watermark is None else replica.high_watermark},"
        f" {'stopped cleanly' if replica.cleanly_stopped else 'not stopped cleanly'}"
        for replica in result.replicas
    )
    acked = f"{result.acked_in_place} of {result.acked_records}" if result.acked_records else "none given"
    judged = f"{result.judged_offsets} of {result.total_offsets}"
    return f"{result.topic}-{result.partition}", result.verdict, judged, acked, replicas


def _findings(findings: tuple[Finding, ...]) -> str:
    if not findings:
        return "<p>None.</p>"
    rows = "".join(_finding(item) for item in findings[:ROWS_MAX])
    head = "".join(f"<th>{name}</th>" for name in ("", "Kind", "Where", "Offsets", "File and position", "What"))
    more = f"<p>{len(findings) - ROWS_MAX} more are in the JSON.</p>" if len(findings) > ROWS_MAX else ""
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


def _table(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"
