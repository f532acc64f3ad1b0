"""Batches that were appended twice, removed or forged show in the sequences of producers; lawful logs have no
findings."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE, SEQUENCE_MAX, build_batch
from tests.audit.planted_cluster import START_MS, PlantedCluster

LINES = TopicPartition("lines", 0)


class Sent(NamedTuple):
    """A batch as its producer numbered it."""

    producer: int
    epoch: int
    sequence: int
    records: int = 2
    leader_epoch: int = 0
    text: str = ""
    """Batches of one identity with different texts have different bytes."""


def written(batches: Sequence[Sent], base_offset: int = 0) -> list[bytes]:
    """A log of these batches, with valid CRCs and dense offsets."""
    encoded = []
    offset = base_offset
    for sent in batches:
        name = f"{sent.producer}/{sent.epoch}/{sent.sequence}{sent.text}"
        packed = [(None, f"{name}+{n}".encode(), START_MS, ()) for n in range(sent.records)]
        batch = build_batch(
            packed,
            base_offset=offset,
            leader_epoch=sent.leader_epoch,
            producer_id=sent.producer,
            producer_epoch=sent.epoch,
            base_sequence=sent.sequence,
        )
        encoded.append(bytes(batch))
        offset += sent.records
    return encoded


def audited_partition(root: Path, batches: Sequence[Sent], base_offset: int = 0) -> PartitionResult:
    """The same log on all three replicas."""
    cluster = PlantedCluster(root)
    cluster.write(LINES, written(batches, base_offset), base_offset=base_offset)
    (result,) = compare_locally(discover([str(root)]), None, with_values=False)
    return result


def found(result: PartitionResult) -> list[tuple[Kind, Severity, int | None]]:
    """Of one broker: all replicas hold the same."""
    of_each = [[item for item in result.findings if item.broker == broker] for broker in (1, 2, 3)]
    assert [len(items) for items in of_each] == [len(result.findings) // 3] * 3
    return [(item.kind, item.severity, item.offset) for item in of_each[0]]


def first(result: PartitionResult) -> Finding:
    return result.findings[0]


def run(producer: int = 7, epoch: int = 0, batches: int = 6, start: int = 0) -> list[Sent]:
    return [Sent(producer, epoch, (start + 2 * n) & SEQUENCE_MAX) for n in range(batches)]


# what a broker may have written

WITHOUT = Sent(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_SEQUENCE)
INTERLEAVED = [sent for pair in zip(run(7), run(8), strict=True) for sent in pair]
LAWFUL: dict[str, list[Sent]] = {
    "one_producer": run(),
    "two_producers": INTERLEAVED,
    "beside_batches_without_a_producer": [WITHOUT, *run(), WITHOUT],
    "no_producer_id": [WITHOUT, WITHOUT],
    "a_new_producer_epoch": [*run(batches=3), *run(epoch=1, batches=2), *run(epoch=4, batches=1)],
    "batches_of_many_sizes": [Sent(7, 0, 0, 1), Sent(7, 0, 1, 20), Sent(7, 0, 21, 3)],
}


@pytest.mark.parametrize("batches", LAWFUL.values(), ids=LAWFUL)
def test_a_lawful_log_has_no_findings(tmp_path: Path, batches: list[Sent]) -> None:
    result = audited_partition(tmp_path, batches)
    assert result.findings == ()
    assert result.verdict is PartitionVerdict.IDENTICAL


@pytest.mark.parametrize("batches", [run(start=17), run(epoch=3, start=5), run(start=SEQUENCE_MAX - 4)])
def test_sequences_before_a_deleted_head_are_unknown(tmp_path: Path, batches: list[Sent]) -> None:
    """This includes the wrap: 0 follows 2^31 - 1."""
    assert audited_partition(tmp_path, batches, base_offset=40).findings == ()


def test_sequences_continue_after_a_wrap_inside_a_batch(tmp_path: Path) -> None:
    batches = [Sent(7, 0, SEQUENCE_MAX - 2, 5), Sent(7, 0, 2), Sent(7, 0, 4)]
    assert audited_partition(tmp_path, batches, base_offset=40).findings == ()


def test_the_tail_of_a_deposed_leader_has_no_sequence_findings(tmp_path: Path) -> None:
    """Its own producers continue there; on the others they continue under the next leader."""
    common = run(batches=3)
    deposed = [*common, Sent(7, 0, 6), Sent(9, 0, 0)]
    others = [*common, Sent(7, 0, 6, 1, leader_epoch=1), Sent(7, 0, 7, leader_epoch=1)]
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, written(deposed), brokers=[1], high_watermark=6)
    cluster.write(LINES, written(others), brokers=[2, 3], high_watermark=6)
    (result,) = compare_locally(discover([str(tmp_path)]), None, with_values=False)
    assert {item.kind for item in result.findings} <= {Kind.DIVERGED_ABOVE_HIGH_WATERMARK, Kind.LAGGING_TAIL}


@pytest.mark.parametrize("epoch", [0, 1])
def test_a_forgotten_producer_that_begins_again_at_0_is_a_note(tmp_path: Path, epoch: int) -> None:
    result = audited_partition(
        tmp_path, [*run(epoch=1, batches=3), Sent(7, epoch, 0, text="again"), Sent(7, epoch, 2, text="too")]
    )
    assert found(result) == [(Kind.SEQUENCE_RESTARTED, Severity.NOTE, 6)]


def test_a_sequence_without_producer_id_is_a_note_because_leaders_accept_it(tmp_path: Path) -> None:
    result = audited_partition(tmp_path, [WITHOUT, Sent(NO_PRODUCER_ID, NO_PRODUCER_EPOCH, 3)])
    assert found(result) == [(Kind.SEQUENCE_MALFORMED, Severity.NOTE, 2)]


# what no broker writes


def dropped(batches: list[Sent], index: int) -> list[Sent]:
    return batches[:index] + batches[index + 1 :]


Change = Callable[[list[Sent]], list[Sent]]
HARM: dict[str, tuple[Change, list[tuple[Kind, int]]]] = {
    "a_batch_twice": (lambda log: [*log[:4], log[3], *log[4:]], [(Kind.SEQUENCE_TWICE, 8)]),
    "the_first_batch_twice": (lambda log: [*log, log[0]], [(Kind.SEQUENCE_TWICE, 12)]),
    "all_batches_twice": (lambda log: log + log, [(Kind.SEQUENCE_TWICE, 12 + 2 * n) for n in range(6)]),
    "a_batch_of_an_earlier_epoch_twice": (
        lambda log: [*log, *run(epoch=1, batches=1), log[4]],
        [(Kind.SEQUENCE_TWICE, 14)],
    ),
    "a_batch_taken_out": (lambda log: dropped(log, 2), [(Kind.SEQUENCE_GAP, 4)]),
    "the_first_batch_taken_out": (lambda log: dropped(log, 0), [(Kind.SEQUENCE_GAP, 0)]),
    "the_first_of_an_epoch_taken_out": (
        lambda log: log + run(epoch=1, batches=3)[1:],
        [(Kind.SEQUENCE_GAP, 12)],
    ),
    "two_batches_change_places": (
        lambda log: [log[0], log[2], log[1], *log[3:]],
        [(Kind.SEQUENCE_GAP, 2), (Kind.SEQUENCE_BACKWARDS, 4)],
    ),
    "another_batch_under_the_same_sequence": (
        lambda log: [*log, log[3]._replace(text="other")],
        [(Kind.SEQUENCE_BACKWARDS, 12)],
    ),
    "a_forged_producer_id": (
        lambda log: [*log[:2], log[2]._replace(producer=99), *log[3:]],
        [(Kind.SEQUENCE_GAP, 4), (Kind.SEQUENCE_GAP, 6)],
    ),
    "a_forged_epoch": (
        lambda log: [*log[:2], log[2]._replace(epoch=5), *log[3:]],
        [(Kind.SEQUENCE_GAP, 4), (Kind.SEQUENCE_BACKWARDS, 6)],
    ),
    "a_forged_sequence": (
        lambda log: [*log[:2], log[2]._replace(sequence=400), *log[3:]],
        [
            (Kind.SEQUENCE_GAP, 4),
            (Kind.SEQUENCE_BACKWARDS, 6),
            (Kind.SEQUENCE_BACKWARDS, 8),
            (Kind.SEQUENCE_BACKWARDS, 10),
        ],
    ),
    "the_producer_is_taken_away": (
        lambda log: [*log[:2], log[2]._replace(producer=-1, epoch=-1, sequence=-1), *log[3:]],
        [(Kind.SEQUENCE_GAP, 6)],
    ),
    "an_id_without_a_sequence": (
        lambda log: [*log, Sent(8, 0, NO_SEQUENCE)],
        [(Kind.SEQUENCE_MALFORMED, 12)],
    ),
}


@pytest.mark.parametrize(("change", "expected"), HARM.values(), ids=HARM)
def test_harm_on_all_replicas_is_found_and_named(
    tmp_path: Path, change: Change, expected: list[tuple[Kind, int]]
) -> None:
    result = audited_partition(tmp_path, change(run()))
    assert found(result) == [(kind, Severity.ERROR, offset) for kind, offset in expected]
    assert result.verdict is PartitionVerdict.INCONSISTENT
    assert first(result).file is not None and first(result).position is not None


def test_a_repeated_batch_is_found_after_a_deleted_head_too(tmp_path: Path) -> None:
    log = run(start=100)
    result = audited_partition(tmp_path, [*log, log[2]], base_offset=40)
    assert found(result) == [(Kind.SEQUENCE_TWICE, Severity.ERROR, 52)]


def test_the_message_on_a_repeated_batch_names_both_offsets(tmp_path: Path) -> None:
    log = run()
    assert first(audited_partition(tmp_path, [*log, log[2]])).message == (
        "the batch of offsets 12 to 13 (producer 7, epoch 0, sequences 4 to 5) was appended before, at offset 4, with"
        " the same bytes"
    )


def test_a_hole_in_the_offsets_is_reported_once_and_not_as_missing_sequences(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path)
    log = written(run(batches=40))
    cluster.write(LINES, log)
    replica = cluster.replica(2, LINES)
    replica.file(replica.segments[1]).unlink()
    (result,) = compare_locally(discover([str(tmp_path)]), None, with_values=False)
    errors = [item.kind for item in result.findings if item.severity is Severity.ERROR]
    assert errors == [Kind.MISSING_RANGE]
