"""A follower that gets only errors fetches rarely; a success makes it quick again, and so does a new leader."""

import asyncio

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.message_holds import requests, responses

SECONDS = 10
FETCHES_MAX = 20
"""Five quick ones, then one for each replica.fetch.backoff.ms (1 s)."""


async def _ask_for_damaged_bytes(cluster: SimulatedCluster) -> int:
    """Number of the follower's fetches in SECONDS."""
    cluster.start_all()
    await cluster.until_ready()
    network, servers, ports = cluster.world.network, cluster.bootstrap_servers, cluster.client_runtime()
    async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
        await admin.create_topic("a", partitions=1, replication_factor=2)
    leader = cluster.leader("a")
    assert leader is not None
    follower = 3 - leader
    cluster.kill(follower)
    await cluster.until(lambda: cluster.in_sync_replicas("a") == (leader,), what="a leader alone in the ISR")
    async with Producer(bootstrap_servers=servers, acks=1, runtime=ports) as producer:
        await producer.send_and_wait("a", b"will rot")
    replica = cluster.replica(leader, "a")
    assert replica is not None
    storage = cluster.world.machine(f"broker-{leader}").storage
    path = replica.log.segments[-1].log_path
    storage.flip_bit(path, len(storage.find_file(path).content) - 1)
    cluster.start(follower)
    fetches = network.count_frames(f"broker-{follower}", f"broker-{leader}", requests(ApiKey.FETCH))
    await fetches.caught()
    await asyncio.sleep(SECONDS)
    return len(fetches.seen)


def test_a_follower_whose_fetches_all_fail_sends_one_per_back_off() -> None:
    cluster = SimulatedCluster(1, brokers=2, settings={"log.tail.cache.bytes": "0", "replica.lag.time.max.ms": "2000"})
    fetches = cluster.world.run(_ask_for_damaged_bytes(cluster), seconds_max=60)
    assert SECONDS < fetches <= FETCHES_MAX


NEW_LEADER_SECONDS_MAX = 0.3
"""A question and its repetition, a fetch. A pause left over from the former leader takes a second."""


async def _ask_a_leader_that_does_not_know_yet(cluster: SimulatedCluster) -> float:
    """Seconds from the moment at which the new leader leads until the follower has its records."""
    cluster.start_all()
    await cluster.until_ready()
    network, servers, ports = cluster.world.network, cluster.bootstrap_servers, cluster.client_runtime()
    async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
        await admin.create_topic("a", partitions=1, replication_factor=3)
    former = cluster.leader("a")
    assert former is not None
    follower, new = (b for b in cluster.broker_ids if b != former)
    async with Producer(bootstrap_servers=servers, runtime=ports) as producer:
        await producer.send_and_wait("a", b"everywhere")
        cluster.kill(follower)
        await cluster.until(lambda: follower not in cluster.in_sync_replicas("a"), what="an ISR without the follower")
        await producer.send_and_wait("a", b"not at the follower")
    questions = requests(ApiKey.OFFSET_FOR_LEADER_EPOCH)
    network.drop_frames(f"broker-{follower}", f"broker-{former}", questions, times=1_000)
    cluster.start(follower)
    await asyncio.sleep(SECONDS)
    order = network.hold(None, f"broker-{new}", requests(ApiKey.LEADER_AND_ISR))
    answers = network.count_frames(f"broker-{new}", f"broker-{follower}", responses(ApiKey.OFFSET_FOR_LEADER_EPOCH))
    cluster.kill(former)
    await answers.caught()  # the follower asked first, and was told so
    order.release()
    await cluster.until(lambda: cluster.leader("a") == new, what="another leader")
    began = cluster.world.loop.elapsed
    await cluster.until(lambda: _log_end(cluster, follower) == _log_end(cluster, new), what="a copy of the last record")
    return cluster.world.loop.elapsed - began


def _log_end(cluster: SimulatedCluster, broker_id: int) -> int:
    replica = cluster.replica(broker_id, "a")
    return -1 if replica is None else replica.state.log_end_offset


@pytest.mark.invariant("I37")
def test_a_follower_does_not_make_a_new_leader_wait_for_the_failures_of_the_former_one() -> None:
    cluster = SimulatedCluster(1, settings={"replica.lag.time.max.ms": "2000"})
    assert cluster.world.run(_ask_a_leader_that_does_not_know_yet(cluster), seconds_max=120) < NEW_LEADER_SECONDS_MAX
