"""The content of a repeated proposal, and which answer settles it."""

import itertools
from typing import Any

import pytest
from msgspec.structs import replace

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.high_watermark import add_waiter, resolve_waiters
from minibroker.broker.replication.isr import NOT_APPLIED, OUTCOME_UNKNOWN, PROPOSAL_RETRY_MS
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import IsrKind, ProduceWaiter
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.core_cluster import CoreCluster, CoreReplica


def propose_expansion(cluster: CoreCluster) -> CoreReplica:
    """Broker 1 leads with 2 in sync, and has proposed 3, which has caught up."""
    cluster.elect(1, isr=(1, 2))
    cluster.produce(1, "a")
    for _ in range(2):
        for follower in (2, 3):
            cluster.fetch(follower)
    return cluster.replicas[1]


@pytest.mark.invariant("I6", "I31")
def test_a_repeated_proposal_names_the_broker_epoch_that_caught_up() -> None:
    """KIP-903: replica 3 caught up, lost its tail and registered again. The repeated proposal still names the earlier
    broker epoch: with the new one the controller would add a replica below the high watermark to the ISR."""
    cluster = CoreCluster(3)
    cluster.elect(1, isr=(1, 2))
    cluster.produce(1, "a")
    for _ in range(2):
        for follower, broker_epoch in ((2, 20), (3, 30)):
            cluster.fetch(follower, broker_epoch=broker_epoch)
    leader = cluster.replicas[1]
    assert leader.state.high_watermark == 1
    assert leader.proposals[0].new_isr_with_epochs == ((1, None), (2, 20), (3, 30))

    cluster.replicas[3].restart(keep=0)
    cluster.send_order((3,))
    cluster.fetch(3, broker_epoch=31, hold="late")
    cluster.alter(1, "lost")

    assert leader.proposals[0].new_isr_with_epochs == ((1, None), (2, 20), (3, 30))


@pytest.mark.invariant("I36")
def test_a_lost_answer_to_a_proposal_that_an_order_has_settled_makes_room_for_the_next() -> None:
    cluster = CoreCluster(3)
    leader = propose_expansion(cluster)
    cluster.partition_epoch += 1
    cluster.send_order(cluster.assignment)  # the ISR is still (1, 2)
    assert leader.state.pending_isr is None
    cluster.alter(1, "lost")
    cluster.fetch(3)
    assert [proposal.kind for proposal in leader.proposals] == [IsrKind.EXPAND]


@pytest.mark.invariant("I8", "I36")
@pytest.mark.parametrize(
    "absurd",
    [
        {"partition_epoch": 2**31 - 1},
        {"partition_epoch": 0},
        {"leader_epoch": 7},
        {"leader_epoch": 0},
        {"in_sync_replicas": (1,)},
        {"in_sync_replicas": (2, 3)},
        {"in_sync_replicas": (1, 2, 9)},
        {"in_sync_replicas": (1, 2, 3, 3)},
    ],
)
def test_an_answer_that_does_not_fit_the_proposal_settles_nothing(absurd: dict[str, Any]) -> None:
    """If such a partition epoch were believed, every later order would be stale. If the answer were only ignored, the
    proposal would stay pending. So it is sent again (hardening rule 6), and then settled."""
    cluster = CoreCluster(3)
    cluster.elect(2)
    leader = propose_expansion(cluster)
    proposal = leader.proposals[0]
    before = leader.state.partition_epoch
    fitting = ev.AlterPartitionAnswered(
        proposal_id=proposal.proposal_id,
        error_code=ErrorCode.NONE,
        leader_epoch=proposal.leader_epoch,
        in_sync_replicas=(1, 3, 2),
        partition_epoch=before + 1,
        now_ms=0,
    )
    effects = step(leader.state, replace(fitting, **absurd))
    assert [type(effect).__name__ for effect in effects] == ["Warn", "ProposeIsr"]
    assert (leader.state.partition_epoch, leader.state.in_sync_replicas) == (before, (1, 2))
    step(leader.state, fitting)
    assert (leader.state.partition_epoch, set(leader.state.in_sync_replicas)) == (before + 1, {1, 2, 3})


