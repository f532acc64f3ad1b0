"""An acknowledged record is lost when followers cut their logs at the high watermark."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Act, Cast, Ending, Page, Scenario
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "A leads in epoch 0. m0 is on all three, committed, and everybody knows.",
        A=Expected(role="leader", epoch=0, leo=1, hw=1, isr="ABC"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    stage.hold("B", "A")
    m1 = await stage.produce("m1")
    await stage.until(A=Expected(leo=2), B=Expected(leo=2), C=Expected(leo=2))
    stage.hold("A", "B")
    stage.release("B", "A")
    await stage.settled(m1)
    await stage.step(
        "m1 is on all three and acknowledged: HW 2 at A. The reply that would tell B of HW 2 gets lost: B's HW is 1.",
        A=Expected(leo=2, hw=2, remote={"B": 2, "C": 2}),
        B=Expected(leo=2, hw=1, records="m0 m1"),
        C=Expected(leo=2, hw=2),
    )
    await stage.checkpointed()
    await stage.kill("C")
    if stage.by_epoch:
        await _goes_well(stage)
        return Ending(moral="B kept m1, because it asked where epoch 0 had ended instead of trusting its own HW.")
    await _goes_wrong(stage)
    return Ending(
        moral="m1 was acknowledged, and is gone everywhere: B trusted its HW, and a HW is always old news.",
        findings=("acked-missing",),
    )


async def _goes_well(stage: Stage) -> None:
    await stage.step(
        "C dies and leaves the ISR: epoch 1 begins at A. B is to follow anew, and asks A where epoch 0 ended."
        " Nothing gets from A to B yet. B cuts nothing.",
        A=Expected(role="leader", epoch=1, leo=2, hw=2, isr="AB", epochs=[(0, 0), (1, 2)]),
        B=Expected(role="follower", epoch=1, leo=2, hw=1, records="m0 m1"),
    )
    await stage.kill("A")
    await stage.step(
        "A dies before B has fetched. B is in the ISR, so it leads, in epoch 2, from offset 2.",
        B=Expected(role="leader", epoch=2, leo=2, isr="B", epochs=[(0, 0), (2, 2)], records="m0 m1"),
    )
    stage.release("A", "B")
    await stage.start("A")
    await stage.step(
        "A returns. Its empty entry (1, 2) is dropped when it loads its log. It asks B where epoch 0 ended: at 2. No"
        " record is cut.",
        A=Expected(role="follower", epoch=2, leo=2, hw=2, epochs=[(0, 0)], records="m0 m1"),
        B=Expected(leo=2, hw=2, isr="AB"),
    )
    await stage.start("C")
    await stage.step(
        "C returns, too. m1 is at offset 1 on all three.",
        A=Expected(records="m0 m1"),
        B=Expected(leo=2, hw=2, isr="ABC", records="m0 m1"),
        C=Expected(role="follower", leo=2, hw=2, records="m0 m1"),
    )


async def _goes_wrong(stage: Stage) -> None:
    await stage.step(
        "C dies and leaves the ISR: epoch 1 begins at A. B is to follow anew, and cuts its log at its HW: m1 is gone"
        " from B, and nothing gets from A to B yet.",
        A=Expected(role="leader", epoch=1, leo=2, hw=2, isr="AB"),
        B=Expected(role="follower", epoch=1, leo=1, hw=1, records="m0"),
    )
    await stage.kill("A")
    await stage.step(
        "A dies before B has fetched m1 again. B is in the ISR, so it leads, in epoch 2, from offset 1.",
        B=Expected(role="leader", epoch=2, leo=1, isr="B", epochs=[(0, 0), (2, 1)], records="m0"),
    )
    stage.release("A", "B")
    await stage.start("A")
    await stage.step(
        "A returns and follows B. Its HW is 2, but B's log ends at 1: A cuts m1, too.",
        A=Expected(role="follower", epoch=2, leo=1, records="m0"),
        B=Expected(leo=1, hw=1, isr="AB"),
    )
    await stage.start("C")
    await stage.step(
        "C returns and cuts it as well. m1 was acknowledged with acks=all, and nobody holds it any more.",
        A=Expected(records="m0"),
        B=Expected(leo=1, hw=1, isr="ABC", records="m0"),
        C=Expected(role="follower", leo=1, records="m0"),
    )


CAST = Cast(brokers="ABCD", replicas="ABC", controller="D", min_insync_replicas=2)

SCENARIO = Scenario(
    name="loss",
    title="Cutting at the high watermark loses an acknowledged record",
    acts=(Act(cast=CAST, play=play, live=True),),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "m1 is acknowledged with acks=all. The follower B holds it, but has not heard that it is committed. A "
            "new epoch begins, B follows anew, and the leader A dies before B has fetched again. B leads. Under "
            "the old rule B has cut m1 in the meantime, and everybody cuts it after B."
        ),
        rule=(
            "`high-watermark`: who begins to follow cuts its log at its own HW, since everything above may be "
            "uncommitted. `leader-epoch`: it asks the leader where the last epoch that it knows ended, and cuts "
            "there. The first rule is wrong because a follower's HW is always behind the leader's by at least one "
            "message."
        ),
        source=(
            "KIP-101 (scenario 1), KAFKA-1211; [section 4](../REPLICATION.md#4-follower-fetch) and [section "
            "8](../REPLICATION.md#8-epoch-history)."
        ),
        old_texts=(
            "Most texts let B restart between the two rounds. Here a restart makes B a new incarnation, which "
            "leaves the ISR until it has caught up (hardening rule 1), so it could not lead with a cut log. The "
            "story therefore begins the new epoch by the death of C. Texts also say that the loss needs "
            "min.insync.replicas=1: it does not, here it is 2."
        ),
    ),
)
