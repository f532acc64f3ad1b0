"""The audit on logs that the broker's own log code wrote: the two share only the formats, and agree."""

import random
from pathlib import Path

import pytest

from minibroker.audit.checks.expectation import SourcedState
from minibroker.audit.checks.findings import Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.cluster_state import VERSION, ClusterState, PartitionSnapshot
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.disk import RealDisk
from tests.broker.log.machine import SMALL, append, truncate

LINES = TopicPartition("lines", 0)


async def open_directory(root: Path, broker: int) -> LogDirectory:
    disk, clock = RealDisk(), RealClock()
    path = str(root / f"broker-{broker}")
    return await LogDirectory.open(disk, clock, path, broker, "cluster", SMALL, rng=random.Random(broker))


async def write(root: Path, broker: int, clean: bool = True, trim_to: int | None = None) -> None:
    """The same history on every broker: three epochs, a divergent tail that was truncated, several segments."""
    directory = await open_directory(root, broker)
    log = directory.create_log(LINES, "topic-id", SMALL)
    append(log, 7, timestamp_ms=5_000)
    append(log, 5, epoch=broker + 5)
    truncate(log, 14)
    append(log, 9, epoch=12, timestamp_ms=9_000)
    append(log, 9, epoch=13)
    if trim_to is not None:
        await trim(log, trim_to)
    await directory.checkpoint_high_watermarks({LINES: log.log_end_offset})
    await directory.close(clean, {LINES: log.log_end_offset}, broker_epoch=3)


async def trim(log: PartitionLog, offset: int) -> None:
    log.trim_before(offset)
    await log.record_start()
    start = delete_head(log, offset)
    entries = log.epoch_entries()
    kept = [
        entry
        for number, entry in enumerate(entries)
        if entries[number + 1 :][:1] == [] or entries[number + 1][1] > start
    ]
    log.write_epoch_entries([(kept[0][0], max(start, kept[0][1])), *kept[1:]])


def audited_partition(root: Path) -> PartitionResult:
    (result,) = compare_locally(discover([str(root)]), None, with_values=True)
    return result


async def test_cleanly_stopped_logs_are_identical_without_a_note(tmp_path: Path) -> None:
    for broker in (1, 2, 3):
        await write(tmp_path, broker)
    result = audited_partition(tmp_path)
    assert result.findings == ()
    assert (result.verdict, result.compared_offsets, result.total_offsets) == (PartitionVerdict.IDENTICAL, 50, 50)
    assert len(list((tmp_path / "broker-1" / "lines-0").glob("*.index"))) > 1, "there was something to check"


async def test_killed_brokers_logs_are_identical_without_errors(tmp_path: Path) -> None:
    for broker in (1, 2, 3):
        await write(tmp_path, broker, clean=False)
    result = audited_partition(tmp_path)
    assert [item for item in result.findings if item.severity is Severity.ERROR] == []
    assert (result.verdict, result.compared_offsets) == (PartitionVerdict.IDENTICAL, 50)


async def test_a_trimmed_replica_differs_only_in_its_start(tmp_path: Path) -> None:
    await write(tmp_path, 1)
    await write(tmp_path, 2, trim_to=17)
    result = audited_partition(tmp_path)
    assert [(item.kind, item.broker) for item in result.findings] == [(Kind.LOG_START_DIFFERS, 2)]
    assert result.compared_offsets == 50 - 17


@pytest.mark.parametrize("times", [1, 2])
async def test_logs_that_were_opened_again_are_still_identical(tmp_path: Path, times: int) -> None:
    for broker in (1, 2):
        await write(tmp_path, broker, clean=broker == 1)
        for _ in range(times):
            directory = await open_directory(tmp_path, broker)
            await directory.close(True, {LINES: 50}, broker_epoch=4)
    assert audited_partition(tmp_path).findings == ()


@pytest.mark.parametrize(
    ("isr_before", "is_sound"), [((1, 2), True), ((1, 2, 3), False), ((), False)], ids=["out", "in", "unknown"]
)
async def test_a_log_that_was_offline_from_a_kill_to_a_clean_stop_is_sound_if_it_was_out_of_sync(
    tmp_path: Path, isr_before: tuple[int, ...], is_sound: bool
) -> None:
    """Killed before its first high watermark was written, then offline (on a full disk, for example) until its broker
    was stopped cleanly: a broker writes no high watermark of an offline replica. The audit called that damage."""
    await write(tmp_path, 1)
    await write(tmp_path, 2)
    directory = await open_directory(tmp_path, 3)
    append(directory.create_log(LINES, "topic-id", SMALL), 7, timestamp_ms=5_000)
    await directory.close(False, {})
    directory = await open_directory(tmp_path, 3)
    await directory.close(True, {}, broker_epoch=4)
    snapshot = PartitionSnapshot(
        leader=1, leader_epoch=13, isr=(1,), isr_before=isr_before, replicas=(1, 2, 3), topic_id="topic-id"
    )
    state = ClusterState(version=VERSION, partitions={"lines-0": snapshot})
    inventory = discover([str(tmp_path)], [SourcedState(source="state", state=state)])
    (result,) = compare_locally(inventory, None, with_values=True)
    damage = [item for item in result.findings if item.kind is Kind.CHECKPOINT_DAMAGE]
    assert [(item.broker, item.severity is Severity.NOTE) for item in damage] == [(3, is_sound)]
    assert (result.verdict is PartitionVerdict.LAGGING) is is_sound
