"""Comparing replicas with each other: compared offsets, verdicts, log matching, which replica is blamed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.audit import intervals
from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.audit.run import run_audit
from minibroker.protocol.ids import TopicPartition
from tests.audit.planted_cluster import Batch, PlantedCluster, encode

LINES = TopicPartition("lines", 0)


def cluster_of(
    root: Path, logs: Sequence[Sequence[Batch]], high_watermarks: Sequence[int | None], *, clean: bool = False
) -> PlantedCluster:
    """Broker 1, 2, .. with one log and high watermark each; those with the highest one are in sync."""
    cluster = PlantedCluster(root, brokers=range(1, len(logs) + 1), clean=clean)
    for broker, (log, offset) in enumerate(zip(logs, high_watermarks, strict=True), 1):
        cluster.write(LINES, encode(log), brokers=[broker])
        cluster.set_high_watermark(broker, LINES, offset)
    highest = max(offset or 0 for offset in high_watermarks)
    in_sync = [broker for broker, offset in enumerate(high_watermarks, 1) if (offset or 0) == highest]
    cluster.write_state(LINES, in_sync[0], cluster.state.partitions[str(LINES)].leader_epoch, in_sync)
    return cluster


def audited_partition(cluster: PlantedCluster) -> PartitionResult:
    (result,) = compare_locally(discover([str(cluster.root)]), None, with_values=False)
    return result


def of_kind(result: PartitionResult, kind: Kind) -> list[Finding]:
    return [item for item in result.findings if item.kind is kind]


COMMON: list[Batch] = [(0, [b"a"]), (0, [b"b", b"c"]), (1, [b"d"])]


def test_a_lagging_replica_is_fine(tmp_path: Path) -> None:
    result = audited_partition(cluster_of(tmp_path, [COMMON, COMMON, COMMON[:2]], [4, 4, 3]))
    assert result.verdict is PartitionVerdict.LAGGING
    (item,) = result.findings
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.LAGGING_TAIL, 3, 3, 4)
    assert (result.compared_offsets, result.total_offsets) == (4, 4)


@pytest.mark.parametrize("in_sync", [[1, 2], [1, 2, 3]])
def test_an_out_of_sync_replica_whose_records_others_have_trimmed_is_not_unproven(
    tmp_path: Path, in_sync: list[int]
) -> None:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, encode(COMMON[2:], 3), brokers=[1, 2], base_offset=3)
    cluster.write(LINES, encode(COMMON[:2]), brokers=[3])
    cluster.write_state(LINES, 1, 1, in_sync)
    result = audited_partition(cluster)
    assert (Kind.UNPROVEN in {item.kind for item in result.findings}) is (3 in in_sync)
    assert (result.verdict is PartitionVerdict.LAGGING) is (3 not in in_sync)


def test_compared_offsets_are_those_below_both_high_watermarks(tmp_path: Path) -> None:
    result = audited_partition(cluster_of(tmp_path, [COMMON, COMMON], [3, 1]))
    assert (result.compared_offsets, result.total_offsets, result.verdict) == (1, 4, PartitionVerdict.IDENTICAL)


@pytest.mark.parametrize("high_watermarks", [(0, 0), (None, None), (4, None)])
def test_two_replicas_without_a_known_committed_offset_are_unproven(
    tmp_path: Path, high_watermarks: tuple[int | None, int | None]
) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON], high_watermarks)
    assert audited_partition(cluster).verdict is PartitionVerdict.UNPROVEN
    assert run_audit([str(tmp_path)], "local").exit_code == 10


def test_an_empty_replica_does_not_make_a_partition_unproven(tmp_path: Path) -> None:
    result = audited_partition(cluster_of(tmp_path, [COMMON, COMMON, []], [4, 4, None]))
    assert (result.verdict, result.compared_offsets) == (PartitionVerdict.LAGGING, 4)


def test_a_single_replica_has_its_own_verdict(tmp_path: Path) -> None:
    assert audited_partition(cluster_of(tmp_path, [COMMON], [4])).verdict is PartitionVerdict.SINGLE


@pytest.mark.invariant("I3", "I19")
def test_a_difference_below_both_high_watermarks_is_the_worst(tmp_path: Path) -> None:
    other: list[Batch] = [COMMON[0], (0, [b"B", b"c"]), COMMON[2]]
    result = audited_partition(cluster_of(tmp_path, [COMMON, other, COMMON], [4, 4, 4]))
    (item,) = of_kind(result, Kind.DIVERGED_BELOW_HIGH_WATERMARK)
    assert (item.broker, item.others, item.offset, item.end_offset) == (2, (1, 3), 1, 3)
    assert item.severity is Severity.ERROR


def test_a_deposed_leaders_tail_above_its_high_watermark_is_a_note(tmp_path: Path) -> None:
    deposed: list[Batch] = [*COMMON[:2], (0, [b"x"]), (0, [b"y"])]
    successor: list[Batch] = [*COMMON[:2], (1, [b"d"]), (1, [b"e"])]
    result = audited_partition(cluster_of(tmp_path, [deposed, successor, successor], [3, 5, 5]))
    (item,) = of_kind(result, Kind.DIVERGED_ABOVE_HIGH_WATERMARK)
    assert (item.broker, item.others, item.offset, item.end_offset) == (1, (2, 3), 3, 5)
    assert result.verdict is PartitionVerdict.DIVERGED_ABOVE


@pytest.mark.invariant("I16", "I17")
def test_two_contents_of_one_epoch_are_an_error_even_above_the_high_watermark(tmp_path: Path) -> None:
    left: list[Batch] = [*COMMON, (1, [b"x"])]
    right: list[Batch] = [*COMMON, (1, [b"y"])]
    result = audited_partition(cluster_of(tmp_path, [left, right], [2, 2]))
    (item,) = of_kind(result, Kind.LOG_MATCHING)
    assert (item.offset, item.end_offset) == (4, 5)
    assert result.verdict is PartitionVerdict.INCONSISTENT


@pytest.mark.invariant("I16")
def test_a_difference_below_an_equal_batch_breaks_log_matching(tmp_path: Path) -> None:
    left: list[Batch] = [(0, [b"a"]), (1, [b"x"]), (2, [b"c"])]
    right: list[Batch] = [(0, [b"a"]), (0, [b"y"]), (2, [b"c"])]
    result = audited_partition(cluster_of(tmp_path, [left, right], [1, 1]))
    (item,) = of_kind(result, Kind.LOG_MATCHING)
    assert (item.offset, item.end_offset) == (1, 2)


def test_equal_bytes_under_two_epochs_below_the_high_watermark_conflict(tmp_path: Path) -> None:
    left: list[Batch] = [(0, [b"a"]), (1, [b"b"])]
    right: list[Batch] = [(0, [b"a"]), (2, [b"b"])]
    result = audited_partition(cluster_of(tmp_path, [left, right, left], [2, 2, 2]))
    (item,) = of_kind(result, Kind.CONFLICTING_EPOCH)
    assert (item.broker, item.others, item.offset) == (2, (1, 3), 1)


def test_a_replica_of_an_earlier_topic_of_that_name_is_not_compared(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON, [(0, [b"old"])]], [4, 4, 1])
    cluster.replica(3, LINES).write_metadata("earlier")
    cluster.replica(3, LINES).write_log_start(0, "earlier")
    result = audited_partition(cluster)
    assert [item.kind for item in result.findings] == [Kind.REPLICA_ABSENT, Kind.TOPIC_ID_DIFFERS]
    assert result.verdict is PartitionVerdict.IDENTICAL


def test_an_isr_member_that_lacks_committed_records_is_found(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON, []], [4, 4, None], clean=True)
    cluster.write_state(LINES, leader=1, leader_epoch=1, isr=[1, 2, 3])
    (item,) = [item for item in audited_partition(cluster).findings if item.severity is Severity.ERROR]
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.MISSING_RANGE, 3, 0, 4)


def test_an_isr_member_that_lost_power_may_lack_unsynced_records(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON, COMMON[:2]], [4, 4, 4])
    assert audited_partition(cluster).verdict is PartitionVerdict.INCONSISTENT
    cluster.lose_power()
    found = audited_partition(cluster)
    assert {(item.kind, item.broker, item.severity) for item in found.findings} == {
        (Kind.MISSING_RANGE, 3, Severity.NOTE),
        (Kind.LAGGING_TAIL, 3, Severity.NOTE),
    }
    assert found.verdict is PartitionVerdict.LAGGING


def test_records_missing_on_every_isr_member_are_lost_even_after_a_power_cut(tmp_path: Path) -> None:
    result = audited_partition(cluster_of(tmp_path, [COMMON[:2], COMMON[:2]], [4, 4]))
    (item,) = of_kind(result, Kind.RECORDS_LOST)
    assert (item.offset, item.end_offset, item.severity) == (3, 4, Severity.ERROR)


def test_a_version_1_state_older_than_the_logs_is_not_used(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON, []], [4, 4, None], clean=True)
    (tmp_path / "cluster-state.json").write_text('{"partitions": {"lines-0": {"leader_epoch": 0, "isr": [1, 2, 3]}}}')
    result = audited_partition(cluster)
    assert {item.kind for item in result.findings} == {Kind.STALE_CLUSTER_STATE, Kind.LAGGING_TAIL}
    assert result.verdict is PartitionVerdict.LAGGING


def test_an_epoch_above_the_stopped_clusters_is_an_error_and_disables_no_check(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON, []], [4, 4, None], clean=True)
    cluster.write_state(LINES, leader=1, leader_epoch=0, isr=[1, 2, 3])
    found = {
        (item.kind, item.broker) for item in audited_partition(cluster).findings if item.severity is Severity.ERROR
    }
    assert found == {(Kind.STALE_CLUSTER_STATE, 1), (Kind.STALE_CLUSTER_STATE, 2), (Kind.MISSING_RANGE, 3)}


def test_one_lowered_high_watermark_hides_no_difference_between_in_sync_replicas(tmp_path: Path) -> None:
    other: list[Batch] = [COMMON[0], (0, [b"B", b"c"]), COMMON[2]]
    cluster = cluster_of(tmp_path, [COMMON, other, COMMON], [4, 0, 4], clean=True)
    cluster.write_state(LINES, leader=1, leader_epoch=1, isr=[1, 2, 3])
    (item,) = of_kind(audited_partition(cluster), Kind.DIVERGED_BELOW_HIGH_WATERMARK)
    assert (item.broker, item.offset, item.end_offset) == (2, 1, 3)


def test_a_high_watermark_missing_after_a_clean_stop_is_an_error(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON], [4, 4], clean=True)
    cluster.set_high_watermark(2, LINES, None)
    found = {
        (item.kind, item.broker) for item in audited_partition(cluster).findings if item.severity is Severity.ERROR
    }
    assert found == {(Kind.CHECKPOINT_DAMAGE, 2)}


def test_tails_that_may_or_may_not_be_committed_are_unproven(tmp_path: Path) -> None:
    left: list[Batch] = [*COMMON[:2], (0, [b"x"])]
    cluster = cluster_of(tmp_path, [left, COMMON], [3, 3])
    result = audited_partition(cluster)
    assert result.verdict is PartitionVerdict.UNPROVEN
    assert "no source shows whether these were committed" in of_kind(result, Kind.UNPROVEN)[0].message


def test_one_uncompared_replica_makes_the_partition_unproven(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, [COMMON, COMMON, COMMON], [4, 4, None])
    cluster.forget_state()
    result = audited_partition(cluster)
    assert result.verdict is PartitionVerdict.UNPROVEN
    assert "broker 3 was not compared" in of_kind(result, Kind.UNPROVEN)[0].message


# against a naive oracle


VALUES = st.sampled_from([b"a", b"b"])
LOGS = st.lists(st.tuples(st.integers(0, 2), VALUES), max_size=6).map(
    lambda pairs: [(epoch, [value]) for epoch, (_, value) in zip(sorted(e for e, _ in pairs), pairs, strict=True)]
)


@given(left=LOGS, right=LOGS, high_watermarks=st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_comparing_a_pair_matches_the_definitions(
    tmp_path_factory: pytest.TempPathFactory,
    left: list[Batch],
    right: list[Batch],
    high_watermarks: tuple[int, int],
) -> None:
    high_watermarks = (min(high_watermarks[0], len(left)), min(high_watermarks[1], len(right)))
    result = audited_partition(cluster_of(tmp_path_factory.mktemp("pair"), [left, right], high_watermarks))
    both = range(min(len(left), len(right)))
    committed = min(high_watermarks)
    differ = [offset for offset in both if left[offset] != right[offset]]
    same_epoch = [offset for offset in both if left[offset][0] == right[offset][0]]
    matched = max(same_epoch, default=-1)
    expected = {
        Kind.DIVERGED_BELOW_HIGH_WATERMARK: {o for o in differ if o < committed and left[o][1] != right[o][1]},
        Kind.CONFLICTING_EPOCH: {o for o in differ if o < committed and left[o][1] == right[o][1]},
        Kind.LOG_MATCHING: {o for o in differ if committed <= o <= matched},
        Kind.DIVERGED_ABOVE_HIGH_WATERMARK: {o for o in differ if o >= committed and o > matched},
    }
    for kind, offsets in expected.items():
        found = [(item.offset or 0, item.end_offset or 0) for item in of_kind(result, kind)]
        assert {offset for start, end in found for offset in range(start, end)} == offsets, kind
    assert result.compared_offsets == min(committed, len(both))


SETS = st.sets(st.integers(0, 12))


def as_intervals(members: set[int]) -> intervals.Intervals:
    return intervals.union((member, member + 1) for member in members)


@given(SETS, SETS, st.integers(0, 12))
def test_intervals_are_sets_of_offsets(left: set[int], right: set[int], limit: int) -> None:
    a, b = as_intervals(left), as_intervals(right)
    assert intervals.union(a, b) == as_intervals(left | right)
    assert intervals.intersection(a, b) == as_intervals(left & right)
    assert intervals.below(a, limit) == as_intervals({member for member in left if member < limit})
    assert intervals.size(a) == len(left)
