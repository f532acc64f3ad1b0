"""Leadership changes faster than records are copied (KIP-279)."""

from minibroker.scenarios import patches
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await _until_b_returns(stage)
    await stage.step(
        "B returns and asks where epoch 1 ended. A never had epoch 1: it answers with the largest epoch below, (0, 2)."
        " So B truncates all records above its own epoch 0, that is n1, and fetches m1 and m2.",
        A=Expected(isr="AB", hw=3),
        B=Expected(role="follower", epoch=3, leo=3, hw=3, epochs=[(0, 0), (3, 2)], records="m0 m1 m2"),
    )
    await _c_returns(stage)
    return Ending(lesson="The answer names the epoch that it is about, so the follower can step back, epoch by epoch.")


async def play_patched(stage: Stage) -> Ending:
    await _until_b_returns(stage)
    await stage.step(
        "B returns and asks where epoch 1 ended. A answers 2, where its next epoch began. B's log ends at 2, so it"
        " truncates nothing: its n1 stays at offset 1, where A has m1. Then it fetches m2.",
        A=Expected(isr="AB", hw=3),
        B=Expected(role="follower", epoch=3, leo=3, hw=3, records="m0 n1 m2"),
    )
    await _c_returns(stage)
    return Ending(
        lesson="An end offset without its epoch lets a wrong tail survive.",
        findings=("diverged-below-high-watermark",),
    )


async def _until_b_returns(stage: Stage) -> None:
    await stage.write("m0", acks=1)
    await stage.until(A=Expected(hw=1), B=Expected(hw=1), C=Expected(hw=1))
    for follower in "BC":
        await stage.hold("A", follower)
    await stage.write("m1", acks=1)
    await stage.step(
        "A leads in epoch 0. m0 is on all three; m1 is on A alone.",
        A=Expected(role="leader", epoch=0, leo=2, hw=1, isr="ABC", records="m0 m1"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    await stage.kill("A", "C")
    await stage.step(
        "A and C die. B leads, in epoch 1.",
        B=Expected(role="leader", epoch=1, leo=1, isr="B", epochs=[(0, 0), (1, 1)]),
    )
    for follower in "BC":
        await stage.release("A", follower)
    await stage.write("n1", acks=1)
    await stage.step("B takes n1 at offset 1.", B=Expected(leo=2, hw=2, records="m0 n1"))
    await stage.kill("B")
    await stage.wait(SESSION_ENDED_SECONDS)
    await stage.start("A")
    await stage.step(
        "B dies before any replica has fetched n1, and A returns. unclean.leader.election.enable=true: A leads, in"
        " epoch 3 (epoch 2 had no leader).",
        A=Expected(role="leader", leo=2, isr="A", records="m0 m1"),
    )
    await stage.write("m2", acks=1)
    await stage.step("A takes m2 at offset 2.", A=Expected(leo=3, hw=3, records="m0 m1 m2"))
    await stage.checkpointed()
    await stage.start("B")


async def _c_returns(stage: Stage) -> None:
    await stage.start("C")
    await stage.step(
        "C returns with m0 and fetches the rest.",
        A=Expected(isr="ABC"),
        C=Expected(role="follower", leo=3, hw=3, records="m0 m1 m2"),
    )


SESSION_ENDED_SECONDS = 5.0
SETUP = Setup(brokers="ABCD", replicas="ABC", controller="D", configs={"unclean.leader.election.enable": "true"})

SCENARIO = Scenario(
    name="fast-failover",
    title="Leadership changes faster than records are copied",
    variants=(
        Variant(name="kip-279", title="the answer carries the epoch", setup=SETUP, play=play),
        Variant(
            name="kip-101",
            title="the answer is a bare offset",
            setup=SETUP,
            play=play_patched,
            patch=patches.answers_without_epoch,
            patched="a follower takes the offset of the answer and ignores the epoch, as before KIP-279.",
        ),
    ),
    page=Page(
        summary=(
            "A leads, then B, then A again, and each writes one record that no replica copies in time. B's log ends "
            "with an epoch that A does not know."
        ),
        rule=(
            "The answer to OffsetForLeaderEpoch carries the epoch. If it is lower than the requested one, the follower "
            "truncates to the end of its own records of that epoch, and asks again if needed: it steps back one epoch "
            "at a time."
        ),
        source="KIP-279 (KAFKA-6361); [section 4](../REPLICATION.md#4-follower-fetch).",
        old_texts=(
            "KIP-101 answered with a bare offset. The second variant uses that rule: LEO and HW agree, but one record "
            "does not."
        ),
        limits=(
            "The second variant also switches off the check of the last record's epoch that fetches carry since "
            "KIP-595: it would find the wrong tail later."
        ),
    ),
)
