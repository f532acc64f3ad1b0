"""Orders, fencing and settings: what of a leadership goes on, what ends, and what the shell and producers are told."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.broker.replication.leader import FetchRefused, refuse_fetch
from minibroker.broker.replication.producer_state import Duplicate
from minibroker.broker.replication.replica import contradiction, is_stale, step
from minibroker.broker.replication.state import (
    Fetching,
    Halted,
    IsrKind,
    PendingIsr,
    RemoteReplica,
    ReplicaState,
    ReplicationConfig,
    Role,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader, build_batch, iterate_headers
from tests.broker.replication.core_cluster import CoreCluster


def leading(isr: tuple[int, ...] = (1, 2), min_insync: int = 1) -> tuple[CoreCluster, ReplicaState]:
    """Replica 1 of three leads epoch 0; a record waits for the others. Replica 3 has fetched before it."""
    cluster = CoreCluster(3, min_insync=min_insync)
    cluster.elect(1, isr=isr)
    cluster.fetch(3)
    refuse_joiners(cluster)
    cluster.produce(1, "a")
    state = cluster.replicas[1].state
    assert (len(state.waiters), state.high_watermark, state.pending_isr) == (1, 0, None)
    return cluster, state


def refuse_joiners(cluster: CoreCluster) -> None:
    while cluster.replicas[1].proposals:
        cluster.alter(1, "INELIGIBLE_REPLICA")


def copied_by_2(cluster: CoreCluster) -> None:
    """Replica 2 has the record; 3, which may join, has not."""
    cluster.fetch(2)
    cluster.fetch(2)
    refuse_joiners(cluster)
    assert cluster.replicas[1].state.high_watermark == 0


def following() -> ReplicaState:
    """Replica 2 follows replica 1 in epoch 0."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    state = cluster.replicas[2].state
    assert isinstance(state.phase, Fetching)
    return state


def order(cluster: CoreCluster, leader: int | None, epoch: int = 0, version: int = 0) -> ev.LeaderAndIsrReceived:
    return replace(cluster.order(), leader_id=leader, leader_epoch=epoch, partition_epoch=version)


