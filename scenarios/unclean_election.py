"""No in-sync replica is alive: wait, or lose records."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play_wait(stage: Stage) -> Ending:
    await _until_a_dies(stage)
    await stage.step(
        "A dies. B is alive, but was not in sync: with unclean.leader.election.enable=false the partition has no"
        " leader.",
        B=Expected(role="no leader", leo=1),
    )
    m2 = await stage.settled(await stage.produce("m2"))
    stage.check("m2 is refused", m2.error is not None)
    await stage.step(
        "There is no leader for m2. Nothing is written, nothing is lost.", B=Expected(role="no leader", leo=1)
    )
    await stage.start("A")
    await stage.step(
        "A returns and leads, and B catches up: no record is lost.",
        A=Expected(role="leader", leo=2, hw=2, isr="AB", records="m0 m1"),
        B=Expected(role="follower", leo=2, hw=2, records="m0 m1"),
    )
    return Ending(lesson="Consistency was kept; the partition was unavailable until A was back.")


async def play_lose(stage: Stage) -> Ending:
    await _until_a_dies(stage)
    await stage.step(
        "A dies. unclean.leader.election.enable=true: B leads though it was not in sync; the ISR is B.",
        B=Expected(role="leader", leo=1, hw=1, isr="B"),
    )
    await stage.write("m2")
    await stage.step("m2 is accepted, at offset 1, where A has m1.", B=Expected(leo=2, hw=2, records="m0 m2"))
    await stage.start("A")
    await stage.step(
        "A returns and truncates its log to B's history. m1 was acknowledged, and is lost.",
        A=Expected(role="follower", leo=2, hw=2, records="m0 m2"),
        B=Expected(isr="AB"),
    )
    return Ending(
        lesson="The partition stayed available, but acknowledged records were lost: the audit names each.",
        findings=("acked-changed", "acked-twice"),
    )


async def _until_a_dies(stage: Stage) -> None:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1))
    await stage.hold("A", "B")
    await stage.hold("B", "A")
    await stage.write("m1")
    await stage.step(
        "B cannot reach A and leaves the ISR. m1 is committed on A alone (min.insync.replicas=1) and acknowledged.",
        A=Expected(role="leader", epoch=0, leo=2, hw=2, isr="A", records="m0 m1"),
        B=Expected(leo=1, hw=1, records="m0"),
    )
    await stage.checkpointed()
    await stage.kill("A")
    await stage.release("A", "B")
    await stage.release("B", "A")


LAG = {"replica.lag.time.max.ms": "2000"}
UNCLEAN = {"unclean.leader.election.enable": "true"}
WAIT = Setup(replicas="AB", controller="C", settings=LAG, delivery_timeout_ms=8_000)
LOSE = Setup(replicas="AB", controller="C", settings=LAG, configs=UNCLEAN)

SCENARIO = Scenario(
    name="unclean-election",
    title="No in-sync replica is alive: wait, or lose records",
    variants=(
        Variant(name="false", title="unclean.leader.election.enable=false", setup=WAIT, play=play_wait, live=True),
        Variant(name="true", title="unclean.leader.election.enable=true", setup=LOSE, play=play_lose, live=True),
    ),
    page=Page(
        summary="The only in-sync replica dies, and a replica that lags is alive.",
        rule=(
            "`unclean.leader.election.enable=false` (the default): no leader until an in-sync replica is back. "
            "`true`: the first live replica leads, it alone is the ISR, and the records that it lacks are lost."
        ),
        source="[section 9](../REPLICATION.md#9-controller); KAFKA-1028.",
        limits=(
            "The audit names both: the lost record, and the offset at which two different records were acknowledged."
        ),
    ),
)
