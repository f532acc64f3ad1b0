"""Five patches that change no promise. A checker that convicts one of them is wrong.

Each really changes what a run does or says, so that they are no empty exercise: a log line, pauses, an order, a size.
"""

from tests.mutants.mutant import Edit, Mutant

PATCHES = (
    Mutant(
        name="N1",
        title="a renamed log line",
        origin="hardening.md",
        rule="log lines are for people",
        breaks=(),
        edits=(Edit("broker.partition", "truncated from %d to %d under", "cut from %d down to %d under"),),
    ),
    Mutant(
        name="N2",
        title="a refused proposal is repeated after 200 ms, not 50",
        origin="hardening.md",
        rule="the pause before a repetition is free to choose within the bounds of liveness",
        breaks=(),
        edits=(Edit("broker.replication.isr", "PROPOSAL_RETRY_MS = 50\n", "PROPOSAL_RETRY_MS = 200\n"),),
    ),
)