def kinds(effects: list[ev.ReplicaEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def answers(effects: list[ev.ReplicaEffect]) -> list[ErrorCode]:
    return [each.error_code for each in effects if isinstance(each, ev.AnswerProduce)]


# ------------------------------------------------------------------------------------------------------ leaderships end
NOT_LEADER, STORAGE = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR
CLUSTER = CoreCluster(3)


@pytest.mark.invariant("I33", "I37")
@pytest.mark.parametrize(
    ("event", "code", "after"),
    [
        (order(CLUSTER, 2, epoch=1, version=4), NOT_LEADER, (Role.FOLLOWER, 2, 1, 4)),
        (order(CLUSTER, None, epoch=1, version=4), NOT_LEADER, (Role.NONE, None, 1, 4)),
        (ev.ReplicaStopped(leader_epoch=1), NOT_LEADER, (Role.NONE, None, 0, 0)),
        (ev.ReplicaStopped(leader_epoch=0), NOT_LEADER, (Role.NONE, None, 0, 0)),
        (ev.ReplicaStopped(leader_epoch=None), NOT_LEADER, (Role.NONE, None, 0, 0)),
        (ev.LogFailed(), STORAGE, (Role.OFFLINE, None, 0, 0)),
    ],
    ids=["another-leader", "no-leader", "stopped", "stopped-in-this-epoch", "deleted", "failed"],
)
def test_a_leader_that_leads_no_more_answers_all_and_keeps_nothing(
    event: ev.ReplicaEvent, code: ErrorCode, after: tuple[Role, int | None, int, int]
) -> None:
    _, state = leading()
    effects = step(state, event)
    assert answers(effects) == [code]
    assert kinds(effects).count("LeaderChanged") == 1
    assert (state.role, state.leader_id, state.leader_epoch, state.partition_epoch) == after
    assert (state.waiters, state.remotes, state.in_sync_replicas, state.leader_epoch_start) == ([], {}, (), None)


OF_ONE_EPOCH: dict[str, object] = {
    "leader_epoch_start": 0,
    "elected_log_start": 0,
    "in_sync_replicas": (2, 3),
    "pending_isr": PendingIsr(kind=IsrKind.SHRINK, members=((2, 5), (3, 6)), proposal_id=7),
    "proposal_in_flight": 7,
    "remotes": {3: RemoteReplica(last_caught_up_ms=0, last_fetch_ms=0, leader_end_at_last_fetch=0)},
    "shrink_waits_for_sync": 5,
    "phase": Halted(),
    "matches_leader": True,
    "diverged_at": (0, 0),
    "alignments_without_progress": 1,
}
"""Fields of ReplicaState that say something of the present leader epoch only, and a value of an earlier one."""


@pytest.mark.invariant("I33")
@pytest.mark.parametrize("name", OF_ONE_EPOCH)
def test_a_follower_of_a_new_epoch_knows_nothing_of_the_one_before(name: str) -> None:
    clean, dirty = following(), following()
    setattr(dirty, name, OF_ONE_EPOCH[name])
    for state in (clean, dirty):
        step(state, order(CoreCluster(2), 1, epoch=1, version=1))
    assert getattr(dirty, name) == getattr(clean, name)


@pytest.mark.invariant("I29", "I35")
def test_the_end_of_an_earlier_epoch_stops_no_replica() -> None:
    cluster, state = leading()
    step(state, order(cluster, 1, epoch=1, version=1))
    assert step(state, ev.ReplicaStopped(leader_epoch=0)) == []
    assert state.is_leader


def test_a_replica_that_never_had_an_order_can_be_stopped() -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=1))
    assert kinds(step(state, ev.ReplicaStopped(leader_epoch=0))) == ["LeaderChanged"]


def test_a_replica_on_a_failed_disk_stays_offline_when_it_is_stopped() -> None:
    _, state = leading()
    step(state, ev.LogFailed())
    step(state, ev.ReplicaStopped(leader_epoch=None))
    assert state.is_offline


def test_a_damaged_log_is_not_healed_with_its_disk() -> None:
    _, state = leading()
    step(state, ev.LogFailed())
    step(state, ev.LogDamaged(reason="a bit has flipped"))
    healed = ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=1, epoch_entries=((0, 0),))
    assert step(state, healed) == []
    assert state.is_offline


# ------------------------------------------------------------------------------------------------ the same leader again
@pytest.mark.invariant("I21", "I24")
def test_requests_wait_on_if_the_leader_of_this_epoch_leads_the_next_one() -> None:
    cluster, state = leading()
    effects = step(state, order(cluster, 1, epoch=1, version=1))
    assert answers(effects) == []
    assert kinds(effects).count("LeaderChanged") == 1
    assert [waiter.leader_epoch for waiter in state.waiters] == [1]
    assert answers(step(state, order(cluster, 1, epoch=3, version=3))) == [NOT_LEADER], "another one led epoch 2"
    assert state.waiters == []


def test_a_follower_that_begins_to_lead_tells_the_shell_and_asks_nothing_more() -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    state = cluster.replicas[2].state
    assert "LeaderChanged" in kinds(step(state, order(cluster, 2, epoch=1, version=1)))
    assert (state.is_leader, state.phase) == (True, None)


