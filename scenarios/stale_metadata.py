"""A client that still believes in the old leader."""

from minibroker.protocol.wire.messages import ApiKey
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.scenarios.staging.stage import Stage
from minibroker.simulation.world.message_holds import requests


async def play_traffic(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.step("A leads; the producer knows.", A=Expected(role="leader", epoch=0, leo=1, hw=1, isr="AB"))
    await _leadership_moves(stage)
    began = stage.now()
    m1 = await stage.settled(await stage.produce("m1"))
    took_ms = (stage.now() - began) * 1000
    stage.check("m1 is at offset 1", m1.offset == 1)
    stage.check("it took less than a second", took_ms < 1000)
    await stage.step(
        "The producer sends m1 to A, as before. A answers NOT_LEADER_OR_FOLLOWER, and names the leader that it knows."
        " The client asks for metadata at once, and reaches B. Nothing is lost, and nothing is duplicated.",
        A=Expected(role="follower", epoch=1, leo=2, hw=2, records="m0 m1"),
        B=Expected(leo=2, hw=2, records="m0 m1"),
    )
    stage.check_noted("A refuses the client's produce request: NOT_LEADER_OR_FOLLOWER")
    return Ending(lesson="A wrong address costs one refusal: elections need not be announced to clients.")


async def play_idle(stage: SimulatedStage) -> Ending:
    await stage.write("m0")
    await stage.step("A leads; the producer knows.", A=Expected(role="leader", epoch=0, leo=1, hw=1, isr="AB"))
    await _leadership_moves(stage)
    asked = stage.count("client", requests(ApiKey.METADATA))
    await stage.wait(MAX_AGE_MS / 1000 + 1)
    stage.check("the idle client asked for metadata", bool(asked.seen))
    refused = stage.count("client", requests(ApiKey.PRODUCE))
    await stage.settled(await stage.produce("m1"))
    stage.check("its first request went to B", {frame.target for frame in refused.seen} == {stage.machine("B")})
    await stage.step(
        f"The client sends nothing for metadata.max.age.ms, {MAX_AGE_MS} ms, and then asks for metadata by itself: m1"
        " goes to B without a refusal.",
        A=Expected(role="follower", leo=2, hw=2),
        B=Expected(leo=2, hw=2, records="m0 m1"),
    )
    return Ending(lesson="metadata.max.age.ms bounds how long an idle client's metadata is outdated.")


async def _leadership_moves(stage: Stage) -> None:
    await stage.expire_session("A")
    await stage.step(
        "ZooKeeper ends A's session. A registers again, but by then B leads in epoch 1. A is alive, and follows. The"
        " producer does not know it.",
        A=Expected(role="follower", epoch=1),
        B=Expected(role="leader", epoch=1, isr="AB"),
    )


MAX_AGE_MS = 5_000

SCENARIO = Scenario(
    name="stale-metadata",
    title="A client that still believes in the old leader",
    variants=(
        Variant(
            name="traffic", title="it sends", setup=Setup(replicas="AB", controller="C"), play=play_traffic, live=True
        ),
        Variant(
            name="idle",
            title="it is idle",
            setup=Setup(replicas="AB", controller="C", metadata_max_age_ms=MAX_AGE_MS),
            play=play_idle,
        ),
    ),
    page=Page(
        summary="Leadership moves from A to B while A stays alive. The producer still believes in A.",
        rule=(
            "A broker that does not lead answers NOT_LEADER_OR_FOLLOWER, with the leader that it knows. The client "
            "then asks for metadata at once, and sends again with the same sequence number. An idle client asks after "
            "metadata.max.age.ms."
        ),
        source="KIP-320, KIP-951, KIP-98; [section 10](../REPLICATION.md#10-client-and-idempotence).",
        old_texts=(
            "Texts say that clients must wait for metadata.max.age.ms after an election. They need not: the refusal "
            "tells them."
        ),
    ),
)
