"""Servers that neither answer nor refuse: the next ones are asked without waiting for them."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.client.cluster import Cluster, ClusterSettings
from minibroker.client.errors import ClusterUnreachable
from minibroker.client.first_answer import ATTEMPT_DELAY_MS, first_answer
from minibroker.client.limits import CONNECT_TIMEOUT_MS, METADATA_TIMEOUT_MS, Deadline
from minibroker.client.metadata_cache import Address
from minibroker.protocol.wire.messages import MetadataRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import PORT, FakeCluster

Test = Callable[[Cluster, FakeCluster], Coroutine[Any, Any, None]]


def with_client(cluster: FakeCluster, test: Test) -> None:
    """The three brokers are the bootstrap servers, in order."""

    async def main(runtime: Runtime) -> None:
        servers = [Address(f"broker{broker}", PORT) for broker in cluster.brokers]
        client = Cluster(runtime, ClusterSettings(bootstrap=servers, client_id="test"))
        before = asyncio.all_tasks()
        try:
            await test(client, cluster)
        finally:
            await client.close()
        assert asyncio.all_tasks() == before, "a task was left behind"

    cluster.run(main)


def become_unreachable(cluster: FakeCluster, *brokers: int) -> None:
    """Their machines neither answer nor refuse."""
    for broker in brokers:
        cluster.world.network.isolate(f"broker{broker}")


def now() -> float:
    return asyncio.get_running_loop().time()


async def _start_with_two_unreachable_machines(client: Cluster, cluster: FakeCluster) -> None:
    become_unreachable(cluster, 1, 2)
    begun = now()
    await client.start()
    assert sorted(client.metadata.brokers) == [1, 2, 3]
    assert now() - begun < 0.6, "unreachable machines were waited for one after the other"


def test_unreachable_machines_cost_a_moment_each_if_one_server_answers(cluster: FakeCluster) -> None:
    with_client(cluster, _start_with_two_unreachable_machines)


async def _end_of_attempts(client: Cluster, cluster: FakeCluster) -> None:
    become_unreachable(cluster, 1, 2)
    await client.start()
    for broker in (1, 2):
        cluster.world.network.heal("client", f"broker{broker}")
        cluster.world.network.heal(f"broker{broker}", "client")
    await asyncio.sleep(CONNECT_TIMEOUT_MS / 1000)
    opened = [server for server in client.settings.bootstrap if client.connections.is_open(server)]
    assert opened == [Address("broker3", PORT)], "another attempt completed too late"


def test_an_attempt_without_a_waiter_is_cancelled(cluster: FakeCluster) -> None:
    with_client(cluster, _end_of_attempts)


async def _keep_what_is_wanted(client: Cluster, cluster: FakeCluster) -> None:
    """A producer's attempt to connect to a leader must not end because its metadata came from another broker."""
    become_unreachable(cluster, 1)
    first = client.settings.bootstrap[0]
    assert client.connections.open_connection(first) is None
    await client.start()
    cluster.world.network.heal("client", "broker1")
    cluster.world.network.heal("broker1", "client")
    await asyncio.sleep(CONNECT_TIMEOUT_MS / 1000)
    assert client.connections.is_open(first)


def test_an_attempt_that_another_caller_needs_continues(cluster: FakeCluster) -> None:
    with_client(cluster, _keep_what_is_wanted)


async def _refresh_with_a_paused_broker(client: Cluster, cluster: FakeCluster) -> None:
    await client.start()
    [asked] = [broker for broker in cluster.brokers if client.is_connected(broker)]
    cluster.world.pause(f"broker{asked}")
    begun = now()
    await client.refresh(Deadline(10_000))
    assert now() - begun < 0.6 < METADATA_TIMEOUT_MS / 1000
    begun = now()
    await client.refresh(Deadline(10_000))
    assert now() - begun < 0.1, "the paused broker was asked first again"


def test_a_paused_broker_delays_metadata_briefly_and_only_once(cluster: FakeCluster) -> None:
    with_client(cluster, _refresh_with_a_paused_broker)


async def _ask_one(client: Cluster, cluster: FakeCluster) -> None:
    await client.start()
    assert cluster.asked(MetadataRequest) == 1


def test_no_second_server_is_asked_if_the_first_answers(cluster: FakeCluster) -> None:
    with_client(cluster, _ask_one)


async def _all_unreachable(client: Cluster, cluster: FakeCluster) -> None:
    become_unreachable(cluster, 1, 2, 3)
    begun = now()
    with pytest.raises(ClusterUnreachable, match=r"broker1.*broker2.*broker3"):
        await client.start()
    assert now() - begun <= client.settings.bootstrap_timeout_ms / 1000 + 0.01


def test_if_no_server_is_reachable_the_error_names_each_within_the_deadline(cluster: FakeCluster) -> None:
    with_client(cluster, _all_unreachable)


async def _attempts_after_an_answer(client: Cluster, cluster: FakeCluster) -> None:
    first, *others = client.settings.bootstrap
    ended: list[Address] = []

    async def ask(server: Address) -> Address:
        try:
            await asyncio.sleep(60 if server != first else 3 * ATTEMPT_DELAY_MS / 1000)
        finally:
            ended.append(server)
        return server

    answer, attempts = await first_answer([first, *others], ask)
    assert (answer, attempts.late) == (first, tuple(others))
    assert ended == [first, *others]


def test_with_an_answer_the_other_attempts_have_ended(cluster: FakeCluster) -> None:
    """They use the client's connections, which are closed next if the client is."""
    with_client(cluster, _attempts_after_an_answer)
