"""One partition as a picture: each replica a bar over its offsets. Pure; inline SVG, coloured by the page's style.

Owns: what each stretch of a bar means. Below its high watermark a replica agrees where it was compared and nothing was
found; above it the bar is lighter, because the records are not known to be committed. An error with offsets is drawn
over the bar, at least wide enough to be visible; an error without offsets is shown at the broker's name. What the
witness says of a whole log would hide where it is damaged, so it is drawn only if no other error says more. A missing
replica is an empty bar.
"""

from collections.abc import Iterator
from html import escape

from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, ReplicaSummary, Severity

WIDTH = 640
BAR, STEP, LEFT, RIGHT = 14, 24, 84, 8
NARROWEST = 3.0
"""A single offset among ten million must still be visible."""
UNCOMPARED = frozenset({Kind.TOPIC_ID_DIFFERS, Kind.FOREIGN_FILE})
MISSING = frozenset({Kind.MISSING_RANGE, Kind.ACKED_MISSING, Kind.SEQUENCE_GAP, Kind.MISSING_REPLICA})
LEGEND = (
    ("agrees", "no difference found below its high watermark"),
    ("alone", "nothing to compare it with"),
    ("above", "above the high watermark: not known to be committed"),
    ("differs", "differs or is damaged"),
    ("missing", "missing"),
    ("unproven", "could not be compared"),
)


def picture(result: PartitionResult) -> str:
    """The partition's SVG; empty where it never had a replica."""
    brokers = sorted({*(replica.broker for replica in result.replicas), *result.absent_replicas})
    if not brokers:
        return ""
    first = min((replica.log_start_offset for replica in result.replicas), default=0)
    last = max((replica.log_end_offset for replica in result.replicas), default=0)
    axis = _Axis(first, max(last, *(item.end_offset or 0 for item in result.findings), first + 1))
    rows: list[tuple[int, ReplicaSummary | None]] = [(replica.broker, replica) for replica in result.replicas]
    rows += [(broker, None) for broker in brokers if broker in result.absent_replicas]
    rows.sort(key=lambda row: row[0])
    height = STEP * len(rows) + 18
    drawn = "".join(_row(result, broker, replica, number * STEP, axis) for number, (broker, replica) in enumerate(rows))
    name = escape(f"{result.topic}-{result.partition}: {result.verdict}")
    ends = (
        f'<text x="{LEFT}" y="{height - 3}">{first:,}</text>'
        f'<text x="{WIDTH - RIGHT}" y="{height - 3}" text-anchor="end">{axis.last:,}</text>'
    )
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}">{drawn}{ends}</svg>'


class _Axis:
    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self._scale = (WIDTH - LEFT - RIGHT) / (last - first)

    def bar(self, start: int, end: int, y: int, css: str, title: str) -> str:
        """A stretch, limited to the axis; at least NARROWEST wide."""
        left = LEFT + (min(max(start, self.first), self.last) - self.first) * self._scale
        right = LEFT + (min(max(end, self.first), self.last) - self.first) * self._scale
        width = max(right - left, NARROWEST)
        left = min(left, WIDTH - RIGHT - width)
        return (
            f'<rect class="{css}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}">'
            f"<title>{escape(title)}</title></rect>"
        )


def _row(result: PartitionResult, broker: int, replica: ReplicaSummary | None, y: int, axis: _Axis) -> str:
    flawed = any(item.broker == broker and item.severity is Severity.ERROR for item in result.findings)
    css, sign = (' class="flawed"', " !") if flawed or replica is None else ("", "")
    label = f'<text x="0" y="{y + BAR - 2}"{css}>broker {broker}{sign}</text>'
    if replica is None:
        return label + axis.bar(axis.first, axis.last, y, "missing", f"broker {broker}: the replica is missing")
    return label + "".join(_stretches(result, replica, y, axis))


def _stretches(result: PartitionResult, replica: ReplicaSummary, y: int, axis: _Axis) -> Iterator[str]:
    start, end = replica.log_start_offset, replica.log_end_offset
    if end > start:
        high_watermark = end if replica.high_watermark is None else min(max(replica.high_watermark, start), end)
        below = _below(result, replica)
        name = f"broker {replica.broker}, offsets"
        if high_watermark > start:
            yield axis.bar(start, high_watermark, y, below, f"{name} {start:,} to {high_watermark - 1:,}")
        if end > high_watermark:
            yield axis.bar(
                high_watermark,
                end,
                y,
                "above",
                f"{name} {high_watermark:,} to {end - 1:,}: above its high watermark {high_watermark:,}",
            )
    errors = [
        (item.offset, item)
        for item in result.findings
        if item.offset is not None and item.severity is Severity.ERROR and _is_of(item, replica.broker)
    ]
    causes = [(offset, item) for offset, item in errors if item.kind is not Kind.WITNESS_DIFFERS]
    for offset, item in causes or errors:
        css = "missing" if item.kind in MISSING else "unproven" if item.kind is Kind.UNPROVEN else "differs"
        yield axis.bar(offset, item.end_offset or offset + 1, y, css, f"{item.kind}: {item.message}")


def _below(result: PartitionResult, replica: ReplicaSummary) -> str:
    if len(result.replicas) < 2:
        return "alone"
    uncompared = any(item.kind in UNCOMPARED and item.broker == replica.broker for item in result.findings)
    unproven = uncompared or result.verdict is PartitionVerdict.UNPROVEN or replica.high_watermark is None
    return "unproven" if unproven else "agrees"


def _is_of(item: Finding, broker: int) -> bool:
    """A finding that names other brokers but none to blame is drawn on each of them; one without any broker on every
    replica."""
    return item.broker == broker or (item.broker is None and (not item.others or broker in item.others))
