"""The scrubber: it finds damage that no client reads, at the configured rate and without false alarms."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.disk_faults.scrubber import Scrubber, begin_scrub
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.requests.replica_description import describe_replicas
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.events.broker_events import ScrubRoundEnded
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import DescribeReplicaStateRequest
from minibroker.runtime.observer import Observers
from minibroker.simulation.world.storage import SimulatedStorage
from minibroker.simulation.world.world import SimulatedWorld
from minibroker.testing import simulated
from tests.simulation.test_damage import BASE_OFFSET, EPOCH, PAYLOAD, SETTINGS, TOPIC, followers, produce, replica, rot

SCRUBBED = {**SETTINGS, "log.index.interval.bytes": "100"}


def disk(c: SimulatedHarness, broker_id: int) -> SimulatedStorage:
    return c.world.machine(f"broker-{broker_id}").storage


@pytest.mark.parametrize("byte", [BASE_OFFSET, EPOCH, PAYLOAD])
@pytest.mark.parametrize("segment", [0, -1])
@simulated(brokers=3, seed=8, settings=SCRUBBED)
async def test_damage_of_a_follower_is_found_and_repaired(c: SimulatedHarness, segment: int, byte: int) -> None:
    await c.create_topic(TOPIC)
    acked = await produce(c, 45)
    _, (follower, _) = await followers(c)
    rot(c, follower, segment, 1, byte)
    await asyncio.sleep(130)
    counters = c.simulation.brokers[follower].counters
    assert (counters.scrubbed_damaged, counters.repairs_begun, counters.repairs_done) == (1, 1, 1)
    await c.wait_in_sync(TOPIC)
    assert (await c.audit(acked)).success


@pytest.mark.parametrize(("interval_ms", "rounds"), [(60_000, 1), (5_000, 6)])
def test_a_round_begins_at_most_once_an_interval(interval_ms: int, rounds: int) -> None:
    @simulated(brokers=1, settings={**SCRUBBED, "log.scrub.interval.ms": str(interval_ms)})
    async def story(c: SimulatedHarness) -> None:
        await c.create_topic(TOPIC)
        await produce(c, 5)
        await asyncio.sleep(30)
        assert c.simulation.brokers[1].counters.scrub_rounds == rounds

    story()


@simulated(brokers=1, seed=8, settings=SCRUBBED)
async def test_a_missing_index_is_rebuilt(c: SimulatedHarness) -> None:
    """The remaining one of the two files may be damaged, too."""
    await c.create_topic(TOPIC)
    await produce(c, 45)
    path = replica(c, 1).log.segments[0].path
    before = [bytes(disk(c, 1).find_file(path + suffix).content) for suffix in (".index", ".timeindex")]
    disk(c, 1).flip_bit(path + ".index", 11)
    parent, name = disk(c, 1).parent_of(path + ".timeindex")
    del parent.entries[name]
    await asyncio.sleep(130)
    assert c.simulation.brokers[1].counters.scrubbed_indexes == 1
    assert [bytes(disk(c, 1).find_file(path + suffix).content) for suffix in (".index", ".timeindex")] == before


@pytest.mark.parametrize(("suffix", "byte"), [(".index", 11), (".timeindex", 7)])
@simulated(brokers=1, seed=8, settings=SCRUBBED)
async def test_a_damaged_index_is_rebuilt(c: SimulatedHarness, suffix: str, byte: int) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 45)
    path = replica(c, 1).log.segments[0].path + suffix
    before = bytes(disk(c, 1).find_file(path).content)
    disk(c, 1).flip_bit(path, byte)
    await asyncio.sleep(130)
    counters = c.simulation.brokers[1].counters
    assert (counters.scrubbed_indexes, counters.scrubbed_damaged) == (1, 0)
    assert bytes(disk(c, 1).find_file(path).content) == before


@simulated(brokers=3, seed=8, settings=SCRUBBED)
async def test_a_segment_of_another_partition_is_found_and_repaired(c: SimulatedHarness) -> None:
    """Its offsets, epochs, sizes and checksums match those of the original segment."""
    await c.create_topic(TOPIC, partitions=2)
    async with c.producer(acks="all") as producer:
        for number in range(45):
            for partition in (0, 1):
                await producer.send_and_wait(TOPIC, b"%d order %d" % (partition, number), partition=partition)
    _, (follower, _) = await followers(c)
    own = replica(c, follower).log
    foreign = c.simulation.replica(follower, TOPIC, 1)
    assert foreign is not None
    assert [each.size for each in foreign.log.segments] == [each.size for each in own.segments]
    content = disk(c, follower).find_file(foreign.log.segments[1].log_path).content
    disk(c, follower).find_file(own.segments[1].log_path).content[:] = content
    await asyncio.sleep(130)
    counters = c.simulation.brokers[follower].counters
    assert (counters.scrubbed_damaged, counters.repairs_done) == (1, 1)
    await c.wait_in_sync(TOPIC)
    assert (await c.audit()).success


@simulated(brokers=1, seed=8, settings=SCRUBBED)
async def test_a_missing_segment_counts_as_damage(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 45)
    await asyncio.sleep(5)  # wait until it is synced, so that no sync finds the damage first
    parent, name = disk(c, 1).parent_of(replica(c, 1).log.segments[1].log_path)
    del parent.entries[name]
    await asyncio.sleep(130)
    assert replica(c, 1).state.damage is not None


@simulated(brokers=3, seed=9, settings={**SCRUBBED, "log.retention.check.interval.ms": "500"})
async def test_no_false_alarm_while_the_log_changes(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC, configs={"retention.bytes": "4096"})
    for number in range(6):
        await produce(c, 60)
        if number % 2:
            await c.kill_leader(TOPIC)
            await c.wait_for_leader(TOPIC)
            await asyncio.sleep(20)
            for broker_id in c.broker_ids:
                if not c.is_running(broker_id):
                    await c.start(broker_id)
            await c.wait_in_sync(TOPIC)
        await asyncio.sleep(30)
    for broker in c.simulation.brokers.values():
        assert broker.counters.scrub_rounds >= 1
        assert (broker.counters.scrubbed_damaged, broker.counters.scrubbed_indexes) == (0, 0)


@pytest.mark.parametrize(("rate", "least", "most"), [(0, 0, 0), (100, 1_000, 12_000), (1 << 20, 7_000, 40_000)])
def test_the_scrubber_keeps_to_its_rate(rate: int, least: int, most: int) -> None:
    @simulated(brokers=1, seed=8, settings={**SCRUBBED, "log.scrub.bytes.per.second": str(rate)})
    async def play(c: SimulatedHarness) -> None:
        await c.create_topic(TOPIC)
        await produce(c, 100)
        await asyncio.sleep(100)
        assert least <= c.simulation.brokers[1].counters.scrubbed_bytes <= most

    play()


@simulated(brokers=1, seed=8, settings=SCRUBBED)
async def test_damage_of_the_only_copy_is_reported_while_it_keeps_leading(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 45)
    rot(c, 1, 0, 1, PAYLOAD)
    broker = c.simulation.brokers[1]
    assert (broker.gauges().damaged_replicas, broker.gauges().offline_replicas) == (0, 0)
    await asyncio.sleep(130)
    assert (broker.gauges().damaged_replicas, broker.gauges().offline_replicas) == (1, 0)
    answer = describe_replicas(broker.manager, broker.registration, broker.image, DescribeReplicaStateRequest())
    (described,) = answer.topics[0].partitions
    assert described.role == "leader"
    assert described.damage is not None
    assert described.damage.startswith("the scrubber found: ")


class PacedManager:
    """A broker with one log of 1,000 bytes, as far as the pace of its scrubber goes."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.events: list[object] = []
        self.counters = BrokerCounters()
        self.observer = Observers(self.events.append)
        self.partitions = {TopicPartition(TOPIC, 0): object()}
        self.config = SimpleNamespace(log_scrub_bytes_per_second=100)
        self.log_directory = SimpleNamespace(offline=False)
        self.now_ms = lambda: round(world.loop.time() * 1000)