def test_an_order_with_a_newer_version_changes_the_isr_and_keeps_what_is_known_of_followers() -> None:
    cluster, state = leading(isr=(1, 2, 3))
    copied_by_2(cluster)
    effects = step(state, replace(order(cluster, 1, version=1), in_sync_replicas=(1, 2), assignment=(1, 2)))
    assert kinds(effects) == ["IsrCommitted", "HighWatermarkRose", "AnswerProduce"]
    assert (state.in_sync_replicas, state.partition_epoch) == ((1, 2), 1)
    assert {each: remote.log_end_offset for each, remote in state.remotes.items()} == {2: 1}
    assert step(state, replace(order(cluster, 1, version=1), in_sync_replicas=(1, 2), assignment=(1, 2, 4))) == []
    assert {each: remote.log_end_offset for each, remote in state.remotes.items()} == {2: 1, 4: None}


def test_a_replica_that_leaves_the_assignment_holds_no_record_back() -> None:
    cluster, state = leading()
    copied_by_2(cluster)
    assert "HighWatermarkRose" in kinds(step(state, replace(order(cluster, 1), assignment=(1, 2))))


def test_a_follower_goes_on_under_a_newer_version_of_its_order() -> None:
    state = following()
    again = replace(CoreCluster(2).order(), leader_id=1, leader_epoch=0, in_sync_replicas=(1, 2))
    assert step(state, replace(again, partition_epoch=3)) == []
    assert state.partition_epoch == 3
    assert isinstance(state.phase, Fetching)


@pytest.mark.invariant("I38")
def test_a_halted_or_stopped_follower_begins_again_with_the_same_order() -> None:
    again = replace(CoreCluster(2).order(), leader_id=1, leader_epoch=0, partition_epoch=0)
    state = following()
    fenced = ev.FetchAnswered(leader_epoch=0, fetch_offset=0, error_code=ErrorCode.FENCED_LEADER_EPOCH)
    step(state, fenced)
    assert isinstance(state.phase, Halted)
    assert kinds(step(state, again)) == ["LeaderChanged", "FetchNext"]
    step(state, ev.ReplicaStopped(leader_epoch=None))
    assert kinds(step(state, again)) == ["LeaderChanged", "FetchNext"]


@pytest.mark.invariant("I29")
@pytest.mark.parametrize(
    ("leader", "epoch", "version", "stale"),
    [(2, 4, 0, False), (2, 3, 8, False), (2, 3, 7, False), (2, 3, 6, True), (2, 2, 9, True), (1, 2, 9, True)],
)
def test_orders_are_compared_by_leader_epoch_and_then_by_version(
    leader: int, epoch: int, version: int, stale: bool
) -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=1), leader_epoch=3, partition_epoch=7)
    assert is_stale(state, order(CLUSTER, leader, epoch, version)) is stale


@pytest.mark.invariant("I29")
@pytest.mark.parametrize("role", [Role.LEADER, Role.FOLLOWER])
@pytest.mark.parametrize("fenced", [True, False])
def test_only_a_fenced_leader_takes_an_order_of_an_older_version(role: Role, fenced: bool) -> None:
    config = ReplicationConfig(broker_id=1)
    state = ReplicaState(config=config, role=role, fenced=fenced, leader_epoch=3, partition_epoch=7)
    assert is_stale(state, order(CLUSTER, 2, 3, 6)) is not (role is Role.LEADER and fenced)


@pytest.mark.parametrize("is_retry", [True, False])
def test_of_a_run_only_the_first_batch_may_be_a_retry(is_retry: bool) -> None:
    """The shell ends a run at each request: what follows in it was never sent before."""
    _, state = leading()
    checked: list[bool] = []

    def check(header: BatchHeader, is_retry: bool) -> Duplicate:
        checked.append(is_retry)
        return Duplicate(0, 0)

    headers = tuple(
        iterate_headers(build_batch([(None, b"a", 1, ())], producer_id=7, producer_epoch=0, base_sequence=0))
    )
    header = headers[0][1]
    second = replace(header, base_sequence=header.base_sequence + 1)
    known: Any = SimpleNamespace(check=check)
    event = ev.ProduceReceived(tokens=("a", "b"), acks=1, headers=(header, second), producers=known, is_retry=is_retry)
    step(state, event)
    assert checked == [is_retry, False]


