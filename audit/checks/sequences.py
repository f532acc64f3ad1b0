"""The sequences of idempotent producers along one log (promise: each record once). Pure.

Owns: what the leader's rules (replication rules, section 10) demand of every log. The batches of one producer id and
producer epoch follow each other from sequence 0 on without a gap, and continue at 0 after 2^31 - 1; a new producer
epoch is higher and begins at 0. So a single replica shows a batch that was appended twice, or one that was removed
while the rest got new offsets. Leaves to others: what the broker remembers (`snapshot_rules.py`).

Sequences in front of a deleted head, and in a hole of the offsets, are unknown: there a producer may continue at any
sequence, but not at one that is still in the log. A broker forgets a producer that is silent for long, or when there
are too many; then it accepts sequence 0 again. That is a note, because the log alone cannot show the reason.
"""

from typing import NamedTuple

from minibroker.audit.checks.findings import Kind
from minibroker.audit.checks.replica_report import ReplicaReport
from minibroker.audit.reading.replica import Columns
from minibroker.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_MAX

_EPOCH_SHIFT = 31
"""Bits of a sequence: an epoch above it and a sequence form one number."""
_AHEAD_MAX = 2**30
"""On the ring of sequences, a value less than half of it ahead is later."""


class _LastBatch(NamedTuple):
    """The newest batch of one producer id."""

    epoch: int
    next_sequence: int
    end_offset: int
    holes: int
    """Number of holes in the log up to there."""


def check_sequences(report: ReplicaReport) -> None:
    """Every producer's batches occur once, in order and without a gap."""
    if not _is_whole(report.replica.columns):
        _SequenceWalk(report).run()


def _is_whole(columns: Columns) -> bool:
    """The common case, in one short loop: False where a batch has to be examined more closely."""
    count = len(columns)
    ids, epochs, sequences = columns.producer_ids, columns.producer_epochs, columns.base_sequences
    if ids.count(NO_PRODUCER_ID) == count:
        return epochs.count(NO_PRODUCER_EPOCH) == count and sequences.count(NO_SEQUENCE) == count
    from_the_start = columns.base_offsets[0] == 0
    expected: dict[int, int] = {}
    for producer, epoch, sequence, start, end in zip(
        ids, epochs, sequences, columns.base_offsets, columns.ends, strict=True
    ):
        known = expected.get(producer)
        if known != epoch << _EPOCH_SHIFT | sequence:
            if producer < 0 or epoch < 0 or sequence < 0:
                if producer != NO_PRODUCER_ID or epoch != NO_PRODUCER_EPOCH or sequence != NO_SEQUENCE:
                    return False
                continue
            if known is None:
                if sequence and from_the_start:
                    return False
            elif sequence or epoch <= known >> _EPOCH_SHIFT:
                return False
        expected[producer] = epoch << _EPOCH_SHIFT | (sequence + end - start) & SEQUENCE_MAX
    return True


