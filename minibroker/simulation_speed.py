"""How fast the simulation is: virtual seconds per real one, under a fixed load, and how that grows.

Owns: the load and the measurement. It runs on one core, without faults and judges, as a bare cluster does.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import NamedTuple

from minibroker.client.admin import AdminClient
from minibroker.client.producer import Producer
from minibroker.simulation.cluster import SimulatedCluster

RECORDS_PER_SECOND = 100
VALUE_BYTES = 100
FETCH_WAIT_MS = 500
CLUSTERS = ((3, 6), (3, 24), (3, 96), (5, 6), (9, 6))
"""Brokers and partitions; the first is the one that the promise of speed is about."""


class Speed(NamedTuple):
    """One measured cluster."""

    brokers: int
    partitions: int
    acknowledged_per_second: float
    """Per virtual second."""
    virtual_seconds: float
    real_seconds: float
    deliveries: int
    events: int

    @property
    def factor(self) -> float:
        """Virtual seconds per real one."""
        return self.virtual_seconds / self.real_seconds


def measure_all(virtual_seconds: float) -> Iterator[Speed]:
    for brokers, partitions in CLUSTERS:
        yield measure(brokers, partitions, virtual_seconds)


def measure(brokers: int, partitions: int, virtual_seconds: float) -> Speed:
    """Replication factor 3, acks=all, one producer; the time to start up is not counted."""
    settings = {"replica.fetch.wait.max.ms": str(FETCH_WAIT_MS)}
    cluster = SimulatedCluster(1, brokers, settings=settings)
    acknowledged, began, ended, first_delivery, first_event = 0, 0.0, 0.0, 0, 0

    async def load() -> None:
        nonlocal acknowledged, began, ended, first_delivery, first_event
        cluster.start_all()
        await cluster.until_ready()
        doors, servers = cluster.client_runtime(), cluster.bootstrap_servers
        async with AdminClient(bootstrap_servers=servers, runtime=doors) as admin:
            await admin.create_topic("load", partitions=partitions, replication_factor=3)
        async with Producer(bootstrap_servers=servers, runtime=doors) as producer:
            began, first_event = time.process_time(), cluster.world.loop.callbacks_run
            first_delivery = cluster.world.trace.kinds["net"]
            sends = []
            for number in range(int(virtual_seconds * RECORDS_PER_SECOND)):
                value = b"%d-" % number
                sends.append(
                    asyncio.create_task(
                        producer.send_and_wait("load", value.ljust(VALUE_BYTES, b"."), partition=number % partitions)
                    )
                )
                await asyncio.sleep(1 / RECORDS_PER_SECOND)
            acknowledged = len(await asyncio.gather(*sends))
            ended = time.process_time()

    cluster.world.run(load())
    return Speed(
        brokers=brokers,
        partitions=partitions,
        acknowledged_per_second=acknowledged / virtual_seconds,
        virtual_seconds=virtual_seconds,
        real_seconds=ended - began,
        deliveries=cluster.world.trace.kinds["net"] - first_delivery,
        events=cluster.world.loop.callbacks_run - first_event,
    )
