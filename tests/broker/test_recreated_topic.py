"""A topic that is deleted and made again: the log of the former one on a disk, and late answers about it."""

from typing import Any, cast

import pytest

from minibroker.broker.configuration.topic_config import resolve_topic_config
from minibroker.broker.replication.state import AskingEpochEnd, AskingLeaderEnds, FollowerPhase, Role
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.wire.messages import ListOffsetsResponse, OffsetForLeaderEpochResponse, Response
from minibroker.testing import simulated
from tests.broker.test_replica_fetcher import PARTITION, QUESTION, SilentConnection, _asking, _fetcher
from tests.simulation.test_damage import FIRST, SETTINGS, TOPIC, produce, replica


@simulated(brokers=1, seed=41, settings=SETTINGS)
async def test_the_log_of_the_deleted_topic_is_given_up(c: SimulatedHarness) -> None:
    """With it, the replica would answer with records that the new topic never had."""
    await c.create_topic(TOPIC)
    await produce(c, 5)
    manager, before = c.simulation.brokers[1].manager, replica(c, 1)
    topic_config = resolve_topic_config(manager.config, {})
    assert before.log.topic_id is not None
    assert manager.opened(FIRST, before.log.topic_id, topic_config) is before
    another = manager.opened(FIRST, "another topic", topic_config)
    assert manager.partitions[FIRST] is another is not before
    assert before.state.role is Role.NONE, "what waited for it is answered"
    assert (another.log.topic_id, another.log.log_end_offset) == ("another topic", 0)


@simulated(brokers=1, seed=42, settings=SETTINGS)
async def test_the_controller_learns_that_an_offline_replica_is_gone(c: SimulatedHarness) -> None:
    """Else the replica of the next topic of that name counts as reported when it goes offline: it stays leader to the
    controller, and leads nothing, for ever."""
    await c.create_topic(TOPIC)
    await produce(c, 5)
    manager, told = c.simulation.brokers[1].manager, list[bool]()
    manager.disk.wait_for_descriptor(FIRST, replica(c, 1))
    manager.disk.on_changed = lambda: told.append(FIRST in manager.partitions)
    manager.drop(FIRST, "the topic is being deleted")
    assert told == [False]


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize(
    ("phase", "answer"),
    [(AskingEpochEnd(0), OffsetForLeaderEpochResponse()), (AskingLeaderEnds(), ListOffsetsResponse())],
    ids=["epoch end", "leader ends"],
)
async def test_a_late_answer_about_the_deleted_topic_is_none_about_the_next_one(
    phase: FollowerPhase, answer: Response, is_made_again: bool
) -> None:
    """The epochs of the next topic begin anew, so its replica may ask the same of the same leader. It would cut its log
    where that of the deleted topic ended, below its own high watermark."""
    fetcher, connection = _fetcher(), SilentConnection()
    fetcher._connection = cast(Any, connection)
    former, told = _asking(phase)
    later, told_later = _asking(phase)
    for follower in (former, later if is_made_again else former):
        fetcher.leave(PARTITION)
        if isinstance(phase, AskingEpochEnd):
            fetcher.ask_epoch_end(follower, QUESTION)
        else:
            fetcher.ask_leader_ends(follower, 0)
        fetcher._send_all()
    connection.answer(answer)
    assert (len(told), len(told_later)) == ((0, 0) if is_made_again else (1, 0))
    connection.answer(answer)
    assert (len(told), len(told_later)) == ((0, 1) if is_made_again else (2, 0))
