"""AlterPartition: the checks, and their order."""

from __future__ import annotations

import pytest

from minibroker.controller.core.alter_partition import check_proposal
from minibroker.controller.core.controller_state import ControllerState, Deletion
from minibroker.controller.core.election import PartitionChange
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import AlterPartitionData, AlterPartitionResult, BrokerState
from tests.controller.facts import T0, broker, cluster_state, leadership


def proposal(
    *members: int | tuple[int, int], epoch: int = 5, version: int = 7, recovery: int = 0
) -> AlterPartitionData:
    """Members are ids (with their present epochs) or pairs of id and epoch."""
    pairs = [(each, 10 * each) if isinstance(each, int) else each for each in members]
    return AlterPartitionData(
        partition_index=0,
        leader_epoch=epoch,
        partition_epoch=version,
        new_isr_with_epochs=[BrokerState(broker_id=member, broker_epoch=epoch) for member, epoch in pairs],
        leader_recovery_state=recovery,
    )


def checked(state: ControllerState, request: AlterPartitionData, broker_id: int = 1) -> ErrorCode | PartitionChange:
    result = check_proposal(state, broker_id, T0, request)
    return ErrorCode(result.error_code) if isinstance(result, AlterPartitionResult) else result


@pytest.mark.invariant("I8", "I27")
def test_a_caught_up_replica_joins_without_a_new_leader_epoch() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    change = checked(state, proposal(3, 1, 2))
    assert isinstance(change, PartitionChange)
    assert change.before == state.leaderships[T0]
    assert (change.after.leader, change.after.leader_epoch) == (1, 5)
    assert change.after.in_sync_replicas == (1, 2, 3)
    assert change.after.controller_epoch == 2


def test_a_shrink_is_accepted() -> None:
    change = checked(cluster_state(1, 2, 3, now=leadership(1, 1, 2)), proposal(1))
    assert isinstance(change, PartitionChange)
    assert change.after.in_sync_replicas == (1,)


@pytest.mark.invariant("I31")
def test_the_incarnation_that_caught_up_is_recorded() -> None:
    state = cluster_state(1, broker(3, incarnation="second"), now=leadership(1, 1))
    change = checked(state, proposal(1, 3))
    assert isinstance(change, PartitionChange)
    assert change.after.incarnations == ((1, "i1"), (3, "second"))


@pytest.mark.invariant("I8")
@pytest.mark.parametrize(("named", "is_accepted"), [("", True), ("t1", True), ("former", False)])
def test_a_proposal_for_a_deleted_topic_does_not_change_the_next_one(named: str, is_accepted: bool) -> None:
    """Epochs and versions of both may be the same: a replica would join that was in sync in the former one only."""
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    result = check_proposal(state, 1, T0, proposal(3, 1, 2), named)
    if is_accepted:
        assert isinstance(result, PartitionChange)
    else:
        assert isinstance(result, AlterPartitionResult)
        assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_unknown_partition() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    result = check_proposal(state, 1, TopicPartition("other", 0), proposal(1))
    assert isinstance(result, AlterPartitionResult)
    assert result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partition_without_a_state_is_unknown() -> None:
    state = cluster_state(1, 2, 3)
    assert state.assignment(T0)
    assert checked(state, proposal(1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    state.topics = {}
    assert checked(state, proposal(1)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_partition_that_is_being_deleted_is_unknown() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    state.deletions = {"lines": Deletion(is_started=True)}
    assert checked(state, proposal(1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.invariant("I29")
@pytest.mark.parametrize("request_", [proposal(1, epoch=6), proposal(1, version=8), proposal(1, epoch=6, version=0)])
def test_a_request_with_newer_epochs_than_the_controller_gets_not_controller(request_: AlterPartitionData) -> None:
    assert checked(cluster_state(1, 2, 3, now=leadership(1, 1, 2)), request_) is ErrorCode.NOT_CONTROLLER


@pytest.mark.invariant("I29")
def test_an_old_controller_does_not_confirm_what_a_newer_one_decided() -> None:
    same_isr_newer_version = proposal(1, 2, version=8)
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    assert checked(state, same_isr_newer_version) is ErrorCode.NOT_CONTROLLER


@pytest.mark.invariant("I29")
def test_an_older_leader_epoch_is_fenced() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    assert checked(state, proposal(1, 2, epoch=4)) is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.invariant("I38")
def test_retry_of_an_applied_change_succeeds_with_the_present_version() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, version=9))
    result = check_proposal(state, 1, T0, proposal(2, 1, version=7))
    assert isinstance(result, AlterPartitionResult)
    assert (result.error_code, result.partition_epoch, result.isr) == (ErrorCode.NONE, 9, [1, 2])
    assert (result.leader_id, result.leader_epoch) == (1, 5)


@pytest.mark.parametrize("recovery", [0, 1])
def test_the_answer_says_whether_the_leader_still_recovers(recovery: int) -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, is_recovering=bool(recovery)))
    result = check_proposal(state, 1, T0, proposal(1, recovery=recovery))
    assert isinstance(result, AlterPartitionResult)
    assert (result.error_code, result.leader_recovery_state) == (ErrorCode.NONE, recovery)


@pytest.mark.invariant("I8")
def test_another_version_is_refused() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, version=9))
    assert checked(state, proposal(1, version=7)) is ErrorCode.INVALID_UPDATE_VERSION


