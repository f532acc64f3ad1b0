"""An operator that lists and deletes the name of a producer, whose process has ended, or still writes.

Owns: what is promised of lists and deletions (docs/CLIENT.md, one process at a time): a name is listed once its process
has started, it can be deleted then, and a process is fenced only after that. Leaves to others: what several processes
under one name promise (`name_holder`), and what every producer does (`watched_producer`).
"""

import asyncio
import random

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError, ProducerFenced, UnknownProducerName
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.watched_producer import WatchedProducer

NAME = "removed"
RECORDS_MAX = 6
PAUSE_SECONDS_MAX = 0.5
ANSWER_MS = 3_000
SETTINGS = {
    "acks": "all",
    "enable_idempotence": True,
    "delivery_timeout_ms": 4_000,
    "request_timeout_ms": 1_000,
    "max_block_ms": 4_000,
}


class RemovedName:
    """Judges one process under the name."""

    def __init__(self, scene: LoadScene) -> None:
        self._scene = scene
        self.may_be_deleted = False

    def acknowledged(self, partition: TopicPartition, offset: int) -> None:
        """It has no rival."""

    def fenced(self, error: ProducerFenced) -> None:
        if not self.may_be_deleted:
            self._scene.find("producer_name", f"fenced without a rival or a deletion: {error}")


class NameRemover:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._processes = 0
        self._records = 0
        self._doubts = 0
        """Deletions of unknown outcome: each may still come, so the next process gets another name."""

    async def run(self) -> None:
        await self._scene.repeat("name remover", self._live, self._random, PAUSE_SECONDS_MAX, writes=True)

    @property
    def _name(self) -> str:
        return f"{NAME}-{self._doubts}"

    async def _live(self) -> None:
        self._processes += 1
        process, client = RemovedName(self._scene), f"{NAME}-{self._processes}"
        settings = {**SETTINGS, "producer_name": self._name}
        async with self._scene.admin() as admin:
            try:
                async with WatchedProducer(self._scene, client, True, settings, process) as producer:
                    await self._write(producer)
                    await self._check_list(admin)
                    if self._random.random() < 0.5:
                        await self._delete(admin, process)
                        await self._write(producer)
            except ProducerFenced as error:
                process.fenced(error)
            if not process.may_be_deleted:
                await self._delete(admin, process)

    async def _write(self, producer: WatchedProducer) -> None:
        for _ in range(self._random.randint(1, RECORDS_MAX)):
            await self._scene.until_writable()
            self._records += 1
            await producer.send_named(self._records, self._random.choice(self._scene.partitions))
            await asyncio.sleep(self._random.choice((0.0, 0.05)))

    async def _check_list(self, admin: AdminClient) -> None:
        found = [each.name for each in await admin.list_producer_names(timeout_ms=ANSWER_MS)]
        if self._name not in found or found != sorted(found):
            self._scene.find("list_producer_names", f"{self._name} has started, and they are {found}")
        self._scene.did("list_producer_names")

    async def _delete(self, admin: AdminClient, process: RemovedName) -> None:
        process.may_be_deleted = True
        try:
            await admin.delete_producer_name(self._name, timeout_ms=ANSWER_MS)
        except UnknownProducerName as error:
            self._scene.find("delete_producer_name", f"nothing else deletes it: {error}")
        except MinibrokerError:
            self._doubts += 1
            raise
        self._scene.did("delete_producer_name")
