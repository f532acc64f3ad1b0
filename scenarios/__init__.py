"""The stories of replication, one file each, told step by step.

A story is `STORY = Story(name=.., acts=(Act(.., play=play),), page=Page(..))` (telling/story.py); `play` is a script
on a `Stage` (telling/stage.py) that speaks of brokers by letter:

    async def play(stage: Stage) -> Ending:
        stage.hold("A", "B")
        m0 = await stage.produce("m0")
        await stage.tell("The producer sends m0 to A.", A=Shows(leo=1, hw=0, remote={"B": 0}), B=Shows(leo=0))
        ...
        return Ending(moral="m0 is committed")

`tell` waits until the rows are as shown, fails if they never are, and hands the step (sentence, notes, table) to the
listener. What `play` returns is compared with the audit's verdict over the disks. The same script plays on any stage
that has the verbs: `SimulatedStage` (telling/simulated.py: virtual time, one process) and, for acts with `live=True`, a
stage of real processes (live/). What only a simulation can do is on `SimulatedStage`: an act that needs it is not live.
"""
