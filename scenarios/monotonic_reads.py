"""What a consumer has read stays, even when the leader changes."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1), C=Expected(hw=1))
    await stage.hold("B", "A")
    m1 = await stage.produce("m1")
    await stage.until(A=Expected(leo=2), B=Expected(leo=2), C=Expected(leo=2))
    await stage.hold("A", "B")
    await stage.release("B", "A")
    await stage.settled(m1)
    stage.check("both are read", await stage.read() == ["m0", "m1"])
    await stage.imagine_read("B")
    await stage.step(
        "A consumer reads m0 and m1 from A. B has both, but its HW is still 1. If a second read went to B, m1 would"
        " be missing.",
        A=Expected(role="leader", epoch=0, leo=2, hw=2),
        B=Expected(leo=2, hw=1),
    )
    await stage.hold("B", "C")
    await stage.kill("A")
    await stage.step(
        "A dies and B leads, with HW 1: it cannot know yet that m1 is committed. An end of 1 would be lower than what"
        " was already read. So B returns no end before its HW has reached the start of its epoch, 2"
        " (OFFSET_NOT_AVAILABLE, KIP-207), and the consumer asks again.",
        B=Expected(role="leader", epoch=1, leo=2, hw=1, epochs=[(0, 0), (1, 2)]),
    )
    await stage.release("A", "B")
    await stage.release("B", "C")
    await stage.until(B=Expected(hw=2), C=Expected(hw=2))
    stage.check("both are read again", await stage.read() == ["m0", "m1"])
    await stage.step(
        "C fetches from B: HW 2. The second read returns what the first one did.",
        B=Expected(leo=2, hw=2, isr="BC"),
        C=Expected(leo=2, hw=2),
    )
    return Ending(lesson="A record that was read was below the HW, so every later leader has it: reads never go back.")


SCENARIO = Scenario(
    name="monotonic-reads",
    title="What a consumer has read stays, even when the leader changes",
    variants=(Variant(setup=Setup(brokers="ABCD", controller="D", min_insync_replicas=2), play=play),),
    page=Page(
        summary=(
            "A consumer has read a record; then the leader dies, and the new one does not know yet that the "
            "record is committed."
        ),
        rule=(
            "Records below the HW are on every in-sync replica, and only these may lead. The answer to ListOffsets is "
            "OFFSET_NOT_AVAILABLE while a new leader's HW is below the start of its epoch."
        ),
        source="KIP-207; [section 5](../REPLICATION.md#5-consumer-fetch); invariants I19 and I22.",
        old_texts=(
            "Texts say that the HW never goes back. A broker's never does within an epoch; but a new leader's HW may "
            "start below the old one's, and no client may notice."
        ),
        limits=(
            "Reading from followers (KIP-392) is not in this version. Two reads from two followers could go back: "
            "their HWs differ."
        ),
    ),
)