@pytest.mark.invariant("I8", "I36")
@pytest.mark.parametrize("error_code", [each for each in ErrorCode if each is not ErrorCode.NONE])
def test_after_an_error_a_proposal_is_sent_again_unless_the_error_settles_it(error_code: ErrorCode) -> None:
    """Nothing else sends it: without that, the ISR stays as it is until the next order. An error that leaves open
    whether it was applied keeps it pending, until an order tells."""
    cluster = CoreCluster(3)
    leader = propose_expansion(cluster)
    proposal = leader.proposals[0]
    answer = ev.AlterPartitionAnswered(
        proposal_id=proposal.proposal_id,
        error_code=error_code,
        leader_epoch=proposal.leader_epoch,
        in_sync_replicas=(),
        partition_epoch=leader.state.partition_epoch,
        now_ms=cluster.now_ms,
    )
    effects = step(leader.state, answer)
    is_pending, in_flight = leader.state.pending_isr is not None, leader.state.proposal_in_flight
    if error_code in NOT_APPLIED:
        assert (effects, is_pending, in_flight) == ([], False, None)
    elif error_code in OUTCOME_UNKNOWN:
        assert (effects, is_pending, in_flight) == ([], True, None)
    else:
        assert effects == [replace(proposal, after_ms=PROPOSAL_RETRY_MS)]
        assert (is_pending, in_flight) == (True, proposal.proposal_id)
    assert leader.state.in_sync_replicas == (1, 2)


@pytest.mark.invariant("I36")
def test_a_replica_that_leads_again_proposes_before_its_earlier_proposal_is_answered() -> None:
    """That one belongs to an epoch that is over. Its answer may take as long as a request may, and changes nothing."""
    cluster = CoreCluster(3)
    leader = propose_expansion(cluster)
    cluster.elect(2)
    cluster.elect(1)
    for _ in range(2):
        for follower in (2, 3):
            cluster.follow(follower)
            cluster.fetch(follower)
    earlier, later = leader.proposals
    assert (later.leader_epoch, later.proposal_id) == (2, earlier.proposal_id + 1)
    cluster.alter(1, "FENCED_LEADER_EPOCH")
    assert leader.state.pending_isr is not None
    cluster.alter(1, "ok")
    assert leader.state.in_sync_replicas == (1, 2, 3)


def test_the_lag_check_alone_ends_the_wait_for_a_joiner_that_stopped() -> None:
    """No other broker fetches from the only member of the ISR: without this, the producer waits until its timeout."""
    cluster = CoreCluster(2)
    cluster.elect(1, isr=(1,))
    cluster.fetch(2)
    cluster.alter(1, "INELIGIBLE_REPLICA")
    state = cluster.replicas[1].state
    cluster.produce(1, "a")
    lag_ms = state.config.replica_lag_time_max_ms
    assert state.high_watermark == 0, "it must not outrun the joiner"
    effects = step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms + 1))
    assert [type(effect) for effect in effects] == [ev.HighWatermarkRose, ev.AnswerProduce]
    assert state.high_watermark == 1


@pytest.mark.invariant("I8", "I37")
def test_a_fenced_leader_serves_after_an_order_that_its_proposals_answer_overtook() -> None:
    """A leader that registers again waits for an order to its new registration, and gets one. If the answer to its
    proposal was faster, the order has the older partition epoch: it confirms the leadership, and settles no ISR."""
    cluster = CoreCluster(3)
    leader = propose_expansion(cluster)
    order = cluster.order()
    leader.handle(ev.BrokerFenced())
    cluster.alter(1, "ok")
    assert leader.state.fenced, "the answer may be to a request of the former registration"

    leader.handle(order)

    assert not leader.state.fenced
    assert leader.state.in_sync_replicas == (1, 2, 3)
    assert leader.state.partition_epoch == cluster.partition_epoch
    leader.handle(order)
    assert leader.state.in_sync_replicas == (1, 2, 3), "once it serves, the order is only old"


