"""What became of writes: anomalies of what stands where, whatever the order of the operations. Pure.

Owns: one function for each of them, on the index alone. Sources: Jepsen's workload for Kafka (its names are kept), and
I12 of docs/REPLICATION.md.
"""

from collections.abc import Callable
from itertools import pairwise

from minibroker.chaos.history.history_index import FAIL, NONE, OK, HistoryIndex
from minibroker.chaos.history.promise import Found, Promise

PlacementCheck = Callable[[HistoryIndex, Promise, Found], None]


def inconsistent_offsets(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """An offset held several values: replicas diverged."""
    for key, placed in index.sorted_partitions():
        for offset, values in sorted(placed.others_at.items()):
            facts = [f"offset {offset} held {placed.name(each)}" for each in values]
            found.add("inconsistent-offsets", key, f"offset {offset} held {len(values)} values", *facts)


def aborted_reads(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """A write surely failed, and was read."""
    for key, placed in index.sorted_partitions():
        for number in range(len(placed.names)):
            if placed.outcome[number] == FAIL and placed.is_read[number]:
                fact = f"the error for {placed.name(number)} was: {index.errors.get((key, number))}"
                found.add("aborted-read", key, "a record was read although its write failed", fact, "a reader saw it")


def lost_writes(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """Readers passed their offsets, and no reader ever saw them."""
    for key, placed in index.sorted_partitions():
        start = promise.log_starts.get(key, 0)
        read_up_to = NONE
        for offset in placed.at:
            if offset > read_up_to and any(placed.is_read[each] for each in placed.values_at(offset)):
                read_up_to = offset
        for number in range(len(placed.names)):
            offset = placed.seen_last_at[number]
            if placed.is_read[number] or not start <= offset <= read_up_to or not placed.is_committed(number):
                continue
            fact = f"offset {offset} was acknowledged for {placed.name(number)}"
            found.add("lost-write", key, "an acknowledged record was never read", fact, "readers passed that offset")


def unseen(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """Acknowledged, or seen by a reader, and missing in the last read of everything. Where the last reader is unknown,
    all reads together count as that read."""
    if not promise.is_final:
        return
    for key, placed in index.sorted_partitions():
        start = promise.log_starts.get(key, 0)
        seen = placed.is_read_at_end if index.has_last_read else placed.is_read
        for number in range(len(placed.names)):
            is_acked, was_read = placed.outcome[number] == OK, bool(placed.is_read_first[number])
            if seen[number] or not (is_acked or was_read):
                continue
            offset = placed.offset[number] if is_acked else placed.seen_last_at[number]
            if offset != NONE and offset < start:  # without an offset, retention is no excuse
                continue
            where = "without an offset" if offset == NONE else f"at offset {offset}"
            text = f"{'an acknowledged' if is_acked else 'a'} record is missing at the end"
            fact = f"{placed.name(number)} was {'acknowledged' if is_acked else 'read'} {where}"
            seen_by = f"readers saw it, and {promise.last_reader} did not" if was_read else "no reader ever saw it"
            found.add("unseen", key, text, fact, seen_by)


def duplicates(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """A record of an idempotent producer stands at several offsets."""
    for key, placed in index.sorted_partitions():
        for number, offsets in sorted(placed.several.items()):
            process = index.writer_of(placed, number)
            if process in promise.in_order:
                fact = f"{process} is idempotent"
                found.add("duplicate", key, f"{placed.name(number)} stands at {sorted(offsets)}", fact)


def falling_epochs(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """I12: the leader epoch never falls along the offsets of a log."""
    for key, placed in index.sorted_partitions():
        for (offset, epoch), (later, its_epoch) in pairwise(sorted(placed.epochs.items())):
            if its_epoch < epoch:
                facts = (f"offset {offset} has epoch {epoch}", f"offset {later} has epoch {its_epoch}")
                found.add("epoch-falls", key, "the leader epoch falls along the log", *facts)


def changing_epochs(index: HistoryIndex, promise: Promise, found: Found) -> None:
    """I16: what was read keeps its leader epoch, or a log was written anew with the same records."""
    for key, placed in index.sorted_partitions():
        for offset, epochs in sorted(placed.other_epochs.items()):
            facts = [f"offset {offset} had epoch {each}" for each in sorted(epochs)]
            found.add("epoch-changes", key, f"offset {offset} was read in {len(epochs)} leader epochs", *facts)


PLACEMENT_CHECKS: tuple[PlacementCheck, ...] = (
    inconsistent_offsets,
    aborted_reads,
    lost_writes,
    unseen,
    duplicates,
    falling_epochs,
    changing_epochs,
)
