"""What a broker does by the clock goes on when the disk does not."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from minibroker.broker.chores import Chores
from minibroker.broker.replication.state import Role
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import DiskError
from minibroker.simulation.world import SimulatedWorld


def test_a_disk_error_during_retention_takes_the_directory_offline_and_not_the_broker_down() -> None:
    world = SimulatedWorld()
    failures: list[DiskError] = []

    def delete_expired_segments(high_watermark: int, now_ms: int) -> int:
        raise DiskError("cannot read a segment")

    log = SimpleNamespace(delete_expired_segments=delete_expired_segments)
    state = SimpleNamespace(role=Role.LEADER, high_watermark=7, log_start_offset=0)
    partition = SimpleNamespace(state=state, log=log, topic_partition=TopicPartition("a", 0))
    manager = SimpleNamespace(partitions={TopicPartition("a", 0): partition}, disk_failed=failures.append)
    chores = Chores(cast(Any, manager), cast(Any, None), world.runtime("broker").clock)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            chores._every(group, 1_000, chores._delete_expired, "retention")
            await asyncio.sleep(2.5)
            for task in world.loop.tasks():
                if task.get_name() == "chore-retention":
                    task.cancel()

    world.run(main(), seconds_max=10)
    assert len(failures) == 2
