"""A broker's knowledge of the cluster: fenced by epochs, never going back, answered per listener."""

from typing import Any

import msgspec
import pytest

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    LEADER_DURING_DELETE,
    BrokerEndpoint,
    CurrentLeader,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveBroker,
    MetadataRequest,
    MetadataRequestTopic,
    StopReplicaRequest,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)

OWN_EPOCH = 100
LINES_0 = TopicPartition("lines", 0)


def live(broker_id: int, epoch: int = 100, shutting_down: bool = False, listeners: str = "IN OUT") -> LiveBroker:
    return LiveBroker(
        id=broker_id,
        broker_epoch=epoch,
        shutting_down=shutting_down,
        endpoints=[
            BrokerEndpoint(listener=name, host=f"{name.lower()}{broker_id}", port=9000 + broker_id)
            for name in listeners.split()
        ],
    )


def state(leader: int = 1, leader_epoch: int = 0, partition_epoch: int = 0, index: int = 0, **more: Any) -> Any:
    return UpdateMetadataPartition(
        partition_index=index,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        isr=more.pop("isr", [1, 2]),
        replicas=[1, 2, 3],
        **more,
    )


def topic(*states: Any, name: str = "lines", topic_id: str = "id-1", configs: dict[str, str] | None = None) -> Any:
    return UpdateMetadataTopic(topic_name=name, topic_id=topic_id, configs=configs or {}, partition_states=list(states))


def update(
    *topics: Any,
    brokers: Any = None,
    controller: int = 1,
    epoch: int = 1,
    broker_epoch: int = OWN_EPOCH,
    number: int = 0,
) -> Any:
    return UpdateMetadataRequest(
        controller_id=controller,
        controller_epoch=epoch,
        broker_epoch=broker_epoch,
        live_brokers=[live(1), live(2), live(3)] if brokers is None else brokers,
        topic_states=list(topics),
        order_number=number,
    )


def image_with(*topics: Any, brokers: Any = None) -> MetadataImage:
    image = MetadataImage(1, "cluster")
    assert image.apply_update(update(*topics, brokers=brokers), OWN_EPOCH).error_code == ErrorCode.NONE
    return image


# fencing


@pytest.mark.invariant("I29")
def test_request_of_an_older_controller_changes_nothing() -> None:
    image = image_with(topic(state(leader=1)))
    image.apply_update(update(controller=2, epoch=3), OWN_EPOCH)
    change = image.apply_update(update(topic(state(leader=2, leader_epoch=9)), epoch=2), OWN_EPOCH)
    assert change.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert (image.controller_id, image.controller_epoch) == (2, 3)
    assert image.leader_hint(LINES_0, "") == CurrentLeader(leader_id=1, leader_epoch=0)


@pytest.mark.invariant("I29")
@pytest.mark.parametrize(("own", "asked"), [(100, 99), (None, 100)])
def test_request_for_another_incarnation_is_refused(own: int | None, asked: int) -> None:
    image = MetadataImage(1, "cluster")
    change = image.apply_update(update(topic(state()), broker_epoch=asked), own)
    assert change.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert image.partition(LINES_0) is None
    assert not image.has_been_updated


@pytest.mark.parametrize("asked", [100, 101])
def test_request_for_this_or_a_newer_broker_epoch_is_accepted(asked: int) -> None:
    image = MetadataImage(1, "cluster")
    assert image.apply_update(update(broker_epoch=asked), 100).error_code == ErrorCode.NONE
    assert image.has_been_updated