# -------------------------------------------------------------------------------------------------------------- fencing
@pytest.mark.invariant("I18", "I37")
def test_a_fenced_leader_answers_all_and_goes_on_when_the_fence_is_lifted() -> None:
    """What happened meanwhile counts then: replica 3 fell behind, and holds nothing back any more."""
    cluster, state = leading()
    copied_by_2(cluster)
    assert answers(step(state, ev.BrokerFenced())) == [NOT_LEADER]
    assert (state.fenced, state.waiters) == (True, [])
    later_ms = cluster.now_ms + state.config.replica_lag_time_max_ms + 1
    assert kinds(step(state, ev.BrokerUnfenced(now_ms=later_ms))) == ["HighWatermarkRose"]
    assert not state.fenced


def lead(leader_id: int, leader_epoch: int) -> ev.LeaderAndIsrReceived:
    return ev.LeaderAndIsrReceived(
        now_ms=0,
        leader_id=leader_id,
        leader_epoch=leader_epoch,
        partition_epoch=9,
        in_sync_replicas=(1, 2),
        assignment=(1, 2),
    )


@pytest.mark.invariant("I17")
@pytest.mark.parametrize("leader_id", [2, 3])
def test_an_order_that_names_a_second_leader_of_the_epoch_is_refused(leader_id: int) -> None:
    """Another tool had set the epoch back in ZooKeeper."""
    state = following()
    order = lead(leader_id, 0)
    assert contradiction(state, order) == f"broker {leader_id} is to lead leader epoch 0, which broker 1 leads"
    assert step(state, order) == []
    assert (state.role, state.leader_id) == (Role.FOLLOWER, 1)
    assert contradiction(state, lead(leader_id, 1)) is None


@pytest.mark.invariant("I17", "I18")
@pytest.mark.parametrize(("leader_epoch", "is_refused"), [(0, True), (8, True), (9, True), (10, False)])
def test_no_replica_leads_an_epoch_that_its_log_has_reached(leader_epoch: int, is_refused: bool) -> None:
    """Its epoch history would lose what it has of later epochs, and the followers could not be compared with it."""
    history = EpochHistory([(0, 0), (5, 100), (9, 400)])
    state = ReplicaState(config=ReplicationConfig(broker_id=2), epoch_history=history, log_end_offset=500)
    assert contradiction(state, lead(1, leader_epoch)) is None, "it may follow, and is cut"
    order = lead(2, leader_epoch)
    assert (contradiction(state, order) is not None) == is_refused
    step(state, order)
    assert (state.role is Role.LEADER) != is_refused
    assert state.epoch_history.entries[:3] == [(0, 0), (5, 100), (9, 400)]


@pytest.mark.invariant("I18")
def test_a_leader_is_told_its_own_epoch_again_and_no_earlier_one() -> None:
    history = EpochHistory([(0, 0), (5, 100)])
    state = ReplicaState(config=ReplicationConfig(broker_id=2), epoch_history=history, log_end_offset=500)
    step(state, lead(2, 10))
    found = {epoch: contradiction(state, lead(2, epoch)) for epoch in (5, 9, 10, 11)}
    refused = "it is to lead leader epoch {}, and its log has reached epoch 10"
    assert found == {5: refused.format(5), 9: refused.format(9), 10: None, 11: None}


def test_a_fence_changes_nothing_for_a_follower() -> None:
    state = following()
    assert step(state, ev.BrokerFenced()) == []
    assert step(state, ev.BrokerUnfenced(now_ms=0)) == []
    assert (state.role, state.fenced) == (Role.FOLLOWER, False)


