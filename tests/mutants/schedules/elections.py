"""Orders of stops and starts of whole clusters, with disks replaced in between, and brokers that answer nobody."""

import asyncio

from tests.mutants.judged import Directed, Stage, on_stage
from tests.mutants.schedules.words import host

RECORDS = 20


async def _produce_some(directed: Directed) -> None:
    for number in range(RECORDS):
        await directed.produce(f"{number}")


def _replace_disk(directed: Directed, broker_id: int) -> None:
    """A blank one is put in while the broker does not run."""
    storage = directed.world.machine(host(broker_id)).storage
    storage.wipe()
    storage.provision("/data")


@on_stage(Stage())
async def replaced_disk_starts_first(directed: Directed) -> None:
    """All are killed; the one whose disk was replaced is back first, and registered before the others."""
    await _produce_some(directed)
    for broker_id in directed.cluster.broker_ids:
        directed.cluster.kill(broker_id)
    _replace_disk(directed, 1)
    directed.cluster.start(1)
    await asyncio.sleep(6.0)
    for broker_id in (2, 3):
        directed.cluster.start(broker_id)
    await directed.until_isr(1, 2, 3)
