"""The ISR shrinks to one replica, and that one loses power."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage


async def play_kept(stage: SimulatedStage) -> Ending:
    await _until_alone(stage)
    await stage.write("m2", acks=1)
    stage.check("m0 alone is readable", await stage.read() == ["m0"])
    await stage.step(
        "A proposes an ISR without B and C, but syncs its log first: it is about to be the only complete copy. Then the"
        " ISR is A alone. That is below min.insync.replicas, so the HW does not move: m1 and m2 are not readable.",
        A=Expected(role="leader", leo=3, hw=1, isr="A", records="m0 m1 m2"),
    )
    await _power_fails(stage)
    await stage.step(
        "A's power fails, and A returns: m0 and m1 were synced before the shrink. m2 was not, and is lost, but it never"
        " was readable. A leads again; readable records stay readable.",
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
    return Ending(lesson="The disk itself may still fail. Only another copy protects against that.")


async def play_lost(stage: SimulatedStage) -> Ending:
    await _until_alone(stage)
    await stage.write("m2", acks=1)
    stage.check("all are readable", await stage.read() == ["m0", "m1", "m2"])
    await stage.step(
        "A proposes an ISR without B and C at once. A alone is enough for min.insync.replicas=1: HW 3. Nothing is"
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
        "B and C resume. They hold the records that A has lost, and truncate them, because their leader lacks them.",
        A=Expected(leo=0, hw=0, isr="ABC"),
        B=Expected(leo=0, records=""),
        C=Expected(leo=0, records=""),
    )
    return Ending(
        lesson="m0 was acknowledged with acks=all on three replicas, and is lost on all of them.",
        findings=("acked-missing",),
    )


async def _until_alone(stage: SimulatedStage) -> None:
    await stage.write("m0")
    await stage.until(B=Expected(hw=1), C=Expected(hw=1))
    await stage.step(
        "m0 is on all three and acknowledged with acks=all. As usual nothing is synced yet: copies protect it, not"
        " disks.",
        A=Expected(role="leader", leo=1, hw=1, isr="ABC"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    await stage.pause("B")
    await stage.pause("C")
    await stage.write("m1", acks=1)
    await stage.step(
        "B and C are paused. m1 (acks=1) is on A alone.",
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
    variants=(
        Variant(
            name="minimum-2",
            title="min.insync.replicas=2: a sync before the shrink, and a fixed HW below the minimum",
            setup=Setup(brokers="ABCD", controller="D", min_insync_replicas=2, settings=SETTINGS),
            play=play_kept,
        ),
        Variant(
            name="minimum-1",
            title="min.insync.replicas=1 switches both protections off",
            setup=Setup(brokers="ABCD", controller="D", min_insync_replicas=1, settings=SETTINGS),
            play=play_lost,
        ),
    ),
    page=Page(
        summary=(
            "All followers are paused, the ISR shrinks to the leader, and the leader's power fails before its kernel "
            "has written anything to the disk."
        ),
        rule=(
            "Before the ISR falls below min.insync.replicas, the leader syncs its log, and while it is below, the "
            "HW does not move. Both depend on min.insync.replicas: 1 means that one copy is enough, synced or not."
        ),
        source=(
            "KIP-966; [hardening rule 4](../REPLICATION.md#hardening-rules-where-minibroker-is-stricter-than-kafka)."
        ),
        old_texts=(
            "Kafka with ZooKeeper has neither: texts that say 'acks=all and three replicas lose nothing' ignore this "
            "case."
        ),
        limits=(
            "The last replica's disk may still fail. And with min.insync.replicas=1 this is as unsafe as in Kafka: the "
            "second variant needs no change of the brokers."
        ),
    ),
)
