"""A disk that fails in the middle of a step: afterwards the state matches what the log really holds."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import AskingLeaderEnds, ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode
from minibroker.simulation.model.replica import header_for
from tests.broker.replication.core_cluster import CoreCluster


def _about_to_cut() -> tuple[ReplicaState, ev.EpochEndAnswered]:
    """Replica 2 has led epoch 1 and appended a record; the leader of epoch 2 does not have it."""
    cluster = CoreCluster(3)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    cluster.elect(2)
    cluster.produce(2, "b")
    cluster.elect(1)
    state = cluster.replicas[2].state
    assert state.epoch_history.entries == [(0, 0), (1, 1)]
    answer = ev.EpochEndAnswered(leader_epoch=2, asked_epoch=1, error_code=ErrorCode.NONE, epoch=0, end_offset=1)
    return state, answer


def _led_by_1(*assignment: int) -> ev.LeaderAndIsrReceived:
    """Broker 1 leads epoch 3, alone in the ISR."""
    return ev.LeaderAndIsrReceived(
        now_ms=0,
        leader_id=1,
        leader_epoch=3,
        partition_epoch=0,
        in_sync_replicas=(1,),
        assignment=assignment,
    )


def test_the_log_is_truncated_before_its_epoch_history_is_stored() -> None:
    state, answer = _about_to_cut()
    kinds = [type(effect).__name__ for effect in step(state, answer)]
    assert kinds.index("TruncateTo") < kinds.index("WriteEpochHistory")


def test_a_truncation_that_the_disk_refused_is_undone_by_healing() -> None:
    state, answer = _about_to_cut()
    step(state, answer)
    assert state.log_end_offset == 1
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=2, epoch_entries=((0, 0), (1, 1))))
    assert state.role is Role.NONE
    assert (state.log_end_offset, state.epoch_history.entries) == (2, [(0, 0), (1, 1)])


@pytest.mark.invariant("I5")
@pytest.mark.parametrize("left", [50, 20])
def test_a_reset_that_the_disk_refused_commits_nothing(left: int) -> None:
    """What is left of the log ends in front of the new start, which the high watermark had followed already: all of it
    counted as committed, with records that no other replica has."""
    state = ReplicaState(config=ReplicationConfig(broker_id=2), epoch_history=EpochHistory([(0, 0)]))
    state.log_end_offset, state.high_watermark = 50, 30
    step(state, _led_by_1(1, 2))
    state.phase = AskingLeaderEnds()
    answer = ev.LeaderEndsAnswered(
        leader_epoch=3, error_code=ErrorCode.NONE, log_start_offset=100, log_end_offset=120, low_watermark=100
    )
    assert isinstance(step(state, answer)[0], ev.ResetTo)
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=left, epoch_entries=((0, 0),)))
    assert state.log_end_offset == left
    assert state.high_watermark <= 30


@pytest.mark.invariant("I13")
def test_an_epoch_without_records_that_healing_drops_leaves_the_file_too() -> None:
    state, _ = _about_to_cut()
    step(state, ev.LogFailed())
    healed = ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=2, epoch_entries=((0, 0), (1, 1), (3, 2)))
    assert step(state, healed) == [ev.WriteEpochHistory()]
    assert state.epoch_history.entries == [(0, 0), (1, 1)]


@pytest.mark.invariant("I39")
def test_files_deleted_while_the_disk_was_full_raise_the_low_watermark() -> None:
    """Found by the swarm (seed 17121250): no replica may report a low watermark below the start of its files."""
    state, _ = _about_to_cut()
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=1, log_start_offset=2, log_end_offset=2, epoch_entries=((0, 0),)))
    assert (state.low_watermark, state.log_start_offset) == (1, 2)


def test_healing_changes_nothing_where_nothing_failed() -> None:
    state, _ = _about_to_cut()
    role = state.role
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    assert (state.role, state.log_end_offset) == (role, 2)


@pytest.mark.invariant("I4", "I8")
def test_a_leader_with_a_failed_log_does_not_lead_again_in_that_epoch() -> None:
    """A forgotten proposal may still be applied, and the ISR of a repeated order does not include its members."""
    cluster = CoreCluster(3)
    cluster.elect(1)
    state = cluster.replicas[1].state
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    cluster.send_order((1,))
    assert not state.is_leader
    cluster.elect(1)
    assert state.role is Role.LEADER


def test_the_epoch_of_a_new_leader_is_synced_early_and_a_trimmed_history_waits_for_the_flush() -> None:
    """No batch may ever name the new epoch; the entries in front of deleted segments are gone from the files, too."""
    state = CoreCluster(1).replicas[1].state
    effects = step(state, _led_by_1(1))
    written = effects.index(ev.WriteEpochHistory())
    assert effects[written + 1] == ev.SyncEpochHistorySoon()
    state.epoch_history.entries = [(2, 0), (3, 5)]
    state.log_end_offset = state.high_watermark = state.log_start_offset = 5
    assert step(state, ev.HeadDeleted(first_offset=5)) == [ev.WriteEpochHistory()]


def _follower_without_an_epoch() -> tuple[ReplicaState, ev.LeaderAndIsrReceived]:
    return CoreCluster(2).replicas[2].state, _led_by_1(1, 2)


def test_epochs_that_a_follower_learns_from_batches_are_stored_once() -> None:
    """A restart that finds no epochs could not be aligned with the next leader."""
    state, order = _follower_without_an_epoch()
    step(state, order)
    for offset, epoch, is_new in ((0, 1, True), (1, 1, False), (2, 3, True)):
        batches = (header_for(offset, epoch),)
        appended = ev.FetchedAppended(batches=batches, high_watermark=0, log_start_offset=0)
        assert (ev.WriteEpochHistory() in step(state, appended)) is is_new
    both = (header_for(3, 3), header_for(4, 3))
    appended = ev.FetchedAppended(batches=both, high_watermark=0, log_start_offset=0)
    assert ev.WriteEpochHistory() not in step(state, appended)
    state.leader_epoch = 4
    mixed = (header_for(5, 4), header_for(6, 4))
    assert ev.WriteEpochHistory() in step(
        state, ev.FetchedAppended(batches=mixed, high_watermark=0, log_start_offset=0)
    ), "the epoch of the first batch is new, that of the last is not"


@pytest.mark.parametrize(("high_watermark", "cuts"), [(1, True), (3, False)])
def test_a_follower_that_knows_no_epoch_of_its_records_keeps_the_committed_ones(
    high_watermark: int, cuts: bool
) -> None:
    state, order = _follower_without_an_epoch()
    state.log_end_offset, state.high_watermark = 3, high_watermark
    effects = step(state, order)
    assert [each.end_offset for each in effects if isinstance(each, ev.TruncateTo)] == ([1] if cuts else [])
    assert state.log_end_offset == high_watermark