@pytest.mark.parametrize(("read", "damaged"), [(1_000, 0), (1_000, 1), (0, 0)])
def test_a_round_that_read_something_is_reported(read: int, damaged: int) -> None:
    world = SimulatedWorld()
    manager = PacedManager(world)
    scrubber = Scrubber(cast(Any, manager), world.runtime("broker").clock)

    async def scrub(_: object) -> None:
        await asyncio.sleep(7.5)
        manager.counters.scrubbed_bytes += read
        manager.counters.scrubbed_damaged += damaged

    cast(Any, scrubber)._scrub = scrub

    async def rounds() -> None:
        for _ in range(2):
            await scrubber._round()

    world.run(rounds())
    ended = ScrubRoundEnded(logs=1, scrubbed_bytes=read, seconds=7, damaged=damaged)
    assert manager.events == ([ended] * 2 if read else [])
    assert manager.counters.scrub_rounds == (2 if read else 0)


def test_the_scrubber_waits_until_what_it_read_too_much_is_made_up_for() -> None:
    """And reads nothing while its rate is 0 or its directory offline: it would read all at once afterwards."""
    world = SimulatedWorld()
    manager = PacedManager(world)
    scrubber = Scrubber(cast(Any, manager), world.runtime("broker").clock)

    async def waited(allowance: float) -> tuple[float, float]:
        began, scrubber._allowance = world.loop.time(), allowance
        await scrubber._wait()
        return round(world.loop.time() - began), scrubber._allowance

    async def play() -> list[tuple[float, float]]:
        found = [await waited(each) for each in (0, -250, 50)]
        for name, value in (("rate", 0), ("offline", True)):
            task = asyncio.create_task(waited(0))
            holder = manager.config if name == "rate" else manager.log_directory
            attribute = "log_scrub_bytes_per_second" if name == "rate" else "offline"
            before = getattr(holder, attribute)
            setattr(holder, attribute, value)
            await asyncio.sleep(20.5)
            assert not task.done()
            setattr(holder, attribute, before)
            found.append(await task)
        return found

    assert world.run(play()) == [(1, 100), (3, 50), (1, 100), (21, 100), (21, 100)]


@simulated(brokers=1, seed=8, settings=SCRUBBED)
async def test_an_index_that_cannot_be_rebuilt_takes_the_directory_offline(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    await produce(c, 45)
    await asyncio.sleep(5)
    path = replica(c, 1).log.segments[0].path + ".index"
    disk(c, 1).flip_bit(path, 0)
    disk(c, 1).fail("append", path, times=1)
    await asyncio.sleep(130)
    assert c.simulation.has_offline_directory(1)


@simulated(brokers=1, seed=8, settings=SCRUBBED)
async def test_a_directory_that_is_gone_damages_no_replica(c: SimulatedHarness) -> None:
    """As when it was unmounted: its logs are as they were."""
    await c.create_topic(TOPIC)
    await produce(c, 45)
    await asyncio.sleep(5)
    found = replica(c, 1)
    parent, name = disk(c, 1).parent_of(found.log.health.path)
    del parent.entries[name]
    manager = c.simulation.manager(1)
    assert manager is not None
    scrubber = Scrubber(manager, c.world.runtime("broker-1").clock)  # before anything else meets it
    segment = found.log.segments[0]
    assert not await scrubber._read_piece(found, segment, begin_scrub(found.log, segment))
    assert (c.simulation.has_offline_directory(1), found.state.damage) == (True, None)
