"""A loss, rewrite or renumbering that is the same on all replicas contradicts the witness, also after a stop."""

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, format_cluster_state
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import batch_digest, format_digest
from minibroker.protocol.record_batch import read_header
from minibroker.protocol.witness import PartitionWitness
from tests.audit.damage import BATCHES, ENCODED
from tests.audit.planted_cluster import START_MS, TOPIC_ID, PlantedCluster, encode

LINES = TopicPartition("lines", 0)


def witness_of(batches: list[bytes], leader_epoch: int = 2, topic_id: str = TOPIC_ID) -> PartitionWitness:
    return PartitionWitness(
        topic_id=topic_id,
        leader_epoch=leader_epoch,
        replicas=(1, 2, 3),
        isr=(1, 2, 3),
        log_start_offset=read_header(batches[0]).base_offset,
        committed_offset=read_header(batches[-1]).end_offset,
        digest=format_digest(sum(map(batch_digest, batches)) % (1 << 128)),
        noted_at_ms=START_MS,
    )


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    cluster.write_state(LINES, 1, 2, [1, 2, 3], witness=witness_of(ENCODED))
    return cluster


def rewritten(cluster: PlantedCluster, batches: list[bytes], brokers: tuple[int, ...] = (1, 2, 3)) -> None:
    """Replace these brokers' logs, with checkpoints that match; state and witness stay."""
    state = cluster.state
    cluster.write(LINES, batches, brokers=brokers)
    cluster.state = state
    cluster.write_state(LINES, 1, 2, [1, 2, 3])


def audited_partition(cluster: PlantedCluster) -> PartitionResult:
    (result,) = compare_locally(discover([str(cluster.root)]), None, with_values=False)
    return result


def errors(result: PartitionResult) -> list[Finding]:
    return [item for item in result.findings if item.severity is Severity.ERROR]


def older_backup(cluster: PlantedCluster) -> None:
    rewritten(cluster, ENCODED[:6])


def one_record_rewritten(cluster: PlantedCluster) -> None:
    changed = [(epoch, [b"forged" + (value or b"")[6:] for value in values]) for epoch, values in BATCHES]
    rewritten(cluster, encode([*BATCHES[:4], changed[4], *BATCHES[5:]]))


def one_batch_gone_and_the_rest_renumbered(cluster: PlantedCluster) -> None:
    rewritten(cluster, encode([*BATCHES[:3], *BATCHES[4:]]))


def one_batch_replaced_by_another_of_as_many_records(cluster: PlantedCluster) -> None:
    rewritten(cluster, encode([*BATCHES[:3], BATCHES[6], *BATCHES[4:]]))


def epochs_forged(cluster: PlantedCluster) -> None:
    rewritten(cluster, encode([(2, values) for _, values in BATCHES]))


ON_ALL: list[tuple[Callable[[PlantedCluster], None], Kind]] = [
    (older_backup, Kind.RECORDS_LOST),
    (one_record_rewritten, Kind.WITNESS_DIFFERS),
    (one_batch_gone_and_the_rest_renumbered, Kind.RECORDS_LOST),
    (one_batch_replaced_by_another_of_as_many_records, Kind.WITNESS_DIFFERS),
    (epochs_forged, Kind.WITNESS_DIFFERS),
]


def test_logs_that_match_the_witness_are_fine(cluster: PlantedCluster) -> None:
    result = audited_partition(cluster)
    assert (result.verdict, result.findings) == (PartitionVerdict.IDENTICAL, ())


@pytest.mark.parametrize(("damage", "kind"), ON_ALL, ids=lambda each: getattr(each, "__name__", str(each)))
def test_equal_damage_of_all_replicas_contradicts_the_witness(
    cluster: PlantedCluster, damage: Callable[[PlantedCluster], None], kind: Kind
) -> None:
    damage(cluster)
    result = audited_partition(cluster)
    assert result.verdict is PartitionVerdict.INCONSISTENT
    assert kind in {item.kind for item in errors(result)}


def test_with_two_rewritten_replicas_the_intact_third_is_not_blamed(cluster: PlantedCluster) -> None:
    changed = [(epoch, [b"forged" + (value or b"")[6:] for value in values]) for epoch, values in BATCHES]
    rewritten(cluster, encode([*BATCHES[:4], changed[4], *BATCHES[5:]]), (1, 2))
    found = errors(audited_partition(cluster))
    assert {item.broker for item in found} == {1, 2}
    assert {item.broker for item in found if item.kind is Kind.WITNESS_DIFFERS} == {1, 2}
    assert "broker 3 holds it" in next(item.message for item in found if item.kind is Kind.WITNESS_DIFFERS)


