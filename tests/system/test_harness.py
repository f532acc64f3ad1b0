"""The harness: the same verbs break and heal simulated brokers, processes and containers."""

from __future__ import annotations

import asyncio

import pytest

from minibroker.harness.cluster import ClusterHarness, UnsupportedByBackend
from minibroker.harness.compose import ComposeHarness
from minibroker.testing import cluster, run
from minibroker.testing.opening import Backend
from tests.system.engine import why_no_engine, why_no_images

pytestmark = [pytest.mark.system, pytest.mark.timeout(100)]
SETTINGS = {"replica.lag.time.max.ms": "2000"}


async def until_dropped(c: ClusterHarness, broker_id: int) -> None:
    async with asyncio.timeout(30):
        while broker_id in await c.in_sync_replicas("orders"):
            await asyncio.sleep(0.1)


async def break_and_heal(backend: Backend) -> ClusterHarness:
    """Every verb but the loss of power, and after each the producer's records are acknowledged."""
    async with cluster(brokers=3, backend=backend, settings=SETTINGS) as c:
        await c.create_topic("orders")
        acked = []
        async with c.producer(acks="all") as producer:

            async def write(value: bytes) -> None:
                acked.append((await producer.send_and_wait("orders", value), value))

            await write(b"the first")
            leader, controller = await c.wait_for_leader("orders"), await c.controller()
            follower = next(broker for broker in c.broker_ids if broker not in (leader, controller))
            await c.partition(follower, [broker for broker in c.broker_ids if broker != follower])
            await write(b"while one follower is cut off")
            await until_dropped(c, follower)
            await c.heal()
            await c.wait_in_sync("orders")
            await c.isolate(leader, zookeeper=True)
            assert await c.wait_for_leader("orders", other_than=leader) != leader
            await write(b"after the election")
            await c.heal()
            await c.wait_in_sync("orders")
            await c.block(leader, follower)
            await c.unblock(leader, follower)
            await c.pause(leader)
            assert c.is_running(leader)
            await c.resume(leader)
            await c.expire_session(leader)
            await c.wait_in_sync("orders")
            await c.stop_zookeeper()
            await write(b"without ZooKeeper")
            await c.start_zookeeper()
            await c.restart(follower)
            dead = await c.kill_leader("orders")
            assert not c.is_running(dead)
            await write(b"after a kill")
            await c.start(dead)
            await c.wait_in_sync("orders")
        assert [metadata.offset for metadata, _ in acked] == list(range(len(acked)))
        assert (await c.audit(acked)).success
        assert not (await c.audit([(acked[0][0], b"another value")])).success
    return c


def test_the_verbs_on_simulated_brokers() -> None:
    run(break_and_heal("simulated"))


@pytest.mark.slow
async def test_the_verbs_on_processes() -> None:
    c = await break_and_heal("processes")
    assert c.describe()[0].startswith("minibroker: real processes, brokers 1 ")


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs")
async def test_the_verbs_on_containers() -> None:
    if why_no_images():
        pytest.skip(str(why_no_images()))
    await break_and_heal("compose")


@pytest.mark.slow
@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs")
async def test_an_interrupted_start_leaves_nothing_in_the_engine() -> None:
    if why_no_images():
        pytest.skip(str(why_no_images()))
    project = (opened := ComposeHarness()).project
    own = ("--filter", f"label=com.docker.compose.project={project.name}")
    start = asyncio.create_task(opened.__aenter__())
    while not start.done() and not await project.run("docker", "ps", "-q", *own):
        await asyncio.sleep(0.2)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    for listing in (["ps", "-a", "-q", *own], ["volume", "ls", "-q", *own], ["network", "ls", "-q", *own]):
        assert await project.run("docker", *listing) == ""
    assert await project.run("docker", "images", "-q", project.image) == ""


async def test_a_number_of_containers_that_the_file_does_not_have_is_refused() -> None:
    with pytest.raises(UnsupportedByBackend, match=r"docker-compose\.yml has 3 brokers"):
        async with cluster(brokers=5, backend="compose"):
            pass
