"""What a leader knows of a follower after its fetch, by the broker epoch that the fetch names."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step_fetch
from tests.broker.replication.core_cluster import CoreCluster


@pytest.mark.invariant("I31", "I37")
@pytest.mark.parametrize(
    ("known", "named", "is_same", "known_after"),
    [
        (5, 5, True, 5),
        (None, 5, True, 5),
        (5, None, True, 5),
        (None, None, True, None),
        (5, 6, False, 6),
    ],
)
def test_what_an_earlier_incarnation_has_fetched_does_not_count_as_caught_up(
    known: int | None, named: int | None, is_same: bool, known_after: int | None
) -> None:
    """A follower that now reaches what its last fetch was answered from was caught up at that time, but only if it was
    the same process: a new one may have lost its records since."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.fetch(2, broker_epoch=known)
    remote = cluster.replicas[1].state.remotes[2]
    cluster.produce(1, "a")
    cluster.pass_time(1_000)
    cluster.fetch(2, broker_epoch=known, at=0)
    fetched_ms, caught_up_ms = cluster.now_ms, remote.last_caught_up_ms
    assert (remote.last_fetch_ms, caught_up_ms) == (fetched_ms, fetched_ms - 1_000)
    cluster.produce(1, "b")
    cluster.pass_time(1_000)
    cluster.fetch(2, broker_epoch=named, at=1)
    assert remote.last_caught_up_ms == (fetched_ms if is_same else caught_up_ms)
    assert (remote.broker_epoch, remote.log_end_offset, remote.log_start_offset) == (known_after, 1, 0)
    assert remote.leader_end_at_last_fetch == 2
    assert remote.last_fetch_ms == cluster.now_ms


@pytest.mark.invariant("I31")
def test_a_fetch_of_an_earlier_incarnation_changes_nothing() -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.fetch(2, broker_epoch=6)
    state = cluster.replicas[1].state
    before = repr(state.remotes[2])
    cluster.produce(1, "a")
    cluster.pass_time(1_000)
    fetch = ev.FollowerFetched(
        now_ms=cluster.now_ms,
        replica_id=2,
        broker_epoch=5,
        current_leader_epoch=0,
        fetch_offset=1,
        last_fetched_epoch=0,
        eligible=False,
    )
    _, effects = step_fetch(state, fetch)
    assert effects == []
    assert repr(state.remotes[2]) == before


@pytest.mark.invariant("I36")
@pytest.mark.parametrize("is_eligible", [True, False])
def test_each_fetch_says_anew_whether_the_follower_may_join(is_eligible: bool) -> None:
    cluster = CoreCluster(2)
    cluster.elect(1, isr=(1,))
    cluster.fetch(2, eligible=not is_eligible)
    cluster.fetch(2, eligible=is_eligible)
    assert cluster.replicas[1].state.remotes[2].eligible == is_eligible
