"""ZooKeeper is away for longer than any session."""

from minibroker.scenarios.telling.rows import Shows
from minibroker.scenarios.telling.stage import Stage
from minibroker.scenarios.telling.story import Act, Cast, Ending, Page, Story


async def play_quiet(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.tell(
        "m0 is on all three.", A=Shows(role="leader", epoch=0, hw=1, isr="ABC"), B=Shows(hw=1), C=Shows(hw=1)
    )
    await stage.stop_zookeeper()
    await stage.wait(stage.patience(OUTAGE_SECONDS / 2))
    m1 = await stage.produce("m1")
    await stage.tell(
        "ZooKeeper answers nobody. After one session timeout A must assume that another leader may be elected where A"
        " cannot see it: it leads nothing. The producer is refused, with an error that it may retry after, and"
        " retries.",
        A=Shows(leo=1, role="leader, fenced"),
    )
    stage.check("m1 is not acknowledged", not m1.is_settled)
    await stage.wait(stage.patience(OUTAGE_SECONDS / 2))
    await stage.start_zookeeper()
    await stage.settled(m1)
    await stage.tell(
        "ZooKeeper is back. Nobody was restarted: the sessions are taken up again, a leader is known, and m1 is written"
        " once.",
        A=Shows(leo=2, hw=2, records="m0 m1"),
        B=Shows(leo=2, hw=2, records="m0 m1"),
        C=Shows(leo=2, hw=2, records="m0 m1"),
    )
    await stage.until(A=Shows(isr="ABC"))
    return Ending(moral="No writes for a while, no split brain, and nobody has to do anything.")


async def play_partitioned(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.tell(
        "m0 is on all three.", A=Shows(role="leader", epoch=0, hw=1, isr="ABC"), B=Shows(hw=1), C=Shows(hw=1)
    )
    for follower in "BC":
        stage.hold("A", follower)
        stage.hold(follower, "A")
    await stage.stop_zookeeper()
    m1 = await stage.produce("m1")
    await stage.tell(
        "A is cut off from B and C, and ZooKeeper stops. m1 reaches A. The HW stands still: B and C are in the ISR, and"
        " nobody can take them out.",
        A=Shows(leo=2, hw=1, isr="ABC"),
        B=Shows(leo=1),
    )
    await stage.wait(stage.patience(OUTAGE_SECONDS))
    stage.check("m1 is not acknowledged", not m1.is_settled)
    await stage.tell(
        "After one session timeout A leads nothing any more. B and C cannot elect anybody without ZooKeeper.",
        A=Shows(role="leader, fenced", leo=2, hw=1),
        B=Shows(role="follower", epoch=0),
        C=Shows(role="follower", epoch=0),
    )
    await stage.start_zookeeper()
    for follower in "BC":
        stage.release("A", follower)
        stage.release(follower, "A")
    await stage.settled(m1)
    await stage.tell(
        "ZooKeeper and the network are back. One leader, one history, m1 once.",
        A=Shows(leo=2, hw=2, records="m0 m1"),
        B=Shows(leo=2, hw=2, records="m0 m1"),
        C=Shows(leo=2, hw=2, records="m0 m1"),
    )
    return Ending(moral="Who cannot ask ZooKeeper acknowledges nothing: two leaders never commit at once.")


OUTAGE_SECONDS = 20.0
CAST = Cast(brokers="ABCD", controller="D", min_insync_replicas=2)

STORY = Story(
    name="zookeeper-outage",
    title="ZooKeeper is away for longer than any session",
    acts=(
        Act(name="quiet", title="everybody reaches everybody", cast=CAST, play=play_quiet, live=True),
        Act(name="partitioned", title="the leader is cut off besides", cast=CAST, play=play_partitioned, live=True),
    ),
    page=Page(
        story=(
            "ZooKeeper stops for several session timeouts, first with everybody in reach, then with the leader "
            "cut off besides."
        ),
        rule=(
            "A broker that ZooKeeper has not confirmed for a session timeout leads nothing. Sessions are taken up "
            "again when ZooKeeper is back: it gives every session its full time anew."
        ),
        source=(
            "[stricter than Kafka](../REPLICATION.md#where-minibroker-is-stricter-than-kafka-hardening-rule-n), "
            "rule 8; KAFKA-2729, KAFKA-5473 for what went wrong before."
        ),
        old_texts=(
            "Kafka's brokers go on serving while ZooKeeper is away, and texts praise that. It is safe only until "
            "somebody is elected whom they cannot hear of."
        ),
    ),
)
