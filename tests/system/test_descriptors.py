"""A real broker without free file descriptors for a while survives and recovers; its disk does not count as failed."""

import asyncio
import os
import resource

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.local_cluster.broker_names import resolve
from minibroker.local_cluster.local_cluster import LocalCluster
from tests.system.test_local_cluster import read_all

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may raise the limit of another process"),
]

TAKEN_S = 3.0
RECORDS = 60


async def test_a_leader_without_descriptors_serves_again_when_it_gets_some(own_cluster: LocalCluster) -> None:
    async with AdminClient(bootstrap_servers=own_cluster.bootstrap_servers) as admin:
        await admin.create_topic("t", partitions=1, configs={"segment.bytes": "4096"})
    leader = await resolve(own_cluster, "leader:t-0")
    process = own_cluster.record.brokers[leader].process
    assert process is not None
    limits = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    assert limits[0] == limits[1], "the broker raised it"
    async with Producer(bootstrap_servers=own_cluster.bootstrap_servers, delivery_timeout_ms=60_000) as producer:
        await producer.send_and_wait("t", b"before")
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            sending = asyncio.gather(*(producer.send_and_wait("t", b"x" * 1_000) for _ in range(RECORDS)))
            await asyncio.sleep(TAKEN_S)
        finally:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, limits)
        await sending
    await own_cluster.wait_healthy(30)
    assert own_cluster.process_state(leader) == "running"
    assert process == own_cluster.record.brokers[leader].process, "it was not restarted"
    assert len(await read_all(own_cluster, RECORDS + 1)) == RECORDS + 1
    assert "log directory" not in log_of(own_cluster, leader), "the directory never failed"


def log_of(cluster: LocalCluster, broker_id: int) -> str:
    return cluster.process_log(broker_id).read_text()
