"""A controller is paused in the middle of an election, and resumes."""

from minibroker.protocol.wire.messages import ApiKey
from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.simulated import SimulatedStage
from minibroker.simulation.world.message_holds import requests

SETTINGS = {"zookeeper.session.timeout.ms": "10000", "broker.failure.detection": "session"}
"""The scenario is about the write of an election, not about the one before it that unregisters the failed broker."""


async def play(stage: SimulatedStage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1), C=Expected(hw=1))
    late = stage.hold_messages("D", "B", requests(ApiKey.LEADER_AND_ISR))
    await stage.kill("C")
    await stage.expire_session("C")
    await stage.step(
        "D is the controller of controller epoch 1. C dies: D removes it from the ISR, and epoch 1 begins at A. D's"
        " LeaderAndIsr to B is held in the network.",
        A=Expected(role="leader", epoch=1, hw=1, isr="AB"),
        B=Expected(role="follower", epoch=0),
    )
    write = stage.hold_zookeeper_write("D")
    await stage.kill("A")
    await stage.expire_session("A")
    await write.caught()
    await stage.pause("D")
    await stage.step(
        "A dies. D elects B, sends that to ZooKeeper (a multi that also checks the version of /controller_epoch), and"
        " is paused. Its write has not arrived.",
        B=Expected(role="follower", epoch=0),
    )
    await stage.delete_controller_node()
    await stage.until(B=Expected(role="leader"))
    await stage.step(
        "An operator deletes /controller, the usual way to get another controller. B wins: controller epoch 2. It"
        " completes the election: B leads, in epoch 2.",
        B=Expected(role="leader", epoch=2, leo=1, isr="B"),
    )
    stage.check("there is a new controller", stage.controller() == "B")
    late.release()
    await stage.wait(stage.settle_seconds)
    await stage.resume("D")
    await stage.wait(stage.settle_seconds)
    write.release()
    await stage.step(
        "The held LeaderAndIsr reaches B, and is refused: B knows controller epoch 2. D resumes, and its write reaches"
        " ZooKeeper: /controller_epoch has another version, so nothing is written. D is no longer controller, and now"
        " knows it.",
        B=Expected(role="leader", epoch=2, isr="B"),
    )
    stage.check_noted("B refuses D's LeaderAndIsr: STALE_CONTROLLER_EPOCH")
    stage.check_noted("D: is no longer controller: controller epoch 1 is over")
    await stage.start("A", "C")
    await stage.write("m1")
    await stage.step(
        "A and C return.",
        A=Expected(role="follower", leo=2, hw=2, records="m0 m1"),
        B=Expected(leo=2, hw=2, isr="ABC"),
        C=Expected(role="follower", leo=2, hw=2),
    )
    return Ending(lesson="Two fences: ZooKeeper refuses the old controller's writes, brokers refuse its requests.")


SCENARIO = Scenario(
    name="zombie-controller",
    title="A controller is paused in the middle of an election, and resumes",
    variants=(
        Variant(
            setup=Setup(brokers="ABCD", controller="D", settings=SETTINGS),
            play=play,
        ),
    ),
    page=Page(
        summary=(
            "The controller decides an election and is paused before its write arrives. Another controller is elected "
            "and completes the election."
        ),
        rule=(
            "Every write of a controller is a multi that checks the version of `/controller_epoch`. Every request "
            "carries the controller epoch, and brokers refuse one that is older than the latest they know."
        ),
        source="KAFKA-6082, KAFKA-1096; [section 9](../REPLICATION.md#9-controller); invariant I30.",
        old_texts=(
            "Texts mention the second fence only. Without the first one the old controller could overwrite the new "
            "one's decision in ZooKeeper."
        ),
    ),
)
