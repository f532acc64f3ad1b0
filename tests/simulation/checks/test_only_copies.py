"""The only copy in an ISR below its minimum must be synced soon (hardening rule 4): the checker, on one such leader."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.replication.in_sync import SETTLED_SECONDS, InSyncRules

HANG_SECONDS = 4.0
SAMPLE_SECONDS = 0.05


class Case:
    """Broker 1 leads alone, and has not synced its only record."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.storage = SimpleNamespace(hangs_for=0.0, faults=[])
        self._loop = SimpleNamespace(elapsed=0.0)
        world = SimpleNamespace(
            loop=self._loop,
            process=lambda name: SimpleNamespace(runs=True, paused=False),
            machine=lambda name: SimpleNamespace(storage=self.storage),
            world_observers=SimpleNamespace(subscribe=lambda *handler: None),
            zookeeper=SimpleNamespace(tree=SimpleNamespace(nodes={})),
        )
        replica = SimpleNamespace(
            state=SimpleNamespace(is_leader=True, leader_epoch=0, high_watermark=1),
            log=SimpleNamespace(recovery_point=0),
        )
        actual = SimpleNamespace(
            partition=TopicPartition("a", 0), members=(1,), min_isr=2, replication_factor=3, leader=1
        )
        actual.leader_epoch, actual.since = 0, 0.0
        cluster = SimpleNamespace(world=world, alive=lambda: [1], replica=lambda *asked: replica)
        reference = SimpleNamespace(
            states=lambda: [actual], find=lambda invariant, *facts: self.found.append(invariant)
        )
        self._rules = InSyncRules(*cast(Any, (cluster, reference)))

    def pass_time(self, seconds: float) -> None:
        end = self._loop.elapsed + seconds
        while self._loop.elapsed < end and not self.found:
            self._loop.elapsed += SAMPLE_SECONDS
            self.storage.hangs_for = max(0.0, self.storage.hangs_for - SAMPLE_SECONDS)
            self._rules.sample()


def test_a_leader_that_runs_must_have_synced_soon() -> None:
    case = Case()
    case.pass_time(SETTLED_SECONDS - 1)
    assert case.found == []
    case.pass_time(2)
    assert case.found == ["H14"]


@pytest.mark.parametrize("is_healed", [False, True])
def test_an_fsync_on_a_hanging_disk_takes_as_long_as_the_hang_was_to_last(is_healed: bool) -> None:
    """Also if the disk is healed meanwhile: it waits in the background already."""
    case = Case()
    case.storage.hangs_for = HANG_SECONDS
    case.pass_time(0.5)
    if is_healed:
        case.storage.hangs_for = 0.0
    case.pass_time(HANG_SECONDS + SETTLED_SECONDS - 1)
    assert case.found == []
    case.pass_time(2)
    assert case.found == ["H14"]


def test_an_fsync_that_found_no_descriptor_is_repeated_after_the_fault() -> None:
    case = Case()
    case.storage.faults.append("no descriptor")
    case.pass_time(SETTLED_SECONDS + 1)
    case.storage.faults.clear()
    case.pass_time(SETTLED_SECONDS - 1)
    assert case.found == []
    case.pass_time(2)
    assert case.found == ["H14"]
