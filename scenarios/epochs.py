"""The leader epoch shows a follower where its log diverges from the leader's."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage

SHARED = [f"m{number}" for number in range(50)]
ON_A_ALONE = [f"m{number}" for number in range(50, 200)]
ON_B = [f"n{number}" for number in range(10)]

BATCH_RECORDS = 10
"""A log is truncated between batches, never inside one."""


async def play(stage: Stage) -> Ending:
    await stage.write(*SHARED, acks=1, batch_records=BATCH_RECORDS)
    await stage.until(A=Expected(hw=50), B=Expected(leo=50, hw=50))
    await stage.hold("A", "B")
    await stage.hold("B", "A")
    await stage.write(*ON_A_ALONE, acks=1, batch_records=BATCH_RECORDS)
    await stage.step(
        "In epoch 0 the leader A writes offsets 0 to 199. B has 0 to 49, can no longer reach A, and leaves the ISR.",
        A=Expected(role="leader", epoch=0, leo=200, hw=200, isr="A", epochs=[(0, 0)]),
        B=Expected(leo=50, hw=50, epochs=[(0, 0)]),
    )
    await stage.checkpointed()
    await stage.kill("A")
    await stage.step(
        "A dies, and an unclean election is allowed: B leads. It notes that epoch 1 begins at offset 50.",
        B=Expected(role="leader", epoch=1, leo=50, isr="B", epochs=[(0, 0), (1, 50)]),
    )
    await stage.release("A", "B")
    await stage.release("B", "A")
    await stage.write(*ON_B, acks=1, batch_records=BATCH_RECORDS)
    await stage.step("B takes ten records, n0 to n9, at offsets 50 to 59.", B=Expected(leo=60, hw=60))
    await stage.checkpointed()
    await stage.start("A")
    if stage.by_epoch:
        await stage.step(
            "A returns and asks B where epoch 0 ended: the answer to OffsetForLeaderEpoch(0) is (0, 50). A truncates 50"
            " to 199, fetches from 50, and learns epoch 1 from B's records.",
            A=Expected(
                role="follower", epoch=1, leo=60, hw=60, epochs=[(0, 0), (1, 50)], records=" ".join(SHARED + ON_B)
            ),
            B=Expected(leo=60, hw=60, isr="AB", epochs=[(0, 0), (1, 50)], records=" ".join(SHARED + ON_B)),
        )
        stage.check_noted("A asks B for OffsetForLeaderEpoch(0): (0, 50)")
        return Ending(lesson="Both logs and both epoch files are the same: epoch 0 ends at 50, epoch 1 begins there.")
    await stage.step(
        "A returns with HW 200. B's log ends at 60, so A truncates to 60 only: it keeps its own records 50 to 59.",
        A=Expected(
            role="follower", epoch=1, leo=60, hw=60, epochs=[(0, 0)], records=" ".join(SHARED + ON_A_ALONE[:10])
        ),
        B=Expected(leo=60, hw=60, isr="AB", epochs=[(0, 0), (1, 50)], records=" ".join(SHARED + ON_B)),
    )
    return Ending(
        lesson="LEO and HW are the same on both, ten records are not: offsets alone do not tell histories apart.",
        findings=("diverged-below-high-watermark",),
    )


SETUP = Setup(
    replicas="AB",
    controller="C",
    settings={"replica.lag.time.max.ms": "2000"},
    configs={"unclean.leader.election.enable": "true"},
)

SCENARIO = Scenario(
    name="epochs",
    title="The leader epoch shows where two histories diverge",
    variants=(Variant(setup=SETUP, play=play, live=True),),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "The leader of epoch 0 writes 200 records. Its follower gets 50 of them and then leads in epoch 1. The old "
            "leader returns."
        ),
        rule=(
            "The answer to OffsetForLeaderEpoch(e) is the largest epoch not above e that the leader knows, and its "
            "end: the start of the next epoch, or the log end. The follower truncates there."
        ),
        source="KIP-101, KIP-279; [section 8](../REPLICATION.md#8-epoch-history).",
        old_texts=(
            "Some texts say that the answer is 'the LEO, or the start of epoch e + 1'. Epochs have gaps, so it is the "
            "start of the next epoch that the leader knows; and the answer names the epoch that it is about."
        ),
    ),
)
