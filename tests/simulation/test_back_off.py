"""A follower that gets only errors fetches rarely; a success makes it quick again."""

import asyncio

from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.message_holds import requests

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
