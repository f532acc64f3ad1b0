"""Elections when every member of an ISR was restarted: proven logs, waiting for brokers, the largest log."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.controller.core.controller_state import (
    LOG_EPOCH_MAX,
    ControllerState,
    Deletion,
    Leadership,
    RegisteredBroker,
    ReplicaLog,
)
from minibroker.controller.core.election import elect
from minibroker.controller.core.events import (
    AnswersDue,
    AskLogs,
    BrokerAnswered,
    BrokerSilent,
    ControlledShutdownReceived,
    ControllerEffect,
    LeadershipsWritten,
    LogsReceived,
    RegistrationsChanged,
    ReplicasFailed,
    Report,
    TookOver,
    WriteLeaderships,
)
from minibroker.controller.core.restarted_members import choose, questions, standing
from minibroker.controller.core.steps import step
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import ControlledShutdownRequest
from tests.controller.facts import T0, broker, cluster_state, leadership, log

NO_LEADER = leadership(None, 1, 2, 3)


def again(broker_id: int, directory: str | None = None) -> RegisteredBroker:
    """The broker after a restart, with a new registration."""
    return broker(broker_id, epoch=100 + broker_id, incarnation=f"n{broker_id}", directory=directory)


def elected(state: ControllerState) -> Leadership | None:
    change = elect(state, T0, "test")
    return None if change is None else change.after


def waits_for(state: ControllerState) -> tuple[int, ...]:
    return choose(state, T0, state.leaderships[T0]).waits_for


# ------------------------------------------------------------------------------------------------------------ proven
@pytest.mark.invariant("I28")
def test_log_that_is_whole_since_it_was_in_sync_leads_at_once() -> None:
    state = cluster_state(again(3), now=NO_LEADER, logs={3: log(7, whole_since=("i3", "n3"))})
    after = elected(state)
    assert after is not None
    assert (after.leader, after.in_sync_replicas, after.incarnations) == (3, (3,), ((3, "n3"),))


def test_log_that_is_whole_since_a_later_start_waits_for_the_others() -> None:
    state = cluster_state(again(3), now=NO_LEADER, logs={3: log(7, whole_since=("n2", "n3"))})
    assert elected(state) is None
    assert waits_for(state) == (1, 2)


def test_a_proven_log_is_preferred_to_a_larger_one() -> None:
    logs = {1: log(9), 2: log(9), 3: log(7, whole_since=("i3", "n3"))}
    after = elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == 3


@pytest.mark.invariant("I28")
def test_log_that_is_not_there_is_never_proven() -> None:
    state = cluster_state(again(3), now=NO_LEADER, logs={3: log(0, whole_since=("i3",), exists=False)})
    assert elected(state) is None


# ------------------------------------------------------------------------------------------------------- undisturbed
def undisturbed(broker_id: int, end: int, epoch: int = 5) -> ReplicaLog:
    return log(end, epoch, undisturbed_since=frozenset([f"i{broker_id}", f"n{broker_id}"]))


@pytest.mark.invariant("I28")
def test_one_undisturbed_log_alone_proves_nothing() -> None:
    """Its last files may be gone since its process was killed."""
    state = cluster_state(again(3), now=NO_LEADER, logs={3: undisturbed(3, 7)})
    assert elected(state) is None
    assert waits_for(state) == (1, 2)


@pytest.mark.invariant("I28")
def test_of_two_undisturbed_logs_the_larger_one_leads_without_the_third() -> None:
    state = cluster_state(again(1), again(3), now=NO_LEADER, logs={1: undisturbed(1, 4), 3: undisturbed(3, 7)})
    after = elected(state)
    assert after is not None
    assert (after.leader, after.in_sync_replicas) == (3, (3,))


@pytest.mark.invariant("I28")
@pytest.mark.parametrize("disturbed", [log(9), log(2, epoch=6), log(9, epoch=6)])
def test_two_undisturbed_logs_are_compared_with_each_other_only(disturbed: ReplicaLog) -> None:
    """One of them is whole, and a later epoch may be one flipped bit."""
    logs = {1: undisturbed(1, 4), 2: disturbed, 3: undisturbed(3, 7)}
    after = elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == 3


@pytest.mark.invariant("I28")
@pytest.mark.parametrize(("end", "epoch", "leader"), [(8, 5, 2), (8, 6, 2), (7, 5, 1), (7, 6, 1), (6, 6, 1), (8, 4, 1)])
def test_one_undisturbed_log_gives_way_to_a_longer_one_of_no_earlier_epoch(end: int, epoch: int, leader: int) -> None:
    logs = {1: undisturbed(1, 7), 2: log(end, epoch), 3: log(0)}
    after = elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == leader


def test_an_undisturbed_log_leads_where_it_is_the_whole_isr() -> None:
    state = cluster_state(again(3), now=leadership(None, 3), logs={3: undisturbed(3, 7)})
    after = elected(state)
    assert after is not None and after.leader == 3


# --------------------------------------------------------------------------------------------------------- committed
@pytest.mark.invariant("I28")
def test_a_member_that_ends_below_what_another_knows_to_be_committed_has_lost_records() -> None:
    """Its disk was rolled back; the others are live, and outside the ISR."""
    now, logs = leadership(None, 3), {1: log(100, high_watermark=100), 2: log(100), 3: log(60, high_watermark=60)}
    state = cluster_state(1, 2, again(3), now=now, logs=logs)
    assert elected(state) is None
    assert "its log ends at 60, and broker 1 knows that all up to 100 was committed" in choose(state, T0, now).reason
    logs[3] = log(100)
    after = elected(cluster_state(1, 2, again(3), now=now, logs=logs))
    assert after is not None and after.leader == 3


@pytest.mark.invariant("I28")
def test_a_member_with_a_later_epoch_still_needs_what_another_member_knows_committed() -> None:
    logs = {1: log(40, epoch=0, high_watermark=40), 2: log(20, epoch=1), 3: log(30, epoch=0)}
    state = cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs)
    after = elected(state)
    assert after is not None and after.leader == 1
    assert "broker 2 has lost records" in choose(state, T0, NO_LEADER).reason


def test_a_member_that_answers_no_more_is_waited_for_whatever_its_log_held() -> None:
    state = cluster_state(again(1), now=leadership(None, 1), logs={1: log(60)})
    state.unresponsive = frozenset([1])
    found = standing(state, T0, NO_LEADER, 1)
    assert (found.is_waited_for, found.must_be_asked, found.log) == (True, False, None)


def test_a_log_of_another_topic_of_that_name_is_no_log() -> None:
    other = msgspec.structs.replace(log(60, whole_since=("i1",)), topic_id="another")
    found = standing(cluster_state(again(1), now=leadership(None, 1), logs={1: other}), T0, NO_LEADER, 1)
    assert (found.is_absent, found.log, found.is_proven) == (True, None, False)


def test_an_earlier_high_watermark_does_not_count_after_an_unclean_election() -> None:
    logs = {1: log(100, epoch=4, high_watermark=100), 2: log(0), 3: log(60, epoch=5)}
    after = elected(cluster_state(1, 2, again(3), now=leadership(None, 3), logs=logs))
    assert after is not None and after.leader == 3


def test_the_only_member_waits_for_what_other_live_replicas_know() -> None:
    state = cluster_state(1, again(3), now=leadership(None, 3), logs={3: log(60)})
    assert elected(state) is None
    assert waits_for(state) == (1,)
    assert questions(state, [T0]) == {1: [T0]}
    state.silent_seconds = {1: 1.0}
    after = elected(state)
    assert after is not None and after.leader == 3, "a silent broker is not waited for"


def test_a_partition_that_needs_no_logs_hides_none_behind_it() -> None:
    state = cluster_state(1, again(3), now=leadership(None, 3), logs={3: log(60)})
    gone, led = TopicPartition("gone", 0), TopicPartition("lines", 1)
    state.leaderships[led] = leadership(1, 1)
    assert questions(state, [gone, led, T0]) == {1: [T0]}


@pytest.mark.parametrize("outsider", [log(60), None], ids=["known", "unknown"])
@pytest.mark.parametrize("member", [log(0, exists=False), log(50, damage="a bit")], ids=["no log", "damaged"])
def test_an_unclean_election_prefers_a_replica_that_may_have_records(
    member: ReplicaLog, outsider: ReplicaLog | None
) -> None:
    """The only member had its log removed: as leader it would make the others drop all that they have."""
    logs = {1: member} if outsider is None else {1: member, 2: outsider}
    after = elected(cluster_state(again(1), 2, now=leadership(None, 1), logs=logs, unclean=True))
    assert after is not None and after.leader == 2
    after = elected(cluster_state(again(1), now=leadership(None, 1), logs={1: member}, unclean=True))
    assert after is not None and after.leader == 1, "the last one, as the operator's setting wants"


# ------------------------------------------------------------------------------------------------------------ no log
@pytest.mark.invariant("I28")
@pytest.mark.invariant("I17", "I18")
@pytest.mark.parametrize(
    ("others", "epoch"),
    [
        (log(9, epoch=9), 10),
        (log(9, epoch=4), 6),
        (log(9, epoch=9, damage="a test says so"), 6),
        (msgspec.structs.replace(log(9, epoch=9), topic_id="another"), 6),
        (log(9, epoch=LOG_EPOCH_MAX + 1), 6),
    ],
    ids=["later", "earlier", "damaged", "of another topic", "flipped bit"],
)
def test_a_new_epoch_is_above_those_of_all_logs(others: ReplicaLog, epoch: int) -> None:
    """An older copy of ZooKeeper's data had it given twice: records of two leaders under one epoch cannot be told
    apart."""
    logs = {1: log(9, whole_since=("i1",)), 2: others}
    after = elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs))
    assert after is not None
    assert (after.leader, after.leader_epoch) == (1, epoch)


@pytest.mark.invariant("I36")
@pytest.mark.parametrize("epoch", [5, LOG_EPOCH_MAX + 9])
def test_a_log_with_an_impossible_epoch_does_not_lead(epoch: int) -> None:
    """A bit of its last batch flipped, which no CRC covers. Its broker would refuse any epoch that is possible, and as
    the only member of the ISR it would keep the partition without a leader for ever."""
    now = leadership(None, 1, 2, epoch=epoch)
    logs = {1: log(9, epoch=LOG_EPOCH_MAX + 6), 2: log(9)}
    after = elected(cluster_state(again(1), again(2), now=now, logs=logs))
    assert after is not None
    assert (after.leader, after.leader_epoch) == ((2, 6) if epoch == 5 else (1, epoch + 1))


def test_the_only_member_does_not_lead_without_a_log_that_it_may_have_had() -> None:
    state = cluster_state(again(3), now=leadership(None, 3), logs={3: log(0, exists=False)})
    assert elected(state) is None
    assert "has no log, and may have had one" in choose(state, T0, state.leaderships[T0]).reason


def test_where_no_member_ever_had_a_log_the_partition_begins_empty() -> None:
    logs = {each: log(0, exists=False) for each in (1, 2, 3)}
    after = elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == 1
    logs[2] = log(0, exists=False, damage="its directory is missing")
    assert elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs)) is None


@pytest.mark.invariant("I28")
def test_where_no_broker_has_a_log_and_none_lost_one_the_partition_gets_a_leader() -> None:
    """No report names an end or a topic id: nothing is known to be committed that a member could have lost."""
    logs = {each: ReplicaLog(exists=False, undisturbed_since=frozenset([f"i{each}"])) for each in (1, 2)}
    after = elected(cluster_state(again(1), again(2), now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == 1


# ----------------------------------------------------------------------------------------------------------- waiting
@pytest.mark.invariant("I28")
def test_a_member_with_a_full_or_failed_disk_is_waited_for() -> None:
    """A full disk still holds its log, and a failed call proves nothing about the bytes."""
    logs = {1: log(4), 2: log(4), 3: log(9, unavailable="the replica is offline")}
    state = cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs)
    assert elected(state) is None
    assert waits_for(state) == (3,)
    state.logs = {each: {T0: log(4)} for each in (1, 2)} | {3: {T0: log(9)}}
    state.offline_replicas = {3: frozenset([T0])}
    assert waits_for(state) == (3,)
    state.offline_replicas = {}
    after = elected(state)
    assert after is not None and after.leader == 3


@pytest.mark.invariant("I28")
def test_no_member_leads_before_all_members_have_answered() -> None:
    state = cluster_state(again(1), again(3), now=NO_LEADER, logs={1: log(9)})
    assert elected(state) is None
    choice = choose(state, T0, NO_LEADER)
    assert choice.waits_for == (2, 3)
    assert "broker 2 is not registered; broker 3 has not said yet what its log holds" in choice.reason


@pytest.mark.invariant("I28")
def test_largest_epoch_then_log_end_leads() -> None:
    brokers = [again(each) for each in (1, 2, 3)]
    logs = {1: log(100, epoch=4), 2: log(60, epoch=5), 3: log(70, epoch=5)}
    after = elected(cluster_state(*brokers, now=NO_LEADER, logs=logs))
    assert after is not None
    assert (after.leader, after.in_sync_replicas) == (3, (3,))


@pytest.mark.parametrize(
    "third",
    [again(3, directory="blank"), again(3)],
    ids=["another-directory", "damaged"],
)
def test_member_that_has_nothing_is_not_waited_for(third: RegisteredBroker) -> None:
    logs = {1: log(50), 2: log(60), 3: log(100, damage="a hole")}
    after = elected(cluster_state(again(1), again(2), third, now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == 2


@pytest.mark.invariant("I28")
def test_without_any_member_that_has_its_log_there_is_no_leader() -> None:
    state = cluster_state(again(3, directory="blank"), 1, 2, now=leadership(None, 3), logs={1: log(100)})
    assert elected(state) is None
    assert "no member of the ISR has its log" in choose(state, T0, state.leaderships[T0]).reason


def test_log_of_another_topic_of_the_name_counts_as_none() -> None:
    other = msgspec.structs.replace(log(100, whole_since=("i1",)), topic_id="t0")
    logs = {1: other, 2: log(3), 3: log(2)}
    after = elected(cluster_state(again(1), again(2), again(3), now=NO_LEADER, logs=logs))
    assert after is not None and after.leader == 2


def test_member_that_shuts_down_is_waited_for() -> None:
    brokers, logs = [again(each) for each in (1, 2, 3)], {each: log(9) for each in (1, 2, 3)}
    state = cluster_state(*brokers, now=NO_LEADER, logs=logs, shutting_down=(2,))
    assert elected(state) is None
    assert waits_for(state) == (2,)


# ----------------------------------------------------------------------------------------------------------- unclean
def test_unclean_election_waits_only_for_those_that_can_answer() -> None:
    state = cluster_state(again(1), again(2), now=NO_LEADER, logs={1: log(9)}, unclean=True)
    assert elected(state) is None
    state.logs = {1: {T0: log(9)}, 2: {T0: log(10)}}
    after = elected(state)
    assert after is not None
    assert (after.leader, after.is_recovering) == (2, True)


# --------------------------------------------------------------------------------------------------------- questions
def test_only_members_that_may_have_something_are_asked_once() -> None:
    state = cluster_state(again(1), again(2, directory="blank"), again(3), now=NO_LEADER, logs={3: log(1)})
    assert questions(state, [T0]) == {1: [T0]}
    state.asked_logs = {1: frozenset([T0])}
    assert questions(state, [T0]) == {}


@pytest.mark.parametrize(
    "state",
    [
        cluster_state(again(1), 2, now=leadership(1, 1, 2)),
        cluster_state(3, now=leadership(None, 1, 2)),
        cluster_state(again(1)),
    ],
    ids=["a-whole-member-is-live", "no-member-is-live", "new-partition"],
)
def test_no_broker_is_asked_where_no_log_decides(state: ControllerState) -> None:
    assert questions(state, [T0]) == {}


def test_no_broker_is_asked_about_a_topic_that_is_being_deleted() -> None:
    state = cluster_state(again(1), now=NO_LEADER)
    state.deletions = {"lines": Deletion(is_started=True)}
    assert questions(state, [T0]) == {}


# ------------------------------------------------------------------------------------------------------------- steps
def of(kind: type[ControllerEffect], effects: list[ControllerEffect]) -> list[ControllerEffect]:
    return [each for each in effects if isinstance(each, kind)]


def test_broker_that_comes_back_is_asked_and_its_answer_elects() -> None:
    state = cluster_state(now=leadership(None, 3))
    registered = step(state, RegistrationsChanged(brokers={3: again(3)}))
    assert of(AskLogs, registered) == [AskLogs(broker=again(3), partitions=(T0,))]
    assert of(WriteLeaderships, registered) == []
    assert of(WriteLeaderships, step(state, BrokerAnswered(broker_id=3, broker_epoch=103))) == []
    answered = step(state, LogsReceived(broker_id=3, broker_epoch=103, logs={T0: log(5)}))
    (written,) = of(WriteLeaderships, answered)
    assert isinstance(written, WriteLeaderships)
    assert written.changes[0].after.leader == 3


def test_a_damaged_only_copy_is_reported_as_damaged() -> None:
    """Its replica goes offline before the broker has reported its log; status once showed for ever that it had not."""
    state = cluster_state(2, again(3), now=leadership(None, 3))
    state.asked_logs = {2: frozenset([T0]), 3: frozenset([T0])}
    failed = step(state, ReplicasFailed(broker_id=3, broker_epoch=103, partitions=(T0,)))
    assert of(AskLogs, failed) == [AskLogs(broker=again(3), partitions=(T0,))]
    step(state, LogsReceived(broker_id=2, broker_epoch=20, logs={T0: log(9)}))
    answered = step(state, LogsReceived(broker_id=3, broker_epoch=103, logs={T0: log(damage="a bit flipped")}))
    (report,) = of(Report, answered)
    assert isinstance(report, Report)
    assert report.text.endswith("no member of the ISR has its log: broker 3 has a damaged log: a bit flipped")
    assert elected(state) is None
    assert questions(state, [T0]) == {}


def test_an_offline_replica_that_has_answered_is_asked_again_when_it_recovers() -> None:
    state = cluster_state(again(3), now=leadership(None, 3))
    step(state, ReplicasFailed(broker_id=3, broker_epoch=103, partitions=(T0,)))
    step(state, LogsReceived(broker_id=3, broker_epoch=103, logs={T0: log(unavailable="the replica is offline")}))
    assert waits_for(state) == (3,)
    healed = step(state, RegistrationsChanged(brokers={3: broker(3, epoch=203, incarnation="m3")}))
    assert len(of(AskLogs, healed)) == 1


def test_a_replica_that_was_offline_only_when_it_was_asked_is_asked_again_when_it_is_well() -> None:
    """A new controller asks while it is offline, and it is well before the order that it would have refused. The
    election waited for it until it registered again."""
    state = cluster_state(again(3), now=leadership(None, 3))
    step(state, LogsReceived(broker_id=3, broker_epoch=103, logs={T0: log(unavailable="the replica is offline")}))
    well = ControlledShutdownRequest(broker_id=3, broker_epoch=103, offline_partitions=[])
    heard = step(state, ControlledShutdownReceived(request_id=1, request=well))
    assert of(AskLogs, heard) == [AskLogs(broker=again(3), partitions=(T0,))]
    again_well = step(state, ControlledShutdownReceived(request_id=2, request=well))
    assert of(AskLogs, again_well) == []


@pytest.mark.invariant("I28")
def test_the_only_member_waits_for_a_replica_that_has_just_registered() -> None:
    """Both started at the same time, and the one that had left the ISR had not answered an order yet (seed
    17152117)."""
    state = cluster_state(now=leadership(None, 3))
    registered = step(state, RegistrationsChanged(brokers={1: again(1), 3: again(3)}))
    assert of(AskLogs, registered) == [AskLogs(broker=again(each), partitions=(T0,)) for each in (1, 3)]
    step(state, BrokerAnswered(broker_id=3, broker_epoch=103))
    of_member = step(state, LogsReceived(broker_id=3, broker_epoch=103, logs={T0: log(60)}))
    assert of(WriteLeaderships, of_member) == []
    outside = LogsReceived(broker_id=1, broker_epoch=101, logs={T0: log(100, high_watermark=100)})
    of_other = step(state, outside)
    assert of(WriteLeaderships, of_other) == []
    assert "has lost records" in choose(state, T0, state.leaderships[T0]).reason


def test_the_only_member_waits_no_longer_for_a_replica_that_falls_silent() -> None:
    state = cluster_state(1, again(3), now=leadership(None, 3))
    state.asked_logs = {1: frozenset([T0]), 3: frozenset([T0])}
    answered = step(state, LogsReceived(broker_id=3, broker_epoch=103, logs={T0: log(60)}))
    assert of(WriteLeaderships, answered) == []
    silent = step(state, BrokerSilent(broker_id=1, broker_epoch=10, seconds=1.0))
    (written,) = of(WriteLeaderships, silent)
    assert isinstance(written, WriteLeaderships)
    assert written.changes[0].after.leader == 3


def test_what_a_silent_broker_says_of_its_log_elects_with_its_answer_to_an_order() -> None:
    """Only the answer to UpdateMetadata names the replicas that are offline. An answer about one log elected others of
    them, and its own twice, the second time under a former version, which ended the controller's process."""
    logs = {1: undisturbed(1, 7)}
    state = cluster_state(again(1), again(2), replicas=(1, 2), now=leadership(None, 1, 2), logs=logs)
    assert of(WriteLeaderships, step(state, BrokerSilent(broker_id=1, broker_epoch=101, seconds=1.0))) == []
    of_other = step(state, LogsReceived(broker_id=2, broker_epoch=102, logs={T0: undisturbed(2, 5)}))
    assert of(WriteLeaderships, of_other) == []
    again_said = step(state, LogsReceived(broker_id=1, broker_epoch=101, logs={T0: undisturbed(1, 7)}))
    assert of(WriteLeaderships, again_said) == []
    assert len(of(WriteLeaderships, step(state, BrokerAnswered(broker_id=1, broker_epoch=101)))) == 1


