"""A change of the ISR is pending, and the leader dies."""

from minibroker.protocol.wire.messages import ApiKey
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.simulation.world.message_holds import responses


async def play_expand(stage: SimulatedStage) -> Ending:
    await stage.write("m0")
    await stage.hold("A", "B")
    await stage.hold("B", "A")
    await stage.write("m1")
    await stage.step(
        "B cannot reach A and is out of the ISR. m1 is committed on A alone (min.insync.replicas=1).",
        A=Expected(role="leader", epoch=0, leo=2, hw=2, isr="A"),
        B=Expected(leo=1),
    )
    stage.hold_messages("C", "A", responses(ApiKey.ALTER_PARTITION))
    await stage.release("A", "B")
    await stage.release("B", "A")
    await stage.until(A=Expected(pending="AB"), B=Expected(leo=2))
    await stage.step(
        "B has caught up. A proposes to add it, and the controller has done so: ZooKeeper says A B. The reply has not"
        " arrived, so A knows the ISR A, and A B as a possibility.",
        A=Expected(isr="A", pending="AB", hw=2),
        B=Expected(leo=2),
    )
    await stage.hold("A", "B")
    m2 = await stage.produce("m2")
    await stage.step(
        "m2 is on A. Both sets count until the reply arrives, so the HW waits for B: m2 is not acknowledged.",
        A=Expected(leo=3, hw=2, remote={"B": 2}),
        B=Expected(leo=2),
    )
    stage.check("m2 waits", not m2.is_settled)
    await stage.kill("A")
    await stage.step(
        "A dies, and B leads: it is in the ISR. It has every record that was acknowledged.",
        B=Expected(role="leader", leo=2, isr="B", records="m0 m1"),
    )
    await stage.release("A", "B")
    await stage.settled(m2)
    await stage.start("A")
    await stage.step(
        "The producer sends m2 to B. A returns and follows.",
        A=Expected(role="follower", leo=3, hw=3, records="m0 m1 m2"),
        B=Expected(leo=3, hw=3, isr="AB", records="m0 m1 m2"),
    )
    return Ending(lesson="Until the answer is known, every replica that may be in the ISR counts for the HW.")


async def play_shrink(stage: SimulatedStage) -> Ending:
    await stage.write("m0")
    hold = stage.hold_messages("C", "A", responses(ApiKey.ALTER_PARTITION))
    await stage.hold("B", "A")
    await stage.hold("A", "B")
    m1 = await stage.produce("m1")
    await stage.until(A=Expected(pending="A"))
    await stage.step(
        "B cannot reach A. After replica.lag.time.max.ms A proposes to remove it, and the controller has done so. The"
        " reply has not arrived: for A the old set counts, the HW does not move, m1 waits.",
        A=Expected(leo=2, hw=1, isr="AB", pending="A"),
        B=Expected(leo=1),
    )
    stage.check("m1 waits", not m1.is_settled)
    hold.release()
    await stage.settled(m1)
    await stage.step(
        "The reply arrives: the ISR is A, and m1 is committed.", A=Expected(leo=2, hw=2, isr="A", pending="")
    )
    await stage.release("B", "A")
    await stage.release("A", "B")
    await stage.step("B returns.", A=Expected(isr="AB"), B=Expected(leo=2, hw=2, records="m0 m1"))
    return Ending(lesson="A replica stops counting for the HW once its removal is certain, not when it is proposed.")


SETUP = Setup(replicas="AB", controller="C", settings={"replica.lag.time.max.ms": "2000"})

SCENARIO = Scenario(
    name="pending-isr",
    title="A change of the ISR is pending, and the leader dies",
    variants=(
        Variant(name="expand", title="the reply to an expansion is late", setup=SETUP, play=play_expand),
        Variant(name="shrink", title="the reply to a shrink is late", setup=SETUP, play=play_shrink),
    ),
    page=Page(
        summary="The leader has proposed another ISR. The controller has decided; its reply is late.",
        rule=(
            "Until the reply arrives, both sets count for the HW: the old one because the change may not have been "
            "applied, the new one because it may have been. One proposal is in flight at a time."
        ),
        source="KIP-497, KAFKA-12686; [section 6](../REPLICATION.md#6-isr-changes); invariants I4 and I8.",
        old_texts=(
            "In older texts the leader itself changes the ISR in ZooKeeper. Since KIP-497 (Kafka 2.7) it asks the "
            "controller."
        ),
    ),
)
