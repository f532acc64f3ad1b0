"""An operator that deletes a topic with records and makes it again under its name, and clients that stay meanwhile.

Owns: the lives of that topic, and what each must be: it begins empty, and holds what was acknowledged in this life,
at its offsets, in order, and nothing of an earlier one; a reader does not carry its position over. Leaves to others:
what brokers do with a deleted topic's files (`checks.replication.incarnations`).
"""

import asyncio
import random

import msgspec

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import Record
from minibroker.client.errors import LogTruncated, MinibrokerError, TopicMadeAgain, UnknownTopicOrPartition
from minibroker.client.producer.producer import Producer
from minibroker.simulation.swarm.loads.load_options import REMADE
from minibroker.simulation.swarm.loads.load_scene import LoadScene

PAUSE_SECONDS_MAX = 2.0
ANSWER_MS = 4_000
CALL_MS = 1_000
READ_SECONDS = 8.0
"""Longer than an election; a life that could not be read by then is not judged."""
LOOK_SECONDS = 0.05
RECORDS_MAX = 12
STRAY = b"stray-"
"""Begins the values that are written while the topic is deleted and made again."""
SETTINGS: tuple[dict[str, str], ...] = ({}, {"segment.bytes": "1024"}, {"flush.messages": "1"})


class TopicLife(msgspec.Struct, kw_only=True):
    """One topic of the name, from its creation to its deletion."""

    topic_id: str
    acknowledged: dict[int, bytes] = msgspec.field(default_factory=dict)
    in_doubt: set[bytes] = msgspec.field(default_factory=set)
    """Their errors said that they may be there."""

    def wrong(self, found: list[tuple[int, bytes | None]]) -> list[str]:
        """What a reader of the whole topic got, against what was sent. `found`: offsets and values."""
        complaints = []
        if [offset for offset, _ in found] != list(range(len(found))):
            complaints.append(f"its offsets are {[offset for offset, _ in found]}")
        held = dict(found)
        for offset, value in sorted(self.acknowledged.items()):
            if held.get(offset) != value:
                complaints.append(f"{value!r} was acknowledged at {offset}, which holds {held.get(offset)!r}")
        sent = {*self.acknowledged.values(), *self.in_doubt}
        complaints += [f"{value!r} at {offset} was not written to it" for offset, value in found if value not in sent]
        values = [value for _, value in found]
        complaints += [f"{value!r} is there twice" for value in sorted(sent) if values.count(value) > 1]
        return complaints


