"""An epoch without a record still has an entry in the epoch file (KAFKA-7415)."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1), C=Expected(hw=1))
    await stage.hold("A", "B")
    await stage.hold("A", "C")
    await stage.write("x1", acks=1)
    await stage.step(
        "A leads in epoch 0; m0 is on all three. x1 is on A alone, not committed.",
        A=Expected(role="leader", epoch=0, leo=2, hw=1, isr="ABC", records="m0 x1"),
        B=Expected(leo=1, hw=1),
        C=Expected(leo=1, hw=1),
    )
    await stage.kill("A")
    await stage.step(
        "A dies. B leads and enters (1, 1) into its epoch file at once, though nothing is written in epoch 1.",
        B=Expected(role="leader", epoch=1, leo=1, isr="BC", epochs=[(0, 0), (1, 1)]),
        C=Expected(role="follower", epoch=1, epochs=[(0, 0)]),
    )
    await stage.release("A", "B")
    await stage.release("A", "C")
    await stage.kill("B")
    await stage.step(
        "B dies, too. C leads and enters (2, 1). It has no entry for epoch 1, because it never got a record of it.",
        C=Expected(role="leader", epoch=2, leo=1, isr="C", epochs=[(0, 0), (2, 1)]),
    )
    await stage.start("A")
    await stage.step(
        "A returns and asks where epoch 0 ended. C answers: at 1, where epoch 2 began, though no record was written"
        " since. A truncates x1, and m0 stays.",
        A=Expected(role="follower", epoch=2, leo=1, hw=1, epochs=[(0, 0)], records="m0"),
        C=Expected(isr="AC"),
    )
    await stage.start("B")
    await stage.step(
        "B returns. Nothing is truncated.",
        B=Expected(role="follower", epoch=2, leo=1, hw=1, epochs=[(0, 0)], records="m0"),
        C=Expected(isr="ABC"),
    )
    await stage.write("m1")
    await stage.step(
        "m1 is the first record of epoch 2. It adds the epoch to the files of A and B.",
        A=Expected(leo=2, hw=2, epochs=[(0, 0), (2, 1)], records="m0 m1"),
        B=Expected(leo=2, hw=2, epochs=[(0, 0), (2, 1)], records="m0 m1"),
        C=Expected(leo=2, hw=2, epochs=[(0, 0), (2, 1)], records="m0 m1"),
    )
    return Ending(lesson="A broker writes the entry when it becomes leader, so every epoch has a start, empty or not.")


SCENARIO = Scenario(
    name="empty-epoch",
    title="An epoch without a record has an entry, too",
    variants=(Variant(setup=Setup(brokers="ABCD", replicas="ABC", controller="D"), play=play),),
    page=Page(
        summary=(
            "Two elections follow each other without a record in between. The old leader returns with a tail that "
            "no other replica has."
        ),
        rule=(
            "A broker enters (epoch, LEO) into its epoch file when it becomes leader, before it serves any request. "
            "Followers learn an epoch from its first record."
        ),
        source="KAFKA-7415; [section 8](../REPLICATION.md#8-epoch-history).",
        old_texts=(
            "Texts, and Kafka before 2.0.1, write the entry with the first append. Then an epoch without a record "
            "has no start, and the old leader gets a wrong end for its own epoch."
        ),
        limits=(
            "When A or B is restarted, it drops an entry of its own that has no record: its log ends where the entry "
            "begins."
        ),
    ),
)
