"""A controller stands still in the middle of an election, and wakes."""

from minibroker.protocol.messages import ApiKey
from minibroker.scenarios.telling.rows import Shows
from minibroker.scenarios.telling.simulated import SimulatedStage
from minibroker.scenarios.telling.story import Act, Cast, Ending, Page, Story
from minibroker.simulation.message_holds import requests

SETTINGS = {"zookeeper.session.timeout.ms": "10000", "broker.failure.detection": "session"}
"""The story is about the write of an election, not about the one that unregisters the dead before it."""


async def play(stage: SimulatedStage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Shows(hw=1), B=Shows(hw=1), C=Shows(hw=1))
    late = stage.hold_messages("D", "B", requests(ApiKey.LEADER_AND_ISR))
    await stage.kill("C")
    await stage.expire_session("C")
    await stage.tell(
        "D is controller, of controller epoch 1. C dies: D takes it out of the ISR, and epoch 1 begins at A. D's"
        " LeaderAndIsr to B is late: it stays somewhere in the network.",
        A=Shows(role="leader", epoch=1, hw=1, isr="AB"),
        B=Shows(role="follower", epoch=0),
    )
    write = stage.hold_zookeeper_write("D")
    await stage.kill("A")
    await stage.expire_session("A")
    await write.caught()
    await stage.pause("D")
    await stage.tell(
        "A dies. D decides that B leads, sends that to ZooKeeper (a multi that also checks the version of"
        " /controller_epoch), and stands still. Its write has not arrived.",
        B=Shows(role="follower", epoch=0),
    )
    await stage.delete_controller_node()
    await stage.until(B=Shows(role="leader"))
    await stage.tell(
        "An operator deletes /controller, the usual way to another controller. B wins: controller epoch 2. It finishes"
        " what D began: B leads, in epoch 2.",
        B=Shows(role="leader", epoch=2, leo=1, isr="B"),
    )
    stage.check("there is a new controller", stage.controller() == "B")
    late.release()
    await stage.wait(stage.settle_seconds)
    await stage.resume("D")
    await stage.wait(stage.settle_seconds)
    write.release()
    await stage.tell(
        "The LeaderAndIsr that was late arrives at B, and is refused: B knows of controller epoch 2. D wakes, and"
        " its write"
        " arrives at ZooKeeper: /controller_epoch has another version, so nothing of it is written. D is controller no"
        " longer, and knows it now.",
        B=Shows(role="leader", epoch=2, isr="B"),
    )
    stage.check_heard("B refuses D's LeaderAndIsr: STALE_CONTROLLER_EPOCH")
    stage.check_heard("D: is no longer controller: controller epoch 1 is over")
    await stage.start("A", "C")
    await stage.write("m1")
    await stage.tell(
        "A and C return.",
        A=Shows(role="follower", leo=2, hw=2, records="m0 m1"),
        B=Shows(leo=2, hw=2, isr="ABC"),
        C=Shows(role="follower", leo=2, hw=2),
    )
    return Ending(moral="Two fences: ZooKeeper refuses the old controller's writes, brokers its orders.")


STORY = Story(
    name="zombie-controller",
    title="A controller stands still in the middle of an election, and wakes",
    acts=(
        Act(
            cast=Cast(brokers="ABCD", controller="D", settings=SETTINGS),
            play=play,
        ),
    ),
    page=Page(
        story=(
            "The controller decides an election and stands still before its write arrives. Another controller is "
            "elected and finishes the election."
        ),
        rule=(
            "Every write of a controller is a multi that checks the version of `/controller_epoch`. Every order "
            "carries the controller epoch, and brokers refuse an older one than they have seen."
        ),
        source="KAFKA-6082, KAFKA-1096; [section 9](../REPLICATION.md#9-controller); invariant I30.",
        old_texts=(
            "Texts give the second fence only. Without the first the old controller could overwrite the new one's "
            "decision in ZooKeeper."
        ),
    ),
)