@pytest.mark.invariant("I29")
def test_a_request_that_comes_behind_a_later_one_brings_neither_settings_nor_brokers_back() -> None:
    """Its connection hung, and the next attempt got through. What arrived of the first one half a minute later took an
    operator's min.insync.replicas=2 back to 1, until the topic's next metadata."""
    image = MetadataImage(1, "cluster")
    late = update(topic(state(), configs={"min.insync.replicas": "1"}), brokers=[live(1), live(2)], number=4)
    image.apply_update(late, OWN_EPOCH)
    assert image.apply_update(late, OWN_EPOCH).error_code == ErrorCode.NONE, "the next attempt has the same number"
    image.apply_update(update(topic(state(), configs={"min.insync.replicas": "2"}), number=5), OWN_EPOCH)
    common: dict[str, Any] = {"controller_id": 1, "controller_epoch": 1, "broker_epoch": OWN_EPOCH, "order_number": 4}
    assert image.apply_update(late, OWN_EPOCH).error_code == ErrorCode.REQUEST_TIMED_OUT
    order = LeaderAndIsrRequest(**common, live_brokers=[live(9)])
    assert image.apply_leader_and_isr(order, OWN_EPOCH).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert image.admit(StopReplicaRequest(**common), OWN_EPOCH).error_code == ErrorCode.REQUEST_TIMED_OUT
    assert image.topic_configs("lines") == {"min.insync.replicas": "2"}
    assert image.live_broker_ids() == (1, 2, 3)
    for another in (update(controller=2, number=1), update(epoch=2, number=1)):  # each counts anew
        assert image.apply_update(another, OWN_EPOCH).error_code == ErrorCode.NONE


def test_new_controller_is_reported() -> None:
    image = MetadataImage(1, "cluster")
    assert image.apply_update(update(), OWN_EPOCH).controller_changed
    assert not image.apply_update(update(), OWN_EPOCH).controller_changed
    assert image.apply_update(update(epoch=2), OWN_EPOCH).controller_changed
    assert image.apply_update(update(epoch=2, controller=2), OWN_EPOCH).controller_changed


def test_knowledge_is_of_an_earlier_registration_until_a_controller_writes_to_the_new_one() -> None:
    """Until then a client must not believe it (hardening rule 17). A refused request proves nothing."""
    image = MetadataImage(1, "cluster")
    assert not image.is_of_an_earlier_registration(100), "a broker that starts has no knowledge yet"
    image.apply_update(update(), 100)
    found = [image.is_of_an_earlier_registration(own) for own in (100, 101, None)]
    assert found == [False, True, False]
    image.apply_update(update(broker_epoch=100), 101)
    assert image.is_of_an_earlier_registration(101)
    image.apply_update(update(broker_epoch=101), 101)
    assert not image.is_of_an_earlier_registration(101)


# what changes


def test_update_replaces_live_brokers() -> None:
    image = image_with()
    change = image.apply_update(update(brokers=[live(1), live(3, epoch=200)]), OWN_EPOCH)
    assert change.brokers_changed
    assert image.live_broker_ids() == (1, 3)
    assert image.broker_epoch(3) == 200
    assert not image.apply_update(update(brokers=[live(3, epoch=200), live(1)]), OWN_EPOCH).brokers_changed


def test_update_without_brokers_leaves_them() -> None:
    image = image_with()
    assert not image.apply_update(update(brokers=[]), OWN_EPOCH).brokers_changed
    assert image.live_broker_ids() == (1, 2, 3)


def test_update_returns_the_changed_partitions() -> None:
    image = image_with(topic(state(), state(index=1)))
    change = image.apply_update(update(topic(state(index=1, leader=2, leader_epoch=1))), OWN_EPOCH)
    assert change.partitions_changed == (TopicPartition("lines", 1),)
    assert image.leader_hint(LINES_0, "") == CurrentLeader(leader_id=1, leader_epoch=0)
    assert image.leader_hint(TopicPartition("lines", 1), "") == CurrentLeader(leader_id=2, leader_epoch=1)


@pytest.mark.parametrize(
    "late", [state(leader=1, leader_epoch=1, partition_epoch=9), state(leader=1, leader_epoch=2, partition_epoch=4)]
)
def test_a_late_description_of_a_partition_is_ignored(late: Any) -> None:
    image = image_with(topic(state(leader=2, leader_epoch=2, partition_epoch=5)))
    assert image.apply_update(update(topic(late)), OWN_EPOCH).partitions_changed == ()
    assert image.leader_hint(LINES_0, "") == CurrentLeader(leader_id=2, leader_epoch=2)


def test_deleted_topic_is_forgotten_and_a_late_request_does_not_bring_it_back() -> None:
    image = image_with(topic(state(), state(index=1)))
    change = image.apply_update(update(topic(state(leader=-2), state(leader=-2, index=1))), OWN_EPOCH)
    assert change.partitions_deleted == (LINES_0, TopicPartition("lines", 1))
    assert image.topics == {}
    assert image.apply_update(update(topic(state())), OWN_EPOCH).partitions_changed == ()
    assert image.partition(LINES_0) is None


