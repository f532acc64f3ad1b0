"""An operator that asks brokers to describe topics, settings, replicas and the cluster, and compares the answers.

Owns: the questions, and the check against what the run knows: how topics were made, which brokers may have led them.
Leaves to others: the events that brokers report (`event_reader`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable

from minibroker.client.admin import AdminClient
from minibroker.client.errors import BrokerError
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP
from minibroker.simulation.swarm.loads.event_reader import EventReader
from minibroker.simulation.swarm.loads.load_options import TOPIC
from minibroker.simulation.swarm.loads.load_scene import LoadScene

PAUSE_SECONDS_MAX = 1.0
ANSWER_MS = 3_000


class Describer:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._admin: AdminClient
        self._events = EventReader(scene)

    async def run(self) -> None:
        await self._scene.repeat("describer", self._round, self._random, PAUSE_SECONDS_MAX)

    async def _round(self) -> None:
        questions: tuple[Callable[[], Awaitable[None]], ...] = (
            self.list_topics,
            self.describe_topics,
            self.describe_cluster,
            self.describe_configs,
            self.describe_replica_state,
            self.offsets,
            self.describe_events,
        )
        if self._scene.settings.get("delete.topic.enable") == "false":
            questions += (self.delete_topic,)
        async with self._scene.admin() as self._admin:
            while not self._scene.is_over:
                question = self._random.choice(questions)
                await question()
                self._scene.did(question.__name__)
                await asyncio.sleep(self._random.uniform(0.0, PAUSE_SECONDS_MAX))

    async def list_topics(self) -> None:
        found = await self._admin.list_topics(timeout_ms=ANSWER_MS)
        if not found:
            return  # a broker that has just started does not know the topics yet
        missing = {each.topic for each in self._scene.all_partitions} - set(found)
        if missing:
            self._scene.find("list_topics", f"{sorted(missing)} are missing in {found}")

    async def describe_topics(self) -> None:
        found = await self._admin.describe_topics(sorted(self._scene.shapes), timeout_ms=ANSWER_MS)
        for topic, (partitions, replicas, _) in sorted(self._scene.shapes.items()):
            described = found[topic].partitions
            if [each.partition for each in described] != list(range(partitions)):
                self._scene.find("describe_topics", f"{topic} has {partitions} partitions, not {described}")
            for each in described:
                partition = TopicPartition(topic, each.partition)
                if len(each.replicas) != replicas or not set(each.isr) <= set(each.replicas):
                    self._scene.find("describe_topics", f"it has {replicas} replicas, not {each}", partition)
                known = each.leader is None or each.leader_epoch is None
                if not known and not self._scene.reference.has_led(partition, each.leader, each.leader_epoch or 0):
                    self._scene.find("describe_topics", f"such a leader never was: {each}", partition)

    async def describe_cluster(self) -> None:
        found = await self._admin.describe_cluster(timeout_ms=ANSWER_MS)
        ids = set(self._scene.cluster.broker_ids)
        if not {each.broker_id for each in found.brokers} <= ids or found.controller_id not in (None, *ids):
            self._scene.find("describe_cluster", f"the brokers are {sorted(ids)}, not {found}")

    async def describe_configs(self) -> None:
        """What no client changes is as the topic was made."""
        options = self._scene.options
        found = await self._admin.describe_configs(topic=TOPIC, timeout_ms=ANSWER_MS)
        for name, value in sorted(options.topic_settings[TOPIC].items()):
            if name not in options.changes and found[name].value != value:
                self._scene.find("describe_configs", f"{name} of {TOPIC} is {value}, not {found[name].value}")
        broker_id = self._random.choice(self._scene.cluster.broker_ids)
        of_broker = await self._admin.describe_configs(broker_id=broker_id, timeout_ms=ANSWER_MS)
        for name, value in sorted(self._scene.settings.items()):
            if name not in options.broker_changes and of_broker[name].value != value:
                self._scene.find("describe_configs", f"{name} of broker {broker_id} is not {value}: {of_broker[name]}")

    async def describe_replica_state(self) -> None:
        for broker_id, found in sorted((await self._admin.describe_replica_state(timeout_ms=ANSWER_MS)).items()):
            for partition, state in sorted(found.replicas.items()):
                offsets = (state.log_start_offset, state.high_watermark, state.log_end_offset)
                if state.role != "offline" and list(offsets) != sorted(offsets):
                    text = f"log start, high watermark and end of broker {broker_id} are {offsets}"
                    self._scene.find("describe_replica_state", text, partition)

    async def offsets(self) -> None:
        found = await self._admin.offsets(TOPIC, timeout_ms=ANSWER_MS)
        for partition, (start, end) in sorted(found.items()):
            if start > end and not self._scene.deletes(TOPIC):
                self._scene.find("offsets", f"from {start} to {end}", partition)
        asked = dict.fromkeys(found, EARLIEST_TIMESTAMP)
        for partition, first in sorted((await self._admin.list_offsets(asked, timeout_ms=ANSWER_MS)).items()):
            if first.offset != found[partition][0] and not self._scene.deletes(TOPIC):
                self._scene.find("list_offsets", f"{first.offset} is first, not {found[partition][0]}", partition)

    async def describe_events(self) -> None:
        await self._events.read(self._random.choice(self._scene.cluster.broker_ids))

    async def delete_topic(self) -> None:
        """Where delete.topic.enable is false, it is refused; the topic is under promise."""
        try:
            await self._admin.delete_topic(TOPIC, timeout_ms=ANSWER_MS)
        except BrokerError as error:
            if error.code == ErrorCode.INVALID_REQUEST:
                return
            raise
        self._scene.find("delete_topic", f"{TOPIC} was deleted, and delete.topic.enable is false")