def test_the_high_watermark_of_a_contradicted_replica_blames_no_other_replica(cluster: PlantedCluster) -> None:
    rewritten(cluster, encode([*BATCHES[:4], *BATCHES[3:]]), (2,))
    found = errors(audited_partition(cluster))
    assert {item.broker for item in found} == {2}
    assert Kind.WITNESS_DIFFERS in {item.kind for item in found}


def test_a_raised_log_start_on_all_is_a_loss_after_a_clean_stop(cluster: PlantedCluster) -> None:
    for broker in cluster.brokers:
        cluster.replica(broker, LINES).write_log_start(5)
    (item,) = [item for item in errors(audited_partition(cluster)) if item.kind is Kind.RECORDS_LOST]
    assert (item.offset, item.end_offset) == (0, 5)


def test_a_raised_log_start_of_the_survivor_is_a_loss_of_records_that_no_other_has(cluster: PlantedCluster) -> None:
    rewritten(cluster, ENCODED[:2], brokers=(1, 2))
    cluster.replica(3, LINES).write_log_start(12)
    cluster.write_state(LINES, 3, 2, [3], replicas=(1, 2, 3))
    (item,) = [item for item in errors(audited_partition(cluster)) if item.kind is Kind.RECORDS_LOST]
    assert (item.offset, item.end_offset) == (3, 12)


def test_a_witness_of_an_earlier_epoch_does_not_prove_the_log_start_at_the_stop(cluster: PlantedCluster) -> None:
    cluster.write_state(LINES, 1, 3, [1, 2, 3])
    for broker in cluster.brokers:
        cluster.replica(broker, LINES).write_log_start(5)
    assert {item.kind for item in audited_partition(cluster).findings} == {Kind.WITNESS_NOT_COMPARED}


def test_records_committed_since_the_witness_are_reported(cluster: PlantedCluster) -> None:
    cluster.write_state(LINES, 1, 2, [1, 2, 3], witness=witness_of(ENCODED[:8]))
    cluster.stop_cleanly(False, 1)
    (item,) = audited_partition(cluster).findings
    end = read_header(ENCODED[-1]).end_offset
    since = read_header(ENCODED[7]).end_offset
    assert (item.kind, item.offset, item.end_offset) == (Kind.WITNESS_BEHIND, since, end)
    assert f"the last {end - since} records (0 s)" in item.message


def test_the_witness_of_a_former_topic_proves_nothing(cluster: PlantedCluster) -> None:
    cluster.write_state(LINES, 1, 2, [1, 2, 3], witness=witness_of(ENCODED, topic_id="former"))
    rewritten(cluster, ENCODED[:6])
    assert audited_partition(cluster).findings == ()


def test_a_witness_without_digest_still_proves_the_committed_offset(cluster: PlantedCluster) -> None:
    witness = msgspec.structs.replace(witness_of(ENCODED), digest="")
    cluster.write_state(LINES, 1, 2, [1, 2, 3], witness=witness)
    rewritten(cluster, ENCODED[:6])
    assert Kind.RECORDS_LOST in {item.kind for item in errors(audited_partition(cluster))}


def test_a_witness_without_digest_is_named_for_it_shows_no_rewriting(cluster: PlantedCluster) -> None:
    """All replicas were rewritten alike, and the audit said no more than that they agree."""
    witness = msgspec.structs.replace(witness_of(ENCODED), digest="")
    cluster.write_state(LINES, 1, 2, [1, 2, 3], witness=witness)
    one_record_rewritten(cluster)
    (item,) = audited_partition(cluster).findings
    assert (item.kind, item.severity, item.offset, item.end_offset) == (
        Kind.WITNESS_NOT_COMPARED,
        Severity.NOTE,
        0,
        24,
    )


def test_a_witnessed_partition_without_replicas_is_reported_as_missing(cluster: PlantedCluster) -> None:
    for broker in cluster.brokers:
        shutil.rmtree(cluster.replica(broker, LINES).directory)
    assert {item.kind for item in errors(audited_partition(cluster))} == {Kind.MISSING_REPLICA}


