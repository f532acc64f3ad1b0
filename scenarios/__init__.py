"""The textbook scenarios of replication, one file each, played step by step.

A scenario is `SCENARIO = Scenario(name=.., variants=(Variant(.., play=play),), page=Page(..))` (staging/scenario.py).
`play` is a script for a `Stage` (staging/stage.py), which names brokers by letter:

    async def play(stage: Stage) -> Ending:
        await stage.hold("A", "B")
        m0 = await stage.produce("m0")
        await stage.step("The producer sends m0 to A.", A=Expected(leo=1, hw=0, remote={"B": 0}), B=Expected(leo=0))
        ...
        return Ending(lesson="m0 is committed")

`step` waits until the rows are as expected, fails if they never are, and passes the step (sentence, notes, table) to
the listener. What `play` returns is compared with the audit's verdict on the disks. The same script runs on every
stage: `SimulatedStage` (staging/simulated.py: virtual time, one process) and, for variants with `live=True`, a stage of
real processes (live/). What only a simulation can do is on `SimulatedStage` alone: a variant that needs it is not live.
docs/QUESTIONS.md lists the steps that add a scenario.
"""
