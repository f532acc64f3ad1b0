"""The cluster's secret in ZooKeeper: drawn once, written again when it is deleted, followed when it is replaced."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.membership.cluster_secret import SharedSecret
from minibroker.broker.membership.registration import ClusterMismatch
from minibroker.protocol.znodes import CLUSTER_SECRET, ClusterSecret
from minibroker.runtime.ports import Coordination, CoordinationError, NotAuthorized
from tests.broker.requests import TOPIC, ClusterClient, in_cluster
from tests.broker.virtual_zookeeper import AskedCoordination, World, pass_time, run

OTHER = "ab" * 32


async def observer(client: ClusterClient) -> Coordination:
    coordination = client.cluster.world.runtime("operator").open_coordination("zookeeper:2181", 5_000)
    await coordination.start()
    return coordination


def keys(client: ClusterClient) -> set[str]:
    return {broker.secret.key.hex() for broker in client.cluster.brokers.values()}


async def is_well(client: ClusterClient) -> None:
    """Followers copy and orders are accepted: a record reaches all replicas, also after an election."""
    cluster = client.cluster
    await cluster.until(lambda: cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")
    assert not (await client.produce()).error_code
    cluster.kill(client.leader)
    await cluster.until(lambda: len(cluster.in_sync_replicas(TOPIC)) == 2, what="a new leader")
    assert not (await client.produce()).error_code


def test_all_brokers_use_the_same_secret() -> None:
    async def check(client: ClusterClient) -> None:
        assert len(keys(client)) == 1
        content, _ = await (await observer(client)).get(CLUSTER_SECRET)
        assert keys(client) == {ClusterSecret.decode(content).secret}

    in_cluster(check)


def test_a_secret_that_is_deleted_is_written_again() -> None:
    """Otherwise the next starting broker would draw another one, and the others would not accept it as a broker."""

    async def check(client: ClusterClient) -> None:
        before, operator = keys(client), await observer(client)
        await operator.delete(CLUSTER_SECRET)
        client.cluster.kill(3)
        client.cluster.start(3)
        await client.cluster.until(lambda: len(client.cluster.alive()) == 3, what="broker 3")
        await is_well(client)
        content, _ = await operator.get(CLUSTER_SECRET)
        assert {ClusterSecret.decode(content).secret} == before == keys(client)

    in_cluster(check)


def test_a_secret_that_is_replaced_is_followed_by_all() -> None:
    async def check(client: ClusterClient) -> None:
        await (await observer(client)).set(CLUSTER_SECRET, ClusterSecret(secret=OTHER).encode())
        await client.cluster.until(lambda: keys(client) == {OTHER}, what="the new secret everywhere")
        await is_well(client)

    in_cluster(check)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version":1,"secret":"short"}'])
def test_a_running_broker_keeps_its_secret_if_the_znode_is_unreadable(content: bytes) -> None:
    async def check(client: ClusterClient) -> None:
        before = keys(client)
        await (await observer(client)).set(CLUSTER_SECRET, content)
        await is_well(client)
        assert keys(client) == before

    in_cluster(check)


@pytest.mark.parametrize("failures", [0, 3])
@pytest.mark.parametrize("content", [ClusterSecret(secret=OTHER).encode(), b"{}", None])
def test_zookeeper_is_read_for_a_change_and_not_again(content: bytes | None, failures: int) -> None:
    """A broker that asked all the time would wear out the ZooKeeper of all."""

    async def story(world: World) -> None:
        operator = await world.observer()
        await operator.create("/cluster", b"")
        asked = AskedCoordination(await world.connect(world.process("one")))
        secret = SharedSecret(cast(Coordination, asked), world.random)
        await secret.agree()
        drawn = secret.key
        world.loop.create_task(secret.run())
        asked.failures_left = failures
        if content is None:
            await operator.delete(CLUSTER_SECRET)
        else:
            await operator.set(CLUSTER_SECRET, content)
        await pass_time(30)
        assert secret.key == (bytes.fromhex(OTHER) if content is not None and OTHER.encode() in content else drawn)
        before = asked.reads
        assert before > failures
        await pass_time(60)
        assert asked.reads == before

    run(story)


@pytest.mark.parametrize("failure", [NotAuthorized("get"), CoordinationError("get: MarshallingError()")])
def test_a_secret_that_was_refused_is_read_later(failure: CoordinationError, caplog: pytest.LogCaptureFixture) -> None:
    """The operator who replaced it gives brokers the right to it afterwards, and ZooKeeper tells no client of that.
    The broker kept the former secret for ever, and one that started later had the new one."""

    async def story(world: World) -> None:
        operator = await world.observer()
        await operator.create("/cluster", b"")
        asked = AskedCoordination(await world.connect(world.process("one")))
        secret = SharedSecret(cast(Coordination, asked), world.random)
        await secret.agree()
        running = world.loop.create_task(secret.run())
        asked.failures_left, asked.failure = 3, failure
        await operator.set(CLUSTER_SECRET, ClusterSecret(secret=OTHER).encode())
        await pass_time(60)
        assert not running.done()
        assert (secret.key.hex(), asked.failures_left) == (OTHER, 0)

    run(story)
    assert caplog.text.count("keeping the secret that is known here") == 1


def test_a_deleted_secret_that_may_not_be_written_ends_no_broker() -> None:
    async def story(world: World) -> None:
        operator = await world.observer()
        await operator.create("/cluster", b"")
        coordination = await world.connect(world.process("one"))
        secret = SharedSecret(coordination, world.random)
        await secret.agree()
        drawn, rights = secret.key, list[str]()

        async def create(path: str, content: bytes, **options: Any) -> object:
            if not rights:
                raise NotAuthorized(f"create {path}")
            return await coordination.create(path, content, **options)

        secret._coordination = cast(Any, SimpleNamespace(get=coordination.get, create=create))
        running = world.loop.create_task(secret.run())
        await operator.delete(CLUSTER_SECRET)
        await pass_time(30)
        assert not running.done()
        rights.append("given")
        await pass_time(30)
        content, _ = await operator.get(CLUSTER_SECRET)
        assert ClusterSecret.decode(content).key() == drawn == secret.key

    run(story)


def test_a_starting_broker_names_the_cure_for_an_unreadable_secret() -> None:
    async def story(world: World) -> None:
        coordination = await world.connect(world.process("one"))
        await coordination.create("/cluster", b"")
        await coordination.create(CLUSTER_SECRET, b"{}")
        with pytest.raises(ClusterMismatch, match="delete /cluster/secret in ZooKeeper"):
            await SharedSecret(coordination, world.random).agree()

    run(story)


def test_no_secret_is_written_to_a_wiped_zookeeper() -> None:
    async def story(world: World) -> None:
        coordination = await world.connect(world.process("one"))
        with pytest.raises(ClusterMismatch, match="its data was wiped"):
            await SharedSecret(coordination, world.random).agree()

    run(story)
