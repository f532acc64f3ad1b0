"""A follower that missed two elections is fenced (KIP-320)."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage

BACK_OFF_SECONDS = 1.5
"""B has asked A again by then: a follower that is refused, or cannot connect, retries after a second at most."""


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "A leads in epoch 0; m0 is on all three.",
        A=Expected(role="leader", epoch=0, leo=1, hw=1, isr="ABC"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    await stage.checkpointed()
    await stage.hold("D", "B")
    await stage.kill("A")
    await stage.step(
        "From here on the controller D cannot reach B. A dies, and D elects C, in epoch 1; the ISR is B and C. B does"
        " not know it, and keeps trying A.",
        B=Expected(role="follower", epoch=0),
        C=Expected(role="leader", epoch=1, isr="BC"),
    )
    await stage.start("A")
    await stage.step(
        "A returns and follows C. B reaches A at its old address and fetches from it in epoch 0: A does not lead.",
        A=Expected(role="follower", epoch=1, leo=1),
        B=Expected(role="follower", epoch=0),
        C=Expected(role="leader", isr="ABC"),
    )
    await stage.kill("C")
    await stage.until(A=Expected(role="leader", epoch=2))
    await stage.wait(BACK_OFF_SECONDS)
    await stage.step(
        "C dies, and A leads again, in epoch 2. B still follows A in epoch 0, as it did at the beginning. Its fetch is"
        " refused: FENCED_LEADER_EPOCH. B stops and waits for the controller.",
        A=Expected(role="leader", epoch=2, isr="AB", remote={"B": None}),
        B=Expected(role="follower", epoch=0),
    )
    stage.check_noted("A refuses B's fetch: FENCED_LEADER_EPOCH")
    m1 = await stage.produce("m1")
    await stage.step(
        "m1 is on A alone. B is in the ISR, and A does not know B's LEO in this epoch: the HW does not move, m1 is not"
        " acknowledged. B's position in epoch 0 proves nothing: its log may have been truncated since.",
        A=Expected(leo=2, hw=1, remote={"B": None}),
        B=Expected(leo=1),
    )
    stage.check("m1 is not acknowledged", not m1.is_settled)
    await stage.release("D", "B")
    await stage.settled(m1)
    await stage.step(
        "D reaches B. B follows A in epoch 2, asks where epoch 0 ended, fetches m1 and then from offset 2: HW 2.",
        A=Expected(leo=2, hw=2, isr="AB", remote={"B": 2}),
        B=Expected(role="follower", epoch=2, leo=2, hw=2, records="m0 m1"),
    )
    return Ending(lesson="A position counts only in the epoch in which it was reported.")


SCENARIO = Scenario(
    name="zombie-fetch",
    title="A follower that missed two elections is fenced",
    variants=(Variant(setup=Setup(brokers="ABCD", replicas="ACB", controller="D"), play=play),),
    page=Page(
        summary=(
            "B misses two elections. It keeps trying the leader that it knows, A, which leads again by then, in a "
            "later epoch."
        ),
        rule=(
            "Every fetch carries the follower's leader epoch. An older one is refused with FENCED_LEADER_EPOCH, a "
            "newer one with UNKNOWN_LEADER_EPOCH. Only positions reported under the leader's present epoch count for "
            "the HW."
        ),
        source=(
            "KIP-320; [section 4](../REPLICATION.md#4-follower-fetch) and [section "
            "2](../REPLICATION.md#2-replica-state-and-the-high-watermark); invariant I5."
        ),
        old_texts=(
            "Before KIP-320 the leader would have accepted the fetch. The position would have counted, although the "
            "records below it might have been different."
        ),
    ),
)
