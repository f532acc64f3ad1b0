"""Which leader a replica is copied from: its own leader's fetcher, and no other."""

import asyncio

from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.ids import TopicPartition
from minibroker.testing import simulated

PARTITIONS = [TopicPartition("lines", number) for number in range(6)]


def copied(c: SimulatedHarness, broker_id: int) -> dict[TopicPartition, list[int]]:
    """The leaders whose fetchers have each partition."""
    fetchers = c.simulation.brokers[broker_id].manager._fetchers
    return {
        name: [leader for leader, fetcher in sorted(fetchers.items()) if name in fetcher.partitions]
        for name in PARTITIONS
    }


@simulated(brokers=3)
async def test_a_replica_is_copied_from_its_leader_only_also_after_elections(c: SimulatedHarness) -> None:
    """A fetcher that went on would refuse, and be sent, every record of the former leader."""
    await c.create_topic("lines", partitions=len(PARTITIONS))
    for victim in (1, 2, 3):
        await c.kill(victim)
        await asyncio.sleep(2)
        await c.start(victim)
        await c.wait_in_sync()
        leaders = {name: await c.leader(name.topic, name.partition) for name in PARTITIONS}
        for broker_id in c.broker_ids:
            assert copied(c, broker_id) == {
                name: [] if leader == broker_id else [leader] for name, leader in leaders.items()
            }