class TopicMaker:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._lives = 0
        self._strays = 0
        """Records written while the topic was deleted and made again."""
        self._making_since: float | None = None
        """When a creation was first asked for that may still happen."""
        self._topic_ids: set[str] = set()

    async def run(self) -> None:
        await self._scene.repeat("topic maker", self._round, self._random, PAUSE_SECONDS_MAX, writes=True)

    async def _round(self) -> None:
        """Some lives, one after the other, with one reader that stays."""
        reset = self._random.choice(("earliest", "none"))
        async with self._scene.admin() as admin, self._producer() as writer:
            life = await self._remake(admin, writer)
            async with self._scene.consumer(auto_offset_reset=reset) as stayer:
                stayer.assign([REMADE])
                stayer.seek(REMADE, 0)
                while not self._scene.is_over:
                    await self._live(admin, life, stayer)
                    await self._scene.until_writable()
                    if self._scene.is_over:
                        return
                    life = await self._remake(admin, writer)

    def _producer(self) -> Producer:
        return self._scene.producer(delivery_timeout_ms=ANSWER_MS, request_timeout_ms=CALL_MS)

    async def _delete(self, admin: AdminClient) -> None:
        try:
            await admin.delete_topic(REMADE.topic, timeout_ms=ANSWER_MS)
        except UnknownTopicOrPartition:
            return

    async def _create(self, admin: AdminClient) -> TopicLife:
        replicas = min(3, len(self._scene.cluster.broker_ids))
        configs = self._random.choice(SETTINGS)
        partitions = self._random.choice((1, None))
        created = await admin.create_topic(
            REMADE.topic, partitions=partitions, replication_factor=replicas, configs=configs, timeout_ms=ANSWER_MS
        )
        count = 1 if partitions else int(self._scene.settings.get("num.partitions", 1))
        if created.partitions != count:
            self._scene.find("create_topic", f"{created.partitions} partitions were made, not {count}", REMADE)
        if created.topic_id in self._topic_ids:
            self._scene.find("create_topic", f"topic id {created.topic_id} was that of an earlier topic", REMADE)
        self._topic_ids.add(created.topic_id)
        self._lives += 1
        if self._lives > 1:
            self._scene.did("topic made again")
        return TopicLife(topic_id=created.topic_id)

    async def _remake(self, admin: AdminClient, producer: Producer) -> TopicLife:
        """Delete the topic and make it again, while a producer that stays goes on writing to its name. A record whose
        outcome came before the new topic was being made cannot be in it."""
        made = asyncio.Event()
        writing = asyncio.create_task(self._write_until(producer, made))
        try:
            await self._delete(admin)
            if self._making_since is None:
                self._making_since = self._scene.now
            life = await self._create(admin)
        except MinibrokerError:
            made.set()
            await writing  # its producer is closed next
            raise
        made.set()
        outcomes = await writing
        life.in_doubt |= {value for value, at in outcomes if at >= self._making_since}
        self._making_since = None
        return life

    async def _write_until(self, producer: Producer, made: asyncio.Event) -> list[tuple[bytes, float]]:
        """Returns each value, with when its outcome came."""
        outcomes = []
        await self._scene.until_writable()
        while not made.is_set():
            self._strays += 1
            value = STRAY + b"%d" % self._strays
            try:
                await producer.send_and_wait(REMADE.topic, value, partition=0)
            except MinibrokerError as error:
                self._scene.history.note_error("topic maker", error)
            outcomes.append((value, self._scene.now))
            self._scene.did("send through a deletion")
            await asyncio.sleep(LOOK_SECONDS)
            await self._scene.until_writable()
        return outcomes

    async def _live(self, admin: AdminClient, life: TopicLife, stayer: Consumer) -> None:
        """Write and read. Only what was read while the topic was still this one is judged: a request to delete it that
        was sent twice may come late."""
        await self._write(life)
        found = await self._read_on(stayer, max(life.acknowledged, default=-1) + 1)
        if found is None or not await self._is_alive(admin, life):
            return
        for complaint in life.wrong(found):
            self._scene.find("topic made again", f"life {self._lives}: {complaint}", REMADE)
        self._scene.did("records of a topic made again read")

    async def _write(self, life: TopicLife) -> None:
        async with self._producer() as producer:
            for number in range(self._random.randint(1, RECORDS_MAX)):
                await self._scene.until_writable()
                value = b"life-%d-%d" % (self._lives, number)
                try:
                    found = await producer.send_and_wait(REMADE.topic, value, partition=0)
                except MinibrokerError as error:
                    self._scene.history.note_error("topic maker", error)
                    if error.maybe_written:
                        life.in_doubt.add(value)
                    continue
                last = max(life.acknowledged, default=-1)
                if found.offset is None or found.offset <= last:
                    text = f"{value!r} is acknowledged at {found.offset}, after {last}"
                    self._scene.find("topic made again", text, REMADE)
                else:
                    life.acknowledged[found.offset] = value

    async def _read_on(self, stayer: Consumer, end: int) -> list[tuple[int, bytes | None]] | None:
        """What the reader that stayed gets, up to that offset at least; None if it does not get there in time, or if
        nothing was acknowledged. It may get late records of the topic before, first."""
        found: list[Record] = []
        try:
            async with asyncio.timeout(READ_SECONDS):
                while not self._has_read(found, end):
                    try:
                        for record in (await stayer.getmany(timeout_ms=CALL_MS)).get(REMADE, []):
                            self._take(record, found)
                    except TopicMadeAgain:
                        self._scene.did("TopicMadeAgain")
                        stayer.seek(REMADE, 0)
                    except LogTruncated as error:
                        self._scene.find("LogTruncated", f"life {self._lives}: {error}", REMADE)
                        stayer.seek(REMADE, 0)
                    except UnknownTopicOrPartition:  # it has not heard of the new topic yet
                        await asyncio.sleep(LOOK_SECONDS)
                    if end == 0:
                        return None
        except TimeoutError:
            if not found or found[-1].offset < end - 1:
                return None
        return [(record.offset, record.value) for record in found]

    def _take(self, record: Record, found: list[Record]) -> None:
        """A topic begins at 0: what came before the last such record is of an earlier life."""
        if found and record.offset != 0:
            found.append(record)
            return
        earlier = found if record.offset == 0 else [record]
        for each in earlier:
            if self._is_of_this_life(each):
                text = f"life {self._lives}: {each.value!r} at {each.offset} was read before offset 0"
                self._scene.find("topic made again", text, REMADE)
        found[:] = [record] if record.offset == 0 else []

    def _is_of_this_life(self, record: Record) -> bool:
        return (record.value or b"").startswith(b"life-%d-" % self._lives)

    def _has_read(self, found: list[Record], end: int) -> bool:
        """Whether this life's last acknowledged record was read."""
        return any(record.offset == end - 1 and self._is_of_this_life(record) for record in found)

    async def _is_alive(self, admin: AdminClient, life: TopicLife) -> bool:
        try:
            found = await admin.describe_topics([REMADE.topic], timeout_ms=ANSWER_MS)
        except UnknownTopicOrPartition:
            return False
        return found[REMADE.topic].topic_id == life.topic_id
