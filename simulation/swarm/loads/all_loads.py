"""The loads of a run, by name.

Owns: which class is which load. Leaves to others: the draw (`load_options`).
"""

import random
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from minibroker.simulation.swarm.loads.describer import Describer
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.name_holder import NameHolder
from minibroker.simulation.swarm.loads.name_remover import NameRemover
from minibroker.simulation.swarm.loads.record_reader import SeekingReader
from minibroker.simulation.swarm.loads.record_writer import RecordWriter
from minibroker.simulation.swarm.loads.refused_caller import RefusedCaller
from minibroker.simulation.swarm.loads.settings_changer import SettingsChanger
from minibroker.simulation.swarm.loads.topic_maker import TopicMaker


class Load(Protocol):
    """One client of a run."""

    async def run(self) -> None:
        """Until the workload ends."""


CLASSES: dict[str, Callable[[LoadScene, random.Random], Load]] = {
    "describer": Describer,
    "settings_changer": SettingsChanger,
    "record_writer": RecordWriter,
    "record_reader": SeekingReader,
    "topic_maker": TopicMaker,
    "refused_caller": RefusedCaller,
    "name_holder": NameHolder,
    "name_remover": NameRemover,
}


def open_loads(scene: LoadScene) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """What to run until the workload ends."""
    world = scene.cluster.world
    loads = [CLASSES[name](scene, world.random(f"load/{name}")) for name in scene.options.clients]
    return [load.run for load in loads]