def test_topic_created_again_starts_over_with_low_epochs() -> None:
    image = image_with(topic(state(leader_epoch=7), state(leader_epoch=7, index=1)))
    change = image.apply_update(update(topic(state(leader=3, leader_epoch=0), topic_id="id-2")), OWN_EPOCH)
    assert change.partitions_changed == (LINES_0,)
    assert change.partitions_deleted == (TopicPartition("lines", 1),)
    assert image.topic_id("lines") == "id-2"
    image.apply_update(update(topic(state(leader=-2), topic_id="id-1")), OWN_EPOCH)
    assert image.leader_hint(LINES_0, "") == CurrentLeader(leader_id=3, leader_epoch=0)
    assert image.leader_hint(LINES_0, "id-2") is not None
    assert image.leader_hint(LINES_0, "id-1") is None, "its epochs are those of another topic"


def test_topic_settings_travel_with_the_update() -> None:
    image = image_with(topic(state(), configs={"min.insync.replicas": "2"}))
    assert image.topic_configs("lines") == {"min.insync.replicas": "2"}
    again = update(topic(configs={"min.insync.replicas": "2"}))
    assert image.apply_update(again, OWN_EPOCH).configs_changed == ()
    assert image.apply_update(update(topic(configs={})), OWN_EPOCH).configs_changed == ("lines",)
    assert image.topic_configs("lines") == {}
    assert image.topic_configs("unknown") == {}


@pytest.mark.parametrize(
    ("request_received", "count"),
    [
        (update(topic(state(leader=2, leader_epoch=1))), 1),
        (update(topic(state(leader=-2))), 1),
        (update(topic(state(leader=-2), topic_id="id-2")), 1),
        (update(topic(configs={"min.insync.replicas": "2"})), 1),
        (update(topic(state(leader=2, leader_epoch=1)), topic(state(), name="others", topic_id="id-3")), 1),
        (update(topic(state(leader=-2), name="unknown", topic_id="id-3")), 0),
        (update(brokers=[live(1)], controller=2, epoch=2), 0),
    ],
    ids=["a leader", "deleted", "deleted and made again", "settings", "several at once", "nothing here", "brokers"],
)
def test_whatever_an_older_copy_of_zookeeper_would_undo_is_counted_once_a_request(
    request_received: Any, count: int
) -> None:
    """A copy from before a deletion would bring the topic back, if no broker knew of its end (decision 0032)."""
    image = image_with(topic(state()))
    before = image.changes
    image.apply_update(request_received, OWN_EPOCH)
    assert image.changes - before == count


def leader_and_isr(leader: int = 1, leader_epoch: int = 1, brokers: Any = (), recovery: int = 0) -> LeaderAndIsrRequest:
    partition = LeaderAndIsrPartition(
        partition_index=0,
        controller_epoch=1,
        leader=leader,
        leader_epoch=leader_epoch,
        isr=[leader],
        partition_epoch=1,
        replicas=[1, 2, 3],
        leader_recovery_state=recovery,
    )
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=OWN_EPOCH,
        live_brokers=list(brokers),
        topic_states=[LeaderAndIsrTopic(topic_name="lines", topic_id="id-1", partition_states=[partition])],
    )


def test_leader_and_isr_adds_brokers_and_removes_none() -> None:
    image = image_with(topic(state()), brokers=[live(1), live(2)])
    request = leader_and_isr(leader=3, brokers=[live(3, epoch=5), live(2, epoch=7)])
    assert image.apply_leader_and_isr(request, OWN_EPOCH).partitions_changed == (LINES_0,)
    assert image.leader_hint(LINES_0, "") == CurrentLeader(leader_id=3, leader_epoch=1)
    assert (image.broker_epoch(3), image.broker_epoch(2)) == (5, 100)
    assert image.live_broker_ids() == (1, 2, 3)


def test_leader_and_isr_does_not_undo_which_replicas_are_offline() -> None:
    """It does not say that, and comes alone, or behind the UpdateMetadata: after a controller failover no broker named
    the replicas of a failed disk any more."""
    image = image_with(topic(state(leader=1, leader_epoch=1, partition_epoch=1, offline_replicas=[3])))
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=1), OWN_EPOCH)
    found = image.partition(LINES_0)
    assert found is not None and found.offline_replicas == (3,)
    image.apply_update(update(topic(state(leader=1, leader_epoch=1, partition_epoch=1))), OWN_EPOCH)
    found = image.partition(LINES_0)
    assert found is not None and found.offline_replicas == ()


