"""Elections, in assignment order; changes of the ISR; incarnations."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.controller.core.controller_state import ControllerState, Deletion, Leadership, Topic
from minibroker.controller.core.election import elect, elect_all, elect_preferred, imbalanced_partitions
from minibroker.protocol.ids import TopicPartition
from tests.controller.facts import T0, broker, cluster_state, leadership, log


def elected(state: ControllerState) -> Leadership:
    change = elect(state, T0, "test")
    assert change is not None, "nothing changed"
    return change.after


# ------------------------------------------------------------------------------------------------------- initial
@pytest.mark.invariant("I1", "I9", "I28")
def test_new_partition_is_led_by_the_first_live_replica_with_all_live_ones_in_sync() -> None:
    state = cluster_state(2, 3, replicas=(1, 2, 3))
    assert T0 not in state.leaderships
    after = elected(state)
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (2, 0, (2, 3))
    assert after.incarnations == ((2, "i2"), (3, "i3"))
    assert after.controller_epoch == 2


def test_new_partition_without_a_live_replica_stays_new() -> None:
    assert elect(cluster_state(4), T0, "test") is None


@pytest.mark.invariant("I34")
def test_new_partition_leaves_out_brokers_that_shut_down_and_failed_directories() -> None:
    state = cluster_state(1, 2, 3, shutting_down=(1,))
    state.offline_replicas = {2: frozenset([T0])}
    after = elected(state)
    assert (after.leader, after.in_sync_replicas) == (3, (3,))


# ------------------------------------------------------------------------------------------------------- offline
@pytest.mark.invariant("I27", "I28")
def test_failed_leader_is_replaced_by_the_first_live_isr_member_in_assignment_order() -> None:
    after = elected(cluster_state(2, 3, replicas=(1, 3, 2), now=leadership(1, 1, 2, 3)))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (3, 6, (3, 2))


@pytest.mark.invariant("I28")
def test_live_replica_outside_the_isr_is_not_elected() -> None:
    after = elected(cluster_state(2, 3, now=leadership(1, 1, 3)))
    assert (after.leader, after.in_sync_replicas) == (3, (3,))


@pytest.mark.invariant("I27", "I34")
def test_failed_follower_leaves_the_isr_in_a_new_epoch_under_the_same_leader() -> None:
    after = elected(cluster_state(1, 3, now=leadership(1, 1, 2, 3)))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (1, 6, (1, 3))


def test_dead_replica_outside_the_isr_changes_nothing() -> None:
    assert elect(cluster_state(1, 3, now=leadership(1, 1, 3)), T0, "test") is None


@pytest.mark.invariant("I1", "I9", "I27")
def test_sole_member_that_fails_stays_in_the_isr_without_a_leader_in_a_new_epoch() -> None:
    after = elected(cluster_state(2, 3, now=leadership(1, 1)))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (None, 6, (1,))
    assert after.incarnations == ((1, "i1"),)


@pytest.mark.invariant("I9")
def test_members_that_fail_together_all_stay_in_the_isr() -> None:
    after = elected(cluster_state(3, now=leadership(1, 1, 2)))
    assert (after.leader, after.in_sync_replicas) == (None, (1, 2))


def test_partition_without_a_leader_is_not_written_again() -> None:
    assert elect(cluster_state(2, 3, now=leadership(None, 1)), T0, "test") is None


def test_returning_sole_member_leads_again() -> None:
    after = elected(cluster_state(1, 2, 3, now=leadership(None, 1, epoch=6)))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (1, 7, (1,))


def test_broker_that_comes_is_not_put_into_the_isr() -> None:
    assert elect(cluster_state(1, 2, 3, now=leadership(1, 1)), T0, "test") is None


def test_isr_is_kept_in_assignment_order() -> None:
    after = elected(cluster_state(1, 2, replicas=(2, 3, 1), now=leadership(3, 1, 3, 2)))
    assert after.in_sync_replicas == (2, 1)


def test_partition_that_is_being_deleted_is_left_alone() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2))
    state.deletions = {"lines": Deletion(is_started=True)}
    assert elect(state, T0, "test") is None


def test_deletion_that_only_waits_does_not_stop_elections() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2))
    state.deletions = {"lines": Deletion()}
    assert elected(state).leader == 2


# ------------------------------------------------------------------------------------------------------- unclean
def test_without_permission_no_replica_outside_the_isr_leads() -> None:
    assert elected(cluster_state(2, 3, now=leadership(1, 1))).leader is None


@pytest.mark.invariant("I1", "I28")
def test_unclean_leader_is_the_whole_isr_and_recovers() -> None:
    after = elected(cluster_state(2, 3, now=leadership(1, 1), unclean=True))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (2, 6, (2,))
    assert after.is_recovering
    assert after.incarnations == ((2, "i2"),)


@pytest.mark.parametrize(
    ("configured", "leader"),
    [("true", 2), ("True", 2), ("false", None), ("", None), ("yes", None), ("1", None), ("true or false", None)],
)
def test_the_topic_decides_about_unclean_elections_before_the_broker(configured: str, leader: int | None) -> None:
    configs = {"unclean.leader.election.enable": configured}
    state = cluster_state(2, 3, now=leadership(1, 1), unclean=leader is None, configs=configs)
    assert elected(state).leader == leader


@pytest.mark.invariant("I28")
def test_a_clean_candidate_is_preferred_to_an_unclean_one_that_stands_earlier() -> None:
    after = elected(cluster_state(2, 3, now=leadership(1, 1, 3), unclean=True))
    assert (after.leader, after.is_recovering) == (3, False)


def test_an_election_does_not_end_a_recovery() -> None:
    after = elected(cluster_state(2, 3, now=leadership(1, 1, 2, is_recovering=True)))
    assert after.is_recovering


def test_an_isr_of_all_replicas_has_recovered() -> None:
    """The leader of an only replica proposes no ISR, by which it would end its recovery. Each stop and start counted as
    one more unclean election, for ever after an accepted loss."""
    after = elected(cluster_state(replicas=(1,), now=leadership(1, 1, is_recovering=True)))
    assert (after.leader, after.is_recovering) == (None, False)
    after = elected(cluster_state(1, replicas=(1,), now=leadership(None, 1, is_recovering=True)))
    assert (after.leader, after.is_recovering) == (1, False)


# -------------------------------------------------------------------------------------------- controlled shutdown
@pytest.mark.invariant("I27", "I34")
def test_leader_that_shuts_down_hands_over_and_leaves_the_isr() -> None:
    after = elected(cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3), shutting_down=(1,)))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (2, 6, (2, 3))


def test_leader_that_shuts_down_stays_while_no_member_can_take_over() -> None:
    assert elect(cluster_state(1, 2, 3, now=leadership(1, 1), shutting_down=(1,)), T0, "test") is None


@pytest.mark.invariant("I34")
def test_leader_that_shuts_down_leads_on_until_a_member_that_may_take_over_has_answered() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    state.shutting_down, state.unresponsive = frozenset({1}), frozenset({2})
    assert elect(state, T0, "broker 1 stops") is None
    state.unresponsive = frozenset()
    change = elect(state, T0, "broker 2 answered")
    assert change is not None and change.after.leader == 2


def test_follower_that_shuts_down_leaves_the_isr() -> None:
    after = elected(cluster_state(1, 2, 3, now=leadership(1, 1, 2), shutting_down=(2,)))
    assert (after.leader, after.in_sync_replicas) == (1, (1,))


@pytest.mark.invariant("I34")
def test_a_broker_that_shuts_down_is_not_elected_even_as_the_last_one() -> None:
    after = elected(cluster_state(2, 3, now=leadership(1, 1, 2), shutting_down=(2,)))
    assert after.leader is None


# ------------------------------------------------------------------------------------------------ log directories
def test_leader_in_a_failed_log_directory_is_replaced() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    state.offline_replicas = {1: frozenset([T0])}
    after = elected(state)
    assert (after.leader, after.in_sync_replicas) == (2, (2, 3))
    assert state.offline_replicas_of(T0) == [1]


# --------------------------------------------------------------------------------------------------- incarnations
@pytest.mark.invariant("I28", "I31")
def test_leader_that_restarts_within_its_session_is_replaced() -> None:
    state = cluster_state(broker(1, incarnation="new"), 2, 3, now=leadership(1, 1, 2, 3))
    after = elected(state)
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (2, 6, (2, 3))


@pytest.mark.invariant("I31", "I34")
def test_follower_that_was_started_again_leaves_the_isr_in_a_new_epoch() -> None:
    after = elected(cluster_state(1, broker(2, incarnation="new"), 3, now=leadership(1, 1, 2, 3)))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (1, 6, (1, 3))


@pytest.mark.invariant("I27")
def test_sole_member_that_was_started_again_leads_in_a_new_epoch_under_its_new_incarnation() -> None:
    logs = {each: log(9) for each in (1, 2, 3)}
    after = elected(cluster_state(broker(1, incarnation="new"), 2, 3, now=leadership(1, 1), logs=logs))
    assert (after.leader, after.leader_epoch, after.in_sync_replicas) == (1, 6, (1,))
    assert after.incarnations == ((1, "new"),)


@pytest.mark.invariant("I28")
def test_a_restarted_member_leads_only_if_no_whole_member_is_live() -> None:
    both = leadership(None, 1, 2)
    after = elected(cluster_state(broker(1, incarnation="new"), 2, now=both))
    assert (after.leader, after.in_sync_replicas) == (2, (2,))
    again = [broker(each, incarnation="new") for each in (1, 2)]
    after = elected(cluster_state(*again, 3, now=both, logs={1: log(9), 2: log(9), 3: log(4)}))
    assert (after.leader, after.in_sync_replicas, after.incarnations) == (1, (1,), ((1, "new"),))


@pytest.mark.invariant("I28")
def test_a_restarted_member_waits_while_a_whole_member_is_shutting_down() -> None:
    state = cluster_state(broker(1, incarnation="new"), 2, now=leadership(3, 1, 2, 3), shutting_down=(2,))
    assert elected(state).leader is None


@pytest.mark.parametrize(("directory", "leader"), [("d1", 1), ("blank", 3)])
def test_an_unclean_election_prefers_a_restarted_member_unless_its_directory_is_another(
    directory: str, leader: int
) -> None:
    """The whole member is shutting down, and so cannot lead."""
    again = broker(1, incarnation="new", directory=directory)
    state = cluster_state(again, 2, 3, now=leadership(None, 1, 2), shutting_down=(2,), unclean=True)
    assert elected(state).leader == leader


def test_of_restarted_members_with_equal_logs_the_first_in_the_assignment_is_the_isr() -> None:
    brokers = [broker(each, incarnation="new") for each in (1, 2, 3)]
    logs = {1: log(9), 2: log(9), 3: log(9)}
    after = elected(cluster_state(*brokers, now=leadership(2, 1, 2, 3), logs=logs))
    assert (after.leader, after.in_sync_replicas, after.incarnations) == (1, (1,), ((1, "new"),))


def test_same_incarnation_under_a_new_broker_epoch_stays_leader() -> None:
    state = cluster_state(broker(1, epoch=99), 2, 3, now=leadership(1, 1, 2, 3))
    assert elect(state, T0, "test") is None


def test_member_without_a_recorded_incarnation_counts_as_started_again() -> None:
    after = elected(cluster_state(1, 2, 3, now=leadership(1, 1, 2, incarnations={2: "i2"})))
    assert (after.leader, after.in_sync_replicas) == (2, (2,))


@pytest.mark.invariant("I9")
def test_a_state_without_any_replica_of_the_assignment_is_left_alone() -> None:
    assert elect(cluster_state(1, 2, 3, now=leadership(8, 8, 9)), T0, "test") is None


def test_a_state_that_could_not_be_read_is_left_alone() -> None:
    state = cluster_state(1, 2, 3)
    state.unreadable = frozenset([T0])
    assert elect(state, T0, "test") is None


# ---------------------------------------------------------------------------------------------------- directories
@pytest.mark.invariant("I28")
def test_sole_member_on_another_log_directory_does_not_lead() -> None:
    replaced = broker(3, incarnation="new", directory="blank")
    after = elected(cluster_state(1, 2, replaced, now=leadership(3, 3)))
    assert (after.leader, after.in_sync_replicas) == (None, (3,))
    assert (after.incarnations, after.directories) == (((3, "i3"),), ((3, "d3"),))


@pytest.mark.invariant("I28")
def test_member_on_another_log_directory_ranks_behind_restarted_members() -> None:
    replaced, again = broker(1, incarnation="new", directory="blank"), broker(2, incarnation="new")
    after = elected(cluster_state(replaced, again, now=leadership(1, 1, 2), logs={1: log(0), 2: log(9)}))
    assert (after.leader, after.in_sync_replicas, after.directories) == (2, (2,), ((2, "d2"),))


def test_whole_member_is_elected_whatever_directory_another_has() -> None:
    replaced = broker(1, incarnation="new", directory="blank")
    after = elected(cluster_state(replaced, 2, 3, now=leadership(1, 1, 2, 3)))
    assert (after.leader, after.in_sync_replicas, after.directories) == (2, (2, 3), ((2, "d2"), (3, "d3")))


def test_unclean_election_prefers_any_replica_to_a_member_on_another_log_directory() -> None:
    replaced = broker(1, incarnation="new", directory="blank")
    after = elected(cluster_state(replaced, 2, now=leadership(1, 1), unclean=True))
    assert (after.leader, after.is_recovering) == (2, True)
    alone = elected(cluster_state(replaced, now=leadership(1, 1), unclean=True))
    assert (alone.leader, alone.directories) == (1, ((1, "blank"),))


def test_an_unclean_election_prefers_a_replica_that_answers_to_a_silent_one() -> None:
    """Nothing would replace the silent one while it is registered: it is the whole ISR (hardening rule 17)."""
    state = cluster_state(2, 3, now=leadership(1, 1), unclean=True)
    state.unresponsive = frozenset([2])
    assert elected(state).leader == 3
    state.unresponsive = frozenset([2, 3])
    assert elected(state).leader == 2


def test_of_members_that_all_run_on_another_log_directory_the_first_is_elected_uncleanly() -> None:
    blank = [broker(each, incarnation="new", directory=f"blank{each}") for each in (1, 2)]
    assert elected(cluster_state(*blank, now=leadership(1, 1, 2), unclean=True)).leader == 1


def test_new_partition_records_the_log_directories() -> None:
    assert elected(cluster_state(2, 3)).directories == ((2, "d2"), (3, "d3"))


def test_an_unknown_log_directory_counts_as_the_same_one() -> None:
    before = msgspec.structs.replace(leadership(1, 1), directories=())
    after = elected(cluster_state(broker(1, incarnation="new"), now=before, logs={1: log(9)}))
    assert (after.leader, after.directories) == (1, ((1, "d1"),))


# ------------------------------------------------------------------------------------------------------ preferred
@pytest.mark.invariant("I27")
def test_preferred_leader_takes_over_with_the_isr_as_it_is() -> None:
    change = elect_preferred(cluster_state(1, 2, 3, now=leadership(2, 2, 1)), T0, "test")
    assert change is not None
    assert (change.after.leader, change.after.leader_epoch, change.after.in_sync_replicas) == (1, 6, (1, 2))


@pytest.mark.parametrize(
    "state",
    [
        cluster_state(2, 3, now=leadership(2, 2, 3)),
        cluster_state(1, 2, 3, now=leadership(2, 2, 3)),
        cluster_state(1, 2, 3, now=leadership(2, 1, 2), shutting_down=(1,)),
        cluster_state(broker(1, incarnation="new"), 2, 3, now=leadership(2, 1, 2)),
        cluster_state(1, 2, 3, now=leadership(1, 1, 2)),
        cluster_state(1, 2, 3),
    ],
    ids=["unregistered", "out-of-sync", "shutting-down", "restarted", "leads-already", "new-partition"],
)
def test_preferred_election_changes_nothing_when_the_preferred_replica_is(state: ControllerState) -> None:
    assert elect_preferred(state, T0, "test") is None


def balanced(led_elsewhere: int, total: int) -> ControllerState:
    state = cluster_state(1, 2)
    state.topics = {"lines": Topic(topic_id="t", assignment={number: (1, 2) for number in range(total)})}
    state.leaderships = {
        TopicPartition("lines", number): leadership(2 if number < led_elsewhere else 1, 1, 2) for number in range(total)
    }
    return state


def test_preferred_election_leaves_a_topic_alone_that_is_being_deleted_or_gone() -> None:
    state = cluster_state(1, 2, now=leadership(2, 1, 2))
    assert elect_preferred(state, T0, "preferred leader") is not None
    state.deletions = {"lines": Deletion(is_started=True)}
    assert elect_preferred(state, T0, "preferred leader") is None
    state.deletions, state.topics = {}, {}
    assert elect_preferred(state, T0, "preferred leader") is None


def test_imbalance_counts_only_above_the_percentage() -> None:
    assert imbalanced_partitions(balanced(1, 10)) == []
    assert imbalanced_partitions(balanced(2, 10)) == [TopicPartition("lines", 0), TopicPartition("lines", 1)]


def test_many_partitions_are_compared_at_once() -> None:
    state = balanced(0, 1000)
    del state.brokers[1]
    changes = elect_all(state, state.partitions(), "broker 1 is gone")
    assert len(changes) == 1000
    assert {change.after.leader for change in changes} == {2}