@pytest.mark.invariant("I36")
def test_a_follower_that_was_at_the_end_until_a_record_came_does_not_lag_yet() -> None:
    """In a quiet partition it has nothing to report for hours (KAFKA-7152)."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.fetch(2)
    state = cluster.replicas[1].state
    lag_ms = state.config.replica_lag_time_max_ms
    cluster.pass_time(10 * lag_ms)
    cluster.produce(1, "a")
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms)) == []
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms)) == []
    effects = step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms + 1))
    assert [type(effect).__name__ for effect in effects] == ["ProposeIsr"]


@pytest.mark.invariant("I37")
def test_a_stall_of_the_leader_is_not_forgiven_to_a_follower_that_was_at_the_end_after_it() -> None:
    """A leader that was paused appends before it notices the pause. The append counts a follower as caught up now; with
    the stall added it would be so in the future, and stay in the ISR that much longer."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.fetch(2)
    state = cluster.replicas[1].state
    lag_ms, stalled_ms = state.config.replica_lag_time_max_ms, 1_000
    cluster.pass_time(stalled_ms)
    cluster.produce(1, "a")
    step(state, ev.LeaderStalled(stalled_ms=stalled_ms, now_ms=cluster.now_ms))
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms)) == []
    effects = step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms + 1))
    assert [type(effect).__name__ for effect in effects] == ["ProposeIsr"]


@pytest.mark.invariant("I36")
def test_a_stall_of_the_leader_is_forgiven_to_every_follower_that_it_did_not_hear_meanwhile() -> None:
    """Otherwise a leader that was paused for longer than the lag limit throws all its followers out of the ISR."""
    cluster = CoreCluster(3)
    cluster.elect(1)
    cluster.fetch(2)
    cluster.fetch(3)
    cluster.produce(1, "a")
    state = cluster.replicas[1].state
    lag_ms = state.config.replica_lag_time_max_ms
    cluster.pass_time(2 * lag_ms)
    step(state, ev.LeaderStalled(stalled_ms=2 * lag_ms, now_ms=cluster.now_ms))
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms)) == []
    (proposal,) = step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms + 1))
    assert isinstance(proposal, ev.ProposeIsr)
    assert proposal.new_isr_with_epochs == ((1, None),)


@pytest.mark.invariant("I36", "I37")
@pytest.mark.parametrize("fetched_ms", [5_000, 25_000], ids=["before-the-stall", "after-it"])
def test_a_stall_of_the_leader_moves_the_last_fetch_of_a_follower_up_to_the_present_at_most(fetched_ms: int) -> None:
    """The stall lasts from 5 s to 25 s. A follower that reaches what its last fetch was answered from was at the end at
    the time of that fetch."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.fetch(2)
    cluster.produce(1, "a")
    state = cluster.replicas[1].state
    cluster.pass_time(fetched_ms)
    cluster.fetch(2)
    cluster.produce(1, "b")
    cluster.pass_time(25_000 - fetched_ms)
    step(state, ev.LeaderStalled(stalled_ms=20_000, now_ms=cluster.now_ms))
    cluster.fetch(2)
    lag_ms = state.config.replica_lag_time_max_ms
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms)) == []
    effects = step(state, ev.LagChecked(now_ms=cluster.now_ms + lag_ms + 1))
    assert [type(effect).__name__ for effect in effects] == ["ProposeIsr"]


@pytest.mark.invariant("I36")
def test_a_follower_at_the_end_of_an_idle_log_does_not_lag_once_a_record_comes() -> None:
    """It may be at the end for an hour: each of its fetches shows that it keeps up."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    state = cluster.replicas[1].state
    lag_ms = state.config.replica_lag_time_max_ms
    for _ in range(3):
        cluster.fetch(2)
        assert state.remotes[2].last_caught_up_ms == cluster.now_ms, "operators see that"
        cluster.pass_time(lag_ms // 2)
    cluster.produce(1, "a")
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms)) == []


@pytest.mark.invariant("I4", "I36")
def test_what_is_appended_during_the_sync_of_a_shrink_below_the_minimum_is_synced_without_another_append() -> None:
    """Until the controller answers, only synced records count here. Without that sync the last one waits for the
    next, although all replicas have it."""
    cluster = CoreCluster(2, min_insync=2)
    cluster.elect(1)
    cluster.produce(1, "a")
    leader = cluster.replicas[1]
    cluster.pass_time(leader.state.config.replica_lag_time_max_ms + 1)
    assert step(leader.state, ev.LagChecked(now_ms=cluster.now_ms)) == [ev.SyncLog()]
    cluster.produce(1, "b")
    assert not leader.wants_sync, "the shrink is not proposed yet, and everything counts"

    effects = step(leader.state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))

    assert [type(effect).__name__ for effect in effects] == ["ProposeIsr", "SyncLog"]
    for _ in range(2):
        cluster.fetch(2)
    assert leader.state.high_watermark == 1
    step(leader.state, ev.Synced(end_offset=2, now_ms=cluster.now_ms))
    assert leader.state.high_watermark == 2


