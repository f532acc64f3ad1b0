"""Two rounds of fetching commit a record."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Act, Cast, Ending, Page, Scenario
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.step(
        "A leads; B has asked for offset 0, and its request waits at A.",
        A=Expected(role="leader", leo=0, hw=0, remote={"B": 0}),
        B=Expected(role="follower", leo=0, hw=0),
    )
    stage.hold("A", "B")
    m0 = await stage.produce("m0")
    await stage.step(
        "The producer sends m0. A writes it and answers B's fetch; the reply is still under way.",
        A=Expected(leo=1, hw=0, remote={"B": 0}),
        B=Expected(leo=0, hw=0),
    )
    stage.hold("B", "A")
    stage.release("A", "B")
    await stage.step(
        "Round 1: the reply reaches B, which writes m0. A does not know it yet, so nothing is committed.",
        A=Expected(leo=1, hw=0, remote={"B": 0}),
        B=Expected(leo=1, hw=0),
    )
    stage.check("m0 is not acknowledged yet", not m0.is_settled)
    stage.hold("A", "B")
    stage.release("B", "A")
    await stage.step(
        "Round 2: B's next fetch asks for offset 1. That is how A learns that B holds m0: HW 1, m0 is acknowledged.",
        A=Expected(leo=1, hw=1, remote={"B": 1}),
        B=Expected(leo=1, hw=0),
    )
    await stage.settled(m0)
    stage.release("A", "B")
    await stage.step(
        "The reply of round 2 tells B of HW 1: now a consumer could read m0 from B, if B led.",
        A=Expected(hw=1),
        B=Expected(leo=1, hw=1, records="m0"),
    )
    return Ending(moral="A record is committed after two rounds: one brings it, the next one tells that it arrived.")


SCENARIO = Scenario(
    name="two-rounds",
    title="Two rounds of fetching commit a record",
    acts=(Act(cast=Cast(brokers="ABC", replicas="AB", min_insync_replicas=2), play=play, live=True),),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "A producer sends one record to a leader with one follower. The first fetch of the follower brings "
            "the record. Only the second fetch tells the leader that it arrived, for a fetch from offset 1 says: "
            "I hold everything below 1."
        ),
        rule=(
            "The leader counts the LEO that followers report by what they fetch from. HW = the smallest LEO of "
            "the in-sync replicas, the leader included, and never lower than before. A follower's HW is the "
            "smaller of its own LEO and what the leader last said."
        ),
        source=(
            "Kafka's `Partition.maybeIncrementLeaderHW`; [section "
            "2](../REPLICATION.md#2-replica-state-and-the-high-watermark) and [section "
            "4](../REPLICATION.md#4-follower-fetch)."
        ),
        old_texts=(
            "Some texts write `HW = min(HW, LEOs)`: so it could never rise; it is `max(HW, min(LEOs))`. Some call "
            "the LEO 'low watermark': it is the offset of the next record, and the low watermark is the smallest "
            "log start. And the leader does not keep the followers' HWs, only their LEOs. In Kafka the reply to "
            "round 2 still carries the old HW, and the follower hears of the new one in round 3; here the reply "
            "is made after the report is counted (hardening rule 10)."
        ),
    ),
)
