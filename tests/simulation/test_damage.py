"""Bit rot under a running cluster: the damaged replica goes offline alone, leadership moves, and it repairs itself."""

import asyncio
import contextlib

import pytest

from minibroker import Producer, RecordMetadata
from minibroker.broker.replicas.partition import Partition
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.events.event_base import ERROR, ClusterEvent
from minibroker.protocol.events.replica_events import LogMissing
from minibroker.protocol.files.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START,
    LOG_START_SLOT_BYTES,
    parse_log_start,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from minibroker.simulation.world.storage import SimulatedStorage
from minibroker.testing import simulated

TOPIC = "orders"
FIRST = TopicPartition(TOPIC, 0)
SETTINGS = {
    "log.tail.cache.bytes": "0",
    "log.segment.bytes": "1024",
    "replica.lag.time.max.ms": "2000",
    "auto.leader.rebalance.enable": "false",
}
Acked = list[tuple[RecordMetadata, bytes]]
BASE_OFFSET, EPOCH, PAYLOAD = 7, 15, -3
"""Positions in a batch: the lowest byte of the base offset and of the leader epoch, and near the end."""


async def produce(c: SimulatedHarness, count: int, first: int = 0) -> Acked:
    acked = []
    async with Producer(bootstrap_servers=c.bootstrap_servers, acks="all") as producer:
        for number in range(first, first + count):
            value = b"order %d" % number
            acked.append((await producer.send_and_wait(TOPIC, value, partition=0), value))
    return acked