def test_a_missing_witness_among_others_leaves_the_partition_unproven(cluster: PlantedCluster) -> None:
    other = {"other-0": witness_of(ENCODED)}
    cluster.state = msgspec.structs.replace(cluster.state, witnesses=other)
    cluster.write_state(LINES, 1, 2, [1, 2, 3])
    results = compare_locally(discover([str(cluster.root)]), None, with_values=False)
    (item,) = [item for each in results if each.topic == "lines" for item in each.findings]
    assert item.kind is Kind.UNPROVEN
    assert "witnesses of other partitions and none of this one, of which 24 is committed" in item.message


def test_a_leader_that_committed_nothing_in_its_epoch_needs_no_witness(cluster: PlantedCluster) -> None:
    other = {"other-0": witness_of(ENCODED)}
    cluster.state = msgspec.structs.replace(cluster.state, witnesses=other)
    cluster.write_state(LINES, 3, 3, [3])
    cluster.replica(3, LINES).write_epochs([(0, 0), (1, 6), (2, 13), (3, 24)])
    for broker in cluster.brokers:
        cluster.set_high_watermark(broker, LINES, 20)
    results = compare_locally(discover([str(cluster.root)]), None, with_values=False)
    assert Kind.UNPROVEN not in {item.kind for each in results if each.topic == "lines" for item in each.findings}


def test_a_witness_of_a_partition_missing_in_the_state_is_a_contradiction(cluster: PlantedCluster) -> None:
    shutil.rmtree(cluster.root / "broker-1" / "lines-0")
    state = msgspec.structs.replace(cluster.state, partitions={})
    (cluster.root / CLUSTER_STATE).write_bytes(format_cluster_state(state))
    (item,) = [item for item in discover([str(cluster.root)]).findings if item.kind is Kind.CONTRADICTION]
    assert "has a witness of lines-0 (committed to 24), but no such partition" in item.message


# a real stop takes one broker after the other out of the ISR


def stopped_one_by_one(cluster: PlantedCluster, committed_before: int | None = 24) -> None:
    """As `minibroker cluster down` leaves it: broker 3 stopped last, all of them were in sync before."""
    cluster.write_state(LINES, 3, 2, [3], isr_before=(1, 2, 3), committed_before=committed_before)


def test_a_stop_one_by_one_is_fine(cluster: PlantedCluster) -> None:
    stopped_one_by_one(cluster)
    result = audited_partition(cluster)
    assert (result.verdict, result.findings) == (PartitionVerdict.IDENTICAL, ())


def test_an_older_backup_of_a_broker_in_sync_before_the_stop_is_found(cluster: PlantedCluster) -> None:
    rewritten(cluster, ENCODED[:6], brokers=(1,))
    stopped_one_by_one(cluster)
    (item,) = errors(audited_partition(cluster))
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.MISSING_RANGE, 1, 12, 24)
    assert "was in sync before the stop but ends at offset 12; 24 was committed" in item.message


def test_without_a_committed_offset_before_the_stop_the_backup_is_not_found(cluster: PlantedCluster) -> None:
    rewritten(cluster, ENCODED[:6], brokers=(1,))
    stopped_one_by_one(cluster, committed_before=None)
    assert not errors(audited_partition(cluster))


def test_a_broker_may_lack_records_written_after_it_stopped(cluster: PlantedCluster) -> None:
    rewritten(cluster, ENCODED[:6], brokers=(1,))
    stopped_one_by_one(cluster, committed_before=12)
    assert not errors(audited_partition(cluster))


def test_a_lowered_high_watermark_hides_nothing_on_a_broker_in_sync_before_the_stop(cluster: PlantedCluster) -> None:
    changed = [(epoch, [b"forged" + (value or b"")[6:] for value in values]) for epoch, values in BATCHES]
    rewritten(cluster, encode([*BATCHES[:-1], changed[-1]]), (1,))
    cluster.set_high_watermark(1, LINES, 3)
    stopped_one_by_one(cluster)
    found = errors(audited_partition(cluster))
    assert (found[0].kind, found[0].broker) == (Kind.WITNESS_DIFFERS, 1)


def test_a_head_deleted_on_a_broker_in_sync_before_the_stop_is_found(cluster: PlantedCluster) -> None:
    rewritten_from(cluster, 5, brokers=(1,))
    stopped_one_by_one(cluster)
    (item,) = errors(audited_partition(cluster))
    assert (item.kind, item.broker, item.end_offset) == (Kind.MISSING_RANGE, 1, read_header(ENCODED[5]).base_offset)


