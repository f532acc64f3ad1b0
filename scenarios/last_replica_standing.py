"""The ISR shrinks to one replica, and that one loses power."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Act, Cast, Ending, Page, Scenario
from minibroker.scenarios.staging.simulated import SimulatedStage


async def play_kept(stage: SimulatedStage) -> Ending:
    await _until_alone(stage)
    await stage.write("m2", acks=1)
    stage.check("m0 alone is readable", await stage.read() == ["m0"])
    await stage.step(
        "A proposes an ISR without B and C, and syncs its log first: it is about to be the only complete copy. Then the"
        " ISR is A alone. That is below min.insync.replicas, so the HW stands still: m1 and m2 are not readable.",
        A=Expected(role="leader", leo=3, hw=1, isr="A", records="m0 m1 m2"),
    )
    await _power_fails(stage)
    await stage.step(
        "A's power fails, and A returns: m0 and m1 were synced before the shrink. m2 was not, is gone, and never was"
        " readable. A leads again; what was readable stays readable.",
        A=Expected(role="leader", leo=2, records="m0 m1"),
    )
    await _others_return(stage)
    await stage.step(
        "B and C return and copy A's log.",
        A=Expected(leo=2, hw=2, isr="ABC"),
        B=Expected(leo=2, hw=2, records="m0 m1"),
        C=Expected(leo=2, hw=2, records="m0 m1"),
    )
    stage.check("m0 is still read", await stage.read() == ["m0", "m1"])
    return Ending(moral="What remains: the disk itself may die. Against that only another copy helps.")


async def play_lost(stage: SimulatedStage) -> Ending:
    await _until_alone(stage)
    await stage.write("m2", acks=1)
    stage.check("all are readable", await stage.read() == ["m0", "m1", "m2"])
    await stage.step(
        "A proposes an ISR without B and C at once. Alone it is enough for min.insync.replicas=1: HW 3. Nothing is"
        " synced, and a consumer has read all three.",
        A=Expected(role="leader", leo=3, hw=3, isr="A", records="m0 m1 m2"),
    )
    await _power_fails(stage)
    await stage.step(
        "A's power fails, and A returns with nothing. It is the only member of the ISR, so it leads.",
        A=Expected(role="leader", leo=0, hw=0, records=""),
    )
    await _others_return(stage)
    await stage.step(
        "B and C wake. They hold what A has lost, and cut it: their leader does not have it.",
        A=Expected(leo=0, hw=0, isr="ABC"),
        B=Expected(leo=0, records=""),
        C=Expected(leo=0, records=""),
    )
    return Ending(
        moral="m0 was acknowledged with acks=all by three replicas and is gone from all of them.",
        findings=("acked-missing",),
    )


async def _until_alone(stage: SimulatedStage) -> None:
    await stage.write("m0")
    await stage.until(B=Expected(hw=1), C=Expected(hw=1))
    await stage.step(
        "m0 is on all three and acknowledged with acks=all. As usual nothing is synced yet: copies keep it, not disks.",
        A=Expected(role="leader", leo=1, hw=1, isr="ABC"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    await stage.pause("B")
    await stage.pause("C")
    await stage.write("m1", acks=1)
    await stage.step(
        "B and C stand still. m1 (acks=1) is on A alone.",
        A=Expected(leo=2, hw=1, isr="ABC"),
        B=Expected(role="follower, paused"),
        C=Expected(role="follower, paused"),
    )
    await stage.until(A=Expected(isr="A"))


async def _power_fails(stage: SimulatedStage) -> None:
    await stage.cut_power("A")
    await stage.start("A")


async def _others_return(stage: SimulatedStage) -> None:
    await stage.resume("B")
    await stage.resume("C")


SETTINGS = {"replica.lag.time.max.ms": "3000", "zookeeper.session.timeout.ms": "10000"}

SCENARIO = Scenario(
    name="last-replica-standing",
    title="The ISR shrinks to one replica, and that one loses power",
    acts=(
        Act(
            name="minimum-2",
            title="min.insync.replicas=2: a sync before the shrink, and no HW below the minimum",
            cast=Cast(brokers="ABCD", controller="D", min_insync_replicas=2, settings=SETTINGS),
            play=play_kept,
        ),
        Act(
            name="minimum-1",
            title="min.insync.replicas=1 switches both protections off",
            cast=Cast(brokers="ABCD", controller="D", min_insync_replicas=1, settings=SETTINGS),
            play=play_lost,
        ),
    ),
    page=Page(
        summary=(
            "All followers stand still, the ISR shrinks to the leader, and the leader's power fails before its "
            "kernel has written anything to the disk."
        ),
        rule=(
            "Before the ISR falls below min.insync.replicas, the leader syncs its log, and while it is below, the "
            "HW stands still. Both depend on min.insync.replicas: 1 says that one copy is enough, synced or not."
        ),
        source=(
            "KIP-966; [stricter than "
            "Kafka](../REPLICATION.md#where-minibroker-is-stricter-than-kafka-hardening-rule-n), rule 4."
        ),
        old_texts=(
            "Kafka with ZooKeeper has neither: texts that say 'acks=all and three replicas lose nothing' leave "
            "out this case."
        ),
        limits=(
            "What remains: the last replica's disk may die. And with min.insync.replicas=1 everything here is as "
            "unsafe as in Kafka: the second act needs no change of the brokers."
        ),
    ),
)
