"""Too few in-sync replicas: writes with acks=all are refused."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "m0 is on all three; min.insync.replicas=2.",
        A=Expected(role="leader", leo=1, hw=1, isr="ABC"),
        B=Expected(hw=1),
        C=Expected(hw=1),
    )
    await stage.pause("B")
    await stage.pause("C")
    await stage.write("m1", acks=1)
    await stage.step(
        "B and C are paused. m1 with acks=1 is written and acknowledged. It is not committed: B and C are in the ISR.",
        A=Expected(leo=2, hw=1, isr="ABC", records="m0 m1"),
    )
    await stage.until(A=Expected(isr="A"))
    await stage.step(
        "After replica.lag.time.max.ms they leave the ISR. A alone is below the minimum: the HW does not move.",
        A=Expected(role="leader", epoch=0, leo=2, hw=1, isr="A"),
    )
    stage.check("m1 is not readable", await stage.read() == ["m0"])
    m2 = await stage.settled(await stage.produce("m2"))
    stage.check("m2 is refused", m2.error == "NOT_ENOUGH_REPLICAS")
    await stage.step(
        "No consumer reads m1. m2 with acks=all is refused, and nothing is written. The error names the ISR and the"
        " missing replicas.",
        A=Expected(leo=2, hw=1, records="m0 m1"),
    )
    stage.check_noted("A refuses the client's produce request: NOT_ENOUGH_REPLICAS (lines-0: ISR=[1]")
    await stage.resume("B")
    await stage.step(
        "B resumes, fetches m1 and joins the ISR. Two are enough: HW 2.",
        A=Expected(hw=2, isr="AB"),
        B=Expected(leo=2, hw=2, records="m0 m1"),
    )
    await stage.write("m3")
    await stage.resume("C")
    await stage.step(
        "m3 with acks=all is accepted again. C returns as well.",
        A=Expected(leo=3, hw=3, isr="ABC"),
        B=Expected(role="follower", leo=3, hw=3),
        C=Expected(role="follower", leo=3, hw=3, records="m0 m1 m3"),
    )
    return Ending(lesson="min.insync.replicas turns 'may be lost' into 'is refused', and only for acks=all.")


SETUP = Setup(
    min_insync_replicas=2,
    brokers="ABCD",
    controller="D",
    settings={"replica.lag.time.max.ms": "3000", "zookeeper.session.timeout.ms": "10000"},
    delivery_timeout_ms=2_000,
)

SCENARIO = Scenario(
    name="min-isr",
    title="Too few in-sync replicas: writes with acks=all are refused",
    variants=(Variant(setup=SETUP, play=play, live=True),),
    page=Page(
        summary="Two of three replicas are paused.",
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
            "min.insync.replicas is not the number of copies to wait for: acks=all waits for the whole ISR, and the "
            "minimum says how small it may be. A fixed HW below the minimum is the rule of KIP-966; older versions of "
            "Kafka let it advance."
        ),
    ),
)
