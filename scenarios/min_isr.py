"""Too few in-sync replicas: writes with acks=all are refused."""

from minibroker.scenarios.telling.rows import Shows
from minibroker.scenarios.telling.stage import Stage
from minibroker.scenarios.telling.story import Act, Cast, Ending, Page, Story


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.tell(
        "m0 is on all three; min.insync.replicas=2.",
        A=Shows(role="leader", leo=1, hw=1, isr="ABC"),
        B=Shows(hw=1),
        C=Shows(hw=1),
    )
    await stage.pause("B")
    await stage.pause("C")
    await stage.write("m1", acks=1)
    await stage.tell(
        "B and C stand still. m1 with acks=1 is written and acknowledged. It is not committed: B and C are in the ISR.",
        A=Shows(leo=2, hw=1, isr="ABC", records="m0 m1"),
    )
    await stage.until(A=Shows(isr="A"))
    await stage.tell(
        "After replica.lag.time.max.ms they leave the ISR. A is alone, and that is below the minimum: the HW stays.",
        A=Shows(role="leader", epoch=0, leo=2, hw=1, isr="A"),
    )
    stage.check("m1 is not readable", await stage.read() == ["m0"])
    m2 = await stage.settled(await stage.produce("m2"))
    stage.check("m2 is refused", m2.error == "NOT_ENOUGH_REPLICAS")
    await stage.tell(
        "No consumer reads m1. m2 with acks=all is refused, and nothing is written. The refusal names the ISR and who"
        " is missing.",
        A=Shows(leo=2, hw=1, records="m0 m1"),
    )
    stage.check_heard("A refuses the client's produce request: NOT_ENOUGH_REPLICAS (story-0: ISR=[1]")
    await stage.resume("B")
    await stage.tell(
        "B wakes, fetches m1 and joins the ISR. Two are enough: HW 2.",
        A=Shows(hw=2, isr="AB"),
        B=Shows(leo=2, hw=2, records="m0 m1"),
    )
    await stage.write("m3")
    await stage.resume("C")
    await stage.tell(
        "m3 with acks=all is accepted again. C returns as well.",
        A=Shows(leo=3, hw=3, isr="ABC"),
        B=Shows(role="follower", leo=3, hw=3),
        C=Shows(role="follower", leo=3, hw=3, records="m0 m1 m3"),
    )
    return Ending(moral="min.insync.replicas turns 'may be lost' into 'is refused', and only for acks=all.")


CAST = Cast(
    min_insync_replicas=2,
    brokers="ABCD",
    controller="D",
    settings={"replica.lag.time.max.ms": "3000", "zookeeper.session.timeout.ms": "10000"},
    delivery_timeout_ms=2_000,
)

STORY = Story(
    name="min-isr",
    title="Too few in-sync replicas: writes with acks=all are refused",
    acts=(Act(cast=CAST, play=play, live=True),),
    page=Page(
        story="Two of three replicas stand still.",
        rule=(
            "A write with acks=all needs min.insync.replicas in-sync replicas before it is appended "
            "(NOT_ENOUGH_REPLICAS, nothing is written) and when it is answered "
            "(NOT_ENOUGH_REPLICAS_AFTER_APPEND). Below the minimum the HW does not advance."
        ),
        source=(
            "KAFKA-1555, KIP-966; [section 3](../REPLICATION.md#3-produce) and [section "
            "2](../REPLICATION.md#2-replica-state-and-the-high-watermark)."
        ),
        old_texts=(
            "min.insync.replicas is no number of copies to wait for: acks=all waits for the whole ISR, and the "
            "minimum says how small that may be. That the HW stands still below the minimum is the rule of "
            "KIP-966; older versions of Kafka let it go on."
        ),
    ),
)
