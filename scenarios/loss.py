"""An acknowledged record is lost if followers truncate their logs at the high watermark."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "A leads in epoch 0. m0 is on all three and committed, and all replicas know it.",
        A=Expected(role="leader", epoch=0, leo=1, hw=1, isr="ABC"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    await stage.hold("B", "A")
    m1 = await stage.produce("m1")
    await stage.until(A=Expected(leo=2), B=Expected(leo=2), C=Expected(leo=2))
    await stage.hold("A", "B")
    await stage.release("B", "A")
    await stage.settled(m1)
    await stage.step(
        "m1 is on all three and acknowledged: HW 2 at A. The reply that carries HW 2 to B is lost: B's HW is 1.",
        A=Expected(leo=2, hw=2, remote={"B": 2, "C": 2}),
        B=Expected(leo=2, hw=1, records="m0 m1"),
        C=Expected(leo=2, hw=2),
    )
    await stage.checkpointed()
    await stage.kill("C")
    if stage.by_epoch:
        await _goes_well(stage)
        return Ending(lesson="B kept m1 because it asked where epoch 0 had ended instead of trusting its own HW.")
    await _goes_wrong(stage)
    return Ending(
        lesson="m1 was acknowledged, and is lost everywhere: B trusted its HW, but a follower's HW is always outdated.",
        findings=("acked-missing",),
    )


async def _goes_well(stage: Stage) -> None:
    await stage.step(
        "C dies and leaves the ISR: epoch 1 begins at A. B must follow again, and asks A where epoch 0 ended. No"
        " message from A reaches B yet, so B truncates nothing.",
        A=Expected(role="leader", epoch=1, leo=2, hw=2, isr="AB", epochs=[(0, 0), (1, 2)]),
        B=Expected(role="follower", epoch=1, leo=2, hw=1, records="m0 m1"),
    )
    await stage.kill("A")
    await stage.step(
        "A dies before B has fetched. B is in the ISR, so it leads, in epoch 2, from offset 2.",
        B=Expected(role="leader", epoch=2, leo=2, isr="B", epochs=[(0, 0), (2, 2)], records="m0 m1"),
    )
    await stage.release("A", "B")
    await stage.start("A")
    await stage.step(
        "A returns. It drops its empty entry (1, 2) when it loads its log, and asks B where epoch 0 ended: at 2. No"
        " record is truncated.",
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
        "C dies and leaves the ISR: epoch 1 begins at A. B must follow again, and truncates its log at its HW: B loses"
        " m1. No message from A reaches B yet.",
        A=Expected(role="leader", epoch=1, leo=2, hw=2, isr="AB"),
        B=Expected(role="follower", epoch=1, leo=1, hw=1, records="m0"),
    )
    await stage.kill("A")
    await stage.step(
        "A dies before B has fetched m1 again. B is in the ISR, so it leads, in epoch 2, from offset 1.",
        B=Expected(role="leader", epoch=2, leo=1, isr="B", epochs=[(0, 0), (2, 1)], records="m0"),
    )
    await stage.release("A", "B")
    await stage.start("A")
    await stage.step(
        "A returns and follows B. Its HW is 2, but B's log ends at 1: A truncates m1, too.",
        A=Expected(role="follower", epoch=2, leo=1, records="m0"),
        B=Expected(leo=1, hw=1, isr="AB"),
    )
    await stage.start("C")
    await stage.step(
        "C returns and truncates it as well. m1 was acknowledged with acks=all, and no replica holds it any more.",
        A=Expected(records="m0"),
        B=Expected(leo=1, hw=1, isr="ABC", records="m0"),
        C=Expected(role="follower", leo=1, records="m0"),
    )


SETUP = Setup(brokers="ABCD", replicas="ABC", controller="D", min_insync_replicas=2)

SCENARIO = Scenario(
    name="loss",
    title="Truncating at the high watermark loses an acknowledged record",
    variants=(Variant(setup=SETUP, play=play, live=True),),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "m1 is acknowledged with acks=all. The follower B holds it, but does not know that it is committed. A new "
            "epoch begins, B follows again, and the leader A dies before B has fetched. B leads. Under the old rule B "
            "has truncated m1 in the meantime, and then all others truncate it, too."
        ),
        rule=(
            "`high-watermark`: a replica that begins to follow truncates its log at its own HW, since everything "
            "above may be uncommitted. `leader-epoch`: it asks the leader where the last epoch that it knows ended, "
            "and truncates there. The first rule is wrong because a follower's HW is always at least one message "
            "behind the leader's."
        ),
        source=(
            "KIP-101 (scenario 1), KAFKA-1211; [section 4](../REPLICATION.md#4-follower-fetch) and [section "
            "8](../REPLICATION.md#8-epoch-history)."
        ),
        old_texts=(
            "Most texts let B restart between the two rounds. Here a restarted B is a new incarnation, which is out of "
            "the ISR until it has caught up (hardening rule 1), so it could not lead with a truncated log. So this "
            "scenario starts the new epoch by the failure of C. Texts also say that the loss needs "
            "min.insync.replicas=1: it does not, here it is 2."
        ),
    ),
)
