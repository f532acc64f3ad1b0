"""Bugs that Kafka really had, planted into this broker one at a time, to see that each of them is convicted.

A mutant is a `Mutant` (`mutant.py`) in a file of a theme, listed in `catalogue.py`:

    Mutant(
        name="B05",                      # a variant of one bug has a letter: B04a
        title="joins the ISR below the leader's epoch start",
        origin="KAFKA-7128",
        rule="a joiner holds all up to the mark and to the start of the reign (REPLICATION.md, ISR)",
        breaks=("I6", "I3"),             # what one expects; the table shows what was found
        edits=(Edit("broker.replication.isr", "exact text, once in the module", "the wrong text"),),
        schedule=Schedule("membership:slow_third_replica"),     # or None: random seeds catch it
    )

It is applied by an import hook in a process of its own (`patching.py`, `one_run.py`), so no switch exists in production
code, and nothing has to be undone. Seeds that convict it are found by `SEARCH=1 make mutants` and stand in
`caught.json`; `make mutants` replays them: the mutated run must be convicted by a checker outside the mutated modules,
and the same run without the mutant must be clean. A schedule is an async function in `schedules/`, over a whole
simulated cluster or, where that is hopeless, over the pure core.

`python -m tests.mutants show B05` prints a mutant as a diff; `--help` names the rest.
"""
