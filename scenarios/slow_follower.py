"""A follower with a disk too slow for the load."""

import asyncio

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage


async def play(stage: SimulatedStage) -> Ending:
    await stage.write("m0")
    await stage.step(
        "m0 is on all three.", A=Expected(role="leader", leo=1, hw=1, isr="ABC"), B=Expected(hw=1), C=Expected(hw=1)
    )
    stage.slow_disk("C", APPEND_SECONDS)
    await stage.write(*(f"m{number}" for number in range(1, 1 + BURST)), acks=1)
    await stage.until(A=Expected(hw=1 + BURST), C=Expected(leo=1 + BURST))
    await stage.step(
        f"C's disk now takes {APPEND_SECONDS:g} s for a write. A single burst of {BURST} records does not push C out:"
        " it catches up within replica.lag.time.max.ms.",
        A=Expected(leo=1 + BURST, hw=1 + BURST, isr="ABC"),
        C=Expected(leo=1 + BURST),
    )
    writing = asyncio.create_task(_write_on(stage))
    await stage.until(A=Expected(isr="AB"))
    await stage.step(
        "Then records come for a long time, faster than C can write. C fetches without a pause and never reaches A's"
        " LEO: after replica.lag.time.max.ms it leaves the ISR. The HW advances with A and B.",
        A=Expected(isr="AB"),
    )
    await writing
    await stage.step(
        "No more records come. C reaches A's LEO and is in the ISR again.",
        A=Expected(isr="ABC", leo=LAST, hw=LAST),
        B=Expected(leo=LAST, hw=LAST),
        C=Expected(leo=LAST, hw=LAST),
    )
    return Ending(lesson="A slow follower costs the others nothing but redundancy; a burst costs nothing at all.")


async def _write_on(stage: SimulatedStage) -> None:
    """Twenty records per second. One fetch of C returns fourteen, and takes a second to write."""
    for number in range(1 + BURST, LAST):
        await stage.produce(f"m{number}", acks=1, quietly=True)
        await stage.wait(0.05)


APPEND_SECONDS = 1.0
BURST = 5
LAST = 240
SETTINGS = {
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.max.bytes": "1024",
    "replica.fetch.response.max.bytes": "1024",
    "zookeeper.session.timeout.ms": "10000",
}

SCENARIO = Scenario(
    name="slow-follower",
    title="A follower with a disk too slow for the load",
    variants=(Variant(setup=Setup(brokers="ABCD", controller="D", settings=SETTINGS), play=play),),
    page=Page(
        summary=(
            "C's disk takes a second for each write. A burst does not matter; a stream that is faster than C does."
        ),
        rule=(
            "A follower is in sync while it is at the leader's LEO, or was there at some time in the last "
            "replica.lag.time.max.ms. A fetch from the leader's LEO at the previous fetch also counts as caught up, at "
            "the time of that previous fetch."
        ),
        source=(
            "KAFKA-1546 (time instead of messages), KAFKA-4485, KAFKA-7152; [section "
            "2](../REPLICATION.md#2-replica-state-and-the-high-watermark) and [section "
            "6](../REPLICATION.md#6-isr-changes)."
        ),
        old_texts="The limit is 30 s since Kafka 2.5 (KIP-537); many texts still say 10 s.",
        limits=(
            "There are no replication quotas in this version: a follower that catches up fetches as fast as it can."
        ),
    ),
)