def test_answer_of_an_earlier_registration_is_dropped() -> None:
    state = cluster_state(again(3), now=leadership(None, 3))
    assert step(state, LogsReceived(broker_id=3, broker_epoch=30, logs={T0: log(5)})) == []
    assert state.logs == {}


def test_the_answers_of_a_registration_end_with_it() -> None:
    state = cluster_state(again(1), again(3), now=NO_LEADER, logs={1: log(9), 3: log(9)})
    step(state, RegistrationsChanged(brokers={1: again(1)}))
    assert set(state.logs) == {1}


def test_reported_logs_are_dropped_when_a_leader_is_elected() -> None:
    state = cluster_state(again(3), now=leadership(None, 3), logs={3: log(9)})
    change = elect(state, T0, "test")
    assert change is not None
    after = msgspec.structs.replace(change.after, partition_epoch=8)
    step(state, LeadershipsWritten(written=(msgspec.structs.replace(change, after=after),)))
    assert state.logs == {3: {}}


def test_a_new_controller_reports_the_brokers_that_partitions_wait_for() -> None:
    state = cluster_state(again(2, directory="blank"), now=NO_LEADER)
    step(state, TookOver())
    (report,) = of(Report, step(state, AnswersDue()))
    assert isinstance(report, Report) and report.is_warning
    assert "no leader for 1 partition (lines-0): waiting for brokers [1, 3]" in report.text
    assert "broker 2 has another log directory now" in report.text
