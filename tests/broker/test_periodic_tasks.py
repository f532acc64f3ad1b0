"""Periodic tasks of a broker continue when the disk fails, and account for stalls."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas.periodic_tasks import PeriodicTasks
from minibroker.broker.replication.events import LagChecked, LeaderStalled, ReplicaEvent
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import DiskError
from minibroker.simulation.world.world import SimulatedWorld


@pytest.mark.parametrize("is_async", [True, False])
def test_a_disk_error_in_a_periodic_task_takes_only_the_directory_offline(is_async: bool) -> None:
    world = SimulatedWorld()
    failures: list[DiskError] = []

    def fail() -> None:
        raise DiskError("cannot read a segment")

    async def fail_async() -> None:
        fail()

    manager = SimpleNamespace(disk=SimpleNamespace(failed=failures.append), now_ms=lambda: 0)
    periodic_tasks = PeriodicTasks(cast(Any, manager), cast(Any, None), world.runtime("broker").clock)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            if is_async:
                periodic_tasks._every_async(group, 1_000, fail_async, "failing")
            else:
                periodic_tasks._every(group, 1_000, fail, "failing")
            await asyncio.sleep(2.5)
            for task in world.loop.tasks():
                if task.get_name() == "periodic_task-failing":
                    task.cancel()

    world.run(main(), seconds_max=10)
    assert len(failures) == 2


class OnePartition:
    """PeriodicTasks of a broker that leads one partition with one replica out of sync. The test sets the time."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.events: list[ReplicaEvent] = []
        state = SimpleNamespace(is_leader=True, in_sync_replicas=(1, 2), assignment=(1, 2, 3))
        partition = SimpleNamespace(state=state, handle=self.events.append)
        partitions = {TopicPartition("a", 0): partition}
        manager = SimpleNamespace(partitions=partitions, now_ms=lambda: self.now_ms, observer=UNOBSERVED)
        self.periodic_tasks = PeriodicTasks(
            cast(Any, manager), cast(Any, None), SimulatedWorld().runtime("broker").clock
        )


def test_a_stall_is_noticed_before_lag_is_checked_whichever_timer_fires_first() -> None:
    for look in ("_check_lag", "_retry_expansion"):
        one = OnePartition()
        one.now_ms = 2_100
        getattr(one.periodic_tasks, look)()
        assert one.events == [LeaderStalled(stalled_ms=2_000, now_ms=2_100), LagChecked(now_ms=2_100)], look
        getattr(one.periodic_tasks, look)()
        assert one.events[2:] == [LagChecked(now_ms=2_100)], "one stall is subtracted once"


def test_a_stall_of_less_than_half_a_second_does_not_count_as_lag() -> None:
    one = OnePartition()
    one.now_ms = 533
    one.periodic_tasks._check_lag()
    assert one.events == [LeaderStalled(stalled_ms=433, now_ms=533), LagChecked(now_ms=533)]


def test_a_tick_that_is_late_by_less_than_a_tick_is_no_stall() -> None:
    one = OnePartition()
    one.now_ms = 200
    one.periodic_tasks._check_lag()
    assert one.events == [LagChecked(now_ms=200)]
