"""The log line about a change of a partition."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.controller.core.change_text import leadership_changed, min_insync_replicas
from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.election import PartitionChange, elect
from minibroker.protocol.events.event_base import INFO, WARNING
from tests.controller.facts import T0, cluster_state, leadership


def changed(state: ControllerState) -> PartitionChange:
    change = elect(state, T0, "broker 1 is gone")
    assert change is not None
    return change


def test_an_election_names_leader_epoch_isr_and_reason() -> None:
    change = changed(cluster_state(2, 3, now=leadership(1, 1, 2, 3)))
    assert (
        leadership_changed(change, 1).text()
        == "lines-0: leader 1 -> 2, epoch 5 -> 6, ISR [1, 2, 3] -> [2, 3]: broker 1 is gone"
    )


def test_an_election_names_what_was_before_in_fields_of_their_own() -> None:
    event = leadership_changed(changed(cluster_state(2, 3, now=leadership(1, 1, 2, 3))), 1)
    assert (event.leader_before, event.leader) == (1, 2)
    assert (event.isr_before, event.isr) == ([1, 2, 3], [2, 3])
    event = leadership_changed(changed(cluster_state(1, 2)), 1)
    assert (event.leader_before, event.isr_before) == (None, [])


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        (cluster_state(2, 3, now=leadership(1, 1, 2, 3)), True),
        (cluster_state(2, 3, now=leadership(1, 1)), True),
        (cluster_state(2, 3, now=leadership(2, 1, 2)), False),
        (cluster_state(1, 2), False),
    ],
    ids=["another leader", "no leader", "only the ISR", "the first leader"],
)
def test_an_election_is_one_of_a_partition_that_had_a_leader(state: ControllerState, counts: bool) -> None:
    """A graph of elections shows failures, not new topics."""
    assert leadership_changed(changed(state), 1).is_election is counts


def test_an_unchanged_value_is_not_shown_as_a_change() -> None:
    change = changed(cluster_state(2, 3, now=leadership(2, 1, 2)))
    assert (
        leadership_changed(change, 1).text() == "lines-0: leader 2, epoch 5 -> 6, ISR [1, 2] -> [2]: broker 1 is gone"
    )


def test_a_first_election_is_shown_as_a_change_from_none() -> None:
    line = leadership_changed(changed(cluster_state(1, 2)), 1).text()
    assert line == "lines-0: leader None -> 1, epoch None -> 0, ISR None -> [1, 2]: new partition"


@pytest.mark.parametrize(
    ("state", "level"),
    [
        (cluster_state(2, 3, now=leadership(1, 1, 2, 3)), INFO),
        (cluster_state(2, now=leadership(1, 1, 2, 3)), WARNING),
        (cluster_state(2, 3, now=leadership(1, 1)), WARNING),
        (cluster_state(2, 3, now=leadership(1, 1), unclean=True), WARNING),
    ],
    ids=["enough", "too-few", "no-leader", "unclean"],
)
def test_a_change_that_stops_writes_or_loses_records_is_a_warning(state: ControllerState, level: int) -> None:
    assert leadership_changed(changed(state), min_in_sync=2).level == level


def test_an_unclean_election_is_a_warning_also_where_one_replica_is_enough() -> None:
    change = changed(cluster_state(2, 3, now=leadership(1, 1), unclean=True))
    assert change.after.is_recovering
    assert leadership_changed(change, min_in_sync=1).level == WARNING


def test_the_minimum_is_the_topics_and_never_above_the_replicas() -> None:
    state = cluster_state(1, configs={"min.insync.replicas": "2"})
    assert min_insync_replicas(state, T0, default=1) == 2
    state.topics["lines"] = msgspec.structs.replace(state.topics["lines"], assignment={0: (1,)})
    assert min_insync_replicas(state, T0, default=1) == 1
    state.topics["lines"] = msgspec.structs.replace(state.topics["lines"], configs={})
    assert min_insync_replicas(state, T0, default=3) == 1
