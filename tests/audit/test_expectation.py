"""What should be present, when several sources know of a partition: the newest one counts."""

import pytest
from msgspec.structs import replace

from minibroker.audit.checks.expectation import AuditedLogDirectory, SourcedState, expected_partitions
from minibroker.audit.checks.findings import Kind
from minibroker.audit.checks.topic_ids import partitions_left_out
from minibroker.audit.reading.zookeeper_source import newest_witnesses
from minibroker.protocol.files.cluster_state import ClusterState, PartitionSnapshot
from minibroker.protocol.files.meta_properties import MetaProperties
from minibroker.protocol.witness import PartitionWitness, WitnessNode


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


@pytest.mark.parametrize("is_given_first", [True, False])
@pytest.mark.parametrize(("epoch", "isr", "knows"), [(5, (1,), True), (5, (1, 3), False), (6, (1,), False)])
def test_zookeeper_takes_nothing_from_a_state_file_that_it_repeats(
    epoch: int, isr: tuple[int, ...], knows: bool, is_given_first: bool
) -> None:
    """It knows no ISR from before the stop. With --zookeeper the audit of a stopped cluster called a member of that ISR
    sound that lacked committed records; without, it was 'missing-range'."""
    file = state("file", 100.0, 5, (1,), stopped=True)
    snapshot = replace(file.state.partitions["lines-0"], isr_before=(1, 2, 3), committed_before=24)
    file = replace(file, state=replace(file.state, partitions={"lines-0": snapshot}))
    states = [file, state("ZooKeeper", 200.0, epoch, isr, stopped=False)]
    found = expected_partitions([], [], states if is_given_first else states[::-1])[0]["lines-0"]
    assert (found.source, found.stopped) == (("file", True) if knows else ("ZooKeeper", False))
    assert (found.isr_before, found.committed_before) == (((1, 2, 3), 24) if knows else ((), None))


@pytest.mark.parametrize(("in_file", "known"), [(None, "new"), ("former", "new")])
def test_a_directory_id_that_only_zookeeper_knows_counts(in_file: str | None, known: str) -> None:
    """A state file says null where ZooKeeper could not be read at the stop. That hid that the disk is another one."""
    meta = MetaProperties(broker_id=1, cluster_id="c", directory_id="own", boot_id="b")
    log = AuditedLogDirectory(path="broker-1", broker=1, cleanly_stopped=True, meta=meta)
    states = [
        SourcedState(
            source=source,
            state=ClusterState(taken_at=taken_at, brokers={"1": directory_id}, partitions={}),
            stopped=stopped,
        )
        for source, taken_at, directory_id, stopped in (
            ("ZooKeeper", 200.0, "new", False),
            ("file", 100.0, in_file, True),
        )
    ]
    (item,) = (item for item in expected_partitions([log], [], states)[1] if item.kind is Kind.WRONG_DIRECTORY)
    assert item.message.endswith(f"ZooKeeper has {known}")


@pytest.mark.parametrize(("own_id", "is_expected"), [("id", True), ("another", False), (None, False)])
def test_a_checkpoint_that_lists_the_topic_id_counts_also_where_a_source_assigns_others(
    own_id: str | None, is_expected: bool
) -> None:
    """A state file from which a replica had been taken out hid its loss, though its broker's checkpoint listed it."""
    log = AuditedLogDirectory(path="broker-4", broker=4, cleanly_stopped=True, listed={"lines-0": own_id})
    expected, _ = expected_partitions([log], [], [state("file", 100.0, 5, (1, 2), stopped=True)])
    assert ("checkpoint" in expected["lines-0"].holders.get(4, "")) is is_expected


@pytest.mark.parametrize(("own_id", "is_named"), [("id", True), ("former", False), (None, False)])
def test_the_last_partition_of_a_topic_is_missed_where_a_checkpoint_lists_it(
    own_id: str | None, is_named: bool
) -> None:
    """A running broker's checkpoint still listed it under the topic's id. Its files and its node's entry were gone."""
    log = AuditedLogDirectory(path="broker-1", broker=1, cleanly_stopped=False, listed={"lines-1": own_id})
    expected, _ = expected_partitions([log], [(1, "lines-0")], [state("ZooKeeper", 100.0, 5, (1, 2), stopped=False)])
    found = partitions_left_out([], expected)
    assert [(item.kind, item.topic, item.partition) for item in found] == (
        [(Kind.CONTRADICTION, "lines", 1)] if is_named else []
    )


@pytest.mark.parametrize(("knows_topics", "is_stopped"), [(True, False), (True, True), (False, False)])
def test_a_checkpoint_of_a_broker_that_was_killed_may_list_a_deleted_topic(
    knows_topics: bool, is_stopped: bool
) -> None:
    """It was killed behind the deletion and before its next checkpoint. Another broker was away and holds it still.
    ZooKeeper does not know the topic, and the audit called the first broker's replica missing."""
    log = AuditedLogDirectory(path="broker-1", broker=1, cleanly_stopped=is_stopped, listed={"former-0": "former"})
    states = [state("ZooKeeper", 100.0, 5, (1, 2), stopped=False)] if knows_topics else []
    expected, _ = expected_partitions([log], [(2, "former-0")], states)
    assert list(expected["former-0"].holders) == ([] if knows_topics and not is_stopped else [1])


def test_a_witness_in_zookeeper_of_a_partition_that_its_topics_node_lacks_is_kept() -> None:
    """It was dropped as one of an earlier topic, so nothing named the last partition of a topic that had lost it."""
    found = [WitnessNode(partitions={"a-0": witness("id", 4), "a-1": witness("id", 4), "b-0": witness("former", 4)})]
    found.append(WitnessNode(partitions={"a-0": witness("id", 5), "gone-0": witness("id", 4)}))
    newest = newest_witnesses(found, {"a": "id", "b": "id"})
    assert {name: each.leader_epoch for name, each in newest.items()} == {"a-0": 5, "a-1": 4}
    known = ClusterState(partitions={"a-0": PartitionSnapshot(leader_epoch=5, isr=(1,))}, witnesses=newest)
    _, findings = expected_partitions([], [], [SourcedState(source="ZooKeeper", state=known, stopped=False)])
    (item,) = (item for item in findings if item.kind is Kind.CONTRADICTION)
    assert "ZooKeeper has a witness of a-1 (committed to 7), but no such partition" in item.message


def witness(topic_id: str, epoch: int) -> PartitionWitness:
    return PartitionWitness(
        topic_id=topic_id,
        leader_epoch=epoch,
        replicas=(1,),
        isr=(1,),
        log_start_offset=0,
        committed_offset=7,
        digest="",
        noted_at_ms=1,
    )
