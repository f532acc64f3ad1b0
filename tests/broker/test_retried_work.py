"""Work that waits for a signal, and is tried again when its failure passes: nothing else would begin it."""

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.configuration import dynamic_config
from minibroker.broker.configuration.dynamic_config import DynamicConfig
from minibroker.broker.disk_faults.disk_errors import DESCRIPTOR_RETRY_MS
from minibroker.broker.membership import registration
from minibroker.broker.membership.cluster_secret import SharedSecret
from minibroker.broker.membership.registration import Registration
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.protocol.events.broker_events import RegistrationAwaited, SessionChanged
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import CoordinationUnavailable, DiskError, OutOfDescriptors, SessionEvent
from minibroker.simulation.world.world import SimulatedWorld


class Work:
    """A step that fails as a test says, one error a time, and the times at which it was tried."""

    def __init__(self, world: SimulatedWorld, *errors: Exception) -> None:
        self.tried_at: list[float] = []
        self._world, self._errors = world, list(errors)

    async def __call__(self) -> None:
        self.tried_at.append(round(self._world.loop.time(), 3))
        if self._errors:
            raise self._errors.pop(0)


def tried(
    errors: list[Exception], run: Callable[[Work, asyncio.Event], Coroutine[Any, Any, None]], signals: int = 1
) -> list[float]:
    """Seconds from the start to each try, when a signal comes at 0 s, 100 s and so on."""
    world = SimulatedWorld()
    work = Work(world, *errors)

    async def main() -> list[float]:
        began, signal = world.loop.time(), asyncio.Event()
        task = asyncio.create_task(run(work, signal))
        await asyncio.sleep(0)
        for _ in range(signals):
            signal.set()
            await asyncio.sleep(100)
        task.cancel()
        return [round(at - began, 3) for at in work.tried_at]

    return world.run(main())


def registering(work: Work, signal: asyncio.Event) -> Coroutine[Any, Any, None]:
    loop = asyncio.get_running_loop()
    kept: Any = SimpleNamespace(_attention=signal, _ensure_registered=work, _loop=loop)
    kept._check_deadline = lambda _: setattr(kept, "_deadline_timer", SimpleNamespace(cancel=lambda: None))
    return Registration.run(kept)


def reading_settings(work: Work, signal: asyncio.Event) -> Coroutine[Any, Any, None]:
    return DynamicConfig.run(cast(Any, SimpleNamespace(_attention=signal, _read=work)))


def agreeing(work: Work, signal: asyncio.Event) -> Coroutine[Any, Any, None]:
    return SharedSecret.run(cast(Any, SimpleNamespace(_attention=signal, agree=work)))


@pytest.mark.parametrize(
    ("run", "pause"),
    [
        (registering, registration.RETRY_SECONDS),
        (reading_settings, dynamic_config.RETRY_SECONDS),
        (agreeing, registration.RETRY_SECONDS),
    ],
    ids=["registration", "settings", "secret"],
)
def test_what_zookeeper_did_not_answer_is_asked_again_until_it_does(
    run: Callable[[Work, asyncio.Event], Coroutine[Any, Any, None]], pause: float
) -> None:
    assert tried([CoordinationUnavailable("cut")] * 2, run) == [0, pause, 2 * pause]
    assert tried([], run, signals=2) == [0, 100], "once a signal"


@pytest.mark.parametrize(
    ("kind", "is_read"), [("suspended", False), ("connected", True), ("expired", True), ("new-session", True)]
)
def test_settings_are_read_again_after_each_outage(kind: Any, is_read: bool) -> None:
    """A watch may have been lost with the session."""
    attention = asyncio.Event()
    DynamicConfig._on_session_event(
        cast(Any, SimpleNamespace(_attention=attention)), SessionEvent(kind=kind, session_id=1)
    )
    assert attention.is_set() == is_read


