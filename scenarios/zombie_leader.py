"""A leader is paused for longer than its session, and resumes."""

from minibroker.scenarios.staging.rows import Expected
from minibroker.scenarios.staging.scenario import Ending, Page, Scenario, Setup, Variant
from minibroker.scenarios.staging.stage import Stage


async def play(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1), C=Expected(hw=1))
    await stage.hold("A", "B")
    await stage.hold("A", "C")
    m1 = await stage.produce("m1")
    await stage.until(A=Expected(leo=2))
    await stage.pause("A")
    await stage.step(
        "m1 is on A alone, and its producer waits (acks=all). Then A is paused: a stopped process, or a long pause of"
        " the machine.",
        A=Expected(role="leader, paused", epoch=0, leo=2, hw=1),
        B=Expected(leo=1),
        C=Expected(leo=1),
    )
    await stage.until(B=Expected(role="leader"))
    await stage.release("A", "B")
    await stage.release("A", "C")
    await stage.new_producer(1)
    n1 = await stage.settled(await stage.produce("n1", acks=1))
    await stage.settled(m1)
    records = "m0 n1 m1" if n1.offset == 1 else "m0 m1 n1"  # on real processes m1's producer may be at B first
    await stage.step(
        f"A's ZooKeeper session ends, and B leads in epoch 1. n1, of another producer, gets offset {n1.offset}. The"
        " request of m1's producer times out: it asks other brokers for the leader, and sends m1 to B. A does not know"
        " it: two brokers consider themselves leader.",
        A=Expected(role="leader, paused", epoch=0, leo=2, hw=1),
        B=Expected(role="leader", epoch=1, isr="BC", records=records),
        C=Expected(records=records),
    )
    await stage.resume("A")
    await stage.step(
        "A resumes. Its deadline has passed, so it is fenced before it decides anything: it acknowledges nothing."
        " When it learns of epoch 1, it asks where epoch 0 ended, truncates its m1 at offset 1 and follows.",
        A=Expected(role="follower", epoch=1, leo=3, hw=3, records=records),
        B=Expected(leo=3, hw=3, isr="ABC", records=records),
        C=Expected(leo=3, hw=3),
    )
    return Ending(lesson="Two brokers may consider themselves leader; only the one with the newest epoch can commit.")


async def play_fetches(stage: Stage) -> Ending:
    await stage.write("m0")
    await stage.until(A=Expected(hw=1), B=Expected(hw=1), C=Expected(hw=1))
    await stage.hold("D", "C")
    await stage.hold("D", "A")
    await stage.pause("A")
    await stage.step(
        "A is paused, and B leads in epoch 1. The controller D cannot reach C, which still follows A.",
        A=Expected(role="leader, paused", epoch=0),
        B=Expected(role="leader", epoch=1, isr="BC"),
        C=Expected(role="follower", epoch=0),
    )
    await stage.resume("A")
    await stage.step(
        "A resumes, and D cannot reach it either: A does not learn of epoch 1. But A knows that its deadline has"
        " passed. It refuses C's fetch.",
        A=Expected(role="leader, fenced", epoch=0, hw=1),
        C=Expected(role="follower", epoch=0),
    )
    stage.check_noted("A refuses C's fetch: NOT_LEADER_OR_FOLLOWER")
    await stage.release("D", "A")
    await stage.until(A=Expected(role="follower"))
    await stage.wait(BACK_OFF_SECONDS)
    await stage.step(
        "D reaches A, which follows B in epoch 1. C's fetch, of epoch 0, is fenced: C stops and waits for the"
        " controller.",
        A=Expected(role="follower", epoch=1),
        C=Expected(role="follower", epoch=0),
    )
    stage.check_noted("A refuses C's fetch: FENCED_LEADER_EPOCH")
    await stage.release("D", "C")
    await stage.write("m1")
    await stage.step(
        "D reaches C, too. A and C follow B.",
        A=Expected(role="follower", epoch=1, leo=2, hw=2, records="m0 m1"),
        B=Expected(leo=2, hw=2, isr="ABC"),
        C=Expected(role="follower", epoch=1, leo=2, hw=2, records="m0 m1"),
    )
    return Ending(lesson="A deposed leader serves no request: it refuses by its clock, then by the epoch.")


BACK_OFF_SECONDS = 2.0
"""A follower that was refused asks again by then."""
SETUP = Setup(brokers="ABCD", controller="D", min_insync_replicas=2)

SCENARIO = Scenario(
    name="zombie-leader",
    title="A leader is paused for longer than its session, and resumes",
    variants=(
        Variant(name="writes", title="a producer waits at it", setup=SETUP, play=play, live=True),
        Variant(name="fetches", title="a follower still asks it", setup=SETUP, play=play_fetches),
    ),
    page=Page(
        summary=("The leader is paused with a record that no replica has copied. It resumes when another one leads."),
        rule=(
            "A leader measures the time since it sent the last request that ZooKeeper answered, and checks it before "
            "each decision: past the session timeout it acknowledges nothing. Records that the others lack are "
            "truncated when it follows."
        ),
        source=(
            "KIP-320, KAFKA-7415; [hardening rule "
            "8](../REPLICATION.md#hardening-rules-where-minibroker-is-stricter-than-kafka); "
            "invariants I18 and I24."
        ),
        old_texts=(
            "Texts say that the epoch alone is enough. It protects replication: followers do not follow the old "
            "leader. Without the deadline the old leader would continue to answer acks=1 writes and reads."
        ),
    ),
)
