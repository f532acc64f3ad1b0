"""Lag measured in messages makes the ISR flap (before 0.9); lag in time does not."""

from minibroker.scenarios import patches
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage


async def play(stage: SimulatedStage) -> Ending:
    await stage.write("m0", acks=1)
    stage.slow_link("A", "B", LINK_SECONDS)
    stage.slow_link("A", "C", LINK_SECONDS)
    await stage.step(
        f"B and C are healthy, behind a link with a delay of {LINK_SECONDS * 1000:g} ms. A burst of {BURST} records"
        " comes every half second.",
        A=Expected(role="leader", leo=1, isr="ABC"),
    )
    changes = await _burst(stage, BURST)
    last = 1 + BURSTS * BURST
    if stage.patched:
        await _goes_wrong(stage, changes, last)
        return Ending(
            lesson="No number of messages fits: it is a long lag for a quiet topic and a moment for a busy one."
        )
    stage.check("the ISR stayed", changes == 0)
    await stage.step(
        "B and C are behind for a moment after each burst, but never for replica.lag.time.max.ms: both stay in the"
        " ISR.",
        A=Expected(leo=last, hw=last, isr="ABC"),
        B=Expected(leo=last),
        C=Expected(leo=last),
    )
    stage.check("the ISR stayed", await _burst(stage, LARGE_BURST, last) == 0)
    last += BURSTS * LARGE_BURST
    await stage.step(
        f"The producers make larger batches: {LARGE_BURST} records at once. For the time behind the leader's LEO it is"
        " the same.",
        A=Expected(leo=last, hw=last, isr="ABC"),
        B=Expected(leo=last),
        C=Expected(leo=last),
    )
    return Ending(lesson="Time behind the leader's LEO means the same for every topic.")


async def _burst(stage: SimulatedStage, size: int, first: int = 1) -> int:
    """All bursts, of so many records each; returns how often the ISR changed."""
    before = len(stage.isr_changes)
    for burst in range(BURSTS):
        values = [f"m{first + burst * size + number}" for number in range(size)]
        await stage.produce(*values, acks=1, quietly=True)
        await stage.wait(EVERY_SECONDS)
    return len(stage.isr_changes) - before


async def _goes_wrong(stage: SimulatedStage, changes: int, last: int) -> None:
    stage.check("the ISR flapped", changes >= 4)
    await stage.until(A=Expected(hw=last, isr="ABC"), B=Expected(hw=last), C=Expected(hw=last))
    await stage.step(
        f"Whenever the check came during a burst, B and C were more than {patches.LAG_MESSAGES} messages behind and"
        f" left the ISR; a moment later they were back: {changes} changes of the ISR for {BURSTS} bursts.",
        A=Expected(leo=last, hw=last, isr="ABC"),
    )
    patches.lag_limit.messages = RAISED_LIMIT
    stage.check("the ISR stayed", await _burst(stage, BURST, last) == 0)
    last += BURSTS * BURST
    await stage.step(
        f"The operator raises the limit to {RAISED_LIMIT} messages, five times a burst. The same bursts come, and B and"
        " C stay in the ISR.",
        A=Expected(leo=last, hw=last, isr="ABC"),
    )
    changes = await _burst(stage, LARGE_BURST, last)
    stage.check("the ISR flapped again", changes >= 4)
    last += BURSTS * LARGE_BURST
    await stage.until(A=Expected(hw=last, isr="ABC"), B=Expected(hw=last), C=Expected(hw=last))
    await stage.step(
        f"Then the producers make larger batches: {LARGE_BURST} records at once. Every batch is above the limit as soon"
        f" as A has appended it: {changes} changes of the ISR for {BURSTS} bursts. B and C are as healthy as before.",
        A=Expected(leo=last, hw=last, isr="ABC"),
    )


LINK_SECONDS = 0.2
EVERY_SECONDS = 0.55
BURST = 20
BURSTS = 20
LARGE_BURST = 200
RAISED_LIMIT = 100
SETUP = Setup(brokers="ABCD", controller="D", settings={"replica.lag.time.max.ms": "2000"})

SCENARIO = Scenario(
    name="burst-lag",
    title="Lag measured in messages makes the ISR flap; lag in time does not",
    variants=(
        Variant(
            name="messages",
            title="replica.lag.max.messages, before 0.9",
            setup=SETUP,
            play=play,
            patch=patches.lag_in_messages,
            patched=f"a follower is within its limit if it is at most {patches.LAG_MESSAGES} messages behind, and"
            f" later {RAISED_LIMIT}, not by time.",
        ),
        Variant(name="time", title="replica.lag.time.max.ms", setup=SETUP, play=play),
    ),
    page=Page(
        summary=(
            "Bursts of twenty records reach followers over a link of 200 ms, and later bursts of two hundred. The "
            "first variant uses the rule of before 0.9, with a limit that its operator raises; the second one today's."
        ),
        rule="replica.lag.time.max.ms measures time, not messages.",
        source="KAFKA-1546, KIP-16; [section 2](../REPLICATION.md#2-replica-state-and-the-high-watermark).",
        old_texts=(
            "replica.lag.max.messages was removed in Kafka 0.9, but many texts still mention it. Its default was 4000; "
            "here it is 10, for bursts of 20, and then 100. The broker has no switch for it: the first variant "
            "replaces the rule while it runs."
        ),
    ),
)
