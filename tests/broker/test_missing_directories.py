"""Directories of partitions that were here and are gone: what is reported when the controller's orders name them."""

from types import SimpleNamespace
from typing import Any, cast

from minibroker.broker.configuration.config import load_config
from minibroker.broker.replicas.replica_orders import ReplicaOrders
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.replica_events import LogMissing
from minibroker.protocol.ids import NONE, TopicPartition
from minibroker.protocol.wire import messages as m

MISSING = TopicPartition("a", 1)


class Seen:
    """An observer that keeps the events."""

    wants_details = False

    def __init__(self) -> None:
        self.events: list[object] = []

    def notify(self, event: object) -> None:
        self.events.append(event)


def orders(observer: Seen) -> ReplicaOrders:
    """Of broker 1, whose partition a-1 had a directory before it started."""
    config = load_config(None, ["broker.id=1", "log.dirs=/data", "zookeeper.connect=zookeeper:2181"], {})
    replicas = SimpleNamespace(config=config, partitions={}, check_fence=lambda: None, unfence=lambda: None)
    directory = SimpleNamespace(wholeness=SimpleNamespace(missing={MISSING}), offline=False, path="/data")
    unused = cast(Any, None)
    return ReplicaOrders(cast(Any, replicas), cast(Any, directory), unused, unused, cast(Any, observer))


def without_leader(*numbers: int) -> m.LeaderAndIsrRequest:
    """An order for partitions of topic a that have no leader: their only copy is here."""
    partitions = [
        m.LeaderAndIsrPartition(
            partition_index=number,
            controller_epoch=1,
            leader=NONE,
            leader_epoch=2,
            isr=[1],
            partition_epoch=3,
            replicas=[1],
        )
        for number in numbers
    ]
    topic = m.LeaderAndIsrTopic(topic_name="a", topic_id="id", partition_states=partitions)
    return m.LeaderAndIsrRequest(controller_id=1, controller_epoch=1, broker_epoch=7, topic_states=[topic])


def test_a_missing_directory_is_reported_once_and_no_other_one() -> None:
    """The controller repeats its orders; a new partition never had a directory."""
    observer = Seen()
    under_test = orders(observer)
    for _ in range(2):
        answer = under_test.leader_and_isr(without_leader(0, 1))
        assert [each.error_code for each in answer.partition_errors] == [ErrorCode.NONE, ErrorCode.NONE]
    assert observer.events == [LogMissing(topic="a", partition=1, path="/data/a-1")]
