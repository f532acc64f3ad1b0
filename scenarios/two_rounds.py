"""Two rounds of fetching commit a record."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import BOTH_RULES, Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.step(
        "A leads; B has fetched from offset 0, and its request waits at A.",
        A=Expected(role="leader", leo=0, hw=0, remote={"B": 0}),
        B=Expected(role="follower", leo=0, hw=0),
    )
    await stage.hold("A", "B")
    m0 = await stage.produce("m0")
    await stage.step(
        "The producer sends m0. A writes it and answers B's fetch; the reply has not arrived yet.",
        A=Expected(leo=1, hw=0, remote={"B": 0}),
        B=Expected(leo=0, hw=0),
    )
    await stage.hold("B", "A")
    await stage.release("A", "B")
    await stage.step(
        "Round 1: the reply reaches B, which writes m0. A does not know it yet, so nothing is committed.",
        A=Expected(leo=1, hw=0, remote={"B": 0}),
        B=Expected(leo=1, hw=0),
    )
    stage.check("m0 is not acknowledged yet", not m0.is_settled)
    await stage.hold("A", "B")
    await stage.release("B", "A")
    await stage.step(
        "Round 2: B's next fetch starts at offset 1. So A knows that B holds m0: HW 1, m0 is acknowledged.",
        A=Expected(leo=1, hw=1, remote={"B": 1}),
        B=Expected(leo=1, hw=0),
    )
    await stage.settled(m0)
    await stage.release("A", "B")
    await stage.step(
        "The reply of round 2 carries HW 1 to B: if B led now, a consumer could read m0 from it.",
        A=Expected(hw=1),
        B=Expected(leo=1, hw=1, records="m0"),
    )
    return Ending(lesson="A record is committed after two rounds: one copies it, the next one confirms it.")


SCENARIO = Scenario(
    name="two-rounds",
    title="Two rounds of fetching commit a record",
    variants=(Variant(setup=Setup(brokers="ABC", replicas="AB", min_insync_replicas=2), play=play, live=True),),
    rules=BOTH_RULES,
    page=Page(
        summary=(
            "A producer sends one record to a leader with one follower. The follower's first fetch copies the record. "
            "Only its second fetch confirms it to the leader: a fetch from offset 1 means that the follower holds "
            "everything below 1."
        ),
        rule=(
            "The leader takes the fetch offset of a follower as its LEO. HW = the smallest LEO of the in-sync "
            "replicas, the leader included, and never lower than before. A follower's HW is the smaller of its own "
            "LEO and the HW in the leader's last reply."
        ),
        source=(
            "Kafka's `Partition.maybeIncrementLeaderHW`; [section "
            "2](../REPLICATION.md#2-replica-state-and-the-high-watermark) and [section "
            "4](../REPLICATION.md#4-follower-fetch)."
        ),
        old_texts=(
            "Some texts write `HW = min(HW, LEOs)`, which could never rise; it is `max(HW, min(LEOs))`. Some call the "
            "LEO 'low watermark': but the LEO is the offset of the next record, and the low watermark is the smallest "
            "log start. The leader does not keep the followers' HWs, only their LEOs. In Kafka the reply of round 2 "
            "still carries the old HW, and the follower gets the new one in round 3; here the leader counts the fetch "
            "before it replies (hardening rule 10)."
        ),
    ),
)
