"""Appends that come while their log is synced share the next sync."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication.events import Synced
from minibroker.broker.replication.state import Role


async def test_any_number_of_appends_during_a_sync_cost_one_more_sync() -> None:
    synced: list[int] = []
    flushes: list[asyncio.Future[int]] = []
    tasks: list[asyncio.Task[None]] = []

    class Leader:
        topic_partition = "t-0"
        state = SimpleNamespace(role=Role.LEADER)

        def handle(self, event: Synced) -> None:
            synced.append(event.end_offset)

    partition = cast(Any, Leader())

    async def flushed(_: object) -> int:
        flushes.append(asyncio.get_running_loop().create_future())
        return await flushes[-1]

    manager: Any = SimpleNamespace(
        _syncing={},
        _tasks=SimpleNamespace(own=lambda work, name: tasks.append(asyncio.create_task(work))),
        _flushed=flushed,
        partitions={"t-0": partition},
        now_ms=lambda: 0,
    )
    manager._sync = lambda each: ReplicaManager._sync(manager, each)

    ReplicaManager.sync(manager, partition)
    await asyncio.sleep(0)
    for _ in range(5):
        ReplicaManager.sync(manager, partition)
    flushes[0].set_result(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (len(tasks), len(flushes), synced) == (1, 2, [1])
    flushes[1].set_result(6)
    await tasks[0]
    assert (len(flushes), synced) == (2, [1, 6]), "nothing was appended since"
    ReplicaManager.sync(manager, partition)
    await asyncio.sleep(0)
    assert len(flushes) == 3
    tasks[1].cancel()
