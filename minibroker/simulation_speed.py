"""How fast the simulation is: virtual seconds per real second, under several fixed loads.

Owns: the loads and the measurement. It runs on one core, without faults and checkers. Real seconds are CPU seconds of
this process, so that other programs on the machine disturb less.
"""

import asyncio
import time
from collections.abc import Iterator

import msgspec

from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.simulation.cluster import SimulatedCluster

VALUE_BYTES = 100
FETCH_WAIT_MS = 500
TOPIC = "load"


class SimulationLoad(msgspec.Struct, frozen=True):
    """The load of a cluster: replication factor 3, acks=all."""

    brokers: int = 3
    partitions: int = 6
    records_per_second: int = 100
    linger_ms: int = 0
    """0: each record is its own request, to the partitions in turn. Otherwise records name no partition and are
    batched."""


class SimulationSpeed(msgspec.Struct, kw_only=True):
    """The measurement of one cluster, without its start."""

    load: SimulationLoad
    acknowledged: int
    virtual_seconds: float
    cpu_seconds: float
    deliveries: int
    callbacks: int

    @property
    def factor(self) -> float:
        """Virtual seconds per real second."""
        return self.virtual_seconds / self.cpu_seconds


LOADS = (
    SimulationLoad(),
    SimulationLoad(linger_ms=50),
    SimulationLoad(records_per_second=0),
    SimulationLoad(records_per_second=400),
    SimulationLoad(partitions=24),
    SimulationLoad(partitions=96),
    SimulationLoad(brokers=5),
    SimulationLoad(brokers=9),
)


def measure_all(virtual_seconds: float) -> Iterator[SimulationSpeed]:
    for load in LOADS:
        yield measure(load, virtual_seconds)


def measure(load: SimulationLoad, virtual_seconds: float) -> SimulationSpeed:
    """Run the load once."""
    cluster = SimulatedCluster(1, load.brokers, settings={"replica.fetch.wait.max.ms": str(FETCH_WAIT_MS)})
    found: list[SimulationSpeed] = []
    cluster.world.run(_live(cluster, load, virtual_seconds, found))
    return found[0]


async def _live(
    cluster: SimulatedCluster, load: SimulationLoad, virtual_seconds: float, found: list[SimulationSpeed]
) -> None:
    cluster.start_all()
    await cluster.until_ready()
    world, runtime, servers = cluster.world, cluster.client_runtime(), cluster.bootstrap_servers
    async with AdminClient(bootstrap_servers=servers, runtime=runtime) as admin:
        await admin.create_topic(TOPIC, partitions=load.partitions, replication_factor=3)
    async with Producer(bootstrap_servers=servers, linger_ms=load.linger_ms, runtime=runtime) as producer:
        began, callbacks, deliveries = time.process_time(), world.loop.callbacks_run, world.trace.kinds["net"]
        acknowledged = await _send(producer, load, virtual_seconds)
        found.append(
            SimulationSpeed(
                load=load,
                acknowledged=acknowledged,
                virtual_seconds=virtual_seconds,
                cpu_seconds=time.process_time() - began,
                deliveries=world.trace.kinds["net"] - deliveries,
                callbacks=world.loop.callbacks_run - callbacks,
            )
        )


async def _send(producer: Producer, load: SimulationLoad, virtual_seconds: float) -> int:
    """Send the load's records; returns how many were acknowledged."""
    if not load.records_per_second:
        await asyncio.sleep(virtual_seconds)
        return 0
    sends = []
    for number in range(int(virtual_seconds * load.records_per_second)):
        partition = None if load.linger_ms else number % load.partitions
        value = (b"%d-" % number).ljust(VALUE_BYTES, b".")
        sends.append(asyncio.create_task(producer.send_and_wait(TOPIC, value, partition=partition)))
        await asyncio.sleep(1 / load.records_per_second)
    return len(await asyncio.gather(*sends))
