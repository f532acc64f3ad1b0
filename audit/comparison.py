"""The checks between replicas of one partition. PURE.

Owns: identity below the high watermarks (I3, I19, I20), log matching on the whole overlap (I16, I17), and how many
offsets were judged. Refuses to know how anything was read; what is wrong inside one replica is rules.py's.

Theory. Two replicas agree at an offset when the batches there are equal: offsets, epoch, verified CRC, size. A
replica's high watermark proves that everything below it is committed, so two replicas must be equal below the smaller
of their two marks. Above it a difference is legal (the tail of a deposed leader, to be truncated), but for log
matching: where two replicas hold an offset under the same leader epoch, one leader wrote both, so they are equal there
and at all lower offsets. Replicas are compared in pairs; one that differs from several others alike is named.
"""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from minibroker.audit.content import Cell, Content, surely_equal
from minibroker.audit.findings import Finding, Kind, finding
from minibroker.audit.intervals import Intervals, below, intersection, size, union
from minibroker.audit.replica import Replica


class Mismatch(msgspec.Struct, frozen=True):
    """A stretch of offsets at which two replicas differ."""

    kind: Kind
    start: int
    end: int
    left_epoch: int
    right_epoch: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What the replicas of a partition say of each other."""

    findings: list[Finding]
    judged: int
    total: int


def compare(contents: list[Content]) -> Comparison:
    """Compare every pair, then name for each stretch the replica that stands alone."""
    seen: dict[Mismatch, list[tuple[int, int]]] = {}
    judged: Intervals = []
    for right in range(len(contents)):
        for left in range(right):
            for mismatch in compare_pair(contents[left], contents[right]):
                seen.setdefault(mismatch, []).append((left, right))
            judged = union(judged, _judged(contents[left], contents[right]))
    findings = [item for mismatch, pairs in _regrouped(seen) for item in _blame(contents, mismatch, pairs)]
    findings += _edges(contents)
    total = size(union(*(content.coverage for content in contents)))
    return Comparison(findings=findings, judged=size(judged), total=total)


def _judged(left: Content, right: Content) -> Intervals:
    return below(intersection(left.coverage, right.coverage), min(left.high_watermark, right.high_watermark))


# one pair


def compare_pair(left: Content, right: Content) -> list[Mismatch]:
    """All stretches at which two replicas differ, each with the promise that it breaks (or does not)."""
    if not left.coverage or not right.coverage:
        return []
    low = max(left.coverage[0][0], right.coverage[0][0])
    high = min(left.coverage[-1][1], right.coverage[-1][1])
    if surely_equal(left, right, low, high):
        return []
    ours, theirs = left.cells[left.between(low, high)], right.cells[right.between(low, high)]
    if ours == theirs:
        return []
    steps = list(_walk(ours, theirs))
    matching_until = max((end for _, end, a, b in steps if a is not None and b is not None and a[2] == b[2]), default=0)
    high_watermark = min(left.high_watermark, right.high_watermark)
    found: list[Mismatch] = []
    for start, end, a, b in steps:
        if a is None or b is None or a == b:
            continue
        kind = _kind(start, a, b, high_watermark, matching_until)
        found.append(Mismatch(kind, start, end, a[2], b[2]))
    return _joined(found)


def _kind(start: int, left: Cell, right: Cell, high_watermark: int, matching_until: int) -> Kind:
    if start < high_watermark:
        same_bytes = left[:2] == right[:2] and left[3:] == right[3:]
        return Kind.CONFLICTING_EPOCH if same_bytes else Kind.DIVERGED_BELOW_HIGH_WATERMARK
    return Kind.LOG_MATCHING if start < matching_until else Kind.DIVERGED_ABOVE_HIGH_WATERMARK


def _walk(ours: list[Cell], theirs: list[Cell]) -> Iterator[tuple[int, int, Cell | None, Cell | None]]:
    """Step through both by offset: (start, end, our cell, their cell), None where one has none (a hole of its own).

    Cells of other shapes that share an offset are one step: they differ from the first of both to the last.
    """
    i = j = 0
    while i < len(ours) and j < len(theirs):
        a, b = ours[i], theirs[j]
        if a[0] == b[0] and a[1] == b[1]:
            yield a[0], a[1], a, b
            i, j = i + 1, j + 1
        elif a[1] <= b[0]:
            yield a[0], a[1], a, None
            i += 1
        elif b[1] <= a[0]:
            yield b[0], b[1], None, b
            j += 1
        else:
            yield max(a[0], b[0]), min(a[1], b[1]), a, b
            i, j = i + (a[1] <= b[1]), j + (b[1] <= a[1])


def _joined(found: list[Mismatch]) -> list[Mismatch]:
    """Neighbours of the same sort become one stretch."""
    joined: list[Mismatch] = []
    for item in found:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.end == item.start
            and (last.kind, last.left_epoch, last.right_epoch) == (item.kind, item.left_epoch, item.right_epoch)
        ):
            joined[-1] = Mismatch(last.kind, last.start, item.end, last.left_epoch, last.right_epoch)
        else:
            joined.append(item)
    return joined


# all pairs


def _regrouped(
    seen: dict[Mismatch, list[tuple[int, int]]],
) -> list[tuple[tuple[Kind, int, int], list[tuple[int, int]]]]:
    """Pairs by kind and stretch; which epochs were seen does not matter for who stands alone."""
    groups: dict[tuple[Kind, int, int], list[tuple[int, int]]] = {}
    for mismatch, pairs in seen.items():
        groups.setdefault((mismatch.kind, mismatch.start, mismatch.end), []).extend(pairs)
    return sorted(groups.items())


def _blame(contents: list[Content], mismatch: tuple[Kind, int, int], pairs: list[tuple[int, int]]) -> Iterator[Finding]:
    """Name the replica that is in most of the pairs, then what is left."""
    left = sorted(set(pairs))
    while left:
        counts: dict[int, int] = {}
        for pair in left:
            for member in pair:
                counts[member] = counts.get(member, 0) + 1
        alone = max(counts, key=lambda member: (counts[member], -member))
        partners = sorted({a if b == alone else b for a, b in left if alone in (a, b)})
        left = [pair for pair in left if alone not in pair]
        yield _difference(contents[alone], [contents[partner] for partner in partners], *mismatch)


_SAYS = {
    Kind.DIVERGED_BELOW_HIGH_WATERMARK: "committed records differ",
    Kind.CONFLICTING_EPOCH: "committed records stand under different leader epochs",
    Kind.LOG_MATCHING: "one leader epoch, or one above it, has two contents (log matching)",
    Kind.DIVERGED_ABOVE_HIGH_WATERMARK: "uncommitted tails differ (allowed: truncated when the replica follows again)",
}


def _difference(alone: Content, partners: list[Content], kind: Kind, start: int, end: int) -> Finding:
    facts = alone.replica.facts
    others = ", ".join(_describe(partner, start) for partner in partners)
    file, position, described = _place(alone, start)
    return finding(
        kind,
        f"{_SAYS[kind]} at offsets {start} to {end - 1}: {described}, but {others}",
        broker=facts.broker,
        others=tuple(partner.replica.broker for partner in partners),
        topic=facts.topic,
        partition=facts.partition,
        offset=start,
        end_offset=end,
        file=file,
        position=position,
    )


def _describe(content: Content, offset: int) -> str:
    file, position, described = _place(content, offset)
    return f"{described} ({file} at {position})"


def _place(content: Content, offset: int) -> tuple[str, int, str]:
    index = bisect_right(content.bases, offset) - 1
    base, end, epoch, crc, _ = content.cells[index]
    row = content.rows[index]
    file = content.replica.segment_of_row(row).file
    described = f"broker {content.replica.broker} has batch {base}..{end - 1} of epoch {epoch} with CRC {crc:08x}"
    return file, content.replica.columns.positions[row], described


def _edges(contents: list[Content]) -> Iterator[Finding]:
    """Logs that begin or end elsewhere: fine, and worth knowing."""
    replicas = [content.replica for content in contents]
    longest = max((replica.log_end_offset for replica in replicas), default=0)
    earliest = min((replica.log_start_offset for replica in replicas), default=0)
    for replica in replicas:
        end, start = replica.log_end_offset, replica.log_start_offset
        if end < longest:
            message = f"ends at offset {end}, {longest - end} behind the longest replica (it catches up as a follower)"
            yield _edge(replica, Kind.LAGGING_TAIL, message, end, longest)
        if start > earliest:
            message = f"begins at offset {start}, another replica at {earliest} (retention is each broker's own)"
            yield _edge(replica, Kind.LOG_START_DIFFERS, message, earliest, start)


def _edge(replica: Replica, kind: Kind, message: str, start: int, end: int) -> Finding:
    facts = replica.facts
    return finding(
        kind,
        message,
        broker=facts.broker,
        topic=facts.topic,
        partition=facts.partition,
        offset=start,
        end_offset=end,
    )
