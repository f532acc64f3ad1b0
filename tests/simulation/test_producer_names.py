"""A later process of a producer's name fences the earlier one, through failovers of leader and controller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minibroker import Consumer, Producer, ProducerFenced, TopicPartition
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.znodes import producer_name_path
from minibroker.simulation.world.zookeeper_links import RequestHold
from minibroker.testing import ClusterHarness, cluster, run

PARTITIONS = 2


def named(c: ClusterHarness, servers: str = "") -> Producer:
    return Producer(bootstrap_servers=servers or c.bootstrap_servers, producer_name="orders", linger_ms=0)


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


# -------------------------------------------------------------------------------- a start that one broker holds up
FORGOTTEN_S = 10.0
HELD_UP, OTHER = 1, 2


def address(c: ClusterHarness, broker_id: int) -> str:
    """Of the broker that a client asks first if it knows no other address at its start."""
    return c.bootstrap_servers.split(",")[broker_id - 1]


@asynccontextmanager
async def start_held_up(seed: int) -> AsyncIterator[tuple[ClusterHarness, Producer, RequestHold]]:
    """A cluster, a producer whose start one broker holds up and another one has answered, and what holds it up. Brokers
    forget a producer soon, so that it needs its next epoch."""
    async with cluster(brokers=3, seed=seed, settings={"producer.id.expiration.ms": "1000"}) as c:
        assert isinstance(c, SimulatedHarness)
        await c.create_topic("orders")
        async with named(c):  # so that the name is known
            pass
        hold = c.world.zookeeper.hold(
            f"broker-{HELD_UP}",
            lambda request: request.kind == "write" and request.operations[0].path == producer_name_path("orders"),
            times=1,
        )
        producer = named(c, address(c, HELD_UP))
        starting = asyncio.create_task(producer.start())
        await hold.caught()
        await c.block("clients", HELD_UP)
        await c.reset("clients", HELD_UP)
        await starting
        await c.heal()
        try:
            yield c, producer, hold
        finally:
            await producer.close()


async def write_under_the_next_epoch(producer: Producer, epoch: int) -> None:
    await asyncio.sleep(FORGOTTEN_S)
    await producer.send_and_wait("orders", b"behind a silence")
    identity = producer._accumulator.identity
    assert identity is not None and identity.producer_epoch == epoch


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_start_that_was_held_up_and_repeated_does_not_fence_its_own_process(seed: int) -> None:
    async def story() -> None:
        async with start_held_up(seed) as (_, producer, hold):
            await producer.send_and_wait("orders", b"first")
            hold.release()
            await write_under_the_next_epoch(producer, 2)

    run(story())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_start_that_was_held_up_fences_no_process_that_has_started_since(seed: int) -> None:
    async def story() -> None:
        async with start_held_up(seed) as (c, earlier, hold), named(c, address(c, OTHER)) as later:
            for producer in (earlier, later):
                await producer.send_and_wait("orders", b"first")
            hold.release()
            await write_under_the_next_epoch(later, 3)
            with pytest.raises(ProducerFenced):
                await earlier.send_and_wait("orders", b"too late")

    run(story())
