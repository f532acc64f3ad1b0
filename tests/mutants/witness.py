"""What a leader notes of what is committed."""

from tests.mutants.mutant import CannotApply, Edit, Mutant

MUTANTS = (
    Mutant(
        name="W1",
        title="the end of the log is noted as committed",
        origin="issue 13",
        rule="a committed point counts when the high watermark has reached it (decision 0023)",
        breaks=("witness",),
        edits=(
            Edit(
                "broker.witness",
                "if self.pending is not None and high_watermark >= self.pending.end_offset:",
                "if self.pending is not None:",
            ),
        ),
    ),
    Mutant(
        name="W2",
        title="what a truncation cuts stays in the digest",
        origin="issue 13",
        rule="the digest of a segment is that of the batches in it (decision 0023)",
        breaks=("witness",),
        edits=(Edit("broker.log.segment_digest", "            self._total -= lost\n", "            pass\n"),),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
