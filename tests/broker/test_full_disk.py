"""Up to where a replica on a full disk may delete."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.disk_faults.full_disk import FullDisk, reported_low_watermark
from minibroker.broker.replication.state import Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.wire.messages import ListOffsetsPartitionResponse
from tests.broker.log.machine import PARTITION, Machine, append, drive


@pytest.mark.parametrize(
    ("start", "low_watermark", "error", "expected"),
    [
        (100, 60, ErrorCode.NONE, 60),
        (100, 100, ErrorCode.NONE, 100),
        (100, 101, ErrorCode.NONE, None),
        (100, -1, ErrorCode.NONE, None),
        (100, 60, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
    ],
)
def test_a_low_watermark_above_the_start_in_the_same_answer_is_ignored(
    start: int, low_watermark: int, error: ErrorCode, expected: int | None
) -> None:
    answer = ListOffsetsPartitionResponse(
        partition_index=0, error_code=error, offset=start, low_watermark=low_watermark
    )
    assert reported_low_watermark(answer) == expected


def full_disk_of(broker_id: int, partition: Any, image: Any) -> FullDisk:
    """A broker with one replica, on a full disk."""
    unused = cast(Any, None)
    return FullDisk(
        broker_id=broker_id,
        log_directory=cast(Any, SimpleNamespace(full=True, offline=False)),
        partitions={PARTITION: partition},
        image=image,
        address=unused,
        is_fenced=unused,
        dialer=unused,
    )


@pytest.mark.parametrize(
    ("leader", "isr", "expected"),
    [
        (2, (2, 3), 2),
        (2, (1, 2), 2),
        (1, (1, 2), None),  # the controller does not know yet that this replica is offline
        (1, (1,), None),
        (None, (1,), 1),
        (None, (1, 2), None),
        (None, (2,), None),
    ],
)
def test_a_replica_deletes_as_its_leader_says_and_alone_only_as_the_whole_isr(
    leader: int | None, isr: tuple[int, ...], expected: int | None
) -> None:
    info = SimpleNamespace(leader=leader, isr=isr)
    image = SimpleNamespace(partition=lambda _: info, topic_id=lambda _: "its-id")
    state = SimpleNamespace(role=Role.OFFLINE, damage=None)
    log = SimpleNamespace(topic_id="its-id")
    partition: Any = SimpleNamespace(topic_partition=PARTITION, state=state, log=log)
    full_disk = full_disk_of(1, partition, image)
    assert full_disk._limit_source(partition) == expected
    state.role = Role.FOLLOWER
    assert full_disk._limit_source(partition) is None, "it is not offline"
    state.role, state.damage = Role.OFFLINE, "a bad CRC"
    assert full_disk._limit_source(partition) is None, "its log is damaged"
    state.damage, log.topic_id = None, "an-earlier-id"
    assert full_disk._limit_source(partition) is None, "another topic"


def test_a_log_that_was_cut_below_the_leaders_low_watermark_does_not_start_behind_its_end() -> None:
    """Seed 17500093 with loads: the high watermark is that of before the cut. The broker ended by an assertion."""
    _, log = Machine().open_log()
    append(log, 3)
    end = log.log_end_offset
    state = SimpleNamespace(high_watermark=end + 20, role=Role.OFFLINE, damage=None)
    partition: Any = SimpleNamespace(
        topic_partition=PARTITION, log=log, state=state, report=lambda *_, **__: None, handle=lambda event: None
    )
    full_disk = full_disk_of(1, partition, None)

    drive(full_disk._trim(partition, end + 10, LogStartReason.COPIED))

    assert (log.log_start_offset, log.log_end_offset) == (end, end)


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("source", [1, 2, None])
def test_only_a_full_disk_of_a_broker_with_its_place_in_zookeeper_is_relieved(
    is_full: bool, is_fenced: bool, source: int | None
) -> None:
    _, log = Machine().open_log()
    partition: Any = SimpleNamespace(topic_partition=PARTITION, log=log, state=SimpleNamespace(high_watermark=0))
    full_disk = full_disk_of(1, partition, None)
    done: list[object] = []

    async def note(*what: object) -> None:
        done.append(what[0])

    patched = cast(Any, full_disk)
    patched._directory.full, patched._is_fenced = is_full, lambda: is_fenced
    patched._limit_source, patched._trim, patched._ask = lambda _: source, note, note
    drive(full_disk.relieve(Machine().clock()))
    expected: dict[int | None, list[object]] = {1: [partition], 2: [2], None: []}
    assert done == (expected[source] if is_full and not is_fenced else [])