async def read(c: SimulatedHarness, count: int, seconds: float = 60) -> dict[int, bytes | None]:
    found: dict[int, bytes | None] = {}
    async with Consumer(bootstrap_servers=c.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([FIRST])
        async with asyncio.timeout(seconds):
            async for record in consumer:
                found[record.offset] = record.value
                if len(found) == count:
                    break
    return found


async def read_for(c: SimulatedHarness, seconds: float) -> dict[int, bytes | None]:
    """What a consumer gets in that time; its errors are ignored."""
    found: dict[int, bytes | None] = {}
    async with Consumer(bootstrap_servers=c.bootstrap_servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([FIRST])
        with contextlib.suppress(TimeoutError, MinibrokerError):
            async with asyncio.timeout(seconds):
                async for record in consumer:
                    found[record.offset] = record.value
    return found


def replica(c: SimulatedHarness, broker_id: int) -> Partition:
    found = c.simulation.replica(broker_id, TOPIC)
    assert found is not None
    return found


def disk(c: SimulatedHarness, broker_id: int) -> SimulatedStorage:
    return c.world.machine(f"broker-{broker_id}").storage


def rot(c: SimulatedHarness, broker_id: int, segment: int, batch: int, byte: int, bit: int = 0) -> int:
    """Flip a bit of a stored batch; returns the batch's base offset."""
    storage = disk(c, broker_id)
    path = replica(c, broker_id).log.segments[segment].log_path
    content = bytes(storage.find_file(path).content)
    position = 0
    for _ in range(batch):
        position += read_header(content, position).size_bytes
    header = read_header(content, position)
    storage.flip_bit(path, position + byte + (header.size_bytes if byte < 0 else 0), bit)
    return header.base_offset


async def followers(c: SimulatedHarness) -> tuple[int, list[int]]:
    leader = await c.wait_for_leader(TOPIC)
    return leader, [b for b in c.broker_ids if b != leader]


@pytest.mark.parametrize("byte", [BASE_OFFSET, EPOCH, PAYLOAD])
@pytest.mark.parametrize("segment", [0, -1])
@simulated(brokers=3, seed=3, settings=SETTINGS)
async def test_a_leader_with_a_flipped_bit_is_replaced_and_repairs_itself(
    c: SimulatedHarness, segment: int, byte: int
) -> None:
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    leader, _ = await followers(c)
    rot(c, leader, segment, 1, byte)
    assert await read(c, 45) == {m.offset: value for m, value in acked}
    assert await c.wait_for_leader(TOPIC, other_than=leader) != leader
    await c.wait_in_sync(TOPIC)
    await asyncio.sleep(3)
    broker = c.simulation.brokers[leader]
    assert (broker.counters.damaged_logs, broker.counters.repairs_begun, broker.counters.repairs_done) == (1, 1, 1)
    assert not broker.log_directory.set_aside
    assert (await c.audit(acked)).success


@pytest.mark.parametrize("call", ["rename", "make_directory", "replace_file"])
@simulated(brokers=3, seed=3, settings=SETTINGS)
async def test_a_replica_that_had_no_room_to_repair_itself_does_so_later(c: SimulatedHarness, call: str) -> None:
    """Seed 17111979: there is only one order to start over, and it came while the disk was full."""
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    leader, _ = await followers(c)
    rot(c, leader, 0, 1, PAYLOAD)
    disk(c, leader).fail(call, is_full=True)
    assert await read(c, 45) == {m.offset: value for m, value in acked}
    await asyncio.sleep(5)
    disk(c, leader).heal()
    await c.wait_in_sync(TOPIC)
    await asyncio.sleep(3)
    assert c.simulation.brokers[leader].counters.repairs_done == 1
    assert (await c.audit(acked)).success


@pytest.mark.invariant("I44")
@simulated(brokers=3, seed=3, settings=SETTINGS)
async def test_a_repair_waits_for_a_checkpoint_that_is_being_written(c: SimulatedHarness) -> None:
    """It says what the damaged log had committed, and would replace what the repair writes."""
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    leader, _ = await followers(c)
    broker = c.simulation.brokers[leader]
    rot(c, leader, 0, 1, PAYLOAD)
    async with broker.log_directory._checkpoints._writing[HIGH_WATERMARK_CHECKPOINT]:
        assert await read(c, 45) == {m.offset: value for m, value in acked}
        await asyncio.sleep(3)
        assert (broker.counters.damaged_logs, broker.counters.repairs_begun) == (1, 0)
    await c.wait_in_sync(TOPIC)
    await asyncio.sleep(3)
    assert broker.counters.repairs_done == 1
    assert (await c.audit(acked)).success


@pytest.mark.parametrize("gone", ["segment", "partition"])
@simulated(brokers=3, seed=3, settings=SETTINGS)
async def test_a_leader_whose_files_are_gone_is_replaced_and_repairs_itself(c: SimulatedHarness, gone: str) -> None:
    """The log directory stays online: the leaders of other partitions do not change."""
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    leader, _ = await followers(c)
    log = replica(c, leader).log
    parent, name = disk(c, leader).parent_of(log.segments[0].log_path if gone == "segment" else log.directory)
    log.close()  # like a segment that was not used recently
    del parent.entries[name]
    assert await read(c, 45) == {m.offset: value for m, value in acked}
    assert await c.wait_for_leader(TOPIC, other_than=leader) != leader
    await c.wait_in_sync(TOPIC)
    broker = c.simulation.brokers[leader]
    assert (broker.counters.damaged_logs, broker.log_directory.offline) == (1, False)
    assert (await c.audit(acked)).success


@simulated(brokers=3, seed=4, settings=SETTINGS)
async def test_the_only_in_sync_replica_stays_leader_and_refuses_only_the_damaged_range(
    c: SimulatedHarness,
) -> None:
    await c.create_topic(TOPIC, configs={"min.insync.replicas": "1"})
    acked = await produce(c, 45)
    leader, others = await followers(c)
    for other in others:
        await c.kill(other)
    await c.simulation.until(lambda: c.simulation.in_sync_replicas(TOPIC) == (leader,), what="a leader alone")
    damaged = rot(c, leader, 0, 2, PAYLOAD)
    found = await read_for(c, 5)
    assert sorted(found) == list(range(damaged)), "only what precedes the damage is served"
    acked += await produce(c, 5, first=45)
    assert await c.leader(TOPIC) == leader
    for other in others:
        await c.start(other)
    assert await c.wait_for_leader(TOPIC, other_than=leader) in others
    await c.wait_in_sync(TOPIC)
    assert await read(c, 50) == {m.offset: value for m, value in acked}
    assert (await c.audit(acked)).success


@simulated(brokers=3, seed=5, settings=SETTINGS)
async def test_two_copies_that_are_damaged_at_different_places_are_both_repaired(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    leader, _ = await followers(c)
    successor = next(b for b in replica(c, leader).state.assignment if b != leader)
    rot(c, leader, 0, 1, PAYLOAD)
    rot(c, successor, 1, 1, BASE_OFFSET)
    assert await read(c, 45) == {m.offset: value for m, value in acked}
    await c.wait_in_sync(TOPIC)
    assert [c.simulation.brokers[b].counters.repairs_begun for b in (leader, successor)] == [1, 1]
    assert (await c.audit(acked)).success


@simulated(brokers=2, seed=5, settings=SETTINGS)
async def test_each_of_two_damaged_copies_supplies_what_the_other_lacks(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC, configs={"min.insync.replicas": "1"})
    acked = await produce(c, 45)
    leader, (other,) = await followers(c)
    rot(c, leader, 0, 1, PAYLOAD)
    rot(c, other, 1, 1, BASE_OFFSET)
    assert await read(c, 45) == {m.offset: value for m, value in acked}
    await c.simulation.until(lambda: c.simulation.in_sync_replicas(TOPIC) == (1, 2), 60, "both in sync")
    await asyncio.sleep(5)
    assert [c.simulation.brokers[b].counters.repairs_done for b in (leader, other)] == [1, 1]
    assert c.simulation.brokers[leader].counters.salvaged_bytes > 0
    assert (await c.audit(acked)).success


@simulated(brokers=3, seed=7, settings=SETTINGS)
async def test_a_restart_does_not_make_a_damaged_log_look_sound(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    leader, controller = await c.wait_for_leader(TOPIC), await c.controller()
    damaged = next(b for b in c.broker_ids if b not in (leader, controller))
    await c.partition(damaged, [b for b in c.broker_ids if b != damaged])
    c.simulation.brokers[damaged].manager.repairs.damaged(replica(c, damaged), "reported by the test")
    await asyncio.sleep(0.1)
    await c.kill(damaged)
    await c.heal()
    await c.start(damaged)
    await c.wait_in_sync(TOPIC)
    counters = c.simulation.brokers[damaged].counters
    assert (counters.damaged_logs, counters.repairs_begun) == (1, 1)
    await c.wait_in_sync(TOPIC)
    assert (await c.audit(acked)).success


@simulated(brokers=1, seed=3, settings=SETTINGS)
async def test_a_partition_whose_directory_is_gone_at_a_start_is_reported_as_an_error(c: SimulatedHarness) -> None:
    """The only copy: there is no leader, and the broker used to report nothing."""
    await c.create_topic(TOPIC)
    await produce(c, 5)
    await asyncio.sleep(2)
    directory = replica(c, 1).log.directory
    await c.stop(1)
    parent, name = disk(c, 1).parent_of(directory)
    del parent.entries[name]
    events: list[object] = []
    with c.world.observers.subscribed(events.append):
        await c.start(1)
        await asyncio.sleep(10)
    assert [type(each) for each in events if isinstance(each, ClusterEvent) and each.level == ERROR] == [LogMissing]


@pytest.mark.invariant("I36")
@simulated(brokers=3, settings={"log.retention.check.interval.ms": "1000"})
async def test_a_follower_whose_log_start_file_has_a_torn_slot_joins_an_idle_partition(c: SimulatedHarness) -> None:
    """As a power cut leaves it: the sound slot has the start. The first fetch names no start, because the file is to be
    written first. No fetch followed once it was, so the leader never learned the start that joining needs."""
    await c.create_topic(TOPIC, configs={"segment.bytes": "4096", "retention.bytes": "6000"})
    async with Producer(bootstrap_servers=c.bootstrap_servers) as producer:
        for _ in range(40):
            await producer.send_and_wait(TOPIC, b"x" * 500, partition=0)
    await c.simulation.until(lambda: all(replica(c, each).first_offset > 0 for each in c.broker_ids), 60, "retention")
    await asyncio.sleep(10)
    leader = await c.leader(TOPIC)
    follower = next(each for each in c.broker_ids if each != leader)
    await c.stop(follower)
    name = f"{FIRST}/{LOG_START}"
    content = bytearray(await c.read_file(follower, name))
    other_slot = (parse_log_start(bytes(content))[1] + 1) % 2
    content[other_slot * LOG_START_SLOT_BYTES + 30] ^= 4
    await c.write_file(follower, name, bytes(content))
    await c.start(follower)
    await c.wait_in_sync(TOPIC)
