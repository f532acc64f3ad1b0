"""The harness: the same verbs break and heal simulated brokers, processes and containers."""

from __future__ import annotations

import asyncio
import json
import re
import time
import warnings
from collections.abc import Coroutine
from typing import Any

import pytest

from minibroker.harness.cluster import ClusterHarness, Misuse, UnsupportedByBackend
from minibroker.harness.compose import ComposeHarness
from minibroker.harness.leftovers import LeftoverTasks
from minibroker.harness.processes import ProcessHarness
from minibroker.testing import cluster, run
from minibroker.testing.opening import Backend
from tests.system.compose_cluster import why_no_engine, why_no_images

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
            await c.pause(follower)
            await c.restart(follower)  # a paused broker is resumed first
            await c.pause(follower)
            await c.kill(follower)
            await c.start(follower)
            await c.wait_in_sync("orders")
            dead = await c.kill_leader("orders")
            assert not c.is_running(dead)
            await write(b"after a kill")
            await c.start(dead)
            await c.wait_in_sync("orders")
        assert [metadata.offset for metadata, _ in acked] == list(range(len(acked)))
        assert (await c.audit(acked)).success
        if backend != "simulated":
            assert "broker 1 logged: " in "\n".join(c.describe())
        assert not (await c.audit([(acked[0][0], b"another value")])).success
    return c


async def refused(verb: Coroutine[Any, Any, object], cure: str) -> None:
    with pytest.raises(Misuse, match=re.escape(cure)):
        await verb


async def misuse(backend: Backend) -> None:
    """What does not fit is refused with the cure, or does nothing, alike on every back end."""
    async with cluster(brokers=2, backend=backend, settings=SETTINGS) as c:
        await c.create_topic("orders")
        for verb in (c.kill, c.power_loss, c.stop, c.start, c.restart, c.pause, c.resume, c.expire_session, c.isolate):
            await refused(verb(9), "there is no broker 9: `c.broker_ids` is [1, 2]")
        with pytest.raises(Misuse, match="there is no broker 9"):
            c.is_running(9)
        for link in (c.block, c.unblock, c.partition):
            await refused(link(1, 9), "there is no broker 9")
            await refused(link(1, "zoo"), "there is no party 'zoo'")  # type: ignore[arg-type]
            await refused(link(1, 1), "from 1 to 1: name a broker and another party")
            await refused(link("clients", "zookeeper"), "name a broker and another party")
        await refused(c.partition(1, [2, 9]), "there is no broker 9")
        with pytest.raises(AssertionError, match="there is no topic 'no such topic'"):
            await c.wait_for_leader("no such topic", timeout_s=0.5)
        await c.unblock(1, 2)
        await c.resume(1)
        await refused(c.start(1), "broker 1 is already running: `await c.restart(1)`")
        await c.pause(1)
        await c.pause(1)
        await refused(c.start(1), "broker 1 is paused: `await c.resume(1)`")
        await c.stop(1)
        await c.heal()
        for verb in (c.kill, c.power_loss, c.stop, c.pause, c.resume):
            await refused(verb(1), "broker 1 does not run: `await c.start(1)` starts it")
        await c.expire_session(1)  # a broker that is down may have left one behind
        await c.restart(1)
        await c.pause(1)
        await c.restart(1)
        await c.pause(1)
        await c.kill(1)
        assert not c.is_running(1)
        await c.start(1)
        await refused(c.start_zookeeper(), "ZooKeeper is already running: `await c.stop_zookeeper()`")
        await c.stop_zookeeper()
        await refused(c.stop_zookeeper(), "ZooKeeper is stopped already: `await c.start_zookeeper()`")
        await refused(c.expire_session(1), "ZooKeeper is stopped, so no session expires")
        await c.start_zookeeper()
        await c.wait_in_sync("orders")


def test_misuse_is_refused_alike_on_simulated_brokers() -> None:
    run(misuse("simulated"))


@pytest.mark.slow
async def test_misuse_is_refused_alike_on_processes() -> None:
    await misuse("processes")


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


async def test_the_proxies_between_processes_are_no_leftovers_of_a_test() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", LeftoverTasks)
        async with cluster(brokers=2, backend="processes") as c:
            await c.create_topic("orders")


async def test_hardware_of_processes_fails_and_is_mended() -> None:
    """Each verb of `Hardware` that processes have; the records are acknowledged all the same, and the disks agree."""
    acked = []
    async with cluster(brokers=3, backend="processes", settings=SETTINGS) as c, c.producer() as producer:
        await c.create_topic("orders")
        leader = await c.wait_for_leader("orders")
        follower = next(broker for broker in c.broker_ids if broker != leader)

        async def write(value: bytes) -> None:
            acked.append((await producer.send_and_wait("orders", value), value))

        await write(b"first")
        began = asyncio.get_running_loop().time()
        await c.slow(leader, follower, 0.4)
        await write(b"slowly")
        assert asyncio.get_running_loop().time() - began > 0.3
        await c.slow(leader, follower, 0.0)
        await c.reset(leader, follower)
        await c.pause_zookeeper()
        await write(b"without ZooKeeper")
        await c.resume_zookeeper()
        await c.wait_in_sync("orders")
        with pytest.raises(Misuse, match="runs"):
            await c.write_file(follower, "orders-0/00000000000000000000.index", None)
        await c.kill(follower)
        log = "orders-0/00000000000000000000.log"
        assert log in await c.list_files(follower)
        await c.write_file(follower, log, (await c.read_file(follower, log))[:-1])
        await c.start(follower)
        await c.wait_in_sync("orders")
        with pytest.raises(Misuse, match="runs"):
            await c.replace_disk(leader)
        await c.kill(leader)
        await c.replace_disk(leader)
        assert await c.list_files(leader) == []
        await c.start(leader)
        await write(b"beside a blank disk")
        await c.wait_in_sync("orders")
        assert (await c.audit(acked)).success


async def test_only_the_moved_broker_has_another_time_and_events_have_the_true_one() -> None:
    async with ProcessHarness(2, SETTINGS, log_format="json") as c:
        await c.create_topic("orders")
        for seconds in (3600.0, 0.0):
            await c.move_clock(1, seconds)
            await c.kill(2)
            await c.start(2)
            await c.wait_in_sync("orders")
            assert await off_s(c, 1) == seconds
            assert await off_s(c, 2) == 0
        now_ms = c.runtime.clock.now_ms()
        assert all(now_ms - 90_000 < event.at_ms <= now_ms for event in await c.reported_events())


async def off_s(c: ProcessHarness, broker_id: int) -> float:
    """How far its clock is off, to the minute, as the last line of its log shows."""
    line = json.loads((await c.read_log(broker_id)).splitlines()[-1])
    return 60.0 * round((int(line["at_ms"]) / 1000 - time.time()) / 60)


async def test_containers_say_which_hardware_they_lack() -> None:
    harness = ComposeHarness()
    for verb in (harness.slow(1, 2, 0.1),):
        with pytest.raises(UnsupportedByBackend, match="use simulated brokers or processes"):
            await verb
