"""Compares the replicas of one partition with each other. Pure.

Owns: equality below the high watermarks (I3, I19, I20), log matching on the whole overlap (I16, I17), and the number of
offsets compared. Leaves to others: reading the files, and what is wrong inside a single replica (rules.py).

Theory. Two replicas agree at an offset when the batches there are equal: offsets, epoch, verified CRC, size. A high
watermark proves that everything below it is committed. So two in-sync replicas are equal below the highest known one,
other replicas below the smaller of their own two (commitment.py). Above it a difference is legal (the tail of a deposed
leader, to be truncated), except for log matching: where two replicas hold an offset under the same leader epoch, one
leader wrote both, so they are equal there and at all lower offsets. Replicas are compared in pairs; a replica that
differs from several others in the same way is named.
"""

from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from minibroker.audit.checks.commitment import Commitment
from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.audit.intervals import Intervals, below, intersection, size, union
from minibroker.audit.reading.content import Cell, Content, surely_equal
from minibroker.audit.reading.replica import AuditedReplica


class Mismatch(msgspec.Struct, frozen=True):
    """A stretch of offsets at which two replicas differ."""

    kind: Kind
    start: int
    end: int
    left_epoch: int
    right_epoch: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Result of comparing the replicas of a partition with each other."""

    findings: list[Finding]
    compared_offsets: int
    total: int
    compared: tuple[int, ...] = ()
    """Brokers whose replica was compared with another one below the offset that both must hold."""
    uncompared: tuple[int, ...] = ()
    """Brokers whose replica holds records that may be committed, but was compared with no other replica."""


def compare(contents: list[Content], commitment: Commitment, contradicted: frozenset[int] = frozenset()) -> Comparison:
    """Compare every pair, then name the deviating replica for each stretch. `contradicted`: brokers that contradict
    the witness."""
    differing_pairs: dict[Mismatch, list[tuple[int, int]]] = {}
    compared_offsets: list[Intervals] = [[] for _ in contents]
    open_ends: list[Finding] = []
    for right in range(len(contents)):
        for left in range(right):
            pair = contents[left], contents[right]
            limit = min(commitment.must_hold(each) for each in pair)
            for mismatch in compare_pair(*pair, limit):
                differing_pairs.setdefault(mismatch, []).append((left, right))
                above = mismatch.kind is Kind.DIVERGED_ABOVE_HIGH_WATERMARK
                if above and not commitment.settled(*pair, mismatch.start):
                    open_ends.append(_open_end(*pair, mismatch))
            common = below(intersection(pair[0].coverage, pair[1].coverage), limit)
            compared_offsets[left], compared_offsets[right] = (
                union(compared_offsets[left], common),
                union(compared_offsets[right], common),
            )
    findings = [
        item
        for mismatch, pairs in _regrouped(differing_pairs)
        for item in _attribute(contents, mismatch, pairs, contradicted)
    ]
    findings += _edges(contents) + open_ends
    holders = [content for content in contents if content.coverage]
    total = size(union(*(content.coverage for content in contents)))
    return Comparison(
        findings=findings,
        compared_offsets=size(union(*compared_offsets)),
        total=total,
        compared=tuple(
            each.replica.broker for each, intervals in zip(contents, compared_offsets, strict=True) if intervals
        ),
        uncompared=tuple(
            content.replica.broker
            for content, intervals in zip(contents, compared_offsets, strict=True)
            if len(holders) > 1 and content.coverage and not intervals and _counts(content, commitment, contents)
        ),
    )


def _counts(content: Content, commitment: Commitment, contents: list[Content]) -> bool:
    """Whether the replica should have been compared. A replica that is known to be out of sync and has no high
    watermark promises nothing yet. Nor does one that must hold only records that the in-sync replicas have all trimmed:
    it is reset."""
    if commitment.in_sync is not None and content.replica.broker not in commitment.in_sync:
        starts = [each.replica.log_start_offset for each in contents if each.replica.broker in commitment.in_sync]
        if not content.high_watermark or (starts and commitment.must_hold(content) <= min(starts)):
            return False
    # Where only other replicas' heads lie below that offset (retention), nothing is left to compare.
    return not commitment.is_exact or content.coverage[0][0] < commitment.must_hold(content)


def _open_end(left: Content, right: Content, mismatch: Mismatch) -> Finding:
    facts = left.replica.facts
    return finding(
        Kind.UNPROVEN,
        f"brokers {left.replica.broker} and {right.replica.broker} hold different records at offsets"
        f" {mismatch.start} to {mismatch.end - 1}, and no source shows whether these were committed",
        others=(left.replica.broker, right.replica.broker),
        topic=facts.topic,
        partition=facts.partition,
        offset=mismatch.start,
        end_offset=mismatch.end,
    )


# one pair


def compare_pair(left: Content, right: Content, limit: int) -> list[Mismatch]:
    """All stretches at which two replicas differ, each with the kind of violation, if it is one. Below `limit` both
    must hold what was committed."""
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
    found: list[Mismatch] = []
    for start, end, a, b in steps:
        if a is None or b is None or a == b:
            continue
        kind = _kind(start, a, b, limit, matching_until)
        found.append(Mismatch(kind, start, end, a[2], b[2]))
    return _joined(found)


def _kind(start: int, left: Cell, right: Cell, high_watermark: int, matching_until: int) -> Kind:
    if start < high_watermark:
        same_bytes = left[:2] == right[:2] and left[3:] == right[3:]
        return Kind.CONFLICTING_EPOCH if same_bytes else Kind.DIVERGED_BELOW_HIGH_WATERMARK
    return Kind.LOG_MATCHING if start < matching_until else Kind.DIVERGED_ABOVE_HIGH_WATERMARK


def _walk(ours: list[Cell], theirs: list[Cell]) -> Iterator[tuple[int, int, Cell | None, Cell | None]]:
    """Step through both by offset: (start, end, our cell, their cell); None where one side has a hole.

    Cells of different shapes that share an offset form one step: they differ from the first of both to the last.
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
    """Join adjacent mismatches of the same kind and epochs."""
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
    differing_pairs: dict[Mismatch, list[tuple[int, int]]],
) -> list[tuple[tuple[Kind, int, int], list[tuple[int, int]]]]:
    """Pairs by kind and stretch. Which epochs differ does not matter for finding the deviating replica."""
    groups: dict[tuple[Kind, int, int], list[tuple[int, int]]] = {}
    for mismatch, pairs in differing_pairs.items():
        groups.setdefault((mismatch.kind, mismatch.start, mismatch.end), []).extend(pairs)
    return sorted(groups.items())


