"""How fast simulated clusters run: `python -m tests.simulation.speed [--seconds 60] [--json]` prints a table.

The load is that of the promise: 100 records a second with acks=all, each a request of its own, over 6 partitions with 3
replicas, fetches that wait 500 ms; then the same with more partitions, more brokers, and none at all. Seconds are this
process's CPU seconds, so that other programs on the machine disturb less.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence

import msgspec

from minibroker.client.admin import AdminClient
from minibroker.client.producer import Producer
from minibroker.simulation.cluster import SimulatedCluster

SETTINGS = {"replica.fetch.wait.max.ms": "500"}
TOPIC = "load"


class Load(msgspec.Struct, frozen=True):
    """What a cluster has to do."""

    brokers: int = 3
    partitions: int = 6
    records_per_second: int = 100
    seconds: float = 60.0


class Measurement(msgspec.Struct):
    """What it took."""

    load: Load
    acknowledged: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    callbacks: int = 0
    events: int = 0

    @property
    def virtual_per_cpu_second(self) -> float:
        return self.virtual_seconds / self.cpu_seconds


async def _live(cluster: SimulatedCluster, load: Load, measurement: Measurement) -> None:
    cluster.start_all()
    await cluster.until_ready()
    doors, servers = cluster.client_runtime(), cluster.bootstrap_servers
    async with AdminClient(bootstrap_servers=servers, runtime=doors) as admin:
        await admin.create_topic(TOPIC, partitions=load.partitions, replication_factor=3)
    async with Producer(bootstrap_servers=servers, acks="all", linger_ms=1, runtime=doors) as producer:

        async def send(number: int) -> None:
            await producer.send_and_wait(TOPIC, b"value-%d" % number, partition=number % load.partitions)
            measurement.acknowledged += 1

        async with asyncio.TaskGroup() as sends:
            for number in range(int(load.records_per_second * load.seconds)):
                sends.create_task(send(number))
                await asyncio.sleep(1 / load.records_per_second)
        if not load.records_per_second:
            await asyncio.sleep(load.seconds)


def measure(load: Load, seed: int = 1) -> Measurement:
    """Run it once."""
    cluster = SimulatedCluster(seed, brokers=load.brokers, settings=SETTINGS)
    measurement = Measurement(load)
    began = time.process_time()
    cluster.world.run(_live(cluster, load, measurement))
    measurement.cpu_seconds = time.process_time() - began
    measurement.virtual_seconds = cluster.world.loop.elapsed
    measurement.callbacks = cluster.world.loop.callbacks_run
    measurement.events = cluster.world.trace.events
    return measurement


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    shapes = [(3, 6, 100), (3, 6, 0), (3, 24, 100), (3, 96, 100), (5, 6, 100), (9, 6, 100), (3, 6, 400)]
    loads = [Load(*shape, options.seconds) for shape in shapes]
    if not options.json:
        print("brokers partitions records/s | virtual s per CPU s  callbacks/virtual s  doors' events/virtual s")
    for load in loads:
        found = measure(load)
        if options.json:
            row = {**msgspec.to_builtins(found), "virtual_per_cpu_second": found.virtual_per_cpu_second}
            print(json.dumps(row), flush=True)
        else:
            print(
                f"{load.brokers:7} {load.partitions:10} {load.records_per_second:9} | "
                f"{found.virtual_per_cpu_second:19.1f}  {found.callbacks / found.virtual_seconds:19.0f}  "
                f"{found.events / found.virtual_seconds:23.0f}",
                flush=True,
            )


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
