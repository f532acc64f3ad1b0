"""An operator that changes settings of the loads' topic, and of brokers, while they are in use.

Owns: the changes, and what each setting must be at the end. Leaves to others: to compare (`final_checks`).
"""

import asyncio
import random

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.simulation.swarm.loads.load_options import TOPIC
from minibroker.simulation.swarm.loads.load_scene import LoadScene

PAUSE_SECONDS_MAX = 2.0
ANSWER_MS = 3_000
BROKER_SHARE = 0.4
"""Of the changes."""

Changes = dict[str, str | None]


class SettingsChanger:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng

    async def run(self) -> None:
        await self._scene.repeat("settings changer", self._round, self._random, PAUSE_SECONDS_MAX)

    async def _round(self) -> None:
        rng, options = self._random, self._scene.options
        async with self._scene.admin() as admin:
            while not self._scene.is_over:
                await asyncio.sleep(rng.uniform(0.0, PAUSE_SECONDS_MAX))
                await self._scene.until_writable()
                if options.broker_changes and rng.random() < BROKER_SHARE:
                    broker_id = rng.choice(self._scene.cluster.broker_ids)
                    await self._change(admin, broker_id, self._draw(options.broker_changes))
                else:
                    await self._change(admin, TOPIC, self._draw(options.changes))

    async def _change(self, admin: AdminClient, of: str | int, changes: Changes) -> None:
        topic, broker_id = (of, None) if isinstance(of, str) else (None, of)
        try:
            await admin.alter_configs(changes, topic=topic, broker_id=broker_id, timeout_ms=ANSWER_MS)
        except MinibrokerError as error:
            self._scene.history.note_error("settings changer", error)
            self._scene.history.settings.in_doubt(of, changes)
        else:
            self._scene.history.settings.confirmed(of, changes)
            self._scene.did("setting changed" if broker_id is None else "setting of a broker changed")

    def _draw(self, possible: dict[str, tuple[str | None, ...]]) -> Changes:
        rng = self._random
        drawn = rng.sample(sorted(possible.items()), rng.choice((1, 1, 2)))
        return {name: rng.choice(values) for name, values in drawn}