def _attribute(
    contents: list[Content],
    mismatch: tuple[Kind, int, int],
    pairs: list[tuple[int, int]],
    contradicted: frozenset[int],
) -> Iterator[Finding]:
    """Name the replica that the witness contradicts, or else the one in most of the pairs; repeat for the rest."""
    left = sorted(set(pairs))
    while left:
        counts: dict[int, int] = {}
        for pair in left:
            for member in pair:
                counts[member] = counts.get(member, 0) + 1
        alone = max(counts, key=lambda each: (contents[each].replica.broker in contradicted, counts[each], -each))
        partners = sorted({a if b == alone else b for a, b in left if alone in (a, b)})
        left = [pair for pair in left if alone not in pair]
        is_contradicted = contents[alone].replica.broker in contradicted
        yield _difference(contents[alone], [contents[partner] for partner in partners], *mismatch, is_contradicted)


_DIFFERENCE_TEXT = {
    Kind.DIVERGED_BELOW_HIGH_WATERMARK: "committed records differ",
    Kind.CONFLICTING_EPOCH: "committed records have different leader epochs",
    Kind.LOG_MATCHING: "one leader epoch, or one above it, has two contents (log matching)",
    Kind.DIVERGED_ABOVE_HIGH_WATERMARK: "tails differ above what both are known to have committed",
}


def _difference(
    alone: Content, partners: list[Content], kind: Kind, start: int, end: int, is_contradicted: bool
) -> Finding:
    facts = alone.replica.facts
    others = ", ".join(_describe(partner, start) for partner in partners)
    file, position, described = _place(alone, start)
    right = ""
    if kind is not Kind.DIVERGED_ABOVE_HIGH_WATERMARK:
        right = "; the witness contradicts the first" if is_contradicted else "; this does not show which is right"
    return finding(
        kind,
        f"{_DIFFERENCE_TEXT[kind]} at offsets {start} to {end - 1}: {described}, but {others}{right}",
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


def _edges(contents: list[Content]) -> list[Finding]:
    """Logs that begin or end at other offsets: allowed, but worth knowing."""
    found: list[Finding] = []
    replicas = [content.replica for content in contents]
    longest = max((replica.log_end_offset for replica in replicas), default=0)
    earliest = min((replica.log_start_offset for replica in replicas), default=0)
    for replica in replicas:
        end, start = replica.log_end_offset, replica.log_start_offset
        if end < longest:
            message = f"ends at offset {end}, {longest - end} behind the longest replica (it catches up as a follower)"
            found.append(_edge(replica, Kind.LAGGING_TAIL, message, end, longest))
        if start > earliest:
            message = f"begins at offset {start}, another replica at {earliest} (retention has not reached all of them)"
            found.append(_edge(replica, Kind.LOG_START_DIFFERS, message, earliest, start))
    return found


def _edge(replica: AuditedReplica, kind: Kind, message: str, start: int, end: int) -> Finding:
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
