"""A cluster's life on simulated doors; as a program it prints the trace hash of a seed: `cluster_run.py SEED`."""

import sys

from minibroker.client.admin import AdminClient
from minibroker.client.consumer import Consumer
from minibroker.client.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster

RECORDS = 300
KILL_AT = 120


class Report:
    """What a run showed."""

    def __init__(self) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.epochs: set[int] = set()
        self.read: dict[tuple[int, int], bytes | None] = {}
        self.isr_at_end: tuple[int, ...] = ()
        self.trace_hash = ""
        self.virtual_seconds = 0.0


async def _live(cluster: SimulatedCluster, report: Report) -> None:
    cluster.start_all()
    await cluster.until_ready()
    doors, servers = cluster.client_runtime(), cluster.bootstrap_servers
    async with AdminClient(bootstrap_servers=servers, runtime=doors) as admin:
        await admin.create_topic("story", partitions=2, replication_factor=3)
    killed = 0
    async with Producer(bootstrap_servers=servers, acks="all", linger_ms=1, runtime=doors) as producer:
        for number in range(RECORDS):
            if number == KILL_AT:
                killed = cluster.leader("story", 0) or 0
                cluster.kill(killed)
            value = b"value-%d" % number
            metadata = await producer.send_and_wait("story", value, partition=number % 2)
            assert metadata.offset is not None
            assert metadata.leader_epoch is not None
            report.acked[metadata.partition, metadata.offset] = value
            report.epochs.add(metadata.leader_epoch)
    cluster.start(killed)
    await cluster.until(
        lambda: all(cluster.in_sync_replicas("story", p) == (1, 2, 3) for p in (0, 1)), what="a full ISR"
    )
    report.isr_at_end = cluster.in_sync_replicas("story", 0)
    partitions = [TopicPartition("story", 0), TopicPartition("story", 1)]
    async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", runtime=doors) as consumer:
        consumer.assign(partitions)
        while len(report.read) < RECORDS:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    report.read[record.partition, record.offset] = record.value


def live(seed: int) -> Report:
    """One run."""
    report = Report()
    cluster = SimulatedCluster(seed)
    cluster.world.run(_live(cluster, report), seconds_max=300)
    report.trace_hash = cluster.world.trace_hash
    report.virtual_seconds = cluster.world.loop.elapsed
    return report


if __name__ == "__main__":
    print(live(int(sys.argv[1])).trace_hash)
