"""Retention deletes what a follower has not copied yet."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1))
    await stage.hold("A", "B")
    await stage.hold("B", "A")
    await stage.write(*(f"m{number}" for number in range(1, 60)), acks=1)
    await stage.until(A=Expected(isr="A"))
    await stage.step(
        "B cannot reach A and leaves the ISR. Sixty records are on A, in segments of one kilobyte.",
        A=Expected(role="leader", leo=60, hw=60, isr="A"),
        B=Expected(leo=1, hw=1),
    )
    await stage.wait(RETENTION_CHECKED_SECONDS)
    await stage.step(
        "retention.bytes is two kilobytes: A deletes whole segments from the head, never one above the HW. Its log"
        " starts later now, and no longer has B's next offset.",
        A=Expected(leo=60, hw=60),
    )
    start = next(row for row in stage.steps[-1].rows if row.broker == "A").log_start_offset
    stage.check("A's log starts behind B's end", start > 1)
    await stage.release("A", "B")
    await stage.release("B", "A")
    await stage.step(
        "B reaches A again. The answer to its fetch is OFFSET_OUT_OF_RANGE. B asks for A's log start and end, drops its"
        " log and resets to A's log start. Its HW is never below its log start.",
        A=Expected(isr="AB"),
        B=Expected(start=start, leo=60, hw=60),
    )
    stage.check_noted("A refuses B's fetch: OFFSET_OUT_OF_RANGE")
    return Ending(
        lesson="Retention may delete committed records; a replica that comes too late begins at the log start."
    )


RETENTION_CHECKED_SECONDS = 5.0
SETTINGS = {"replica.lag.time.max.ms": "2000", "log.retention.check.interval.ms": "2000"}
CONFIGS = {"segment.bytes": "1024", "retention.bytes": "2048"}

SCENARIO = Scenario(
    name="retention-vs-slow-follower",
    title="Retention deletes what a follower has not copied yet",
    variants=(
        Variant(
            setup=Setup(replicas="AB", controller="C", settings=SETTINGS, configs=CONFIGS),
            play=play,
        ),
    ),
    page=Page(
        summary="A follower is away for so long that retention deletes the records that it needs next.",
        rule=(
            "Only whole segments below the HW are deleted. A follower that fetches below the leader's log start gets "
            "OFFSET_OUT_OF_RANGE, asks for the leader's log start and end, and resets to that log start, because its "
            "own log ends before it."
        ),
        source=(
            "KAFKA-2143, KAFKA-5634, KAFKA-7414; [section 1](../REPLICATION.md#1-storage) and [section "
            "4](../REPLICATION.md#4-follower-fetch); invariant I14."
        ),
    ),
)
