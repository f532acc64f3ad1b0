"""A follower that has caught up but is not yet in the ISR."""

from minibroker.protocol.wire.messages import ApiKey
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.simulation.world.message_holds import requests


async def play(stage: SimulatedStage) -> Ending:
    await stage.write("m0", acks=1)
    await stage.until(A=Expected(hw=1), B=Expected(hw=1))
    await stage.hold("B", "A")
    await stage.hold("A", "B")
    await stage.write("m1", acks=1)
    await stage.step(
        "B cannot reach A and leaves the ISR. m1 is committed on A alone (min.insync.replicas=1).",
        A=Expected(role="leader", epoch=0, leo=2, hw=2, isr="A"),
        B=Expected(leo=1),
    )
    proposal = stage.hold_messages("A", "C", requests(ApiKey.ALTER_PARTITION))
    await stage.release("A", "B")
    await stage.release("B", "A")
    await stage.step(
        "B is back and fetches m1. It has reached the HW, 2, and the start of A's epoch, 0: both are needed. A proposes"
        " to add B to the ISR. The proposal has not reached the controller C yet.",
        A=Expected(leo=2, hw=2, isr="A", pending="AB"),
        B=Expected(leo=2, hw=2),
    )
    await stage.hold("A", "B")
    m2 = await stage.produce("m2")
    await stage.step(
        "m2 comes, and B cannot fetch it now. The ISR is still A alone, but B may already have been added: the HW waits"
        " for B.",
        A=Expected(leo=3, hw=2, isr="A", pending="AB", remote={"B": 2}),
        B=Expected(leo=2),
    )
    stage.check("m2 waits", not m2.is_settled)
    proposal.release()
    await stage.until(A=Expected(isr="AB"))
    await stage.step(
        "The controller adds B. If the HW had advanced, B would now be in the ISR without a committed record.",
        A=Expected(leo=3, hw=2, isr="AB", pending=""),
    )
    await stage.release("A", "B")
    await stage.settled(m2)
    await stage.step("B fetches m2: HW 3.", A=Expected(hw=3), B=Expected(leo=3, hw=3))
    return Ending(lesson="The HW never passes the LEO of a replica that may join: it must not lack committed records.")


SCENARIO = Scenario(
    name="catching-up",
    title="A follower that has caught up but is not yet in the ISR",
    variants=(
        Variant(setup=Setup(replicas="AB", controller="C", settings={"replica.lag.time.max.ms": "2000"}), play=play),
    ),
    page=Page(
        summary=(
            "B was out of the ISR and has caught up. The controller has not added it yet, and a new record comes."
        ),
        rule=(
            "A replica may join with LEO >= HW and LEO >= the start of the leader's epoch. As long as it may, it "
            "counts for the HW: otherwise it might join with a committed record missing."
        ),
        source="KAFKA-7128, KIP-497, KIP-966; [section 6](../REPLICATION.md#6-isr-changes); invariants I4 and I6.",
        old_texts=(
            "Texts say that a follower joins when it has caught up with the HW. In a new epoch the leader's HW "
            "may itself be behind, so the start of the epoch is the second condition."
        ),
    ),
)
