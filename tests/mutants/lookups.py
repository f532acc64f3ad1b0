"""Lookups by time: what they return, and that they never make a sound log count as damaged."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D23",
        title="a lookup by time calls a log damaged because of an undecodable batch",
        origin="external review: each replica in turn dropped its sound log",
        rule="a batch that does not decode under a sound CRC is the producer's fault, never damage (sections 5 and 12)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.log.segments.time_lookup",
                "        return header.max_timestamp, max(header.base_offset, start_offset)\n",
                '        raise CorruptLog(segment.log_path, position, "the payload does not decode") from None\n',
            ),
        ),
        schedule=Schedule("lookups:by_time_into_undecodable_records"),
    ),
    Mutant(
        name="D25",
        title="a record's timestamp may exceed 64 bits",
        origin="external review: the answers to lookups by time could not be encoded",
        rule="a record whose timestamp does not fit into 64 bits does not decode, and is refused (section 3)",
        breaks=("I23",),
        edits=(
            Edit(
                "protocol.record_batch",
                "        if not earliest <= record[1] <= latest:\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("lookups:by_time_with_a_timestamp_beyond_64_bits"),
    ),
    Mutant(
        name="D26",
        title="a time index is trusted",
        origin="external review: after one flipped bit a consumer that sought by time skipped records",
        rule="an entry of a time index counts only if its time is that of the batches before it (section 12)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.log.segments.segment",
                "        if entry is not None and not self._is_time_sound(entry):\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("lookups:by_time_with_a_rotten_time_index"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