@pytest.mark.parametrize(
    ("kind", "is_over", "is_read"),
    [("suspended", False, False), ("connected", False, True), ("expired", True, True), ("new-session", True, True)],
)
def test_a_registration_ends_with_its_session_and_is_looked_at_after_each_outage(
    kind: str, is_over: bool, is_read: bool
) -> None:
    attention, ended, events = asyncio.Event(), list[str](), list[object]()
    kept = SimpleNamespace(_attention=attention, _end_broker_epoch=ended.append, _observer=Observers(events.append))
    Registration._on_session_event(cast(Any, kept), SessionEvent(kind=kind, session_id=1))
    assert (bool(ended), attention.is_set()) == (is_over, is_read)
    assert events == [SessionChanged(state=kind)]


@pytest.mark.parametrize("last", [None, ("ours", None)])
def test_the_node_of_another_broker_is_read_when_it_changed_and_not_all_the_time(last: tuple[str, None] | None) -> None:
    """Until its session is over, which may take a minute."""
    world, reads, events = SimulatedWorld(), list[int](), list[object]()
    signal = asyncio.Event()
    found: list[tuple[str, None] | None] = [("theirs", None), ("theirs", None), last]

    async def read() -> tuple[str, None] | None:
        reads.append(len(reads))
        return found.pop(0)

    kept = SimpleNamespace(_attention=signal, _read_node=read, _may_replace=lambda node: node == "ours")
    kept.identity, kept._observer = SimpleNamespace(broker_id=1), Observers(events.append)
    kept._coordination = SimpleNamespace(negotiated_timeout_ms=100_000)

    async def main() -> None:
        waiting = asyncio.create_task(Registration._wait_until_gone(cast(Any, kept), None))
        for expected in (0, 1, 2):
            await asyncio.sleep(10)
            assert len(reads) == expected
            signal.set()
        await waiting

    world.run(main())
    assert len(reads) == 3
    (awaited,) = events
    assert awaited == RegistrationAwaited(broker=1, seconds=100 * registration.FOREIGN_NODE_SESSIONS)


class Syncing:
    """A broker whose epoch files are synced when it is asked to."""

    def __init__(self, *, offline: bool) -> None:
        self.offline, self.failed = offline, list[DiskError]()

    def __call__(self, work: Work, signal: asyncio.Event) -> Coroutine[Any, Any, None]:
        directory = SimpleNamespace(offline=self.offline, sync_metadata=work)
        disk = SimpleNamespace(failed=self.failed.append)
        manager = SimpleNamespace(_epochs_to_sync=signal, log_directory=directory, disk=disk)
        return ReplicaManager.run_epoch_syncing(cast(Any, manager))


def test_epoch_files_are_synced_each_time_they_changed() -> None:
    """After a power cut a replica would otherwise not know which leader wrote its records."""
    assert tried([], Syncing(offline=False), signals=3) == [0, 100, 200]
    assert tried([], Syncing(offline=True), signals=3) == []


def test_a_sync_of_epoch_files_that_failed_is_repeated_or_a_failure_of_the_disk() -> None:
    pause, error = DESCRIPTOR_RETRY_MS / 1000, DiskError("smoke")
    syncing = Syncing(offline=False)
    assert tried([OutOfDescriptors("none left")] * 2, syncing) == [0, pause, 2 * pause]
    assert syncing.failed == []
    assert tried([error], syncing, signals=2) == [0, 100]
    assert syncing.failed == [error]


def test_a_log_is_synced_again_after_a_pause_until_there_is_a_descriptor() -> None:
    pause = DESCRIPTOR_RETRY_MS / 1000

    async def syncing(work: Work, _: asyncio.Event) -> None:
        partition = SimpleNamespace(log=SimpleNamespace(flush=work))
        await ReplicaManager._flushed(cast(Any, None), cast(Any, partition))

    assert tried([OutOfDescriptors("none left")] * 2, syncing) == [0, pause, 2 * pause]
