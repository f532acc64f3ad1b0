"""Two replicas hold different records at one offset for ever."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.scenarios.staging.stage import Stage

SESSIONS_ENDED_SECONDS = 10.0
"""By then ZooKeeper has ended the sessions of all brokers."""


async def play_unclean(stage: Stage) -> Ending:
    await stage.write("m0", acks=1)
    await stage.until(A=Expected(hw=1), B=Expected(leo=1, hw=1))
    await stage.hold("A", "B")
    await stage.hold("B", "A")
    await stage.write("m1", acks=1)
    await stage.step(
        "m0 is on A and B. Then B can no longer reach A and leaves the ISR. m1 is on A alone; with"
        " min.insync.replicas=1 that is committed.",
        A=Expected(role="leader", epoch=0, leo=2, hw=2, isr="A", records="m0 m1"),
        B=Expected(leo=1, hw=1, records="m0"),
    )
    await stage.checkpointed()
    await stage.kill("A")
    await stage.step(
        "A dies. No in-sync replica is left, but unclean.leader.election.enable=true: B leads, in epoch 1, from"
        " offset 1.",
        B=Expected(role="leader", epoch=1, leo=1, isr="B", epochs=[(0, 0), (1, 1)]),
    )
    await stage.release("A", "B")
    await stage.release("B", "A")
    return await _end(stage, epoch=1)


async def play_power(stage: SimulatedStage) -> Ending:
    await stage.write("m0", acks=1)
    await stage.until(A=Expected(hw=1), B=Expected(leo=1, hw=1))
    stage.sync_disk("A", "B")
    await stage.write("m1", acks=1)
    await stage.until(A=Expected(hw=2), B=Expected(leo=2, hw=2))
    await stage.checkpointed()
    stage.sync_disk("A")
    await stage.step(
        "m0 and m1 are on A and B, both in the ISR. A's kernel has written both to the disk, B's only m0.",
        A=Expected(role="leader", epoch=0, leo=2, hw=2, isr="AB", records="m0 m1"),
        B=Expected(leo=2, hw=2, records="m0 m1"),
    )
    await stage.cut_power("A", "B", "C")
    await stage.step(
        "The power fails for all brokers at once, the controller included. B loses m1, which it had not synced.",
        A=Expected(role="dead", records="m0 m1"),
        B=Expected(role="dead", records="m0"),
    )
    await stage.wait(SESSIONS_ENDED_SECONDS)
    await stage.start("B", "C")
    await stage.step(
        "B is back first. Its log may be short, so it would wait for A, the other member of the ISR; but"
        " unclean.leader.election.enable=true: B leads, from offset 1.",
        B=Expected(role="leader", epoch=2, leo=1, isr="B", epochs=[(0, 0), (2, 1)]),
    )
    return await _end(stage, epoch=2)


async def _end(stage: Stage, epoch: int) -> Ending:
    await stage.write("m2", acks=1)
    await stage.step(
        "The producer sends m2 to B, which puts it at offset 1.",
        B=Expected(leo=2, hw=2, records="m0 m2"),
    )
    await stage.checkpointed()
    await stage.start("A")
    if stage.by_epoch:
        await stage.step(
            "A returns and asks where epoch 0 ended. B answers: at 1. A truncates m1 and fetches m2: both logs are the"
            " same. m1 is lost although it was acknowledged, but its producer asked only for acks=1.",
            A=Expected(role="follower", epoch=epoch, leo=2, hw=2, epochs=[(0, 0), (epoch, 1)], records="m0 m2"),
            B=Expected(leo=2, hw=2, isr="AB", records="m0 m2"),
        )
        return Ending(lesson="Both logs are the same: the epochs show where A's and B's histories diverged.")
    await stage.step(
        "A returns with HW 2 and truncates its log there, which removes nothing. It fetches from offset 2. Its LEO is"
        " B's LEO, so it joins the ISR. Offset 1 is m1 on A and m2 on B, for ever.",
        A=Expected(role="follower", epoch=epoch, leo=2, hw=2, records="m0 m1"),
        B=Expected(leo=2, hw=2, isr="AB", records="m0 m2"),
    )
    await stage.write("m3", acks=1)
    await stage.step(
        "m3 follows on both, and offset 1 is never compared again.",
        A=Expected(leo=3, hw=3, records="m0 m1 m3"),
        B=Expected(leo=3, hw=3, records="m0 m2 m3"),
    )
    return Ending(
        lesson="What a consumer reads at offset 1 depends on the leader: the HW cannot tell two histories apart.",
        findings=("diverged-below-high-watermark",),
    )


UNCLEAN = Setup(
    replicas="AB",
    controller="C",
    settings={"replica.lag.time.max.ms": "2000"},
    configs={"unclean.leader.election.enable": "true"},
)
POWER = Setup(replicas="AB", controller="C", configs={"unclean.leader.election.enable": "true"})

SCENARIO = Scenario(
    name="divergence",
    title="Truncating at the high watermark leaves two histories at one offset",
    variants=(
        Variant(name="unclean", title="B leads by an unclean election", setup=UNCLEAN, play=play_unclean, live=True),
        Variant(name="power", title="B leads after it lost its unsynced tail", setup=POWER, play=play_power),
    ),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "A holds m0 and m1, B only m0, and B leads: by an unclean election, or because the power failed for "
            "all brokers at once and B had not synced m1. B writes m2 at offset 1. A returns with HW 2."
        ),
        rule=(
            "The HW says how far records were committed, but not under which leader. Only offset and epoch together "
            "identify a record: same pair, same bytes, and the same log below it (log matching)."
        ),
        source="KIP-101 (scenario 2); [section 4](../REPLICATION.md#4-follower-fetch); invariants I16 and I20.",
        old_texts=(
            "Texts show this as a fault of replication alone. It needs more: an acknowledgement that does not "
            "wait for the ISR, or a lost unsynced tail. m1 is lost under both rules, because it was acknowledged "
            "with acks=1. With min.insync.replicas=2 and acks=all, m1 of variant 'unclean' would have been refused "
            "before it was written. A sync before the acknowledgement (`flush.messages=1`) keeps m1 of variant "
            "'power', and so does the default, under which B waits for A and the larger log leads (Kafka takes the "
            "first one that is back)."
        ),
        limits=(
            "A simulated power loss keeps synced data; the scenario decides what the kernel had written back by then."
        ),
    ),
)