@pytest.mark.invariant("I4")
@pytest.mark.parametrize("end", ["the follower caught up during the sync", "the controller changed the ISR"])
def test_each_shrink_below_the_minimum_waits_for_a_sync_of_its_own(end: str) -> None:
    """An earlier shrink waited for a sync, too, and nothing came of it. What was appended since is not synced yet."""
    cluster = CoreCluster(3, min_insync=3)
    cluster.elect(1)
    cluster.produce(1, "a", acks=1)
    state = cluster.replicas[1].state
    cluster.pass_time(state.config.replica_lag_time_max_ms + 1)
    assert step(state, ev.LagChecked(now_ms=cluster.now_ms)) == [ev.SyncLog()]
    if end == "the controller changed the ISR":
        cluster.partition_epoch += 1
        cluster.isr = (1, 2)
        cluster.send_order(cluster.assignment)
    else:
        for follower in (2, 3):
            cluster.fetch(follower)
            cluster.fetch(follower)
        step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))
    assert state.pending_isr is None

    cluster.produce(1, "b", acks=1)
    cluster.pass_time(state.config.replica_lag_time_max_ms + 1)
    assert ev.SyncLog() in step(state, ev.LagChecked(now_ms=cluster.now_ms))
    assert state.pending_isr is None


@pytest.mark.invariant("I4")
def test_a_shrink_below_the_minimum_of_a_synced_log_syncs_nothing() -> None:
    cluster = CoreCluster(2, min_insync=2)
    cluster.elect(1)
    cluster.produce(1, "a")
    state = cluster.replicas[1].state
    step(state, ev.Synced(end_offset=1, now_ms=cluster.now_ms))
    effects = step(state, ev.LagChecked(now_ms=cluster.now_ms + state.config.replica_lag_time_max_ms + 1))
    assert [type(effect).__name__ for effect in effects] == ["ProposeIsr"]


@pytest.mark.parametrize("refusal", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED])
def test_a_refused_joiner_that_lags_holds_up_no_produce_request(refusal: ErrorCode) -> None:
    """While its joining was proposed it counted as a member. Nothing else need happen for the answer."""
    cluster = CoreCluster(2)
    cluster.elect(1, isr=(1,))
    cluster.fetch(2)
    leader = cluster.replicas[1]
    cluster.produce(1, "a")
    assert leader.state.high_watermark == 0
    answer = ev.AlterPartitionAnswered(
        proposal_id=leader.proposals[0].proposal_id,
        error_code=refusal,
        leader_epoch=leader.proposals[0].leader_epoch,
        in_sync_replicas=(),
        partition_epoch=leader.state.partition_epoch,
        now_ms=cluster.now_ms + leader.state.config.replica_lag_time_max_ms + 1,
    )
    effects = step(leader.state, answer)
    assert [type(effect) for effect in effects] == [ev.HighWatermarkRose, ev.AnswerProduce]


@pytest.mark.parametrize("order", list(itertools.permutations([2, 4, 4, 7])))
def test_produce_requests_are_answered_as_far_as_records_are_committed_in_whichever_order_they_came(
    order: tuple[int, ...],
) -> None:
    """A repeated request waits for an earlier offset than those that came before it."""
    cluster = CoreCluster(1)
    cluster.elect(1)
    state = cluster.replicas[1].state
    for required in order:
        waiter = ProduceWaiter(tokens=(required,), base_offset=required - 1, required_offset=required, leader_epoch=1)
        add_waiter(state, waiter)
    answered: list[int] = []
    for high_watermark in range(9):
        state.high_watermark = high_watermark
        effects: list[ev.ReplicaEffect] = []
        resolve_waiters(state, effects)
        answered += [token for each in effects if isinstance(each, ev.AnswerProduce) for token in each.tokens]
        assert answered == [each for each in (2, 4, 4, 7) if each <= high_watermark]
