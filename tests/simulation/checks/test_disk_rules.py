"""Forgotten high watermarks and appends after an IO error are found; what may happen is not."""

import contextlib
from collections.abc import Sequence
from typing import cast

import pytest

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import format_offset_checkpoint
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader, build_batch, read_header
from minibroker.runtime.ports import DiskError, DiskFull
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.disks.audited_disks import LOG_DIRECTORY
from minibroker.simulation.checks.disks.disk_rules import HIGH_WATERMARKS_PATH, DiskRuleChecker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.storage import FileNode, SimulatedStorage

A, B = TopicPartition("a", 0), TopicPartition("b", 0)
SEGMENT = f"{LOG_DIRECTORY}/a-0/00000000000000000000.log"


class Log:
    """The part of a log that the rules read."""

    topic_partition = A


class Case:
    """One broker's disk, with a promised topic `a` and a topic `b` that is not promised."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(0, brokers=1)
        self.reference = ReferenceState(self.cluster, {"a": (1, 1, 1)})
        self.rules = DiskRuleChecker(self.cluster, self.reference)
        self.checking = contextlib.ExitStack()
        self.checking.enter_context(checking(self.cluster, self.reference, self.rules))
        for name in ("a-0", "b-0"):
            self.storage.provision(f"{LOG_DIRECTORY}/{name}/x")

    @property
    def storage(self) -> SimulatedStorage:
        return self.cluster.world.machine("broker-1").storage

    def checkpoint(self, high_watermarks: dict[TopicPartition, int]) -> None:
        directory, name = self.storage.parent_of(HIGH_WATERMARKS_PATH)
        node = directory.entries[name] = FileNode()
        node.content[:] = format_offset_checkpoint(high_watermarks)
        self.rules.sample()

    def append(self, batches: Sequence[BatchHeader]) -> None:
        """Inside the broker's process."""
        process = self.cluster.world.process("broker-1")
        process.context.run(self.rules.appended, cast(PartitionLog, Log()), batches)

    def fail_append(self) -> None:
        process = self.cluster.world.process("broker-1")
        with pytest.raises(DiskError):
            process.context.run(self.storage.check_fault, "append", SEGMENT)

    @property
    def found(self) -> list[str]:
        return [finding.invariant for finding in self.reference.findings]


def one_batch() -> list[BatchHeader]:
    return [read_header(build_batch([(None, b"value", 0, ())]))]


@pytest.mark.invariant("I11")
def test_a_high_watermark_that_vanishes_from_the_checkpoint_is_found() -> None:
    case = Case()
    case.checkpoint({A: 5, B: 3})
    case.checkpoint({B: 3})
    assert case.found == ["I11"]


def test_a_topic_without_promise_and_a_replaced_disk_may_lose_high_watermarks() -> None:
    case = Case()
    case.checkpoint({A: 5, B: 3})
    case.checkpoint({A: 6})
    case.storage.wipe()
    case.storage.provision(f"{LOG_DIRECTORY}/a-0/x")
    case.checkpoint({})
    assert case.found == []


@pytest.mark.invariant("I15")
def test_an_append_after_an_io_error_of_the_same_process_is_found() -> None:
    case = Case()
    case.storage.fail("append", SEGMENT, times=1)
    case.append(one_batch())
    assert case.found == []
    case.fail_append()
    case.append(one_batch())
    assert case.found == ["I15"]


def test_a_full_disk_and_an_earlier_process_are_no_io_error() -> None:
    case = Case()
    case.storage.fail("append", SEGMENT, times=1, is_full=True)
    process = case.cluster.world.process("broker-1")
    with pytest.raises(DiskFull):
        process.context.run(case.storage.check_fault, "append", SEGMENT)
    case.append(one_batch())
    case.storage.fail("append", SEGMENT, times=1)
    case.fail_append()
    case.cluster.world.kill("broker-1")
    case.append(one_batch())
    assert case.found == []


def test_a_high_watermark_is_gone_with_its_directory() -> None:
    case = Case()
    case.checkpoint({A: 5, B: 3})
    log_directory = case.storage.find_directory(LOG_DIRECTORY)
    del log_directory.entries["a-0"]
    case.storage.provision(f"{LOG_DIRECTORY}/a-0/x")
    case.checkpoint({B: 3})
    assert case.found == []


def test_a_checkpoint_lost_by_a_faulty_disk_is_recreated_empty() -> None:
    case = Case()
    case.checkpoint({A: 5, B: 3})
    case.reference.faulty.add(1)
    del case.storage.find_directory(LOG_DIRECTORY).entries[HIGH_WATERMARKS_PATH.rpartition("/")[2]]
    case.rules.sample()
    case.reference.faulty.clear()
    case.checkpoint({})
    assert case.found == []
