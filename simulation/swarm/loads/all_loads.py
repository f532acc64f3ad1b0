"""The loads of a run, by name.

Owns: which class is which load. Leaves to others: the draw (`load_options`).
"""

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.describer import Describer
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.record_reader import SeekingReader
from minibroker.simulation.swarm.loads.record_writer import RecordWriter
from minibroker.simulation.swarm.loads.settings_changer import SettingsChanger
from minibroker.simulation.swarm.options import RunOptions
from minibroker.simulation.swarm.workload import Workload


class Load(Protocol):
    """One client of a run."""

    async def run(self) -> None:
        """Until the workload ends."""


CLASSES: dict[str, Callable[[LoadScene, random.Random], Load]] = {
    "describer": Describer,
    "settings_changer": SettingsChanger,
    "record_writer": RecordWriter,
    "record_reader": SeekingReader,
}


def open_loads(
    cluster: SimulatedCluster,
    reference: ReferenceState,
    workload: Workload,
    history: History,
    options: RunOptions,
    done: Counter[str],
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What to run until the workload ends. `done` counts what the loads did."""
    scene = LoadScene(cluster, reference, workload, history, options, done)
    loads = [CLASSES[name](scene, cluster.world.random(f"load/{name}")) for name in scene.options.clients]
    return [load.run for load in loads]
