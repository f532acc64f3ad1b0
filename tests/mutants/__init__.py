"""Bugs that Kafka really had, planted into this broker one at a time, to show that a checker catches each of them.

A mutant is a `Mutant` (`mutant.py`) in the file of its theme, listed in `catalogue.py`:

    Mutant(
        name="B05",                      # a variant of one bug has a letter: B04a
        title="a replica below the start of the leader's epoch joins the ISR",
        origin="KAFKA-7128",
        rule="a joiner holds everything up to the high watermark and up to the leader epoch's start (section 6)",
        breaks=("I6", "I3", "I19"),      # the expected invariants, for readers; nothing compares them with what is found
        edits=(Edit("broker.replication.isr", "exact text, once in the module", "the wrong text"),),
        schedule=Search("joining", 16),  # the small model; or UnitTest, CoreSchedule, Schedule
    )

An import hook applies it in a process of its own (`patching.py`, `one_run.py`), so production code needs no switch, and
nothing has to be undone. `make mutants` replays its directed run and, if one is recorded in `caught.json`, a random seed:
a checker outside the mutated modules must find a violation in the mutated run, and the same run without the mutant must
be clean. Seeds change their meaning with the code, so where one catches its mutant no longer, the replay searches others
within a bound, and only says so. `SEARCH=1 make mutants` searches seeds for all. A schedule is an async function in
`schedules/`, over a whole simulated cluster or, where that cannot work, over the pure core; where a test shows the bug at
the lowest level, that test is the directed run.

`python -m tests.mutants show B05` prints a mutant as a diff; `--help` lists the other commands.
"""
