"""A snapshot of a broker's producers matches the log, or gives a finding."""

import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from minibroker.audit.checks.findings import Finding, Kind, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reading.producer_snapshots import FILE_BYTES_MAX
from minibroker.broker.replication.producer_state import SNAPSHOT_BYTES_MAX, ProducerStates, SnapshotPlace
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.checkpoints import CLEAN_SHUTDOWN, SNAPSHOT_SUFFIX
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from tests.audit.planted_cluster import TOPIC_ID, PlantedCluster
from tests.audit.test_sequences import Sent, run, written

LINES = TopicPartition("lines", 0)
LOG = written([sent for pair in zip(run(7), run(8), strict=True) for sent in pair])
END = 24


def states(batches: list[bytes]) -> ProducerStates:
    found = ProducerStates()
    for batch in batches:
        found.update(read_header(batch), 5)
    return found


def below(offset: int) -> list[bytes]:
    return [batch for batch in LOG if read_header(batch).end_offset <= offset]


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, LOG)
    for broker in (1, 2, 3):
        for offset in (8, END):
            put(cluster, offset, states(below(offset)).snapshot(SnapshotPlace(TOPIC_ID, 0, offset)), broker)
    return cluster


def put(cluster: PlantedCluster, offset: int, content: bytes, broker: int = 2) -> None:
    cluster.replica(broker, LINES).file(offset, SNAPSHOT_SUFFIX).write_bytes(content)


def sealed(content: tuple[object, ...]) -> bytes:
    body = msgspec.msgpack.encode(content)
    return struct.pack(">I", crc32c(body)) + body


def findings(cluster: PlantedCluster) -> tuple[Finding, ...]:
    (result,) = compare_locally(discover([str(cluster.root)]), None, with_values=False)
    return result.findings


def test_the_snapshots_of_a_log_are_clean(cluster: PlantedCluster) -> None:
    assert findings(cluster) == ()


def test_a_forgotten_producer_may_be_absent(cluster: PlantedCluster) -> None:
    put(cluster, 8, states(below(8)[::2]).snapshot(SnapshotPlace(TOPIC_ID, 0, 8)))
    assert findings(cluster) == ()


def test_producers_may_be_missing(cluster: PlantedCluster) -> None:
    """Those in front of the log's first batch, where a snapshot was lost."""
    incomplete = ProducerStates(is_incomplete=True)
    put(cluster, 8, incomplete.snapshot(SnapshotPlace(TOPIC_ID, 0, 8)))
    assert findings(cluster) == ()


def test_batches_of_a_deleted_head_are_not_looked_for(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, written(run(start=12), base_offset=12), base_offset=12)
    remembered = [*written(run()), *written(run(start=12), base_offset=12)[:2]]
    put(cluster, 16, states(remembered).snapshot(SnapshotPlace(TOPIC_ID, 0, 16)))
    assert findings(cluster) == ()


def test_batches_behind_a_deleted_head_are_looked_for(tmp_path: Path) -> None:
    """Those of the head excuse none of the same producer that should be there."""
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, written(run(start=12), base_offset=12), base_offset=12)
    remembered = [*written(run()), *written([Sent(7, 0, 12, text="other")], base_offset=12)]
    put(cluster, 14, states(remembered).snapshot(SnapshotPlace(TOPIC_ID, 0, 14)))
    (found,) = findings(cluster)
    assert (found.kind, found.severity) == (Kind.PRODUCER_SNAPSHOT, Severity.ERROR)
    assert "remembers a batch of producer 7, epoch 0, sequences 12 to 13, at offset 12" in found.message


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def older(content: bytes) -> bytes:
    return states(below(4)).snapshot(SnapshotPlace(TOPIC_ID, 0, 8))


def of_another_log(content: bytes) -> bytes:
    return states(written([Sent(7, 0, 0), Sent(8, 0, 0), Sent(7, 0, 2), Sent(8, 0, 2, text="other")])).snapshot(
        SnapshotPlace(TOPIC_ID, 0, 8)
    )


