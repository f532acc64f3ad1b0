"""Plants a lie on the disks of a run: in one segment file of one broker, when all brokers have stopped.

Owns: which file. Leaves to others: what the lie changes there (`chaos/plan/disk_lies.py`).
"""

import asyncio
import random

from minibroker.chaos.history.lies import NoPlace
from minibroker.chaos.plan.disk_lies import DISK_LIE_BY_NAME
from minibroker.chaos.run.chaos_load import TOPIC
from minibroker.harness.cluster import ClusterHarness


async def plant_on_disks(cluster: ClusterHarness, lie: str, rng: random.Random) -> str:
    """Stop all brokers and plant it; returns what was changed. Raises NoPlace."""
    await cluster.note_state()
    await asyncio.gather(*map(cluster.stop, tuple(cluster.broker_ids)))
    broker = rng.choice(cluster.broker_ids)
    segments = [name for name in await cluster.list_files(broker) if name.startswith(f"{TOPIC}-")]
    segments = [name for name in segments if name.endswith(".log")]
    for name in rng.sample(segments, len(segments)):
        planted = DISK_LIE_BY_NAME[lie].plant(await cluster.read_file(broker, name), rng)
        if planted is not None:
            content, text = planted
            await cluster.write_file(broker, name, content)
            return f"{lie}, on broker {broker} in {name}: {text}"
    raise NoPlace(f"no segment of broker {broker} has enough batches")
