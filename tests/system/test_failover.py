"""Real processes are killed, and writes continue long before any ZooKeeper session ends."""

import time

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.client.producer.producer import Producer
from minibroker.local_cluster.broker_names import resolve
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.observation.broker_queries import BrokerQueries
from minibroker.observation.event_stream import EventStream

pytestmark = pytest.mark.system

SOON_S = 1.5
"""Half of the session of a local cluster; idle machines need a tenth of it."""


async def create_topic(cluster: LocalCluster, *, led_by_controller: bool) -> int:
    """Create a topic of one partition; returns its leader."""
    controller = await resolve(cluster, "controller")
    others = [each for each in cluster.broker_ids if each != controller]
    replicas = [controller, *others] if led_by_controller else [*others, controller]
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers) as admin:
        await admin.create_topics([NewTopic(name="t", assignment={0: replicas})])
    return replicas[0]


async def reported_failures(cluster: LocalCluster) -> set[str]:
    """The kinds of events by which the brokers that run report the failure of another one."""
    async with BrokerQueries() as queries:
        events = await EventStream(queries, cluster.bootstrap_servers).poll()
    return {name for each in events if (name := each.fields["event"]).startswith("broker_failure_")}


@pytest.mark.parametrize("led_by_controller", [False, True])
async def test_writes_continue_at_once_after_a_leader_was_killed(
    own_cluster: LocalCluster, led_by_controller: bool
) -> None:
    leader = await create_topic(own_cluster, led_by_controller=led_by_controller)
    async with Producer(bootstrap_servers=own_cluster.bootstrap_servers) as producer:
        for _ in range(20):
            await producer.send_and_wait("t", b"before")
        begun = time.monotonic()
        await own_cluster.kill(leader)
        metadata = await producer.send_and_wait("t", b"after")
        assert time.monotonic() - begun < SOON_S
    assert metadata.leader_epoch == 1
    assert await reported_failures(own_cluster) == {"broker_failure_confirmed"}


@pytest.mark.parametrize("led_by_controller", [False, True])
async def test_leader_that_stops_cleanly_is_replaced_at_once_and_not_called_dead(
    own_cluster: LocalCluster, led_by_controller: bool
) -> None:
    """A controller that stops resigns first. Its successor does not know that it stops: on a busy machine it may find
    its port closed, and confirm that, before its registration ends."""
    leader = await create_topic(own_cluster, led_by_controller=led_by_controller)
    async with Producer(bootstrap_servers=own_cluster.bootstrap_servers) as producer:
        await producer.send_and_wait("t", b"before")
        await own_cluster.stop(leader)
        begun = time.monotonic()
        await producer.send_and_wait("t", b"after")
        assert time.monotonic() - begun < SOON_S
    if not led_by_controller:
        assert await reported_failures(own_cluster) == set()