class _SequenceWalk:
    """Walks over the batches in file order and reports what is wrong with each."""

    def __init__(self, report: ReplicaReport) -> None:
        self.report = report
        self.columns = report.replica.columns
        self.last: dict[int, _LastBatch] = {}
        self.rows: dict[tuple[int, int, int], int] = {}
        """The first row of each producer id, epoch and base sequence."""
        self.holes = 0
        """Unknown stretches of offsets so far: a deleted head, and the holes that the rule of dense offsets finds."""

    def run(self) -> None:
        columns = self.columns
        reached = 0
        for row, (start, end) in enumerate(zip(columns.base_offsets, columns.ends, strict=True)):
            if start < reached:
                continue  # repeated offsets: the rule of dense offsets reports them
            self.holes += start > reached
            reached = end
            identity = columns.producer_ids[row], columns.producer_epochs[row], columns.base_sequences[row]
            if min(identity) < 0:
                self._incomplete_identity(row, identity)
            else:
                self._batch(row, *identity)
                self.rows.setdefault(identity, row)

    def _incomplete_identity(self, row: int, identity: tuple[int, int, int]) -> None:
        producer, epoch, sequence = identity
        if identity == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE):
            return
        text = (
            f"the batch has producer id {producer}, epoch {epoch}, sequence {sequence}: all three or none must be given"
        )
        accepted = producer == NO_PRODUCER_ID
        if accepted:
            text += " (a leader accepts it, as one without a producer id; no producer of this project sends it)"
        self._report(Kind.SEQUENCE_MALFORMED, row, text, note=accepted)

    def _batch(self, row: int, producer: int, epoch: int, sequence: int) -> None:
        last = self.last.get(producer)
        if last is None:
            if sequence and not self.holes:
                text = f"is the first of producer {producer} in a log with its head: {_range(0, sequence)} missing"
                self._report(Kind.SEQUENCE_GAP, row, self._description(row) + text)
        elif (epoch, sequence) != (last.epoch, last.next_sequence) and not self._continues(row, last):
            return
        end = self.columns.ends[row]
        following = (sequence + end - self.columns.base_offsets[row]) & SEQUENCE_MAX
        self.last[producer] = _LastBatch(epoch, following, end, self.holes)

    def _continues(self, row: int, last: _LastBatch) -> bool:
        """Report what is wrong with a batch that is not the next one. Returns whether the producer continues from
        it."""
        columns = self.columns
        producer, epoch, sequence = columns.producer_ids[row], columns.producer_epochs[row], columns.base_sequences[row]
        unknown_between = self.holes > last.holes
        first = self.rows.get((producer, epoch, sequence))
        if first is not None and columns.crcs[first] == columns.crcs[row]:
            text = f"was appended before, at offset {columns.base_offsets[first]}, with the same bytes"
            self._report(Kind.SEQUENCE_TWICE, row, self._description(row) + text)
            return False
        front = f"; in front of it, up to offset {last.end_offset - 1}, is epoch {last.epoch}"
        if epoch > last.epoch:
            if sequence and not unknown_between:
                text = f"is the first of its epoch: {_range(0, sequence)} missing{front}"
                self._report(Kind.SEQUENCE_GAP, row, self._description(row) + text)
            return True
        if sequence == 0:
            text = f"begins again at 0{front}: its leader had forgotten the producer (silent for long, or too many)"
            self._report(Kind.SEQUENCE_RESTARTED, row, self._description(row) + text)
            return True
        if epoch < last.epoch:
            self._report(Kind.SEQUENCE_BACKWARDS, row, f"{self._description(row)}is of an earlier epoch{front}")
            return True
        if (sequence - last.next_sequence) & SEQUENCE_MAX < _AHEAD_MAX:
            if not unknown_between:
                text = f"follows offset {last.end_offset - 1}: {_range(last.next_sequence, sequence)} missing"
                self._report(Kind.SEQUENCE_GAP, row, self._description(row) + text)
            return True
        other = "" if first is None else f", and sequence {sequence} is at offset {columns.base_offsets[first]}, too"
        text = f"goes back: sequence {last.next_sequence} comes next behind offset {last.end_offset - 1}{other}"
        self._report(Kind.SEQUENCE_BACKWARDS, row, self._description(row) + text)
        return False

    def _description(self, row: int) -> str:
        columns = self.columns
        start, end, sequence = columns.base_offsets[row], columns.ends[row], columns.base_sequences[row]
        last = (sequence + end - start - 1) & SEQUENCE_MAX
        return (
            f"the batch of offsets {start} to {end - 1} (producer {columns.producer_ids[row]}, epoch"
            f" {columns.producer_epochs[row]}, sequences {sequence} to {last}) "
        )

    def _report(self, kind: Kind, row: int, message: str, *, note: bool = False) -> None:
        columns = self.columns
        self.report.add(
            kind,
            message,
            note=note,
            offset=columns.base_offsets[row],
            end_offset=columns.ends[row],
            file=self.report.replica.segment_of_row(row).file,
            position=columns.positions[row],
        )


def _range(first: int, end: int) -> str:
    last = (end - 1) & SEQUENCE_MAX
    return f"sequence {first} is" if first == last else f"sequences {first} to {last} are"
