"""Who may lead after a start: replaced disks, logs that may be short, brokers that answer nobody (issue of lying disks)."""

from tests.mutants.mutant import CannotApply, Edit, Mutant, Schedule

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="D02",
        title="a member of the ISR leads on another log directory than it was in sync with",
        origin="KIP-858, KIP-966",
        rule="directory ids stand beside the incarnations of the ISR; another directory has nothing that was acknowledged",
        breaks=("I3", "I21"),
        edits=(
            Edit(
                "controller.cluster_state",
                "        return broker is not None and leadership.directory_of(broker_id) in (None, broker.directory_id)\n",
                "        return broker is not None\n",
            ),
        ),
        schedule=Schedule("elections:replaced_disk_starts_first"),
    ),
)

CANNOT_APPLY: tuple[CannotApply, ...] = ()
