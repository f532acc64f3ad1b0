"""What `top` and the demo tell: which events, with which words, and what no event says."""

from typing import Any

import msgspec
import pytest

from minibroker.observation.cluster_changes import KINDS, changes_of_answers, told_by
from minibroker.observation.cluster_view import ClusterView
from minibroker.observation.event_stream import BrokerEvent
from minibroker.protocol.events.broker_events import BrokerStopped
from minibroker.protocol.events.cluster_events import EVENTS, as_json_fields
from minibroker.protocol.events.controller_events import BrokerLeft, LeadershipChanged, TopicCreated
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.events.replica_events import IsrChanged, ReplicaTruncated
from tests.minibroker.test_cluster_view import broker, replica, view

ELECTED = LeadershipChanged(
    topic="t",
    partition=0,
    change="leader 1 -> 2, epoch 0 -> 1, ISR [1, 2]",
    leader=2,
    leader_before=1,
    leader_epoch=1,
    isr=[1, 2],
    isr_before=[1, 2],
    reason="broker 1 is gone",
    is_election=True,
)
TRUNCATED = ReplicaTruncated(topic="t", partition=0, end_before=9, end_after=4, leader_epoch=1, reason="it differs")


def reported(event: ClusterEvent, by: int = 3) -> BrokerEvent:
    return BrokerEvent(5, by, {**as_json_fields(event), "text": event.text()})


def told(event: ClusterEvent, topics: tuple[str, ...] | None = None) -> tuple[Any, ...] | None:
    change = told_by(reported(event), topics)
    return None if change is None else (change.kind, change.what, change.partition, change.broker)


def test_each_kind_is_of_an_event_of_the_catalogue() -> None:
    assert set(KINDS) <= set(EVENTS)


def test_an_election_is_told_with_its_reason() -> None:
    what = "t-0: leader 1 -> 2, epoch 0 -> 1, ISR [1, 2]: broker 1 is gone"
    assert told(ELECTED) == ("election", what, "t-0", 2)


def test_a_change_of_the_isr_is_told_by_its_leader_alone() -> None:
    changed = IsrChanged(topic="t", partition=0, before=[1, 2], after=[1], leader_epoch=0, partition_epoch=3)
    assert told(changed) == ("isr", "t-0: ISR [1, 2] -> [1] (leader epoch 0, partition epoch 3)", "t-0", 3)
    assert told(msgspec.structs.replace(ELECTED, is_election=False)) is None
    assert told(msgspec.structs.replace(ELECTED, is_election=False, is_bad=True)) is not None


def test_a_truncation_is_told_with_its_broker_and_only_if_something_was_cut() -> None:
    what = "broker 3: t-0: truncated from 9 to 4 under leader epoch 1: it differs"
    assert told(TRUNCATED) == ("truncation", what, "t-0", 3)
    assert told(msgspec.structs.replace(TRUNCATED, end_after=9)) is None


def test_brokers_and_topics_are_told_and_other_events_are_not() -> None:
    assert told(BrokerLeft(broker=1)) == ("broker-down", "broker 1 is gone", None, 1)
    assert told(TopicCreated(topic="t", partitions=2)) == ("topic", "topic t was created with 2 partitions", None, 3)
    assert told(BrokerStopped(broker=1)) is None


@pytest.mark.parametrize(("topics", "is_told"), [(("t", "u"), True), (("u",), False)])
def test_events_of_other_topics_are_left_out(topics: tuple[str, ...], is_told: bool) -> None:
    assert (told(TRUNCATED, topics) is not None) is is_told
    assert told(BrokerLeft(broker=1), topics) is not None


def answers(before: ClusterView | None, after: ClusterView) -> list[tuple[str, str]]:
    return [(change.kind, change.what) for change in changes_of_answers(before, after)]


def test_brokers_that_stop_answering_and_answer_again_are_told() -> None:
    gone = view(three=broker(3, None))
    assert answers(view(), gone) == [("silent", "broker 3 does not answer")]
    assert answers(gone, view()) == [("answers", "broker 3 answers")]
    assert answers(view(three=broker(3, replica("follower", 7), "b")), view()) == []
    assert answers(None, gone) == []
