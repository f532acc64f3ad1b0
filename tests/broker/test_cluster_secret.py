"""The cluster's secret in ZooKeeper: drawn once, written again when it is deleted, followed when it is replaced."""

import pytest

from minibroker.broker.cluster_secret import SharedSecret
from minibroker.broker.registration import ClusterMismatch
from minibroker.protocol.znodes import CLUSTER_SECRET, ClusterSecret
from minibroker.runtime.ports import Coordination
from tests.broker.requests import TOPIC, Asked, in_cluster
from tests.broker.virtual_zookeeper import World, run

OTHER = "ab" * 32


async def observer(asked: Asked) -> Coordination:
    coordination = asked.cluster.world.runtime("operator").open_coordination("zookeeper:2181", 5_000)
    await coordination.start()
    return coordination


def keys(asked: Asked) -> set[str]:
    return {broker.secret.key.hex() for broker in asked.cluster.brokers.values()}


async def is_well(asked: Asked) -> None:
    """Followers copy and the controller is obeyed: a record reaches all, also after an election."""
    cluster = asked.cluster
    await cluster.until(lambda: cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")
    assert not (await asked.produce()).error_code
    cluster.kill(asked.leader)
    await cluster.until(lambda: len(cluster.in_sync_replicas(TOPIC)) == 2, what="a new leader")
    assert not (await asked.produce()).error_code


def test_all_brokers_have_the_same() -> None:
    async def check(asked: Asked) -> None:
        assert len(keys(asked)) == 1
        content, _ = await (await observer(asked)).get(CLUSTER_SECRET)
        assert keys(asked) == {ClusterSecret.decode(content).secret}

    in_cluster(check)


def test_a_secret_that_is_deleted_is_written_again() -> None:
    """Or who starts next would draw another one, and nobody would take it for a broker."""

    async def check(asked: Asked) -> None:
        before, operator = keys(asked), await observer(asked)
        await operator.delete(CLUSTER_SECRET)
        asked.cluster.kill(3)
        asked.cluster.start(3)
        await asked.cluster.until(lambda: len(asked.cluster.alive()) == 3, what="broker 3")
        await is_well(asked)
        content, _ = await operator.get(CLUSTER_SECRET)
        assert {ClusterSecret.decode(content).secret} == before == keys(asked)

    in_cluster(check)


def test_a_secret_that_is_replaced_is_followed_by_all() -> None:
    async def check(asked: Asked) -> None:
        await (await observer(asked)).set(CLUSTER_SECRET, ClusterSecret(secret=OTHER).encode())
        await asked.cluster.until(lambda: keys(asked) == {OTHER}, what="the new secret everywhere")
        await is_well(asked)

    in_cluster(check)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"version":1,"secret":"short"}'])
def test_who_runs_keeps_what_it_knows_where_nothing_can_be_read(content: bytes) -> None:
    async def check(asked: Asked) -> None:
        before = keys(asked)
        await (await observer(asked)).set(CLUSTER_SECRET, content)
        await is_well(asked)
        assert keys(asked) == before

    in_cluster(check)


def test_who_starts_says_what_to_do_about_it() -> None:
    async def story(world: World) -> None:
        coordination = await world.connect(world.process("one"))
        await coordination.create("/cluster", b"")
        await coordination.create(CLUSTER_SECRET, b"{}")
        with pytest.raises(ClusterMismatch, match="delete /cluster/secret in ZooKeeper"):
            await SharedSecret(coordination, world.random).agree()

    run(story)


def test_a_wiped_zookeeper_is_none_to_write_it_to() -> None:
    async def story(world: World) -> None:
        coordination = await world.connect(world.process("one"))
        with pytest.raises(ClusterMismatch, match="its data was wiped"):
            await SharedSecret(coordination, world.random).agree()

    run(story)
