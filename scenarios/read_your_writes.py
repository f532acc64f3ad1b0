"""An acknowledged record can be read from the leader."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    stage.check("m0 is read", await stage.read() == ["m0"])
    await stage.step(
        "m0 is acknowledged with acks=all, and a consumer reads it from the leader: acknowledged means below the HW.",
        A=Expected(role="leader", leo=1, hw=1, isr="AB"),
        B=Expected(leo=1),
    )
    await stage.hold("A", "B")
    await stage.write("m1", acks=1)
    stage.check("m1 is not read", await stage.read() == ["m0"])
    await stage.step(
        "m1 is acknowledged with acks=1, that is, as soon as A has it. It is above the HW, so its writer cannot read it"
        " yet.",
        A=Expected(leo=2, hw=1),
        B=Expected(leo=1),
    )
    await stage.release("A", "B")
    await stage.until(A=Expected(hw=2), B=Expected(leo=2))
    stage.check("m1 is read", await stage.read() == ["m0", "m1"])
    await stage.hold("B", "A")
    m2 = await stage.produce("m2")
    await stage.until(A=Expected(leo=3), B=Expected(leo=3))
    await stage.hold("A", "B")
    await stage.release("B", "A")
    await stage.settled(m2)
    await stage.imagine_read("B")
    stage.check("m2 is read", await stage.read() == ["m0", "m1", "m2"])
    await stage.step(
        "m2 is acknowledged with acks=all and read from A. B holds it, but does not know HW 3 yet. A read from B, if"
        " there were one, would end at offset 2: the writer would miss its own m2.",
        A=Expected(leo=3, hw=3),
        B=Expected(leo=3, hw=2),
    )
    await stage.release("A", "B")
    await stage.step("The next reply carries HW 3 to B.", A=Expected(hw=3), B=Expected(hw=3))
    return Ending(lesson="A client that writes with acks=all and reads from the leader reads its own writes.")


SCENARIO = Scenario(
    name="read-your-writes",
    title="An acknowledged record can be read from the leader",
    variants=(Variant(setup=Setup(replicas="AB", controller="C", min_insync_replicas=2), play=play),),
    page=Page(
        summary="A producer reads what it wrote: after acks=all, and after acks=1.",
        rule="acks=all is answered when the HW has passed the record. A consumer reads from the leader, up to the HW.",
        source="[section 5](../REPLICATION.md#5-consumer-fetch); invariants I23 and I24.",
        limits=(
            "Reading from followers (KIP-392) is not in this version: the scenario shows what it would have to wait "
            "for. There are no transactions either, so last_stable_offset is the HW."
        ),
    ),
)
