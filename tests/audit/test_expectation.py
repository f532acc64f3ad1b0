"""What should be present, when several sources know of a partition: the newest one counts."""

import pytest

from minibroker.audit.checks.expectation import AuditedLogDirectory, SourcedState, expected_partitions
from minibroker.protocol.files.cluster_state import ClusterState, PartitionSnapshot


def state(source: str, taken_at: float, leader_epoch: int, isr: tuple[int, ...], *, stopped: bool) -> SourcedState:
    snapshot = PartitionSnapshot(leader=isr[0], leader_epoch=leader_epoch, isr=isr, replicas=(1, 2, 3), topic_id="id")
    known = ClusterState(taken_at=taken_at, brokers={}, partitions={"lines-0": snapshot})
    return SourcedState(source=source, state=known, stopped=stopped)


@pytest.mark.parametrize(
    ("epochs", "newest"),
    [((5, 5), "ZooKeeper"), ((5, 6), "ZooKeeper"), ((6, 5), "file")],
    ids=["the same epoch", "a later epoch", "an earlier epoch"],
)
@pytest.mark.parametrize("is_given_first", [True, False])
def test_of_two_states_the_later_leader_epoch_counts_and_then_the_later_reading(
    epochs: tuple[int, int], newest: str, is_given_first: bool
) -> None:
    """An ISR changes within an epoch: who has joined since must hold all that is committed, who has left need not."""
    states = [
        state("file", 100.0, epochs[0], (1, 2), stopped=True),
        state("ZooKeeper", 200.0, epochs[1], (1, 3), stopped=False),
    ]
    expected, _ = expected_partitions([], [], states if is_given_first else states[::-1])
    found = expected["lines-0"]
    assert found.source == newest
    assert found.isr == {"file": (1, 2), "ZooKeeper": (1, 3)}[newest]
    assert {1, *found.isr} == set(found.holders)


@pytest.mark.parametrize(("own_id", "is_expected"), [("id", True), ("another", False), (None, False)])
def test_a_checkpoint_that_lists_the_topic_id_counts_also_where_a_source_assigns_others(
    own_id: str | None, is_expected: bool
) -> None:
    """A state file from which a replica had been taken out hid its loss, though its broker's checkpoint listed it."""
    log = AuditedLogDirectory(path="broker-4", broker=4, cleanly_stopped=True, listed={"lines-0": own_id})
    expected, _ = expected_partitions([log], [], [state("file", 100.0, 5, (1, 2), stopped=True)])
    assert ("checkpoint" in expected["lines-0"].holders.get(4, "")) is is_expected
