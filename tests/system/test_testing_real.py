"""`cluster(real=True)`: the same calls as in a simulation, on processes; proxies make the network's faults."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.testing import TestedCluster, cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(100)]


async def until_dropped(c: TestedCluster, broker_id: int) -> None:
    async with asyncio.timeout(30):
        while broker_id in await c.in_sync_replicas("orders"):
            await asyncio.sleep(0.1)


async def test_the_same_calls_break_and_heal_a_real_cluster() -> None:
    async with cluster(brokers=3, real=True, settings={"replica.lag.time.max.ms": "2000"}) as c:
        await c.create_topic("orders")
        acked = []
        async with c.producer() as producer:
            for number in range(5):
                acked.append((await producer.send_and_wait("orders", b"%d" % number), b"%d" % number))
            leader = await c.wait_for_leader("orders")
            controller = await c.controller()
            cut_off = next(broker for broker in c.broker_ids if broker not in (leader, controller))
            await c.partition(cut_off, [broker for broker in c.broker_ids if broker != cut_off])
            acked.append((await producer.send_and_wait("orders", b"while one is cut off"), b"while one is cut off"))
            await until_dropped(c, cut_off)
            await c.heal()
            await c.wait_in_sync("orders")
            await c.isolate(leader, zookeeper=True)
            assert await c.wait_for_leader("orders", other_than=leader) != leader
            acked.append((await producer.send_and_wait("orders", b"after the election"), b"after the election"))
            await c.heal()
            await c.wait_in_sync("orders")
        assert [metadata.offset for metadata, _ in acked] == list(range(7))
        assert (await c.audit(acked)).success
        description = c.describe()
    assert description[0].startswith("minibroker: real processes, brokers 1 running, 2 running, 3 running")