def test_elections_of_this_broker_are_counted_once_and_unclean_ones_apart() -> None:
    counters = BrokerCounters()
    image = MetadataImage(1, "cluster", counters)
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=1), OWN_EPOCH)
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=1), OWN_EPOCH)
    image.apply_update(update(topic(state(leader=1, leader_epoch=1))), OWN_EPOCH)
    image.apply_leader_and_isr(leader_and_isr(leader=2, leader_epoch=2, recovery=1), OWN_EPOCH)
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=3, recovery=1), OWN_EPOCH)
    assert (counters.leader_elections, counters.unclean_leader_elections) == (2, 1)


def test_an_unclean_election_that_updatemetadata_tells_first_is_counted_by_the_order() -> None:
    """A new controller sends all metadata before any order. It tells of the elections that the former one wrote before
    it died, and not whether they are unclean: the alarm of acknowledged records that are lost stayed silent."""
    counters = BrokerCounters()
    image = MetadataImage(1, "cluster", counters)
    image.apply_update(update(topic(state(leader=1, leader_epoch=1))), OWN_EPOCH)
    assert (counters.leader_elections, counters.unclean_leader_elections) == (0, 0)
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=1, recovery=1), OWN_EPOCH)
    image.apply_update(update(topic(state(leader=1, leader_epoch=1))), OWN_EPOCH)
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=1, recovery=1), OWN_EPOCH)
    assert (counters.leader_elections, counters.unclean_leader_elections) == (1, 1)


@pytest.mark.parametrize("is_forgotten_at_once", [True, False])
def test_elections_of_a_topic_that_is_made_again_are_counted(*, is_forgotten_at_once: bool) -> None:
    """Its epochs begin anew, and nothing is kept of the former topic's."""
    counters = BrokerCounters()
    image = MetadataImage(1, "cluster", counters)
    image.apply_leader_and_isr(leader_and_isr(leader_epoch=7), OWN_EPOCH)
    if is_forgotten_at_once:
        image.apply_update(update(topic(state(leader=2), topic_id="id-2")), OWN_EPOCH)
    else:
        image.apply_update(update(topic(state(leader=LEADER_DURING_DELETE))), OWN_EPOCH)
    assert image._led_epochs == {}
    order = leader_and_isr(leader_epoch=1)
    later = [msgspec.structs.replace(order.topic_states[0], topic_id="id-2")]
    image.apply_leader_and_isr(msgspec.structs.replace(order, topic_states=later), OWN_EPOCH)
    assert counters.leader_elections == 2


# eligibility for an ISR


@pytest.mark.invariant("I34")
def test_only_a_live_broker_that_is_not_stopping_is_eligible_under_its_own_epoch() -> None:
    image = image_with(
        brokers=[live(1, epoch=5), live(2, epoch=6, shutting_down=True)],
    )
    assert image.is_eligible(1, None)
    assert image.is_eligible(1, 5)
    assert not image.is_eligible(1, 4)
    assert not image.is_eligible(2, 6)
    assert not image.is_eligible(2, None)
    assert not image.is_eligible(3, None)
    assert image.eligible_brokers() == {1: 5}


# answers


def test_metadata_names_the_addresses_of_the_listener_that_the_client_uses() -> None:
    image = image_with(brokers=[live(1), live(2, listeners="IN")])
    inside = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False)
    outside = image.answer_metadata(MetadataRequest(), "OUT", is_fenced=False)
    assert [(broker.node_id, broker.host, broker.port) for broker in inside.brokers] == [
        (1, "in1", 9001),
        (2, "in2", 9002),
    ]
    assert [(broker.node_id, broker.host, broker.port) for broker in outside.brokers] == [(1, "out1", 9001)]
    assert (inside.cluster_id, inside.controller_id) == ("cluster", 1)


def test_metadata_of_a_healthy_partition() -> None:
    image = image_with(topic(state(leader=2, leader_epoch=4, offline_replicas=[3])))
    [answer] = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False).topics
    [partition] = answer.partitions
    assert (answer.name, answer.topic_id, answer.error_code) == ("lines", "id-1", 0)
    assert (partition.leader_id, partition.leader_epoch, partition.error_code) == (2, 4, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1, 2, 3], [1, 2], [3])


