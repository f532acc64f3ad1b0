"""An operator that changes settings of the loads' topic while it is in use.

Owns: the changes, and what each setting must be at the end. Leaves to others: to compare (`final_checks`).
"""

import asyncio
import random

from minibroker.client.errors import MinibrokerError
from minibroker.simulation.swarm.loads.load_options import TOPIC
from minibroker.simulation.swarm.loads.load_scene import LoadScene

PAUSE_SECONDS_MAX = 2.0
ANSWER_MS = 3_000


class SettingsChanger:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng

    async def run(self) -> None:
        while not self._scene.is_over:
            await self._scene.attempt("settings changer", self._round())
            await asyncio.sleep(self._random.uniform(0.0, PAUSE_SECONDS_MAX))

    async def _round(self) -> None:
        async with self._scene.admin() as admin:
            while not self._scene.is_over:
                await asyncio.sleep(self._random.uniform(0.0, PAUSE_SECONDS_MAX))
                await self._scene.until_writable()
                changes = self._draw()
                try:
                    await admin.alter_configs(changes, topic=TOPIC, timeout_ms=ANSWER_MS)
                except MinibrokerError as error:
                    self._scene.history.note_error("settings changer", error)
                    self._scene.history.settings.in_doubt(TOPIC, changes)
                else:
                    self._scene.history.settings.confirmed(TOPIC, changes)
                    self._scene.did("setting changed")

    def _draw(self) -> dict[str, str | None]:
        rng, possible = self._random, sorted(self._scene.options.changes.items())
        return {name: rng.choice(values) for name, values in rng.sample(possible, rng.choice((1, 1, 2)))}
