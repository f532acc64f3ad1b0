"""A later process of a producer's name fences the earlier one, through failovers of leader and controller."""

import asyncio

import pytest

from minibroker import Consumer, Producer, ProducerFenced, TopicPartition
from minibroker.testing import ClusterHarness, cluster, run

PARTITIONS = 2


def named(c: ClusterHarness) -> Producer:
    return Producer(bootstrap_servers=c.bootstrap_servers, producer_name="orders", linger_ms=0)


async def values(c: ClusterHarness, partition: int, count: int) -> list[bytes | None]:
    async with Consumer(bootstrap_servers=c.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("orders", partition)])
        return [(await consumer.getone(timeout_ms=10_000)).value for _ in range(count)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("victim", ["leader", "controller", "all"])
def test_a_failover_does_not_let_the_earlier_process_in_again(victim: str, seed: int) -> None:
    async def story() -> None:
        async with cluster(brokers=3, seed=seed) as c:
            await c.create_topic("orders", partitions=PARTITIONS)
            async with named(c) as earlier, named(c) as later:
                for partition in range(PARTITIONS):
                    await earlier.send_and_wait("orders", b"earlier", partition=partition)
                await later.send_and_wait("orders", b"later", partition=0)
                await earlier.send_and_wait("orders", b"the later one has not written here", partition=1)
                await fail_over(c, victim)
                with pytest.raises(ProducerFenced):
                    await earlier.send_and_wait("orders", b"too late", partition=0)
                with pytest.raises(ProducerFenced):
                    await earlier.send_and_wait("orders", b"too late", partition=1)
                await later.send_and_wait("orders", b"later", partition=1)
            async with named(c) as last:
                await last.send_and_wait("orders", b"last", partition=0)
            assert await values(c, 0, 3) == [b"earlier", b"later", b"last"]
            assert await values(c, 1, 3) == [b"earlier", b"the later one has not written here", b"later"]
            assert (await c.audit()).success

    run(story())


async def fail_over(c: ClusterHarness, victim: str) -> None:
    if victim == "leader":
        await c.kill_leader("orders", 0)
    elif victim == "controller":
        dead = await c.controller()
        assert dead is not None
        await c.kill(dead)
    else:
        for broker_id in c.broker_ids:
            await c.restart(broker_id)
            await c.wait_in_sync()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_record_of_the_earlier_process_never_follows_one_of_the_later(seed: int) -> None:
    """The leader hangs with the earlier process's record in its socket, and both send to the next one."""

    async def story() -> None:
        async with cluster(brokers=3, seed=seed) as c:
            await c.create_topic("orders")
            async with named(c) as earlier, named(c) as later:
                await earlier.send_and_wait("orders", b"earlier")
                hanging = await c.wait_for_leader("orders")
                await c.pause(hanging)
                on_its_way = await earlier.send("orders", b"on its way")
                await asyncio.sleep(0.5)
                written = await later.send_and_wait("orders", b"later")
                await c.resume(hanging)
                try:
                    before = (await on_its_way).offset
                except ProducerFenced:
                    before = 0
                assert before is not None and written.offset is not None
                assert before < written.offset
                with pytest.raises(ProducerFenced):
                    await earlier.send_and_wait("orders", b"too late")
                await c.wait_in_sync()
                ending = await later.send_and_wait("orders", b"the end")
            assert ending.offset == written.offset + 1
            assert (await c.audit()).success

    run(story())