@pytest.mark.parametrize("leader", [-1, 4])
def test_a_partition_without_a_reachable_leader_has_an_error_code(leader: int) -> None:
    image = image_with(topic(state(leader=leader)), brokers=[live(1), live(2)])
    [answer] = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False).topics
    [partition] = answer.partitions
    assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
    assert partition.leader_id == -1
    assert partition.offline_replicas == [3]


def test_a_fenced_broker_names_others_as_leaders_but_not_itself() -> None:
    """It would refuse every client; hardening rule 11."""
    image = image_with(topic(state(leader=1), state(leader=2, index=1)))
    response = image.answer_metadata(MetadataRequest(), "IN", is_fenced=True)
    assert response.fenced, "a client names the cause"
    [answer] = response.topics
    assert [(each.leader_id, each.error_code) for each in answer.partitions] == [
        (-1, ErrorCode.LEADER_NOT_AVAILABLE),
        (2, ErrorCode.NONE),
    ]


def test_metadata_of_named_topics() -> None:
    image = image_with(topic(state()), topic(state(), name="b", topic_id="id-b"))
    names = ["b", "unknown", "no/topic", "..", "b"]
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    answer = image.answer_metadata(request, "IN", is_fenced=False)
    assert [(each.name, each.error_code) for each in answer.topics] == [
        ("b", ErrorCode.NONE),
        ("unknown", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("no/topic", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert image.answer_metadata(MetadataRequest(topics=[]), "IN", is_fenced=False).topics == []
    all_topics = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False).topics
    assert [each.name for each in all_topics] == ["b", "lines"]


def test_describe_cluster_names_controller_and_broker_epochs() -> None:
    answer = image_with(brokers=[live(1, epoch=5), live(2, epoch=6, listeners="IN")]).answer_describe_cluster("OUT")
    assert (answer.cluster_id, answer.controller_id, answer.controller_epoch) == ("cluster", 1, 1)
    assert [(broker.broker_id, broker.host, broker.broker_epoch) for broker in answer.brokers] == [(1, "out1", 5)]


def test_unknown_partition_has_no_hint() -> None:
    image = image_with(topic(state(leader=-1)))
    assert image.leader_hint(LINES_0, "") is None
    assert image.leader_hint(TopicPartition("other", 0), "") is None
    assert image.address(9, "IN") is None
    assert image.knows_partition("lines", 0)
    assert not image.knows_partition("lines", 1)
    assert [str(partition) for partition, _ in image.all_partitions()] == ["lines-0"]


def counted_topic(*states: Any, count: int) -> Any:
    return msgspec.structs.replace(topic(*states), partition_count=count)


def test_metadata_counts_the_partitions_that_are_not_known_yet() -> None:
    """A large topic comes with several requests. Clients that asked in between counted a part of its partitions, and
    sent keyed records to others than they belong to until their next look at metadata, five minutes later."""
    image = image_with(counted_topic(state(index=0), state(index=2), count=4))
    (answer,) = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False).topics
    missing, known = int(ErrorCode.LEADER_NOT_AVAILABLE), int(ErrorCode.NONE)
    assert [(each.partition_index, each.error_code, each.leader_id) for each in answer.partitions] == [
        *((0, known, 1), (1, missing, -1), (2, known, 1), (3, missing, -1))
    ]
    assert [each.leader_epoch for each in answer.partitions] == [0, -1, 0, -1]
    image.apply_update(update(topic(state(index=1))), OWN_EPOCH)  # of a controller that tells no count
    image.apply_update(update(counted_topic(state(index=3), count=4)), OWN_EPOCH)
    (answer,) = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False).topics
    assert [(each.partition_index, each.error_code) for each in answer.partitions] == [(n, known) for n in range(4)]


def test_a_topic_that_another_tool_numbered_with_gaps_has_no_partitions_more() -> None:
    image = image_with(counted_topic(state(index=0), state(index=5), count=2))
    (answer,) = image.answer_metadata(MetadataRequest(), "IN", is_fenced=False).topics
    assert [each.partition_index for each in answer.partitions] == [0, 5]
