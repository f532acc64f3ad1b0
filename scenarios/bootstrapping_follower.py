"""A replica that starts from nothing."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage


async def play(stage: SimulatedStage) -> Ending:
    await stage.write(*(f"m{number}" for number in range(40)))
    await stage.step(
        "Forty records are on all three.",
        A=Expected(role="leader", leo=40, hw=40, isr="ABC"),
        B=Expected(hw=40),
        C=Expected(hw=40),
    )
    await stage.kill("C")
    await stage.until(A=Expected(isr="AB"))
    stage.blank_disk("C")
    await stage.write("n0")
    await stage.step(
        "C dies and leaves the ISR; its disk is replaced by an empty one. A and B continue: n0 is committed without C.",
        A=Expected(leo=41, hw=41, isr="AB"),
        C=Expected(role="dead", leo=0, records=""),
    )
    stage.slow_disk("C", 1.0)
    await stage.start("C")
    await stage.until(C=Expected(leo=14))
    await stage.write("n1")
    await stage.step(
        "C starts with an empty log and no epoch, so it has nothing to align and fetches from offset 0. While it is"
        " behind, it does not count: n1 is committed without it.",
        A=Expected(leo=42, hw=42, isr="AB"),
        C=Expected(role="follower", leo=14),
    )
    await stage.step(
        "C has reached A's LEO, and joins the ISR.",
        A=Expected(isr="ABC"),
        C=Expected(leo=42, hw=42, epochs=[(0, 0), (1, 40)]),
    )
    return Ending(lesson="A new replica is a follower that is far behind. It needs no special rule.")


SETTINGS = {
    "replica.fetch.max.bytes": "1024",
    "replica.fetch.response.max.bytes": "1024",
    "zookeeper.session.timeout.ms": "10000",
}

SCENARIO = Scenario(
    name="bootstrapping-follower",
    title="A replica that starts from nothing",
    variants=(
        Variant(setup=Setup(brokers="ABCD", controller="D", min_insync_replicas=2, settings=SETTINGS), play=play),
    ),
    page=Page(
        summary="C's disk is replaced by an empty one.",
        rule=(
            "A replica without an epoch has nothing to align, and fetches from offset 0, or from the leader's log "
            "start if that is later. It joins the ISR when it has reached the HW and the start of the leader's "
            "epoch."
        ),
        source="[section 4](../REPLICATION.md#4-follower-fetch) and [section 6](../REPLICATION.md#6-isr-changes).",
        limits=(
            "The replication factor of an existing topic cannot be raised in this version: the new replica is one "
            "with a new disk."
        ),
    ),
)
