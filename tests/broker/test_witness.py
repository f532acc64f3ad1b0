"""Notes of leaders in ZooKeeper: that they are correct and timely, and block nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replicas.witness import (
    COMPLETE_MS,
    PARTITIONS_AT_ONCE,
    LedPartition,
    WitnessPoint,
    WitnessWriter,
)
from minibroker.client.producer.producer import Producer
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.events.broker_events import NodeUnreadable, WitnessNotWritten
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import MODULUS, batch_digest, format_digest
from minibroker.protocol.record_batch import read_header
from minibroker.protocol.witness import SHARDS, PartitionWitness, WitnessNode, newer, shard_of, witness_path
from minibroker.protocol.znodes import topic_path
from minibroker.runtime.ports import Coordination, CoordinationUnavailable, NodeExists, NoNode
from minibroker.simulation.world.world import SimulatedWorld
from minibroker.testing import simulated
from tests.broker.loop_turns import turns_during
from tests.simulation.test_damage import FIRST, TOPIC, produce, replica

SETTINGS = {"log.segment.bytes": "1024", "witness.interval.ms": "30000", "auto.leader.rebalance.enable": "false"}


def notes(c: SimulatedHarness, partition: TopicPartition = FIRST) -> dict[int, PartitionWitness]:
    """The notes on the partition, by the broker that wrote them."""
    found = {}
    for broker_id in c.broker_ids:
        node = c.world.zookeeper.tree.nodes.get(witness_path(broker_id, shard_of(partition)))
        note = None if node is None else WitnessNode.decode(node.data).partitions.get(str(partition))
        if note is not None:
            found[broker_id] = note
    return found


def newest(c: SimulatedHarness) -> PartitionWitness:
    first, *others = notes(c).values()
    for each in others:
        first = newer(first, each)
    return first


def digest(c: SimulatedHarness, broker_id: int, start: int, end: int) -> str:
    """The digest of the bytes on that broker's disk."""
    total = 0
    for segment in replica(c, broker_id).log.segments:
        content = bytes(c.world.machine(f"broker-{broker_id}").storage.find_file(segment.log_path).content)
        position = 0
        while position < len(content):
            header = read_header(content, position)
            if start < header.end_offset <= end:
                total += batch_digest(content, position)
            position += header.size_bytes
    return format_digest(total % MODULUS)


@simulated(brokers=3, seed=31, settings=SETTINGS)
async def test_a_new_leader_notes_its_partition_soon_and_records_at_the_next_interval(
    c: SimulatedHarness,
) -> None:
    await c.create_topic(TOPIC)
    await asyncio.sleep(6)
    assert newest(c).committed_offset == 0
    await produce(c, 40)
    await asyncio.sleep(40)
    note, leader = newest(c), await c.leader(TOPIC)
    assert (note.committed_offset, note.log_start_offset, set(note.isr)) == (40, 0, {1, 2, 3})
    assert note.topic_id
    for broker_id in c.broker_ids:
        assert note.digest == digest(c, broker_id, 0, 40)
    assert leader in notes(c)


@simulated(brokers=3, seed=32, settings=SETTINGS)
async def test_the_next_leader_notes_it_under_a_later_epoch_and_the_former_note_stays(
    c: SimulatedHarness,
) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 10)
    await asyncio.sleep(40)
    before, former = newest(c), await c.kill_leader(TOPIC)
    await c.wait_for_leader(TOPIC)
    await asyncio.sleep(6)
    assert newest(c).leader_epoch > before.leader_epoch
    assert newest(c).committed_offset == 10
    assert former not in newest(c).isr
    await c.start(former)
    await c.wait_in_sync(TOPIC)
    await asyncio.sleep(70)
    assert set(newest(c).isr) == {1, 2, 3}
    assert notes(c)[former] == before