@pytest.mark.parametrize("brokers", [(3,), (1, 3), (2, 3)])
def test_a_head_deleted_on_the_last_leader_after_the_stop_is_found(
    cluster: PlantedCluster, brokers: tuple[int, ...]
) -> None:
    rewritten_from(cluster, 5, brokers)
    stopped_one_by_one(cluster)
    found = errors(audited_partition(cluster))
    assert {item.kind for item in found} == {Kind.MISSING_RANGE}
    assert {item.broker for item in found} == set(brokers)


def test_a_log_start_raised_on_the_last_leader_after_the_stop_is_found(cluster: PlantedCluster) -> None:
    cluster.replica(3, LINES).write_log_start(5)
    stopped_one_by_one(cluster)
    (item,) = errors(audited_partition(cluster))
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.MISSING_RANGE, 3, 0, 5)
    assert "nothing is deleted while brokers are stopped: its head is missing (others hold some of it)" in item.message


def test_a_log_start_of_an_earlier_leader_need_not_have_reached_the_last_leader(cluster: PlantedCluster) -> None:
    cluster.replica(1, LINES).write_log_start(5)
    stopped_one_by_one(cluster)
    assert not errors(audited_partition(cluster))


def test_a_head_deleted_on_the_only_replica_is_found_without_a_later_leader(cluster: PlantedCluster) -> None:
    for broker in (1, 2):
        shutil.rmtree(cluster.replica(broker, LINES).directory)
        cluster.set_high_watermark(broker, LINES, None)
    rewritten_from(cluster, 5, (3,))
    cluster.write_state(LINES, -1, 3, [3], replicas=(3,))
    (item,) = [item for item in errors(audited_partition(cluster)) if item.broker is None]
    assert item.kind is Kind.RECORDS_LOST


def appended(cluster: PlantedCluster, brokers: tuple[int, ...], high_watermark: int) -> None:
    rewritten(cluster, [*ENCODED, *encode([(2, [b"forged"])], 24)], brokers)
    for broker in brokers:
        cluster.set_high_watermark(broker, LINES, high_watermark)
    stopped_one_by_one(cluster)


@pytest.mark.parametrize("high_watermark", [24, 25])
@pytest.mark.parametrize("brokers", [(3,), (1, 2, 3)])
def test_records_appended_to_the_last_leaders_log_after_the_stop_are_unproven(
    cluster: PlantedCluster, brokers: tuple[int, ...], high_watermark: int
) -> None:
    appended(cluster, brokers, high_watermark)
    (item,) = errors(audited_partition(cluster))
    assert (item.kind, item.offset, item.end_offset) == (Kind.UNPROVEN, 24, 25)
    assert "all below 24 was committed; now 1 more records are there" in item.message


def test_a_tail_on_brokers_other_than_the_last_leader_is_lawful(cluster: PlantedCluster) -> None:
    appended(cluster, (1,), 24)
    assert not errors(audited_partition(cluster))


def test_a_tail_of_a_leader_that_was_not_the_only_one_in_sync_is_lawful(cluster: PlantedCluster) -> None:
    appended(cluster, (3,), 24)
    cluster.write_state(LINES, 3, 2, [2, 3], isr_before=(1, 2, 3), committed_before=24)
    assert not errors(audited_partition(cluster))


def test_records_behind_the_witness_of_a_killed_leader_are_lawful(cluster: PlantedCluster) -> None:
    appended(cluster, (1, 2, 3), 25)
    cluster.stop_cleanly(False, 3)
    assert not errors(audited_partition(cluster))


def test_a_head_deleted_after_a_broker_stopped_is_no_loss_of_the_survivor(cluster: PlantedCluster) -> None:
    rewritten_from(cluster, 5, brokers=(2, 3))
    stopped_one_by_one(cluster)
    cluster.write_state(LINES, 3, 2, [3], isr_before=(1, 2, 3), committed_before=24, witness=witness_of(ENCODED[5:]))
    assert not [item for item in errors(audited_partition(cluster)) if item.broker == 3]


def rewritten_from(cluster: PlantedCluster, first: int, brokers: tuple[int, ...]) -> None:
    """The log of these brokers begins at this batch, and their `log-start` records the rest as deleted."""
    state = cluster.state
    start = read_header(ENCODED[first]).base_offset
    cluster.write(LINES, ENCODED[first:], brokers=brokers, base_offset=start)
    for broker in brokers:
        cluster.replica(broker, LINES).write_log_start(start)
    cluster.state = state
