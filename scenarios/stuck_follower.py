"""A follower that stops fetching leaves the ISR; an idle one does not."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "m0 is on all three.", A=Expected(role="leader", leo=1, hw=1, isr="ABC"), B=Expected(hw=1), C=Expected(hw=1)
    )
    idle_seconds = stage.patience(IDLE_SECONDS)
    await stage.wait(idle_seconds)
    await stage.step(
        f"Nothing is written for {idle_seconds:g} seconds, longer than replica.lag.time.max.ms. B and C are at A's LEO:"
        " idle replicas stay in the ISR.",
        A=Expected(isr="ABC"),
    )
    await stage.pause("C")
    m1 = await stage.produce("m1")
    await stage.step(
        "C is paused. m1 reaches B, but C is in the ISR: the HW waits for it, and so does the producer.",
        A=Expected(leo=2, hw=1, isr="ABC"),
        B=Expected(leo=2),
    )
    stage.check("m1 waits", not m1.is_settled)
    await stage.settled(m1)
    await stage.step(
        "After replica.lag.time.max.ms C leaves the ISR, and the HW is computed again at once: it advances with A and"
        " B.",
        A=Expected(leo=2, hw=2, isr="AB"),
        B=Expected(leo=2, hw=2),
        C=Expected(leo=1),
    )
    await stage.write("m2")
    await stage.resume("C")
    await stage.step(
        "C resumes, fetches the missing records, and rejoins the ISR once it has reached A's LEO.",
        A=Expected(leo=3, hw=3, isr="ABC"),
        C=Expected(leo=3, hw=3, records="m0 m1 m2"),
    )
    return Ending(lesson="Lag is time behind the leader's LEO: a replica at the LEO has none, however long it is idle.")


IDLE_SECONDS = 30.0
LAG = {"replica.lag.time.max.ms": "3000", "zookeeper.session.timeout.ms": "10000"}

SCENARIO = Scenario(
    name="stuck-follower",
    title="A follower that stops fetching leaves the ISR; an idle one does not",
    variants=(
        Variant(
            setup=Setup(brokers="ABCD", controller="D", min_insync_replicas=2, settings=LAG),
            play=play,
            live=True,
        ),
    ),
    page=Page(
        summary="First nothing is written for a long time. Then C is paused, and a record is written.",
        rule=(
            "A replica at the leader's LEO is in sync, however long ago its last fetch was. If a replica is behind for "
            "replica.lag.time.max.ms, the leader proposes to remove it. The HW is computed again when the ISR has "
            "changed, without waiting for a fetch (KAFKA-13091)."
        ),
        source="KAFKA-1546, KAFKA-7152; [section 6](../REPLICATION.md#6-isr-changes).",
        old_texts=(
            "Texts say that a follower leaves when it has not fetched within the limit. A quiet topic would then lose "
            "its followers whenever a fetch is late; the rule that equal LEOs mean no lag (KAFKA-7152) prevents it."
        ),
    ),
)
