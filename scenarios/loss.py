"""An acknowledged record is lost if followers truncate their logs at the high watermark."""

from minibroker.scenarios import patches
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
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


async def play_restart(stage: SimulatedStage) -> Ending:
    """As most texts tell it: two replicas, and B restarts."""
    kept = "m0 m1" if stage.by_epoch else "m0"
    end = 2 if stage.by_epoch else 1
    await stage.write("m0")
    await stage.step(
        "A leads in epoch 0. m0 is on both and committed, and both know it.",
        A=Expected(role="leader", epoch=0, leo=1, hw=1, isr="AB"),
        B=Expected(leo=1, hw=1),
    )
    await stage.hold("B", "A")
    m1 = await stage.produce("m1")
    await stage.until(A=Expected(leo=2), B=Expected(leo=2))
    await stage.hold("A", "B")
    await stage.release("B", "A")
    await stage.settled(m1)
    await stage.step(
        "m1 is on both and acknowledged: HW 2 at A. The reply that carries HW 2 to B is lost: B's HW is 1.",
        A=Expected(leo=2, hw=2, remote={"B": 2}),
        B=Expected(leo=2, hw=1, records="m0 m1"),
    )
    await stage.checkpointed()
    await stage.kill("B")
    await stage.start("B")
    truncates = (
        "asks A where epoch 0 ended, and truncates nothing without an answer"
        if stage.by_epoch
        else "truncates its log at its HW: B loses m1"
    )
    if stage.patched:
        await _member_that_restarted_leads(stage, truncates, end, kept)
        if stage.by_epoch:
            return Ending(lesson="B kept m1, so nothing was lost although the restarted B led.")
        return Ending(
            lesson="m1 was acknowledged, and is lost everywhere: the replica that had just truncated it led.",
            findings=("acked-missing",),
        )
    await _member_that_restarted_waits(stage, truncates, end, kept)
    return Ending(
        lesson="A replica that has restarted does not lead before it has caught up, whatever it has truncated. The"
        " price is that the partition waits for A."
    )


async def _member_that_restarted_leads(stage: SimulatedStage, truncates: str, end: int, kept: str) -> None:
    await stage.step(
        f"B restarts, and is in the ISR as before. It {truncates}. No message from A reaches B yet.",
        A=Expected(role="leader", epoch=0, leo=2, hw=2, isr="AB"),
        B=Expected(role="follower", epoch=0, leo=end, hw=1, records=kept),
    )
    await stage.kill("A")
    await stage.step(
        f"A dies before B has fetched. B is in the ISR, so it leads, in epoch 1, from offset {end}.",
        B=Expected(role="leader", epoch=1, leo=end, isr="B", records=kept),
    )
    await stage.release("A", "B")
    await stage.start("A")
    follows = "m1 is on both." if stage.by_epoch else "B's log ends at 1: A truncates m1, too. No replica holds it."
    await stage.step(
        f"A returns and follows B. {follows}",
        A=Expected(role="follower", epoch=1, leo=end, records=kept),
        B=Expected(leo=end, hw=end, isr="AB", records=kept),
    )


async def _member_that_restarted_waits(stage: SimulatedStage, truncates: str, end: int, kept: str) -> None:
    await stage.step(
        "B restarts. It is another incarnation, so it leaves the ISR, in epoch 1, until it has caught up. It"
        f" {truncates}. No message from A reaches B yet.",
        A=Expected(role="leader", epoch=1, leo=2, hw=2, isr="A"),
        B=Expected(role="follower", epoch=1, leo=end, hw=1, records=kept),
    )
    await stage.kill("A")
    await stage.step(
        "A dies. B is not in the ISR: the partition has no leader, and waits for A.",
        B=Expected(role="no leader", leo=end, records=kept),
    )
    await stage.release("A", "B")
    await stage.start("A")
    await stage.step(
        "A returns and leads, and B catches up. m1 is on both.",
        A=Expected(role="leader", leo=2, hw=2, isr="AB", records="m0 m1"),
        B=Expected(role="follower", leo=2, hw=2, records="m0 m1"),
    )


SETUP = Setup(brokers="ABCD", replicas="ABC", controller="D", min_insync_replicas=2)
OF_TWO = Setup(
    brokers="ABC",
    replicas="AB",
    controller="C",
    min_insync_replicas=1,
    settings={"broker.failure.detection": "session"},  # as in Kafka: a quick restart is over before its session ends
)

SCENARIO = Scenario(
    name="loss",
    title="Truncating at the high watermark loses an acknowledged record",
    variants=(
        Variant(
            name="new-epoch", title="three replicas, and C's failure starts an epoch", setup=SETUP, play=play, live=True
        ),
        Variant(
            name="restart-as-told",
            title="two replicas, and B restarts: as most texts tell it",
            setup=OF_TWO,
            play=play_restart,
            patch=patches.restarts_unnoticed,
            patched="a member of the ISR that has restarted is one as before (no hardening rule 1).",
        ),
        Variant(name="restart", title="two replicas, and B restarts: today", setup=OF_TWO, play=play_restart),
    ),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "m1 is acknowledged with acks=all. The follower B holds it, but does not know that it is committed. A new "
            "epoch begins, B follows again, and the leader A dies before B has fetched. B leads. Under the old rule B "
            "has truncated m1 in the meantime, and then all others truncate it, too. The second and the third variant "
            "have two replicas, and B restarts."
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
            "Most texts let B restart between the two rounds, with two replicas and min.insync.replicas=1. Here a "
            "restarted B is a new incarnation, which is out of the ISR until it has caught up (hardening rule 1), so "
            "it does not lead with a truncated log, under either rule. The second variant takes that away, and shows "
            "what the texts tell. The first one needs no restart: its new epoch begins by the failure of C. It also "
            "shows that the loss does not need min.insync.replicas=1: there it is 2."
        ),
    ),
)