@pytest.mark.invariant("I1", "I9", "I34")
@pytest.mark.parametrize(
    ("request_", "broker_id"),
    [
        (proposal(), 1),
        (proposal(2), 1),
        (proposal(1, 1), 1),
        (proposal(1, 4), 1),
        (proposal(2, 3), 2),
        (proposal(1, 3, recovery=1), 1),
        (proposal(1, recovery=1), 1),
        (proposal(1, recovery=2), 1),
    ],
    ids=[
        "empty",
        "without-the-leader",
        "twice",
        "not-assigned",
        "not-from-the-leader",
        "recovering-with-followers",
        "back-to-recovering",
        "no-such-recovery-state",
    ],
)
def test_an_illegal_proposal_is_refused(request_: AlterPartitionData, broker_id: int) -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(1, 1, 2))
    assert checked(state, request_, broker_id) is ErrorCode.INVALID_REQUEST


def test_recovery_ends_when_the_leader_reports_it() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, is_recovering=True))
    change = checked(state, proposal(1, recovery=0))
    assert isinstance(change, PartitionChange)
    assert not change.after.is_recovering


@pytest.mark.invariant("I31", "I34")
@pytest.mark.parametrize(
    "state",
    [
        cluster_state(1, 2, now=leadership(1, 1, 2)),
        cluster_state(1, 2, 3, now=leadership(1, 1, 2), shutting_down=(3,)),
        cluster_state(1, 2, broker(3, epoch=31), now=leadership(1, 1, 2)),
    ],
    ids=["unregistered", "shutting-down", "registered-again"],
)
def test_an_ineligible_replica_does_not_join(state: ControllerState) -> None:
    assert checked(state, proposal(1, 2, 3)) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.invariant("I34")
def test_replica_in_a_failed_log_directory_does_not_join() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    state.offline_replicas = {3: frozenset([T0])}
    assert checked(state, proposal(1, 2, 3)) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.invariant("I31")
def test_a_joiner_without_an_epoch_is_refused_but_a_member_may_stay_without_one() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    assert checked(state, proposal(1, 2, (3, -1))) is ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(checked(state, proposal(1, (2, -1), 3)), PartitionChange)


@pytest.mark.invariant("I31")
def test_a_member_that_was_started_again_does_not_stay_without_an_epoch() -> None:
    state = cluster_state(1, broker(2, incarnation="new"), 3, now=leadership(1, 1, 2))
    assert checked(state, proposal(1, (2, -1), 3)) is ErrorCode.INELIGIBLE_REPLICA


@pytest.mark.invariant("I31", "I4")
def test_a_member_that_was_started_again_does_not_stay_under_its_present_epoch() -> None:
    """A leader that answers no order does not learn that it was to leave. It follows again, with whatever a loss of
    power has left to it, and the leader names its new registration. Recorded, it would lead as a member that ran on."""
    state = cluster_state(1, broker(2, epoch=21, incarnation="new"), 3, now=leadership(1, 1, 2, 3))
    assert checked(state, proposal(1, (2, 21))) is ErrorCode.INELIGIBLE_REPLICA
    assert isinstance(checked(state, proposal(1, 3)), PartitionChange), "it may leave"
    state = cluster_state(1, broker(2, epoch=21), 3, now=leadership(1, 1, 2, 3))
    assert isinstance(checked(state, proposal(1, (2, 21))), PartitionChange), "a new session is no new start"


def test_a_sole_leader_that_shuts_down_may_still_confirm_its_recovery() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, is_recovering=True), shutting_down=(1,))
    assert isinstance(checked(state, proposal(1)), PartitionChange)


def test_checks_come_in_the_order_of_the_protocol() -> None:
    """Each request breaks one rule less than the last, and gets the code of the first broken rule."""
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    broken = [
        (proposal(9, epoch=6, version=1), ErrorCode.NOT_CONTROLLER),
        (proposal(9, epoch=4, version=8), ErrorCode.NOT_CONTROLLER),
        (proposal(9, epoch=4, version=1), ErrorCode.FENCED_LEADER_EPOCH),
        (proposal(1, 2, version=1), ErrorCode.NONE),
        (proposal(9, version=1), ErrorCode.INVALID_UPDATE_VERSION),
        (proposal(9), ErrorCode.INVALID_REQUEST),
        (proposal(1, 3), ErrorCode.INELIGIBLE_REPLICA),
    ]
    assert [checked(state, request) for request, _ in broken] == [code for _, code in broken]
