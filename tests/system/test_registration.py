"""A broker's registration in a real ZooKeeper, which must behave like the simulated one."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.membership.registration import (
    BrokerIdentity,
    BrokerIdTaken,
    ClusterMismatch,
    Registration,
    draw_id,
)
from minibroker.broker.membership.zookeeper_session import open_session
from minibroker.broker.requests.producer_ids import ProducerIds
from minibroker.local_cluster.zookeeper_process import ZooKeeperProcess, start_zookeeper
from minibroker.protocol.wire.messages import BrokerEndpoint
from minibroker.protocol.znodes import CONTROLLER, broker_path
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.real import real_runtime
from minibroker.runtime.ports import Coordination
from tests.zookeeper_fixture import free_port

pytestmark = pytest.mark.system

ENDPOINTS = [BrokerEndpoint(listener="PLAINTEXT", host="127.0.0.1", port=9092)]
SESSION_MS = 3_000


async def connect(zookeeper: ZooKeeperProcess) -> Coordination:
    return await open_session(real_runtime().open_coordination, zookeeper.servers, SESSION_MS, 10_000)


async def register(
    coordination: Coordination,
    broker_id: int,
    directory: str,
    on_registered: Callable[[int], None] = lambda epoch: None,
) -> Registration:
    identity = BrokerIdentity(broker_id=broker_id, directory_id=directory, incarnation_id=draw_id(random.Random()))
    registration = Registration(coordination, RealClock(), identity, random.Random(), on_registered=on_registered)
    await registration.prepare(10_000)
    await registration.register(ENDPOINTS, 10_000)
    return registration


async def test_next_start_replaces_registration_and_controller_of_the_former_session(
    zookeeper: ZooKeeperProcess,
) -> None:
    before, after = await connect(zookeeper), await connect(zookeeper)
    try:
        first = await register(before, 701, "same-directory")
        await before.create(CONTROLLER, b"{}", ephemeral=True)
        second = await register(after, 701, "same-directory")
        stat = await after.exists(broker_path(701))
        assert stat is not None
        assert (stat.czxid, stat.ephemeral_owner) == (second.broker_epoch, after.session_id)
        assert first.broker_epoch is not None
        assert stat.czxid > first.broker_epoch
        assert await after.exists(CONTROLLER) is None
    finally:
        await before.close()
        await after.close()


async def test_another_broker_with_the_same_id_waits_one_session_and_gives_up(zookeeper: ZooKeeperProcess) -> None:
    ours, theirs = await connect(zookeeper), await connect(zookeeper)
    try:
        await register(theirs, 702, "their-directory")
        began = asyncio.get_running_loop().time()
        with pytest.raises(BrokerIdTaken, match="broker id 702 is in use"):
            await register(ours, 702, "our-directory")
        assert SESSION_MS / 1000 <= asyncio.get_running_loop().time() - began < 3 * SESSION_MS / 1000
    finally:
        await ours.close()
        await theirs.close()


async def test_deleted_registration_is_renewed(zookeeper: ZooKeeperProcess) -> None:
    ours, other = await connect(zookeeper), await connect(zookeeper)
    renewed = asyncio.Event()
    try:
        registration = await register(ours, 703, "directory", lambda epoch: renewed.set())
        renewed.clear()
        keeping = asyncio.create_task(registration.run())
        await other.delete(broker_path(703))
        async with asyncio.timeout(10):
            await renewed.wait()
        assert await other.exists(broker_path(703)) is not None
        assert not registration.is_fenced()
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
    finally:
        await ours.close()
        await other.close()


async def test_brokers_take_different_blocks_of_producer_ids(zookeeper: ZooKeeperProcess) -> None:
    sessions = [await connect(zookeeper) for _ in range(3)]
    try:
        ids = [ProducerIds(session, number, RealClock()) for number, session in enumerate(sessions)]
        given = await asyncio.gather(*(each.next_producer_id() for each in ids for _ in range(2)))
        assert len(set(given)) == len(given)
    finally:
        for session in sessions:
            await session.close()


async def test_a_zookeeper_with_replaced_data_ends_a_running_broker(tmp_path: Path) -> None:
    """ZooKeeper silently refuses a session that has seen newer data than its own; kazoo would retry for ever."""
    port = free_port()
    zookeeper = start_zookeeper(str(tmp_path / "before"), port)
    ours = None
    try:
        await zookeeper.wait_ready(30)
        ours = await connect(zookeeper)
        registration = await register(ours, 704, "directory")
        keeping = asyncio.create_task(registration.run())
        await zookeeper.stop()
        shutil.rmtree(tmp_path / "before")
        zookeeper = start_zookeeper(str(tmp_path / "after"), port)
        await zookeeper.wait_ready(30)
        with pytest.raises(ClusterMismatch, match="ZooKeeper knows no cluster: its data was wiped"):
            async with asyncio.timeout(2 * SESSION_MS / 1000 + 10):
                await keeping
        assert registration.is_fenced()
    finally:
        if ours is not None:
            await ours.close()
        await zookeeper.stop()
