"""No in-sync replica is alive: wait, or lose."""

from minibroker.scenarios.telling.rows import Shows
from minibroker.scenarios.telling.stage import Stage
from minibroker.scenarios.telling.story import Act, Cast, Ending, Page, Story


async def play_wait(stage: Stage) -> Ending:
    await _until_a_dies(stage)
    await stage.tell(
        "A dies. B is alive, but was not in sync: with unclean.leader.election.enable=false the partition has no"
        " leader.",
        B=Shows(role="no leader", leo=1),
    )
    m2 = await stage.settled(await stage.produce("m2"))
    stage.check("m2 is refused", m2.error is not None)
    await stage.tell("m2 finds no leader. Nothing is written, nothing is lost.", B=Shows(role="no leader", leo=1))
    await stage.start("A")
    await stage.tell(
        "A returns, leads, and B catches up: everything is there.",
        A=Shows(role="leader", leo=2, hw=2, isr="AB", records="m0 m1"),
        B=Shows(role="follower", leo=2, hw=2, records="m0 m1"),
    )
    return Ending(moral="Consistency was kept, and availability was not, until A was back.")


async def play_lose(stage: Stage) -> Ending:
    await _until_a_dies(stage)
    await stage.tell(
        "A dies. unclean.leader.election.enable=true: B leads though it was not in sync; the ISR is B.",
        B=Shows(role="leader", leo=1, hw=1, isr="B"),
    )
    await stage.write("m2")
    await stage.tell("m2 is accepted, at offset 1, where A has m1.", B=Shows(leo=2, hw=2, records="m0 m2"))
    await stage.start("A")
    await stage.tell(
        "A returns and cuts its log to B's history. m1 was acknowledged, and is gone.",
        A=Shows(role="follower", leo=2, hw=2, records="m0 m2"),
        B=Shows(isr="AB"),
    )
    return Ending(
        moral="Availability was kept, and acknowledged records were not: the audit names each.",
        findings=("acked-changed", "acked-twice"),
    )


async def _until_a_dies(stage: Stage) -> None:
    await stage.write("m0")
    await stage.until(A=Shows(hw=1), B=Shows(hw=1))
    stage.hold("A", "B")
    stage.hold("B", "A")
    await stage.write("m1")
    await stage.tell(
        "B cannot reach A and leaves the ISR. m1 is committed on A alone (min.insync.replicas=1) and acknowledged.",
        A=Shows(role="leader", epoch=0, leo=2, hw=2, isr="A", records="m0 m1"),
        B=Shows(leo=1, hw=1, records="m0"),
    )
    await stage.checkpointed()
    await stage.kill("A")
    stage.release("A", "B")
    stage.release("B", "A")


LAG = {"replica.lag.time.max.ms": "2000"}
UNCLEAN = {"unclean.leader.election.enable": "true"}
WAIT = Cast(replicas="AB", controller="C", settings=LAG, delivery_timeout_ms=8_000)
LOSE = Cast(replicas="AB", controller="C", settings=LAG, configs=UNCLEAN)

STORY = Story(
    name="unclean-election",
    title="No in-sync replica is alive: wait, or lose",
    acts=(
        Act(name="false", title="unclean.leader.election.enable=false", cast=WAIT, play=play_wait, live=True),
        Act(name="true", title="unclean.leader.election.enable=true", cast=LOSE, play=play_lose, live=True),
    ),
    page=Page(
        story="The only in-sync replica dies, and a replica that lags is alive.",
        rule=(
            "`unclean.leader.election.enable=false` (the default): no leader until an in-sync replica is back. "
            "`true`: the first living replica leads, it is the ISR, and what it lacks is lost."
        ),
        source="[section 9](../REPLICATION.md#9-controller); KAFKA-1028.",
        limits=(
            "The audit names both: the record that is gone, and the offset at which two producers were promised "
            "different things."
        ),
    ),
)