WRONG: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "of_another_offset": (lambda content: states(below(8)).snapshot(SnapshotPlace(TOPIC_ID, 0, 4)), "at offset 4"),
    "of_another_partition": (lambda content: states(below(8)).snapshot(SnapshotPlace(TOPIC_ID, 3, 8)), "partition 3"),
    "of_another_epoch": (
        lambda content: states(below(8)).snapshot(SnapshotPlace(TOPIC_ID, 0, 8, 3)),
        "whose last batch there has leader epoch 3; this one's has 0",
    ),
    "of_another_topic": (lambda content: states(below(8)).snapshot(SnapshotPlace("other", 0, 8)), "topic id other"),
    "an_older_one": (older, "knows producer 7 up to offset 1 only"),
    "of_another_log": (of_another_log, "remembers a batch of producer 8, epoch 0, sequences 2 to 3, at offset 6"),
    "one_that_knows_more": (
        lambda content: states(below(12)).snapshot(SnapshotPlace(TOPIC_ID, 0, 8)),
        "remembers a batch of producer 7, epoch 0, sequences 4 to 5, at offset 8",
    ),
}


@pytest.mark.parametrize(("change", "expected"), WRONG.values(), ids=WRONG)
def test_an_error_in_a_snapshot_is_described(
    cluster: PlantedCluster, change: Callable[[bytes], bytes], expected: str
) -> None:
    file = cluster.replica(2, LINES).file(8, SNAPSHOT_SUFFIX)
    put(cluster, 8, change(file.read_bytes()))
    found = findings(cluster)
    assert {(item.kind, item.severity, item.broker, item.file) for item in found} == {
        (Kind.PRODUCER_SNAPSHOT, Severity.ERROR, 2, str(file))
    }
    assert expected in found[0].message


@pytest.mark.parametrize("content", [b"", b"torn", flipped(states(below(8)).snapshot(SnapshotPlace(TOPIC_ID, 0, 8)))])
def test_an_unreadable_snapshot_is_a_note_because_a_power_cut_may_leave_it(
    cluster: PlantedCluster, content: bytes
) -> None:
    put(cluster, 8, content)
    (found,) = findings(cluster)
    assert (found.kind, found.message) == (
        Kind.PRODUCER_SNAPSHOT_UNUSED,
        "its CRC does not match; brokers skip it",
    )


def test_a_snapshot_without_a_place_is_a_note(cluster: PlantedCluster) -> None:
    """It is the form that is sent to another broker, not the one stored on disk."""
    put(cluster, 8, states(below(8)).snapshot())
    (found,) = findings(cluster)
    assert found.kind is Kind.PRODUCER_SNAPSHOT_UNUSED and "does not decode" in found.message


def test_a_snapshot_behind_the_end_is_a_note_after_a_crash(cluster: PlantedCluster) -> None:
    (cluster.log_directory(2) / CLEAN_SHUTDOWN).unlink()
    put(cluster, 40, states(LOG).snapshot(SnapshotPlace(TOPIC_ID, 0, 40)))
    assert {item.kind for item in findings(cluster)} == {Kind.PRODUCER_SNAPSHOT_UNUSED}


def test_a_snapshot_of_the_first_version_is_a_note(cluster: PlantedCluster) -> None:
    put(cluster, 8, sealed((1, [])))
    assert {item.kind for item in findings(cluster)} == {Kind.PRODUCER_SNAPSHOT_UNUSED}


@pytest.mark.parametrize(
    "content", [(2, (TOPIC_ID, 0, 8), []), (3, (TOPIC_ID, 0, 8, -1), []), (3, (TOPIC_ID, 0, 8, 0), [])]
)
def test_a_snapshot_need_not_name_its_leader_epoch(cluster: PlantedCluster, content: tuple[object, ...]) -> None:
    """Version 2 had none, and a broker may not know it. Brokers use them."""
    put(cluster, 8, sealed(content))
    assert findings(cluster) == ()


def test_a_snapshot_behind_the_end_of_a_cleanly_stopped_log_is_an_error(cluster: PlantedCluster) -> None:
    put(cluster, 40, states(LOG).snapshot(SnapshotPlace(TOPIC_ID, 0, 40)))
    (found,) = findings(cluster)
    assert (found.kind, found.offset) == (Kind.PRODUCER_SNAPSHOT, 40)


def test_a_pipe_in_place_of_a_snapshot_does_not_block(cluster: PlantedCluster) -> None:
    import os

    file = cluster.replica(2, LINES).file(8, SNAPSHOT_SUFFIX)
    file.unlink()
    os.mkfifo(file)
    (found,) = findings(cluster)
    assert (found.kind, found.message) == (
        Kind.PRODUCER_SNAPSHOT,
        "cannot be read: it is a named pipe (FIFO), not a regular file; brokers skip it",
    )


def test_the_largest_snapshot_that_a_broker_writes_is_read() -> None:
    assert SNAPSHOT_BYTES_MAX < FILE_BYTES_MAX
