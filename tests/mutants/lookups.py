"""The first record at or after a time: what is asked of a log by a client, and what it may cost the log."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D23",
        title="a lookup by time calls a log damaged where a producer packed what nobody can decode",
        origin="found from outside: each replica in turn threw its sound log away",
        rule="what does not decode under a sound CRC is its producer's doing, never damage (5, 12)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.log.time_lookup",
                "        return header.max_timestamp, max(header.base_offset, start_offset)\n",
                '        raise CorruptLog(segment.log_path, position, "the payload does not decode") from None\n',
            ),
        ),
        schedule=Schedule("lookups:by_time_into_undecodable_records"),
    ),
    Mutant(
        name="D25",
        title="a record's timestamp may leave 64 bits",
        origin="found from outside: no question by time got an answer that can be read",
        rule="a record whose timestamp does not fit into 64 bits does not decode, and is not taken (3)",
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
        title="a time index is believed",
        origin="found from outside: one bit of it, and a consumer that sought by time passed over records",
        rule="an entry of a time index counts if its time is that of the batches in front of it (12)",
        breaks=("I22",),
        edits=(
            Edit(
                "broker.log.segment",
                "        if entry is not None and not self._is_time_sound(entry):\n",
                "        if False:\n",
            ),
        ),
        schedule=Schedule("lookups:by_time_with_a_rotten_time_index"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
