"""With flushing on only synced records count, also after a restart: the page cache does not survive power loss."""

import pytest
from msgspec.structs import replace

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import Fetching, ReplicaState
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.core_cluster import CoreCluster


def _kinds(effects: list[ev.ReplicaEffect]) -> set[str]:
    return {type(effect).__name__ for effect in effects}


def _restarted_with_unsynced_tail() -> CoreCluster:
    """Replica 2 holds a record that it has not synced; its process was killed and restarted."""
    cluster = CoreCluster(2, flush=True)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    cluster.replicas[2].restart()
    cluster.replicas[2].state.synced_end_offset = 0
    return cluster


def _leadership(cluster: CoreCluster, leader: int, epoch: int) -> ev.LeaderAndIsrReceived:
    return ev.LeaderAndIsrReceived(
        now_ms=cluster.now_ms,
        leader_id=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        in_sync_replicas=(leader,),
        assignment=cluster.assignment,
    )


def test_a_restarted_follower_syncs_before_it_reports_its_end() -> None:
    cluster = _restarted_with_unsynced_tail()
    state = cluster.replicas[2].state
    step(state, _leadership(cluster, leader=1, epoch=1))
    aligned = ev.EpochEndAnswered(leader_epoch=1, asked_epoch=0, error_code=ErrorCode.NONE, epoch=0, end_offset=1)
    assert _kinds(step(state, aligned)) == {"SyncLog"}
    assert isinstance(state.phase, Fetching)
    assert _kinds(step(state, ev.PhaseRetried())) == {"SyncLog"}
    assert _kinds(step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))) == {"FetchNext"}
    assert _kinds(step(state, ev.PhaseRetried())) == {"FetchNext"}


def test_a_replica_that_follows_no_more_fetches_nothing_after_a_sync() -> None:
    cluster = CoreCluster(2, flush=True)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    cluster.elect(None)
    assert step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms)) == []
    assert state.phase is None


@pytest.mark.invariant("I36")
def test_a_new_leader_syncs_its_log_without_waiting_for_an_append() -> None:
    cluster = _restarted_with_unsynced_tail()
    state = cluster.replicas[2].state
    assert "SyncLog" in _kinds(step(state, _leadership(cluster, leader=2, epoch=1)))
    assert state.high_watermark == 0
    step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))
    assert state.high_watermark == 1


@pytest.mark.invariant("I36")
def test_a_follower_fetches_on_when_flushing_ends_during_its_sync() -> None:
    cluster = _restarted_with_unsynced_tail()
    state = cluster.replicas[2].state
    step(state, _leadership(cluster, leader=1, epoch=1))
    aligned = ev.EpochEndAnswered(leader_epoch=1, asked_epoch=0, error_code=ErrorCode.NONE, epoch=0, end_offset=1)
    assert _kinds(step(state, aligned)) == {"SyncLog"}
    assert _kinds(step(state, _flushing(state, False))) == {"FetchNext"}
    assert _kinds(step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))) == set()


@pytest.mark.invariant("I36")
def test_a_follower_syncs_what_it_fetched_before_flushing_began() -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    assert _kinds(step(state, _flushing(state, True))) == {"SyncLog"}
    assert _kinds(step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))) == {"FetchNext"}


def _flushing(state: ReplicaState, is_on: bool) -> ev.ConfigChanged:
    return ev.ConfigChanged(config=replace(state.config, counts_only_synced=is_on), now_ms=0)


def test_without_flushing_a_follower_fetches_without_a_sync() -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    assert state.synced_end_offset == 0
    assert _kinds(step(state, ev.PhaseRetried())) == {"FetchNext"}


# -------------------------------------------------------------------------------------- acks=1 waits for the own sync
def _leader_with_an_unsynced_record() -> tuple[ReplicaState, ev.BatchesAppended]:
    cluster = CoreCluster(2, flush=True)
    cluster.elect(1)
    state = cluster.replicas[1].state
    return state, ev.BatchesAppended(tokens=("p",), acks=1, base_offset=0, end_offset=1, now_ms=cluster.now_ms)


def _answers(effects: list[ev.ReplicaEffect]) -> list[tuple[tuple[object, ...], ErrorCode]]:
    return [(each.tokens, each.error_code) for each in effects if isinstance(each, ev.AnswerProduce)]


def test_acks_1_is_answered_by_the_sync_that_covers_the_record() -> None:
    state, appended = _leader_with_an_unsynced_record()
    assert _answers(step(state, appended)) == []
    assert _answers(step(state, ev.Synced(end_offset=0, now_ms=1))) == []
    assert _answers(step(state, ev.Synced(end_offset=1, now_ms=1))) == [(("p",), ErrorCode.NONE)]
    assert _answers(step(state, ev.Synced(end_offset=1, now_ms=2))) == [], "each request is answered once"


def test_acks_1_is_answered_by_the_running_sync_when_flushing_ends_meanwhile() -> None:
    """No other sync follows: without an answer now the producer would wait for its timeout."""
    state, appended = _leader_with_an_unsynced_record()
    assert _answers(step(state, appended)) == []
    answered = _answers(step(state, _flushing(state, False)))
    answered += _answers(step(state, ev.Synced(end_offset=1, now_ms=1)))
    assert answered == [(("p",), ErrorCode.NONE)]


def test_acks_1_times_out_when_no_sync_comes() -> None:
    state, appended = _leader_with_an_unsynced_record()
    step(state, appended)
    assert _answers(step(state, ev.ProduceExpired(token="p"))) == [(("p",), ErrorCode.REQUEST_TIMED_OUT)]
    assert _answers(step(state, ev.Synced(end_offset=1, now_ms=1))) == []


def test_acks_1_is_refused_when_the_leadership_ends_before_the_sync() -> None:
    cluster = CoreCluster(2, flush=True)
    cluster.elect(1)
    state = cluster.replicas[1].state
    step(state, ev.BatchesAppended(tokens=("p",), acks=1, base_offset=0, end_offset=1, now_ms=cluster.now_ms))
    effects = step(state, _leadership(cluster, leader=2, epoch=1))
    assert _answers(effects) == [(("p",), ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert _answers(step(state, ev.Synced(end_offset=1, now_ms=1))) == []
    assert _answers(step(state, _leadership(cluster, leader=1, epoch=2))) == [], "each request is answered once"


def test_acks_1_of_a_synced_record_is_answered_at_once() -> None:
    state, appended = _leader_with_an_unsynced_record()
    state.synced_end_offset = 1
    assert _answers(step(state, appended)) == [(("p",), ErrorCode.NONE)]
