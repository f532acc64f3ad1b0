"""What counts for the high watermark, who may join the in-sync set, and what becomes of a proposal."""

from tests.mutants.mutant import CannotApply, Edit, Mutant

MUTANTS = (
    Mutant(
        name="B05",
        title="a replica below the start of the leader's epoch joins the ISR",
        origin="KAFKA-7128",
        rule="a joiner holds everything up to the mark and up to the start of the reign",
        breaks=("I6", "I3", "I19"),
        edits=(
            Edit(
                "broker.replication.isr",
                "floor = max(state.high_watermark, state.leader_epoch_start)",
                "floor = state.high_watermark",
            ),
        ),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
