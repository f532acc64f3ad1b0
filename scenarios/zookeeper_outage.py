"""ZooKeeper is away for longer than any session."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play_quiet(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "m0 is on all three.", A=Expected(role="leader", epoch=0, hw=1, isr="ABC"), B=Expected(hw=1), C=Expected(hw=1)
    )
    await stage.stop_zookeeper()
    await stage.wait(stage.patience(OUTAGE_SECONDS / 2))
    m1 = await stage.produce("m1")
    await stage.step(
        "ZooKeeper does not answer. After one session timeout A must assume that another leader may be elected"
        " without A noticing: it leads nothing. The producer gets a retriable error, and retries.",
        A=Expected(leo=1, role="leader, fenced"),
    )
    stage.check("m1 is not acknowledged", not m1.is_settled)
    await stage.wait(stage.patience(OUTAGE_SECONDS / 2))
    await stage.start_zookeeper()
    await stage.settled(m1)
    await stage.step(
        "ZooKeeper is back. No broker was restarted: the sessions continue, a leader is known, and m1 is written once.",
        A=Expected(leo=2, hw=2, records="m0 m1"),
        B=Expected(leo=2, hw=2, records="m0 m1"),
        C=Expected(leo=2, hw=2, records="m0 m1"),
    )
    await stage.until(A=Expected(isr="ABC"))
    return Ending(lesson="No writes for a while, no split brain, and no operator has to do anything.")


async def play_partitioned(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "m0 is on all three.", A=Expected(role="leader", epoch=0, hw=1, isr="ABC"), B=Expected(hw=1), C=Expected(hw=1)
    )
    for follower in "BC":
        await stage.hold("A", follower)
        await stage.hold(follower, "A")
    await stage.stop_zookeeper()
    m1 = await stage.produce("m1")
    await stage.step(
        "A is cut off from B and C, and ZooKeeper stops. m1 reaches A. The HW does not move: B and C are in the ISR,"
        " and cannot be removed.",
        A=Expected(leo=2, hw=1, isr="ABC"),
        B=Expected(leo=1),
    )
    await stage.wait(stage.patience(OUTAGE_SECONDS))
    stage.check("m1 is not acknowledged", not m1.is_settled)
    await stage.step(
        "After one session timeout A leads nothing any more. Without ZooKeeper B and C cannot elect a leader.",
        A=Expected(role="leader, fenced", leo=2, hw=1),
        B=Expected(role="follower", epoch=0),
        C=Expected(role="follower", epoch=0),
    )
    await stage.start_zookeeper()
    for follower in "BC":
        await stage.release("A", follower)
        await stage.release(follower, "A")
    await stage.settled(m1)
    await stage.step(
        "ZooKeeper and the network are back. One leader, one history, m1 once.",
        A=Expected(leo=2, hw=2, records="m0 m1"),
        B=Expected(leo=2, hw=2, records="m0 m1"),
        C=Expected(leo=2, hw=2, records="m0 m1"),
    )
    return Ending(lesson="A broker that cannot reach ZooKeeper acknowledges nothing: two leaders never commit at once.")


OUTAGE_SECONDS = 20.0
SETUP = Setup(brokers="ABCD", controller="D", min_insync_replicas=2)

SCENARIO = Scenario(
    name="zookeeper-outage",
    title="ZooKeeper is away for longer than any session",
    variants=(
        Variant(name="quiet", title="all brokers reach each other", setup=SETUP, play=play_quiet, live=True),
        Variant(name="partitioned", title="the leader is also cut off", setup=SETUP, play=play_partitioned, live=True),
    ),
    page=Page(
        summary=(
            "ZooKeeper stops for several session timeouts, first while all brokers reach each other, then with the "
            "leader cut off as well."
        ),
        rule=(
            "A broker that ZooKeeper has not confirmed for a session timeout leads nothing. Sessions continue when "
            "ZooKeeper is back: it gives every session its full timeout again."
        ),
        source=(
            "[hardening rule 8](../REPLICATION.md#hardening-rules-where-minibroker-is-stricter-than-kafka); "
            "KAFKA-2729, KAFKA-5473 for what went wrong before."
        ),
        old_texts=(
            "Kafka's brokers continue to serve while ZooKeeper is away, and texts praise that. It is safe only until a "
            "leader is elected that they do not know of."
        ),
    ),
)