# ------------------------------------------------------------------------------------------------------------- settings
@pytest.mark.invariant("I24", "I45")
def test_a_higher_minimum_refuses_what_waits_and_a_lower_one_commits_it() -> None:
    cluster, state = leading(min_insync=2)
    more = ev.ConfigChanged(config=replace(state.config, min_insync_replicas=3), now_ms=cluster.now_ms)
    fewer = ev.ConfigChanged(config=replace(state.config, min_insync_replicas=1), now_ms=cluster.now_ms)
    assert answers(step(state, more)) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert state.waiters == []
    for follower in (2, 3):
        cluster.fetch(follower)
        cluster.fetch(follower)
    assert state.high_watermark == 0
    assert kinds(step(state, fewer)) == ["HighWatermarkRose"]


@pytest.mark.invariant("I45")
def test_a_leader_syncs_what_it_holds_when_flushing_begins() -> None:
    cluster, state = leading()
    flushing = replace(state.config, counts_only_synced=True)
    assert kinds(step(state, ev.ConfigChanged(config=flushing, now_ms=cluster.now_ms))) == ["SyncLog"]


def test_a_follower_that_fetches_sends_no_second_fetch_for_another_setting() -> None:
    state = following()
    assert step(state, ev.ConfigChanged(config=replace(state.config, min_insync_replicas=2), now_ms=0)) == []


# -------------------------------------------------------------------------------------------------------------- brokers
@pytest.mark.invariant("I36")
@pytest.mark.parametrize("present", [{1: 10, 2: 20}, {1: 10, 2: 20, 3: 31}], ids=["gone", "registered-again"])
def test_a_broker_that_may_not_join_holds_nothing_back_until_it_may(present: dict[int, int]) -> None:
    cluster, state = leading()
    state.remotes[3].broker_epoch = 30
    copied_by_2(cluster)
    changed = ev.BrokersChanged(eligible=present, now_ms=cluster.now_ms)
    assert kinds(step(state, changed)) == ["HighWatermarkRose", "AnswerProduce"]
    assert not state.remotes[3].eligible
    state.remotes[3].log_end_offset = 1
    back = ev.BrokersChanged(eligible={**present, 3: 30}, now_ms=cluster.now_ms)
    assert kinds(step(state, back)) == ["ProposeIsr"]


def test_a_follower_has_nothing_to_do_when_brokers_come_and_go() -> None:
    assert step(following(), ev.BrokersChanged(eligible={1: 10}, now_ms=0)) == []


@pytest.mark.parametrize(
    ("leader_epoch", "offset", "last_epoch", "expected"),
    [
        (5, 9, None, FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)),
        (5, 10, None, None),
        (5, 50, None, None),
        (5, 51, None, FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)),
        (5, 9, 1, FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)),
        (5, 10, 1, None),
        (5, 20, 1, None),
        (5, 21, 1, FetchRefused(ErrorCode.NONE, diverging=(1, 20))),
        (5, 15, 2, FetchRefused(ErrorCode.NONE, diverging=(1, 20))),
        (5, 40, 3, None),
        (5, 41, 3, FetchRefused(ErrorCode.NONE, diverging=(3, 40))),
        (5, 50, 5, None),
        (5, 51, 5, FetchRefused(ErrorCode.NONE, diverging=(5, 50))),
        (5, 50, 6, FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)),
        (None, 50, 5, None),
        (4, 50, 5, FetchRefused(ErrorCode.FENCED_LEADER_EPOCH)),
        (6, 9, 5, FetchRefused(ErrorCode.UNKNOWN_LEADER_EPOCH)),
    ],
)
def test_a_fetch_is_granted_where_the_history_of_its_log_is_the_leaders(
    leader_epoch: int | None, offset: int, last_epoch: int | None, expected: FetchRefused | None
) -> None:
    """The leader's log of epoch 5 has offsets 10 to 49: epoch 1 up to 20, epoch 3 up to 40."""
    _, state = leading()
    state.leader_epoch, state.log_start_offset, state.log_end_offset = 5, 10, 50
    state.epoch_history.entries = [(1, 10), (3, 20), (5, 40)]
    assert refuse_fetch(state, leader_epoch, offset, last_epoch) == expected