@simulated(brokers=2, seed=38, settings=SETTINGS)
async def test_a_record_that_a_follower_lacks_is_not_noted(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    leader = await c.leader(TOPIC)
    assert leader is not None
    partition = replica(c, leader)
    await c.pause(3 - leader)
    async with Producer(bootstrap_servers=c.bootstrap_servers, acks=1) as producer:
        await producer.send_and_wait(TOPIC, b"here alone", partition=0)
    led = LedPartition(0, partition.log.topic_id)
    led.observe(partition, None, 0)
    assert (partition.log.log_end_offset, led.committed) == (1, None)
    await c.resume(3 - leader)
    await c.wait_in_sync(TOPIC)
    await produce(c, 1, first=1)
    led.observe(partition, None, 0)
    assert led.committed is not None


@simulated(brokers=3, seed=33, settings=SETTINGS)
async def test_a_clean_stop_of_all_notes_exactly_what_is_committed(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    await asyncio.sleep(40)
    await produce(c, 25)
    expected = digest(c, 1, 0, 25)
    for broker_id in c.broker_ids:
        await c.stop(broker_id)
    assert (newest(c).committed_offset, newest(c).digest) == (25, expected)


@simulated(brokers=3, seed=34, settings={**SETTINGS, "log.retention.check.interval.ms": "500"})
async def test_a_raised_log_start_is_noted_soon(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC, configs={"retention.bytes": "2048"})
    await produce(c, 60)
    await asyncio.sleep(15)
    note, leader = newest(c), await c.leader(TOPIC)
    assert leader is not None
    assert note.log_start_offset == replica(c, leader).log.log_start_offset > 0
    assert note.digest == digest(c, leader, note.log_start_offset, note.committed_offset)


@simulated(brokers=1, seed=35, settings=SETTINGS)
async def test_the_note_of_a_deleted_topic_is_removed(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 3)
    await asyncio.sleep(35)
    assert notes(c)
    async with c.admin() as admin:
        await admin.delete_topics([TOPIC])
    await asyncio.sleep(70)
    assert not notes(c)


@simulated(brokers=1, seed=35, settings=SETTINGS)
async def test_a_recreated_topic_does_not_inherit_the_old_witness(c: SimulatedHarness) -> None:
    """Seed 17003403: the old and the new topic have the same leader epoch."""
    await c.create_topic(TOPIC)
    partition = replica(c, 1)
    epoch, topic_id = partition.state.leader_epoch, partition.log.topic_id
    assert epoch is not None
    former, present = LedPartition(epoch, "former"), LedPartition(epoch, topic_id)
    former.committed = present.committed = WitnessPoint(0, 75, None, 0)
    assert present.note(partition) is not None
    assert former.note(partition) is None


@simulated(brokers=1, seed=36, settings=SETTINGS)
async def test_an_unreachable_zookeeper_does_not_delay_a_stop(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 3)
    await asyncio.sleep(35)
    before = newest(c)
    await c.stop_zookeeper()
    began = asyncio.get_running_loop().time()
    await c.stop(1)
    assert asyncio.get_running_loop().time() - began < 30
    assert newest(c) == before


@simulated(brokers=1, seed=37, settings=SETTINGS)
async def test_an_outage_is_logged_once_and_the_witness_catches_up(
    c: SimulatedHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await c.create_topic(TOPIC)
    await asyncio.sleep(35)
    writer: WitnessWriter = c.simulation.brokers[1].witness
    assert writer.age_ms <= 31_000
    await c.stop_zookeeper()
    await asyncio.sleep(100)
    assert writer.age_ms > 90_000
    await c.start_zookeeper()
    await asyncio.sleep(60)
    await produce(c, 3)
    await asyncio.sleep(60)
    assert newest(c).committed_offset == 3
    assert sum("the witness is not written" in record.message for record in caplog.records) <= 1


@pytest.mark.parametrize("walk", [WitnessWriter._observe, WitnessWriter._complete_round])
async def test_a_walk_over_very_many_partitions_lets_others_run_now_and_then(
    walk: Callable[[WitnessWriter], Awaitable[object]],
) -> None:
    """Not behind each one: a turn of the loop costs more than a partition with nothing to note."""
    idle = SimpleNamespace(state=SimpleNamespace(is_leader=False), log=SimpleNamespace(damage="not read"))
    partitions = {TopicPartition("t", number): idle for number in range(10 * PARTITIONS_AT_ONCE)}
    manager = SimpleNamespace(partitions=partitions, now_ms=lambda: 0)
    writer = WitnessWriter(cast(Any, manager), cast(Any, None), cast(Any, SimpleNamespace(now_ms=lambda: 0)))
    assert await turns_during(walk(writer)) == 10


class LosesOneWrite:
    """ZooKeeper as the writer sees it, which cannot be reached for one write."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coordination, name)

    async def set(self, path: str, data: bytes) -> object:
        if not self.lost:
            self.lost += 1
            raise CoordinationUnavailable("not connected")
        return await self._coordination.set(path, data)


@simulated(brokers=1, seed=38, settings=SETTINGS)
async def test_a_write_that_failed_is_repeated_though_nothing_changes(c: SimulatedHarness) -> None:
    """Otherwise the audit would prove less about an idle topic for ever."""
    await c.create_topic(TOPIC)
    await asyncio.sleep(35)
    writer: WitnessWriter = c.simulation.brokers[1].witness
    losing = LosesOneWrite(writer._coordination)
    writer._coordination = cast(Any, losing)
    await produce(c, 3)
    await asyncio.sleep(100)
    assert losing.lost == 1
    assert newest(c).committed_offset == 3


@simulated(brokers=3, seed=40, settings={**SETTINGS, "witness.interval.ms": "600000"})
async def test_a_changed_isr_is_noted_soon_although_the_first_write_failed(c: SimulatedHarness) -> None:
    """It counts as noted then, and was not written before the next interval."""
    await c.create_topic(TOPIC)
    await asyncio.sleep(10)
    leader = await c.leader(TOPIC)
    assert leader is not None
    writer: WitnessWriter = c.simulation.brokers[leader].witness
    losing = LosesOneWrite(writer._coordination)
    writer._coordination = cast(Any, losing)
    gone = next(each for each in c.broker_ids if each != leader)
    await c.kill(gone)
    await asyncio.sleep(60)
    assert losing.lost == 1
    assert gone not in newest(c).isr


@simulated(brokers=1, seed=41, settings={**SETTINGS, "witness.interval.ms": "600000"})
async def test_a_topic_made_again_is_noted_as_soon_as_a_new_one(c: SimulatedHarness) -> None:
    """Its epoch, ISR and log start are those of the former topic, whose note stayed in its place until the next
    interval, of up to 24 days."""
    for _ in range(2):
        await c.create_topic(TOPIC)
        await asyncio.sleep(10)
        assert newest(c).topic_id == replica(c, 1).log.topic_id
        async with c.admin() as admin:
            await admin.delete_topics([TOPIC])


def witness_alone(coordination: object, reported: list[object]) -> WitnessWriter:
    """The witness of a broker without partitions."""
    manager = SimpleNamespace(
        partitions={},
        now_ms=lambda: 0,
        config=SimpleNamespace(broker_id=1),
        observer=SimpleNamespace(notify=reported.append),
        registration=SimpleNamespace(is_fenced=lambda: False),
    )
    return WitnessWriter(cast(Any, manager), cast(Any, coordination), cast(Any, SimpleNamespace(now_ms=lambda: 0)))


async def test_each_outage_is_reported_once_however_often_a_note_is_tried() -> None:
    """It is tried every few seconds."""
    fails, reported = True, list[object]()

    async def get(_: str) -> tuple[bytes, None]:
        if fails:
            raise CoordinationUnavailable("not connected")
        raise NoNode

    writer = witness_alone(SimpleNamespace(get=get), reported)
    outage = WitnessNotWritten(reason="not connected; it will be tried again")
    for _ in range(3):
        await writer._note(set())
        assert reported == [outage]
    fails = False
    await writer._note(set())
    fails, writer._unread = True, {0}
    await writer._note(set())
    assert reported == [outage] * 2, "and the next one again"


async def test_a_node_that_an_earlier_attempt_created_meanwhile_gets_the_present_notes() -> None:
    """The answer to that attempt was lost, and it took effect after the next one had found no node."""
    nodes, path = dict[str, bytes](), witness_path(1, 0)

    async def write(name: str, content: bytes) -> None:
        if name not in nodes:
            raise NoNode
        nodes[name] = content

    async def create(name: str, content: bytes, **_: object) -> None:
        nodes[name] = b"of the earlier attempt"
        raise NodeExists

    writer = witness_alone(SimpleNamespace(set=write, create=create), [])
    await writer._write(0)
    assert nodes == {path: WitnessNode(partitions={}).encode()}


async def test_each_unreadable_node_of_an_earlier_start_is_reported_once() -> None:
    """Its notes are lost: the audit proves less."""

    async def garbage(path: str) -> tuple[bytes, None]:
        return b"garbage", None

    reported: list[object] = []
    writer = witness_alone(SimpleNamespace(get=garbage), reported)
    await writer._read_own()
    await writer._read_own()
    assert all(isinstance(each, NodeUnreadable) for each in reported)
    assert [cast(Any, each).path for each in reported] == [witness_path(1, shard) for shard in range(SHARDS)]


async def test_the_witness_ages_while_a_shard_is_too_large_for_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """It seemed up to date for ever: its notes are not in ZooKeeper, and an alarm on the metric stayed silent."""

    async def unknown(path: str) -> None:
        raise NoNode(path)

    async def take(path: str, content: bytes) -> None:
        written.append(path)

    reported, written = list[object](), list[str]()
    writer = witness_alone(SimpleNamespace(get=unknown, set=take), reported)
    note = PartitionWitness(
        topic_id="id",
        leader_epoch=1,
        replicas=(1,),
        isr=(1,),
        log_start_offset=0,
        committed_offset=5,
        digest="",
        noted_at_ms=0,
    )
    monkeypatch.setattr("minibroker.broker.replicas.witness.NODE_BYTES_MAX", len(WitnessNode(partitions={}).encode()))
    writer._notes[3]["t-0"] = note
    writer._unwritten |= {3, 4}
    for now_ms in (7_000, 8_000):  # nothing changes before the second
        cast(Any, writer._manager).now_ms = lambda now_ms=now_ms: now_ms
        await writer._note(set())
        assert writer.age_ms == now_ms
    assert (written, [type(each) for each in reported]) == ([witness_path(1, 4)], [WitnessNotWritten])
    del writer._notes[3]["t-0"]
    writer._unwritten.add(3)
    await writer._note(set())
    assert (written[1:], writer.age_ms) == ([witness_path(1, 3)], 0)


async def test_a_write_that_a_stop_has_cancelled_is_repeated_though_nothing_changes() -> None:
    """The periodic write ends with its task; what the stop then notes is the same, and ZooKeeper may lack it."""

    async def unknown(path: str) -> None:
        raise NoNode(path)

    async def take(path: str, content: bytes) -> None:
        begun.append(path)
        arrived.set()
        await answered.wait()

    begun, arrived, answered = list[str](), asyncio.Event(), asyncio.Event()
    writer = witness_alone(SimpleNamespace(get=unknown, set=take), [])
    writer._unwritten |= {3, 4}
    noting = asyncio.create_task(writer._note(set()))
    await arrived.wait()
    noting.cancel()
    await asyncio.gather(noting, return_exceptions=True)
    answered.set()
    await writer._note(set())
    assert begun == [witness_path(1, 3), witness_path(1, 3), witness_path(1, 4)]


def test_a_stop_that_zookeeper_holds_up_ends_in_time_and_says_what_was_not_noted() -> None:
    async def never(path: str) -> None:
        await asyncio.Event().wait()

    reported: list[object] = []
    writer = witness_alone(SimpleNamespace(get=never), reported)
    SimulatedWorld().run(writer.conclude(), seconds_max=60)
    assert [type(each) for each in reported] == [WitnessNotWritten]


@pytest.mark.parametrize(("start", "end", "is_worth_it"), [(2, 5, False), (3, 5, True), (1, 5, True), (2, 6, True)])
def test_a_partition_is_noted_again_when_its_log_has_changed_and_not_while_it_rests(
    start: int, end: int, is_worth_it: bool
) -> None:
    """ZooKeeper would be written to for each resting partition, again and again."""
    led = cast(Any, SimpleNamespace(committed=SimpleNamespace(start_offset=2, end_offset=5, digest="d")))
    partition = cast(Any, SimpleNamespace(log=SimpleNamespace(log_start_offset=start, log_end_offset=end)))
    assert LedPartition._is_worth_it(led, partition, None) is is_worth_it


def test_digests_that_are_not_known_are_looked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of an earlier version may be opened, and a repair may end, at any time."""
    rounds: list[float] = []

    async def complete_all(writer: WitnessWriter) -> None:
        rounds.append(asyncio.get_running_loop().time())

    async def watch() -> None:
        running = asyncio.create_task(witness_alone(None, [])._complete_forever())
        await asyncio.sleep(3.5 * COMPLETE_MS / 1000)
        running.cancel()

    monkeypatch.setattr(WitnessWriter, "_complete_all", complete_all)
    SimulatedWorld().run(watch())
    assert len(rounds) == 3


@simulated(brokers=1, seed=39, settings=SETTINGS)
async def test_the_note_of_a_topic_that_is_left_alone_stays(c: SimulatedHarness) -> None:
    """Its node cannot be read, so a broker that was started since is not told of it. But it has the log."""
    await c.create_topic(TOPIC)
    await produce(c, 3)
    await asyncio.sleep(35)
    before, node = notes(c), c.world.zookeeper.tree.nodes[topic_path(TOPIC)]
    sound, node.data = node.data, b"garbage"
    await c.restart(1)
    await asyncio.sleep(150)
    known, node.data = c.simulation.brokers[1].image.topic_id(TOPIC), sound
    assert known is None
    assert {each.committed_offset for each in before.values()} == {3}
    assert set(notes(c)) == set(before)


@pytest.mark.parametrize(("topic_id_of_log", "stays"), [("former", True), ("next", False), (None, False)])
async def test_only_a_log_of_the_topic_itself_keeps_its_note(topic_id_of_log: str | None, stays: bool) -> None:
    """A broker that led the deleted topic follows the next one of that name: nothing replaces its note."""
    writer = witness_alone(None, [])
    manager, log = cast(Any, writer._manager), SimpleNamespace(topic_id=topic_id_of_log)
    manager.image = SimpleNamespace(has_been_updated=True, topic_id=lambda _: "next")
    manager.partitions[FIRST] = SimpleNamespace(log=log)
    kept = writer._notes[shard_of(FIRST)]
    kept[str(FIRST)] = cast(Any, SimpleNamespace(topic_id="former"))
    writer._forget_deleted()
    assert kept, "the topic was not missing one interval ago"
    writer._forget_deleted()
    assert bool(kept) is stays


def test_a_shorter_interval_holds_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer one, of up to 24 days, was waited for to its end: only a restart obeyed the setting."""
    noted: list[float] = []

    async def note(writer: WitnessWriter, partitions: set[TopicPartition]) -> None:
        noted.append(asyncio.get_running_loop().time())

    async def watch() -> None:
        loop = asyncio.get_running_loop()
        writer = witness_alone(None, [])
        manager = cast(Any, writer._manager)
        manager.now_ms, manager.image = lambda: int(loop.time() * 1000), SimpleNamespace(has_been_updated=False)
        manager.config = SimpleNamespace(witness_interval_ms=1_000_000)
        running = asyncio.create_task(writer._note_forever())
        await asyncio.sleep(10)
        assert len(noted) == 1
        manager.config = SimpleNamespace(witness_interval_ms=10_000)
        await asyncio.sleep(30)
        running.cancel()

    monkeypatch.setattr(WitnessWriter, "_note", note)
    SimulatedWorld().run(watch())
    assert len(noted) == 4
