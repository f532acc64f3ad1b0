"""A user who asks for what must be refused: names that do not exist, values that are no values, batches that are none.

Owns: those requests, and that each is refused with the right error and changes nothing. Leaves to others: requests that
are carried out.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import NamedTuple

from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.client.errors import BrokerError, MinibrokerError
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import CRC_COVERS_FROM, build_batch
from minibroker.protocol.wire.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic
from minibroker.runtime.request_channel import RequestChannel, RequestFailed
from minibroker.runtime.rpc import connect
from minibroker.simulation.cluster import PORT
from minibroker.simulation.swarm.loads.load_options import TOPIC
from minibroker.simulation.swarm.loads.load_scene import LoadScene

PAUSE_SECONDS_MAX = 0.4
ANSWER_MS = 2_000
ABSENT = "absent"
ABSENT_BROKER = 99
CRC_AT, ATTRIBUTES_AT = 17, 22
"""Places in a batch, of the attributes the lower byte's."""


class WrongRequest(NamedTuple):
    """One request, and the error codes that may answer it."""

    name: str
    ask: Callable[[], Awaitable[object]]
    codes: tuple[ErrorCode, ...]
    may_seem_done: bool = False
    """A client that repeats it after a lost answer takes the refusal for the success of its first attempt."""


class RefusedCaller:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng

    async def run(self) -> None:
        await self._scene.repeat("refused caller", self._round, self._random, PAUSE_SECONDS_MAX)

    async def _round(self) -> None:
        async with self._scene.admin() as admin:
            requests = [*self._of_topics(admin), *self._of_settings(admin), *self._of_clients(admin)]
            while not self._scene.is_over:
                await self._ask(self._random.choice(requests))
                await self._produce_nonsense()
                await asyncio.sleep(self._random.uniform(0.0, PAUSE_SECONDS_MAX))

    async def _ask(self, request: WrongRequest) -> None:
        try:
            await request.ask()
        except BrokerError as error:
            if error.code in request.codes:
                self._scene.did("wrong request refused")
            elif not error.retriable:
                self._scene.find("refusal", f"{request.name} was refused with {error!r}")
        except MinibrokerError as error:  # faults
            self._scene.history.note_error("refused caller", error)
        else:
            if not request.may_seem_done:
                self._scene.find("refusal", f"{request.name} was not refused")

    # ------------------------------------------------------------------------------------------------------ requests
    def _of_topics(self, admin: AdminClient) -> Iterator[WrongRequest]:
        def create(
            name: str, *codes: ErrorCode, topic: str = ABSENT, configs: dict[str, str] | None = None
        ) -> WrongRequest:
            ask = partial(admin.create_topic, topic, partitions=1, configs=configs, timeout_ms=ANSWER_MS)
            return WrongRequest(f"create_topic: {name}", ask, codes)

        def assign(name: str, assignment: dict[int, tuple[int, ...]], *codes: ErrorCode) -> WrongRequest:
            async def ask() -> None:
                made = await admin.create_topics([NewTopic(name=ABSENT, assignment=assignment)], timeout_ms=ANSWER_MS)
                if isinstance(error := made[ABSENT], MinibrokerError):
                    raise error

            return WrongRequest(f"create_topics: {name}", ask, codes)

        factor = partial(admin.create_topic, ABSENT, replication_factor=100, timeout_ms=ANSWER_MS)
        many = partial(admin.create_topic, ABSENT, partitions=100_000, timeout_ms=ANSWER_MS)
        yield create("a name with a blank", ErrorCode.INVALID_TOPIC_EXCEPTION, topic="no name")
        yield create("one that exists", ErrorCode.TOPIC_ALREADY_EXISTS, topic=TOPIC)._replace(may_seem_done=True)
        yield create("no number", ErrorCode.INVALID_CONFIG, configs={"segment.bytes": "much"})
        yield create("too small", ErrorCode.INVALID_CONFIG, configs={"segment.bytes": "-1"})
        yield create("no setting", ErrorCode.INVALID_CONFIG, configs={"segment.byte": "4096"})
        yield create("a setting of brokers", ErrorCode.INVALID_CONFIG, configs={"log.segment.bytes": "4096"})
        yield create("no such policy", ErrorCode.INVALID_CONFIG, configs={"cleanup.policy": "compact"})
        yield WrongRequest("create_topic: 100 replicas", factor, (ErrorCode.INVALID_REPLICATION_FACTOR,))
        yield WrongRequest("create_topic: 100,000 partitions", many, (ErrorCode.INVALID_PARTITIONS,))
        yield assign("one broker twice", {0: (1, 1)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        yield assign("no partition 0", {1: (1,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        yield assign("unequal numbers", {0: (1,), 1: (1, 2)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        yield assign("no such broker", {0: (ABSENT_BROKER,)}, ErrorCode.INVALID_REPLICA_ASSIGNMENT)
        yield WrongRequest(
            "delete_topic: one that does not exist",
            partial(admin.delete_topic, ABSENT, timeout_ms=ANSWER_MS),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST),
            may_seem_done=True,
        )

    def _of_settings(self, admin: AdminClient) -> Iterator[WrongRequest]:
        def alter(
            change: dict[str, str], *codes: ErrorCode, topic: str | None = None, broker_id: int | None = None
        ) -> WrongRequest:
            ask = partial(admin.alter_configs, change, topic=topic, broker_id=broker_id, timeout_ms=ANSWER_MS)
            return WrongRequest(f"alter_configs: {change} of {topic or broker_id}", ask, codes)

        of_broker, invalid = self._random.choice(self._scene.cluster.broker_ids), ErrorCode.INVALID_CONFIG
        yield alter({"segment.bytes": "much"}, invalid, topic=TOPIC)
        yield alter({"segment.byte": "4096"}, invalid, topic=TOPIC)
        yield alter({"segment.bytes": "4096"}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic=ABSENT)
        yield alter({"log.segment.byte": "4096"}, invalid, broker_id=of_broker)
        yield alter({"log.segment.bytes": "much"}, invalid, broker_id=of_broker)
        yield alter({"broker.id": "7"}, invalid, broker_id=of_broker)
        yield alter({"message.max.bytes": str(1 << 30)}, invalid, broker_id=of_broker)
        yield WrongRequest(
            "describe_configs: of no topic",
            partial(admin.describe_configs, topic=ABSENT, timeout_ms=ANSWER_MS),
            (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,),
        )

    def _of_clients(self, admin: AdminClient) -> Iterator[WrongRequest]:
        unknown, nowhere = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,), TopicPartition(TOPIC, ABSENT_BROKER)

        async def send() -> None:
            async with self._scene.producer(max_block_ms=ANSWER_MS) as producer:
                await producer.send_and_wait(ABSENT, b"nothing")

        async def read(partition: TopicPartition) -> None:
            async with self._scene.consumer() as consumer:
                consumer.assign([partition])
                await consumer.getone(timeout_ms=ANSWER_MS)

        async def ask_for_partitions() -> None:
            async with self._scene.consumer() as consumer:
                await consumer.partitions_for(ABSENT, ANSWER_MS)

        look_up = partial(admin.list_offsets, {nowhere: 0}, timeout_ms=ANSWER_MS)
        describe = partial(admin.describe_topics, [ABSENT], timeout_ms=ANSWER_MS)
        yield WrongRequest("describe_topics: none such", describe, unknown)
        yield WrongRequest("list_offsets: no partition", look_up, unknown)
        yield WrongRequest("send: no topic", send, unknown)
        yield WrongRequest("partitions_for: no topic", ask_for_partitions, unknown)
        yield WrongRequest("read: no topic", partial(read, TopicPartition(ABSENT, 0)), unknown)
        yield WrongRequest("read: no partition", partial(read, nowhere), unknown)

    # ------------------------------------------------------------------------------------------------------- batches
    async def _produce_nonsense(self) -> None:
        """What no producer of ours sends: no broker may take it, whether it leads or not."""
        what, records = self._random.choice(sorted(wrong_batches().items()))
        broker_id = self._random.choice(self._scene.cluster.broker_ids)
        network = self._scene.cluster.client_runtime().network
        topic = ProduceTopic(name=TOPIC, partition_data=[ProducePartition(index=0, records=records)])
        dial = partial(connect, network, f"broker-{broker_id}", PORT, client_id="wrong-producer", timeout_ms=ANSWER_MS)
        with RequestChannel(dial) as channel:
            try:
                answer = await channel.ask(ProduceRequest(topic_data=[topic]), ProduceResponse, ANSWER_MS)
            except RequestFailed as error:
                self._scene.history.note_error("wrong producer", error)
                return
        for each in answer.responses[0].partition_responses:
            if each.error_code == ErrorCode.NONE:
                self._scene.find("refusal", f"{what} was taken at {each.base_offset}", TopicPartition(TOPIC, 0))
        self._scene.did("wrong batch refused")


def wrong_batches() -> dict[str, bytearray]:
    """By what is wrong with it."""
    sound = build_batch([(None, b"nonsense", 5, ())])
    damaged, compressed = bytearray(sound), bytearray(sound)
    damaged[-1] ^= 1
    compressed[ATTRIBUTES_AT] |= 1
    undecodable = bytearray(sound)
    undecodable[-1] = 0xC1  # no value of MessagePack
    for sealed in (compressed, undecodable):
        sealed[CRC_AT:CRC_COVERS_FROM] = crc32c(memoryview(sealed)[CRC_COVERS_FROM:]).to_bytes(4, "big")
    return {
        "a damaged batch": damaged,
        "a compressed batch": compressed,
        "a batch that does not decode": undecodable,
        "two batches": sound + sound,
        "half a batch": sound[: len(sound) // 2],
        "no batch": bytearray(),
    }
