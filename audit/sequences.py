"""The sequences of idempotent producers along one log (promise: each record once). PURE.

Owns: what the leader's rules (docs/REPLICATION.md, section 10) make of every log. The batches of one producer id and
producer epoch follow each other from sequence 0 on without a gap, at 0 again after 2^31 - 1; a new producer epoch is a
higher one and begins at 0. So a batch that was appended twice, and one that was taken out while the rest was given new
offsets, show in every replica by itself. Refuses to look at what the broker remembers: `producer_snapshots.py` does.

Unknown is what stood in front of a log whose head was deleted, and in a hole that the offsets show: there a producer
may go on anywhere, but not in front of what is still there. A broker forgets a producer that is silent for long, or
when there are too many; then it takes sequence 0 again: a note, nobody can tell from the log alone.
"""

from typing import NamedTuple

from minibroker.audit.findings import Kind
from minibroker.audit.replica import Columns
from minibroker.audit.replica_report import ReplicaReport
from minibroker.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_MAX

_EPOCH_SHIFT = 31
"""A sequence takes so many bits: an epoch above it and a sequence are one number."""
_AHEAD_MAX = 2**30
"""On the ring of sequences, what lies less than half of it ahead is later."""


class _LastBatch(NamedTuple):
    """The newest batch of one producer id."""

    epoch: int
    next_sequence: int
    end_offset: int
    holes: int
    """How many holes the log had up to there."""


def check_sequences(report: ReplicaReport) -> None:
    """Every producer's batches are there once, in order and without a gap."""
    if not _is_whole(report.replica.columns):
        _SequenceWalk(report).run()


def _is_whole(columns: Columns) -> bool:
    """The common case, in one short loop: False where something has to be looked at with care."""
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
    """Walks over the batches in the order of the file, and says what is wrong with each."""

    def __init__(self, report: ReplicaReport) -> None:
        self.report = report
        self.columns = report.replica.columns
        self.last: dict[int, _LastBatch] = {}
        self.rows: dict[tuple[int, int, int], int] = {}
        """The first row of each producer id, epoch and base sequence."""
        self.holes = 0
        """Stretches of offsets so far that are unknown: a deleted head, and what the rule of dense offsets finds."""

    def run(self) -> None:
        columns = self.columns
        reached = 0
        for row, (start, end) in enumerate(zip(columns.base_offsets, columns.ends, strict=True)):
            if start < reached:
                continue  # offsets that were there before: the rule of dense offsets says so
            self.holes += start > reached
            reached = end
            identity = columns.producer_ids[row], columns.producer_epochs[row], columns.base_sequences[row]
            if min(identity) < 0:
                self._without_some(row, identity)
            else:
                self._batch(row, *identity)
                self.rows.setdefault(identity, row)

    def _without_some(self, row: int, identity: tuple[int, int, int]) -> None:
        producer, epoch, sequence = identity
        if identity == (NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE):
            return
        said = f"the batch has producer id {producer}, epoch {epoch}, sequence {sequence}: all three or none are given"
        taken = producer == NO_PRODUCER_ID
        if taken:
            said += " (a leader takes it, as one without a producer id; no producer of this project sends it)"
        self._report(Kind.SEQUENCE_MALFORMED, row, said, note=taken)

    def _batch(self, row: int, producer: int, epoch: int, sequence: int) -> None:
        last = self.last.get(producer)
        if last is None:
            if sequence and not self.holes:
                said = (
                    f"is the first of producer {producer} in a log whose head is there: {_range(0, sequence)} missing"
                )
                self._report(Kind.SEQUENCE_GAP, row, self._this(row) + said)
        elif (epoch, sequence) != (last.epoch, last.next_sequence) and not self._goes_on(row, last):
            return
        end = self.columns.ends[row]
        following = (sequence + end - self.columns.base_offsets[row]) & SEQUENCE_MAX
        self.last[producer] = _LastBatch(epoch, following, end, self.holes)

    def _goes_on(self, row: int, last: _LastBatch) -> bool:
        """Say what is wrong with a batch that is not the next one; whether the producer goes on from it."""
        columns = self.columns
        producer, epoch, sequence = columns.producer_ids[row], columns.producer_epochs[row], columns.base_sequences[row]
        unknown_between = self.holes > last.holes
        first = self.rows.get((producer, epoch, sequence))
        if first is not None and columns.crcs[first] == columns.crcs[row]:
            said = f"was appended before, at offset {columns.base_offsets[first]}, with the same bytes"
            self._report(Kind.SEQUENCE_TWICE, row, self._this(row) + said)
            return False
        front = f"; in front of it, up to offset {last.end_offset - 1}, stands epoch {last.epoch}"
        if epoch > last.epoch:
            if sequence and not unknown_between:
                said = f"is the first of its epoch: {_range(0, sequence)} missing{front}"
                self._report(Kind.SEQUENCE_GAP, row, self._this(row) + said)
            return True
        if sequence == 0:
            said = f"begins anew{front}: its leader had forgotten the producer (silent for long, or too many of them)"
            self._report(Kind.SEQUENCE_ANEW, row, self._this(row) + said)
            return True
        if epoch < last.epoch:
            self._report(Kind.SEQUENCE_BACKWARDS, row, f"{self._this(row)}is of an earlier epoch{front}")
            return True
        if (sequence - last.next_sequence) & SEQUENCE_MAX < _AHEAD_MAX:
            if not unknown_between:
                said = f"follows offset {last.end_offset - 1}: {_range(last.next_sequence, sequence)} missing"
                self._report(Kind.SEQUENCE_GAP, row, self._this(row) + said)
            return True
        other = (
            "" if first is None else f", and sequence {sequence} stands at offset {columns.base_offsets[first]}, too"
        )
        said = f"goes back: sequence {last.next_sequence} comes next behind offset {last.end_offset - 1}{other}"
        self._report(Kind.SEQUENCE_BACKWARDS, row, self._this(row) + said)
        return False

    def _this(self, row: int) -> str:
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
