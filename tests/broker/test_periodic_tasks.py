"""Periodic tasks of a broker continue when the disk fails, and account for stalls."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.configuration.config import load_config
from minibroker.broker.disk_faults.full_disk import RELIEF_MS
from minibroker.broker.replicas.periodic_tasks import PeriodicTasks
from minibroker.broker.replication.events import LagChecked, LeaderStalled, ReplicaEvent
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors
from minibroker.simulation.world.world import SimulatedWorld
from minibroker.testing import simulated
from tests.broker.log.machine import drive


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


@simulated(brokers=1)
async def test_the_epoch_files_that_an_order_changed_are_synced_soon(c: SimulatedHarness) -> None:
    """Otherwise a power loss takes the leader epoch that this broker has written under."""
    await c.create_topic("lines")
    await asyncio.sleep(10)
    manager, synced = c.simulation.brokers[1].manager, list[bool]()
    sync_metadata = manager.log_directory.sync_metadata
    with pytest.MonkeyPatch.context() as patch:

        async def counted() -> None:
            await sync_metadata()
            synced.append(True)

        patch.setattr(manager.log_directory, "sync_metadata", counted)
        for _ in range(3):
            manager.sync_epoch_files_soon()
        await asyncio.sleep(0.1)
    assert synced == [True]


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


INTERVALS = {
    "replica.fetch.wait.max.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 3_001,
    "log.flush.offset.checkpoint.interval.ms": 3_002,
    "log.retention.check.interval.ms": 3_003,
}


class Planned(PeriodicTasks):
    """Notes what would be done, and how often."""

    def _every(self, group: asyncio.TaskGroup, interval_ms: int, periodic_task: Any, name: str) -> None:
        planned[name] = (periodic_task.__name__, interval_ms)

    _every_async = _every


planned: dict[str, tuple[str, int]] = {}


async def forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("lag_ms", "lag_check_ms"),
    [(3_000, 1_500), (150, 100)],
)
def test_every_task_has_its_interval_and_none_is_idle_work(lag_ms: int, lag_check_ms: int) -> None:
    """A task that is left out is noticed late: its file is old after a power cut, or its memory grows for a week."""
    settings = {**INTERVALS, "replica.lag.time.max.ms": lag_ms}
    given = ["broker.id=1", "log.dirs=/d", "zookeeper.connect=zk:2181", *(f"{n}={v}" for n, v in settings.items())]
    config = load_config(None, given, {})
    world, began = SimulatedWorld(), list[str]()
    manager = SimpleNamespace(now_ms=lambda: 0, config=config, run_epoch_syncing=forever)
    manager.alter_partition = SimpleNamespace(run=forever)
    tasks = Planned(cast(Any, manager), cast(Any, None), world.runtime("broker").clock)
    tasks._scrubber = cast(Any, SimpleNamespace(run=forever))
    tasks._tick = tasks._expire_producers = forever  # type: ignore[method-assign]
    planned.clear()

    async def main() -> None:
        running = asyncio.create_task(tasks.run())
        await asyncio.sleep(0.1)
        began.extend(sorted(each.get_name() for each in world.loop.tasks() if each.get_coro().__name__ == "forever"))  # type: ignore[union-attr]
        running.cancel()

    world.run(main())
    assert began == ["alter-partition", "epochs", "producers", "scrubber", "tick"]
    assert planned == {
        "lag": ("_check_lag", lag_check_ms),
        "expand": ("_retry_expansion", 500),
        "high-watermarks": ("_checkpoint_high_watermarks", 3_001),
        "logs": ("_checkpoint_logs", 3_002),
        "maintain": ("_maintain", 1_000),
        "retention": ("_apply_retention", 3_003),
        "full-disk": ("_relieve_full_disk", RELIEF_MS),
    }


class Directory:
    """A log directory that notes what is asked of it."""

    def __init__(self, *, offline: bool = False, has_healed: bool = False) -> None:
        self.offline, self.has_healed = offline, False
        self._has_healed_after = has_healed
        self.done: list[object] = []

    async def checkpoint_high_watermarks(self, high_watermarks: object) -> None:
        self.done.append(high_watermarks)

    async def checkpoint_recovery_points(self) -> None:
        self.done.append("recovery points")

    async def record_log_starts(self) -> None:
        self.done.append("log starts")

    async def maintain(self, now_ms: int) -> None:
        self.done.append("maintained")
        self.has_healed = self._has_healed_after


class Disk:
    """The replicas on the directory, which go online again once it has healed."""

    def __init__(self, directory: Directory) -> None:
        self._directory = directory

    @property
    def has_healed(self) -> bool:
        return self._directory.has_healed

    def healed(self) -> None:
        self._directory.done.append("healed")

    def offer_those_waiting_for_descriptor(self) -> None:
        self._directory.done.append("offer")

    def offer_those_blocked(self) -> None:
        self._directory.done.append("offer blocked")

    def log_failed(self, *what: object) -> None:
        self._directory.done.append(what)

    def failed(self, error: DiskError) -> None:
        self._directory.done.append(error)


def tasks_of(directory: Directory, **fields: Any) -> PeriodicTasks:
    done = directory.done
    manager = SimpleNamespace(now_ms=lambda: 0, log_directory=directory, partitions={}, **fields)
    manager.high_watermarks = lambda: {"a": 1}
    manager.repairs = SimpleNamespace(finish=lambda: done.append("finish"), go_on=lambda: done.append("go on"))
    manager.log_start_recorder = SimpleNamespace(delete_heads=lambda: done.append("heads"))
    manager.disk = Disk(directory)
    clock = SimpleNamespace(now_ms=lambda: 77)
    return PeriodicTasks(cast(Any, manager), cast(Any, None), cast(Any, clock))


@pytest.mark.parametrize("offline", [False, True])
def test_nothing_is_written_into_a_directory_that_is_offline(offline: bool) -> None:
    directory = Directory(offline=offline)
    tasks = tasks_of(directory)
    drive(tasks._checkpoint_high_watermarks())
    drive(tasks._checkpoint_logs())
    assert directory.done == ([] if offline else [{"a": 1}, "recovery points", "log starts"])


@pytest.mark.parametrize("has_healed", [True, False])
def test_maintenance_does_everything_and_offers_the_replicas_when_there_is_room_again(has_healed: bool) -> None:
    directory = Directory(has_healed=has_healed)
    drive(tasks_of(directory)._maintain())
    healed = ["healed"] if has_healed else []
    assert directory.done == ["finish", "heads", "maintained", *healed, "go on", "offer", "offer blocked"]


@pytest.mark.parametrize("error", [DiskFull("no room for a longer name"), OutOfDescriptors("none left")])
def test_maintenance_goes_on_though_no_segment_can_be_closed_or_taken_out_of_its_log(error: DiskError) -> None:
    """On some file systems a new name needs room. What makes it, the removal of deleted files, came behind that and was
    never reached: the disk stayed full, and its replicas offline, until an operator made room."""
    directory = Directory()
    tasks = tasks_of(directory)

    def fail(*_: object) -> None:
        raise error

    tasks._manager.log_start_recorder = cast(Any, SimpleNamespace(delete_heads=fail))
    drive(tasks._maintain())
    rest = ["maintained", "go on", "offer", "offer blocked"]
    assert directory.done == ["finish", error, *rest]
    directory.done.clear()
    tasks._manager.partitions = cast(Any, {0: SimpleNamespace(log=SimpleNamespace(roll_if_aged=fail))})
    drive(tasks._maintain())
    assert directory.done == [error, *rest]


def test_maintenance_looks_at_the_age_of_every_segment_though_one_log_fails() -> None:
    directory, error = Directory(), BadEntry("it is a directory")
    rolled: list[int] = []

    def fail(_: int) -> None:
        raise error

    failing = SimpleNamespace(log=SimpleNamespace(roll_if_aged=fail))
    others = [SimpleNamespace(log=SimpleNamespace(roll_if_aged=rolled.append)) for _ in range(2)]
    tasks = tasks_of(directory)
    tasks._manager.partitions = cast(Any, {0: others[0], 1: failing, 2: others[1]})
    drive(tasks._maintain())
    assert rolled == [77, 77]
    assert directory.done[0] == (failing, error)


@pytest.mark.parametrize(
    ("first_ms", "changed_ms", "expired_at"),
    [
        (2_000, 2_000, [1.001, 2.002, 3.003]),
        (86_400_000, 2_000, [3.0]),
        (2_000, 86_400_000, [1.001, 2.002]),
        (1_199_998, 1_199_998, []),
        (1, 1, [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]),  # any client may set this, and all logs are looked at each time
    ],
)
def test_producers_of_every_log_expire_as_often_as_the_present_setting_says(
    first_ms: int, changed_ms: int, expired_at: list[float]
) -> None:
    """The setting changes after 2.5 of 3.5 seconds: once, a broker went on for ten minutes as it had begun."""
    tasks, world = tasks_of(Directory()), SimulatedWorld()
    expired: list[float] = []

    def expire(now_ms: int) -> None:
        assert now_ms == 77
        expired.append(round(world.loop.elapsed, 3))

    replica = SimpleNamespace(log=SimpleNamespace(expire_producers=expire))
    tasks._manager.partitions = cast(Any, {0: replica, 1: replica})
    tasks._manager.config = cast(Any, SimpleNamespace(producer_id_expiration_ms=first_ms))

    async def main() -> None:
        running = asyncio.create_task(tasks._expire_producers())
        await asyncio.sleep(2.5)
        tasks._manager.config = cast(Any, SimpleNamespace(producer_id_expiration_ms=changed_ms))
        await asyncio.sleep(1.0)
        running.cancel()

    world.run(main())
    assert expired[::2] == expired[1::2] == expired_at


def test_producers_expire_every_ten_minutes_though_they_are_remembered_for_a_day() -> None:
    tasks, world = tasks_of(Directory()), SimulatedWorld()
    expired: list[float] = []
    replica = SimpleNamespace(log=SimpleNamespace(expire_producers=lambda now_ms: expired.append(world.loop.elapsed)))
    tasks._manager.partitions = cast(Any, {0: replica})
    tasks._manager.config = cast(Any, SimpleNamespace(producer_id_expiration_ms=86_400_000))

    async def main() -> None:
        running = asyncio.create_task(tasks._expire_producers())
        await asyncio.sleep(1_250)
        running.cancel()

    world.run(main(), seconds_max=2_000)
    assert [round(at) for at in expired] == [600, 1200]
