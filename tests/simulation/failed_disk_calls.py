"""A story of one cluster in which a disk call of one broker fails, and what must come right without a restart of it.

The story takes the replicas of one broker through what a replica meets: they are made, lead, diverge, fall behind what
retention has kept, rot and are copied anew, lead again, and are deleted and made again. No step waits for that broker,
so that each part comes whatever failed before.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal, NamedTuple

from minibroker import Producer, RecordMetadata
from minibroker.broker.broker import ENVIRONMENT_ERRORS
from minibroker.client.errors import MinibrokerError
from minibroker.harness.cluster import ZOOKEEPER, Misuse
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors, SyncFailed
from minibroker.testing import simulated

Kind = Literal["entry", "full", "descriptor", "io"]
SYNCS = frozenset({"sync", "sync_directory"})
_ENTRY = frozenset({"open", "read", "replace_file", "rename", "remove", "make_directory", "list_directory"})
MAY_FAIL: dict[Kind, frozenset[str]] = {
    "entry": _ENTRY,
    "full": frozenset({"append", "open", "replace_file", "make_directory", "rename"}),
    "descriptor": frozenset({"open", "read", "replace_file", "list_directory", "sync_directory", "remove"}),
    "io": _ENTRY | SYNCS | {"append", "write_at", "truncate"},
}
"""Which calls may fail in each way."""
OF_THE_DIRECTORY = {"noted-changes", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"}
"""A bad entry in their place counts as a broken directory."""
SECONDS: dict[Kind, float] = {"entry": 1.0, "full": 1.0, "descriptor": 0.3, "io": 0.0}
"""For how long others fail after the first: those on the same path, all that need room, all that need a descriptor. An
entry moves away with its directory."""

KEPT, BRIEF = "kept", "brief"
FIRST, SECOND, SHORT = ALL = TopicPartition(KEPT, 0), TopicPartition(KEPT, 1), TopicPartition(BRIEF, 0)
SETTINGS = {
    "log.segment.bytes": "1024",
    "log.index.interval.bytes": "200",
    "log.tail.cache.bytes": "0",
    "log.scrub.interval.ms": "1100",
    "log.segment.delete.delay.ms": "300",
    "log.retention.check.interval.ms": "700",
    "log.flush.offset.checkpoint.interval.ms": "900",
    "replica.high.watermark.checkpoint.interval.ms": "800",
    "replica.lag.time.max.ms": "1000",
    "zookeeper.session.timeout.ms": "2000",
}
"""Everything happens soon, and every read comes from the disk."""
BRIEF_CONFIGS = {"retention.bytes": "2000", "flush.messages": "1"}
LOG_DIRECTORY = "/data/log"
RENAMED = re.compile(r"-delete|-damaged|\.deleted")
"""What was renamed to be removed, at once or later."""
SPOILED = -3
"""Position in a batch: near its end."""

CALL_SECONDS = 6.0
"""For a call of a client: the cluster may be without a leader for most of it."""
RECOVERY_SECONDS = 45.0
"""What an entry kept from being made is tried again after 10 s, and if that was in vain, 20 s later."""
VIRTUAL_SECONDS_MAX = 400.0


class Moment(NamedTuple):
    """Where in the story a call is made."""

    chapter: str
    call: str
    file: str
    """See `kind_of_file`."""


class Failure(NamedTuple):
    """One call that fails, and what fails with it."""

    kind: Kind
    moment: Moment
    number: int = 1
    """Which of the calls of that moment."""
    seconds: float | None = None
    """See `SECONDS`; None: as there."""
    replica: TopicPartition | None = None
    """If calls on the files of this one alone count."""

    def concerns(self, moment: Moment, path: str) -> bool:
        return self.moment == moment and (self.replica is None or path.startswith(f"{LOG_DIRECTORY}/{self.replica}/"))


def kind_of_file(path: str) -> str:
    """What all files of that kind share: `log`, `index` (both kinds), `log.deleted`, `partition.metadata`, `directory`
    (of a partition), `directory.0-delete`; or the name of a file that a broker has once."""
    name = path.removeprefix(LOG_DIRECTORY).removeprefix("/")
    in_partition = re.sub(rf"^({KEPT}|{BRIEF})-\d+", "directory", name)
    return re.sub(r"^\d+\.(time)?", "", in_partition.removeprefix("directory/")) or "log directory"


class FailingDisk:
    """Fails calls of one broker's disk, and notes which are made. It stands in the place of the disk's own faults."""

    def __init__(self, c: SimulatedHarness, broker_id: int, failures: tuple[Failure, ...]) -> None:
        self.chapter = ""
        self.counts: dict[Moment, int] = {}
        self.failed: list[str] = []
        """The calls that were to fail, once they have."""
        self.left_alone: list[str] = []
        """What a bad entry kept from being removed: the broker warns, and leaves it to its next start."""
        self._failures = failures
        self._met = [0 for _ in failures]
        """The calls so far that each concerns."""
        self._lasting: list[tuple[Kind, str, float]] = []
        self.storage = c.world.machine(f"broker-{broker_id}").storage
        self._now = c.world.loop.time
        self._check_before = self.storage.check_fault
        self.storage.check_fault = self._check  # type: ignore[method-assign]

    @property
    def has_failed(self) -> bool:
        """All that was to fail."""
        return 0 < len(self._failures) == len(self.failed)

    def heal(self) -> None:
        self.storage.check_fault = self._check_before  # type: ignore[method-assign]

    def _check(self, call: str, path: str) -> None:
        self._check_before(call, path)
        moment = Moment(self.chapter, call, kind_of_file(path))
        self.counts[moment] = self.counts.get(moment, 0) + 1
        now = self._now()
        for index, failure in enumerate(self._failures):
            self._met[index] += failure.concerns(moment, path)
            if failure.concerns(moment, path) and self._met[index] == failure.number:
                seconds = SECONDS[failure.kind] if failure.seconds is None else failure.seconds
                self.failed.append(f"{call} {path}")
                self._lasting.append((failure.kind, path, now + seconds))
                self._fail(failure.kind, call, path)
        for kind, first_path, until in self._lasting:
            if now < until and call in MAY_FAIL[kind] and (kind != "entry" or first_path == path):
                self._fail(kind, call, path)
        if call == "rename":
            self._lasting = [each for each in self._lasting if not each[1].startswith(f"{path}/")]

    def _fail(self, kind: Kind, call: str, path: str) -> None:
        if (kind, call) == ("entry", "remove"):
            self.left_alone.append(path)
        raise error_of(kind, call, path)


def error_of(kind: Kind, call: str, path: str) -> DiskError:
    what = f"cannot {call} {path}"
    if kind == "entry":
        return BadEntry(f"{what}: device or resource busy (simulated)")
    if kind == "descriptor":
        return OutOfDescriptors(f"{what}: too many open files (simulated)")
    if call in SYNCS:
        return SyncFailed(f"{what}: input/output error (simulated)")
    return (DiskFull if kind == "full" else DiskError)(f"{what}: {kind} (simulated)")


class Story:
    """What happens to the replicas of `broker_id`."""

    def __init__(self, c: SimulatedHarness, broker_id: int, failures: tuple[Failure, ...]) -> None:
        self.c, self.broker_id = c, broker_id
        self.others = [each for each in c.broker_ids if each != broker_id]
        self.disk = FailingDisk(c, broker_id, failures)
        self.acknowledged: dict[str, list[tuple[RecordMetadata, bytes]]] = {KEPT: [], BRIEF: []}
        """With acks=all, to the present topic of that name."""
        self._sent = 0

    async def tell(self, goes_on: bool) -> None:
        """Unless it goes on, it ends with the chapter of the last failure: the broker registers again in a later one,
        and all its replicas are ordered anew, as after a restart."""
        for chapter in (
            self.create,
            self.write,
            self.diverge,
            self.lead_alone,
            self.miss_records,
            self.come_back,
            self.rot,
            self.lead_again,
            self.delete,
            self.create_again,
        ):
            self.disk.chapter = chapter.__name__
            await chapter()
            if self.disk.has_failed and not goes_on:
                break
        self.disk.chapter = "end"

    async def create(self) -> None:
        await self._administer(self._create(KEPT))
        await self._administer(self._create(BRIEF))
        await asyncio.sleep(0.3)

    async def write(self) -> None:
        await self._send(dict.fromkeys(ALL, 14))
        await asyncio.sleep(1)

    async def diverge(self) -> None:
        """What it leads gets records that no other replica has."""
        await self.c.partition(self.broker_id, [*self.others, ZOOKEEPER])
        await self._send({FIRST: 2, SECOND: 2}, to=self.broker_id)
        await asyncio.sleep(1.1)

    async def lead_alone(self) -> None:
        """It would hand over to no other replica any more. Then it is fenced, and others are elected."""
        await asyncio.sleep(1.8)

    async def miss_records(self) -> None:
        """Retention deletes further than its log of `brief` goes."""
        await self._send({FIRST: 5, SECOND: 5, SHORT: 40})
        await asyncio.sleep(1)

    async def come_back(self) -> None:
        await self.c.heal()
        await asyncio.sleep(2.5)

    async def rot(self) -> None:
        """The scrubber finds it."""
        replica = self.c.simulation.replica(self.broker_id, KEPT)
        if replica is not None and len(replica.log.segments) > 1:
            path = replica.log.segments[0].log_path
            content = bytes(self.disk.storage.find_file(path).content)
            self.disk.storage.flip_bit(path, read_header(content, 0).size_bytes + SPOILED)
        await asyncio.sleep(3)

    async def lead_again(self) -> None:
        for other in self.others:
            with contextlib.suppress(Misuse):  # a trial has killed it
                await self.c.kill(other)
            await asyncio.sleep(0.5)
            await self._send({FIRST: 5, SECOND: 5, SHORT: 20})
            with contextlib.suppress(Misuse):
                await self.c.start(other)
            await asyncio.sleep(1.5)

    async def delete(self) -> None:
        async with self.c.admin() as admin:
            await self._administer(admin.delete_topics([BRIEF]))
        self.acknowledged[BRIEF].clear()
        await asyncio.sleep(1)

    async def create_again(self) -> None:
        await self._administer(self._create(BRIEF))
        await asyncio.sleep(0.3)
        await self._send({SHORT: 40})
        await asyncio.sleep(1.5)

    async def _create(self, topic: str) -> None:
        partitions, configs = (2, None) if topic == KEPT else (1, BRIEF_CONFIGS)
        async with self.c.admin() as admin:
            await admin.create_topic(topic, partitions=partitions, replication_factor=3, configs=configs)

    async def _administer(self, call: Awaitable[object]) -> None:
        """Whether it is carried out in time may depend on the broker whose disk fails."""
        with contextlib.suppress(MinibrokerError, TimeoutError):
            async with asyncio.timeout(CALL_SECONDS):
                await call

    async def _send(self, counts: Mapping[TopicPartition, int], to: int | None = None) -> list[TopicPartition]:
        """Write so many batches of one record each. `to`: with acks=1, and this broker alone is asked. Returns the
        partitions that took all."""
        servers = self.c.bootstrap_servers if to is None else f"broker-{to}:9092"
        taken: list[TopicPartition] = []
        with contextlib.suppress(TimeoutError, MinibrokerError):
            async with (
                asyncio.timeout(CALL_SECONDS if to is None else 0.4),
                Producer(
                    bootstrap_servers=servers,
                    acks="all" if to is None else 1,
                    delivery_timeout_ms=4_000,
                    request_timeout_ms=2_000,
                ) as producer,
            ):
                written = [self._write(producer, name, count, to is None) for name, count in counts.items()]
                is_whole = await asyncio.gather(*written)
                taken = [name for name, is_all in zip(counts, is_whole, strict=True) if is_all]
        return taken

    async def _write(self, producer: Producer, name: TopicPartition, count: int, is_promised: bool) -> bool:
        is_whole = True
        for _ in range(count):
            self._sent += 1
            value = b"value %d " % self._sent + bytes(60)
            try:
                found = await producer.send_and_wait(name.topic, value, partition=name.partition)
            except MinibrokerError:
                is_whole = False
                continue
            if is_promised:
                self.acknowledged[name.topic].append((found, value))
        return is_whole

    # ------------------------------------------------------------------------------------------------- what must be
    async def problems(self, may_go_offline: bool) -> list[str]:
        """Of the cluster, after the disk has healed."""
        self.disk.heal()
        await self.c.heal()
        found = self._bugs(may_go_offline)
        if self.c.simulation.has_offline_directory(self.broker_id) or self.broker_id not in self.c.simulation.alive():
            if not may_go_offline:
                found.append("its log directory is offline, or its process gone, though its disk works")
            if self.broker_id in self.c.simulation.alive():
                await self.c.kill(self.broker_id)
            await self.c.start(self.broker_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RECOVERY_SECONDS):
                while await self._wrong():  # noqa: ASYNC110  (nothing signals it)
                    await asyncio.sleep(0.3)
        found += await self._wrong()
        if not found:
            taken = await self._send(dict.fromkeys(ALL, 2))
            found += [f"{each} takes no records" for each in ALL if each not in taken]
            found += [each for name in ALL for each in self._wrong_records(name)]
        return found + self._bugs(may_go_offline)

    def _bugs(self, may_go_offline: bool) -> list[str]:
        if may_go_offline:
            crashes = self.c.world.crashes
            crashes[:] = [each for each in crashes if not isinstance(each[1], ENVIRONMENT_ERRORS)]
        return self.c.take_bugs()

    async def _wrong(self) -> list[str]:
        nodes, assigned = self.c.world.zookeeper.tree.nodes, {topic for topic, _ in self.c.simulation.assignments()}
        found = await self.c.under_replicated()
        found += [f"not deleted: {path}" for path in nodes if path.startswith("/admin/delete_topics/")]
        if not found and assigned < {KEPT, BRIEF}:  # it could not be made again before it was deleted
            for topic in {KEPT, BRIEF} - assigned:
                await self._administer(self._create(topic))
            found.append("a topic has only now been made")
        paths = [path for path, _ in self.disk.storage.files(LOG_DIRECTORY) if RENAMED.search(path)]
        return found + [f"left: {path}" for path in paths if not path.startswith(tuple(self.disk.left_alone))]

    def _wrong_records(self, name: TopicPartition) -> list[str]:
        """Retention may have deleted further on one broker than on another one, and nothing of `kept`."""
        logs = {broker_id: self._stored(broker_id, name) for broker_id in self.c.broker_ids}
        start = max(min(log, default=0) for log in logs.values())
        common = {broker_id: {at: log[at] for at in log if at >= start} for broker_id, log in logs.items()}
        found = [f"{name} of broker {b} is not broker 1's" for b in common if common[b] != common[1]]
        for metadata, value in self.acknowledged[name.topic]:
            assert metadata.offset is not None
            is_due = metadata.partition == name.partition and (name.topic == KEPT or metadata.offset >= start)
            if is_due and value not in common[1].get(metadata.offset, b""):
                found.append(f"{name} lacks {value!r} at offset {metadata.offset}")
        return found

    def _stored(self, broker_id: int, name: TopicPartition) -> dict[int, bytes]:
        """The batches in its files, by their offsets; each has one record."""
        found: dict[int, bytes] = {}
        storage = self.c.world.machine(f"broker-{broker_id}").storage
        for path, node in storage.files(f"{LOG_DIRECTORY}/{name}/"):
            content, position = bytes(node.content), 0
            while path.endswith(".log") and position < len(content):
                header = read_header(content, position)
                found[header.base_offset] = content[position : position + header.size_bytes]
                position += header.size_bytes
        return found


class Outcome(NamedTuple):
    """Of one story."""

    counts: dict[Moment, int]
    failed: list[str]
    problems: list[str]


def told(
    failures: tuple[Failure, ...] = (),
    broker_id: int = 2,
    seed: int = 1,
    meanwhile: Callable[[Story], Awaitable[None]] | None = None,
    goes_on: bool = False,
    has_disk_threads: bool = False,
) -> Outcome:
    """`meanwhile`: something else that happens during the story. `goes_on`: see `Story.tell`."""

    @simulated(brokers=3, seed=seed, settings=SETTINGS, virtual_seconds_max=VIRTUAL_SECONDS_MAX)
    async def play(c: SimulatedHarness) -> Outcome:
        if has_disk_threads:
            c.world.has_disk_threads = True
            await c.restart(broker_id)
        story = Story(c, broker_id, failures)
        task = None if meanwhile is None else asyncio.ensure_future(meanwhile(story))
        await story.tell(goes_on)
        if task is not None:
            if not story.disk.failed:
                task.cancel()
            await asyncio.wait([task])
        problems = await story.problems(any(each.kind == "io" for each in failures))
        return Outcome(story.disk.counts, story.disk.failed, problems)

    outcome: Outcome = play()
    return outcome
