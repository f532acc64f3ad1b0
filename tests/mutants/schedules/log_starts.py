"""Orders of events around the head of a log: what a start finds there, and which replicas know of a deletion."""

import asyncio
from collections.abc import Sequence
from unittest.mock import patch

from msgspec.structs import replace

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import FetchAnswered
from minibroker.protocol.files.checkpoints import (
    DAMAGE_NOTE,
    LOG_START_SLOT_BYTES,
    LogStart,
    LogStartReason,
    format_log_start,
    parse_log_start,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import iterate_headers
from minibroker.runtime.ports import Buffer
from minibroker.simulation.world.storage import SimulatedStorage
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import (
    admin_client,
    broker_epoch,
    host,
    members,
    separate_roles,
    until_registered_again,
)

SMALL_SEGMENTS = {
    "log.segment.bytes": "1024",
    "log.flush.offset.checkpoint.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.scrub.bytes.per.second": "0",
}
DIRECTORY = f"/data/log/{FIRST}"


async def _fill(directed: DirectedRun, count: int = 60) -> None:
    """Write until closed segments are synced and checkpointed."""
    for number in range(count):
        await directed.produce(f"{number}")
    await asyncio.sleep(3.0)


def _storage(directed: DirectedRun, broker_id: int) -> SimulatedStorage:
    return directed.world.machine(host(broker_id)).storage


async def _leave_alone(directed: DirectedRun) -> int:
    """Make the leader the only in-sync replica, so that no other may lead after a start."""
    leader = directed.leader
    for follower in directed.followers():
        directed.cluster.kill(follower)
    await directed.until(lambda: members(directed) == (leader,), "an ISR of one")
    await asyncio.sleep(2.0)
    return leader


async def _start_all(directed: DirectedRun, first: int) -> None:
    """The broker with the faulty disk leads if it may, and the others follow it for a while."""
    cluster = directed.cluster
    cluster.start(first)
    await asyncio.sleep(3.0)
    for broker_id in cluster.broker_ids:
        if broker_id != first:
            cluster.start(broker_id)
    await asyncio.sleep(5.0)


async def _start_once_more(directed: DirectedRun, broker_id: int) -> None:
    """Its disk is restored, and a note of the damage, if there is one, is removed."""
    directory = _storage(directed, broker_id).find_directory(DIRECTORY)
    directory.entries.pop(DAMAGE_NOTE, None)
    directory.sync()
    old_epoch = broker_epoch(directed, broker_id)
    directed.cluster.start(broker_id)
    await until_registered_again(directed, broker_id, old_epoch)
    await directed.until_isr(*directed.cluster.broker_ids)


def _segments(storage: SimulatedStorage) -> list[str]:
    return sorted(name for name in storage.find_directory(DIRECTORY).entries if name.endswith(".log"))


@with_setup(ClusterSetup(settings=SMALL_SEGMENTS, deletes_nothing=True))
async def bit_of_a_base_offset(directed: DirectedRun) -> None:
    """The last batch of a closed, synced segment claims an earlier offset, which its CRC does not cover."""
    await _fill(directed)
    alone = await _leave_alone(directed)
    directed.cluster.kill(alone)
    storage = _storage(directed, alone)
    path = f"{DIRECTORY}/{_segments(storage)[1]}"
    content = bytes(storage.find_file(path).content)
    position, header = list(iterate_headers(content))[-1]
    bit = next(bit for bit in range(8) if header.base_offset >> bit & 1)
    storage.flip_bit(path, position + 7, bit)
    await _start_all(directed, alone)
    directed.cluster.kill(alone)
    if _holds(storage, path):
        storage.flip_bit(path, position + 7, bit)
    await _start_once_more(directed, alone)


def _holds(storage: SimulatedStorage, path: str) -> bool:
    return path.rpartition("/")[2] in storage.find_directory(DIRECTORY).entries


@with_setup(ClusterSetup(settings=SMALL_SEGMENTS, deletes_nothing=True))
async def oldest_segment_is_missing(directed: DirectedRun) -> None:
    """Of the only replica in sync."""
    await _fill(directed)
    alone = await _leave_alone(directed)
    directed.cluster.kill(alone)
    directory = _storage(directed, alone).find_directory(DIRECTORY)
    lost = {name: directory.entries.pop(name) for name in list(directory.entries) if name.startswith(f"{0:020d}")}
    directory.sync()
    await _start_all(directed, alone)
    directed.cluster.kill(alone)
    directory.entries.update(lost)
    directory.sync()
    await _start_once_more(directed, alone)


@with_setup(ClusterSetup(settings=SMALL_SEGMENTS, deletes_nothing=True))
async def oldest_segment_of_a_follower_is_missing(directed: DirectedRun) -> None:
    """A follower is killed and restarted without its oldest segment: it fetches its log again, and may lead then."""
    await _fill(directed)
    follower = directed.followers()[0]
    old_epoch = broker_epoch(directed, follower)
    directed.cluster.kill(follower)
    directory = _storage(directed, follower).find_directory(DIRECTORY)
    for name in [name for name in directory.entries if name.startswith(f"{0:020d}")]:
        del directory.entries[name]
    directory.sync()
    directed.cluster.start(follower)
    await until_registered_again(directed, follower, old_epoch)
    await directed.until_isr(*directed.cluster.broker_ids)
    await asyncio.sleep(2.0)


@with_setup(ClusterSetup(settings=SMALL_SEGMENTS, deletes_nothing=True))
async def log_start_of_an_earlier_topic(directed: DirectedRun) -> None:
    """A topic is made again under its name; on one disk the log start file is that of the old topic."""
    async with admin_client(directed) as admin:
        await admin.create_topic("again", partitions=1, replication_factor=3)
    await _fill(directed)
    alone = await _leave_alone(directed)
    directed.cluster.kill(alone)
    storage = _storage(directed, alone)
    node = storage.find_file(f"{DIRECTORY}/log-start")
    own = bytes(node.content)
    node.content[:] = _start_of_another_topic(storage)
    node.sync()
    await _start_all(directed, alone)
    directed.cluster.kill(alone)
    node.content[:] = own
    node.sync()
    await _start_once_more(directed, alone)


def _start_of_another_topic(storage: SimulatedStorage) -> bytes:
    other, change = parse_log_start(bytes(storage.find_file("/data/log/again-0/log-start").content))
    later = LogStart(topic_id=other.topic_id, partition=0, offset=25, reason=LogStartReason.RETENTION)
    return format_log_start(later, change) + bytes(LOG_START_SLOT_BYTES)


TWO = {TOPIC: (2, 3, 1)}
SECOND = TopicPartition(TOPIC, 1)


async def _one_copy_of_both(directed: DirectedRun) -> int:
    """Two partitions with records, and one broker that is alone in sync in both; then it is killed."""
    for number in range(60):
        await directed.produce(f"first {number}")
        await directed.produce(f"second {number}", partition=SECOND)
    await asyncio.sleep(3.0)
    alone, cluster = directed.leader, directed.cluster
    for follower in directed.followers():
        cluster.kill(follower)
    await directed.until(
        lambda: all(cluster.in_sync_replicas(TOPIC, number) == (alone,) for number in (0, 1)), "two ISRs of one"
    )
    await asyncio.sleep(2.0)
    cluster.kill(alone)
    return alone


@with_setup(ClusterSetup(settings=SMALL_SEGMENTS, topics=TWO, deletes_nothing=True))
async def directories_of_two_partitions_are_swapped(directed: DirectedRun) -> None:
    """Of the only in-sync replicas; only the files inside show the swap."""
    alone = await _one_copy_of_both(directed)
    parent = _storage(directed, alone).find_directory("/data/log")

    def swap() -> None:
        one, other = str(FIRST), str(SECOND)
        parent.entries[one], parent.entries[other] = parent.entries[other], parent.entries[one]
        parent.sync()

    swap()
    before = set(parent.entries)
    await _start_all(directed, alone)
    directed.cluster.kill(alone)
    if set(parent.entries) == before:
        swap()
    await _start_once_more(directed, alone)


@with_setup(ClusterSetup(settings=SMALL_SEGMENTS, topics=TWO, deletes_nothing=True))
async def start_of_another_partition(directed: DirectedRun) -> None:
    """The log start of another partition replaces its own."""
    alone = await _one_copy_of_both(directed)
    storage = _storage(directed, alone)
    node = storage.find_file(f"{DIRECTORY}/log-start")
    own = bytes(node.content)
    start, change = parse_log_start(bytes(storage.find_file(f"/data/log/{SECOND}/log-start").content))
    node.content[:] = format_log_start(replace(start, offset=25), change) + bytes(LOG_START_SLOT_BYTES)
    node.sync()
    await _start_all(directed, alone)
    directed.cluster.kill(alone)
    node.content[:] = own
    node.sync()
    await _start_once_more(directed, alone)


@with_setup(ClusterSetup(settings={**SMALL_SEGMENTS, "log.retention.ms": "3600000"}))
async def clock_of_a_follower_runs_ahead(directed: DirectedRun) -> None:
    """By two hours, where records are kept for one."""
    await _fill(directed)
    follower = directed.followers()[0]
    directed.world.machine(host(follower)).clock_skew_ms = 2 * 3_600_000
    await asyncio.sleep(3.0)
    directed.world.machine(host(follower)).clock_skew_ms = 0


@with_setup(
    ClusterSetup(
        settings={
            **SMALL_SEGMENTS,
            "replica.lag.time.max.ms": "10000",
            "log.retention.ms": "3600000",
            "log.retention.check.interval.ms": "5000",
        }
    )
)
async def leader_falls_before_its_start_is_known(directed: DirectedRun) -> None:
    """Retention raises the leader's log start while one in-sync follower is cut off; then the leader fails and that
    follower leads, by the clock of which nothing is too old."""
    leader, other, cut_off = await separate_roles(directed)
    await _fill(directed)
    machine, network = directed.world.machine(host(leader)), directed.world.network
    machine.clock_skew_ms = 2 * 3_600_000
    for number in range(20):
        await directed.produce(f"young {number}")
    network.cut(host(cut_off), host(leader))
    await directed.until(lambda: directed.replica(leader).state.log_start_offset > 0, "a later log start")
    await asyncio.sleep(0.5)
    directed.cluster.kill(leader)
    directed.cluster.kill(other)
    machine.clock_skew_ms = 0
    network.heal_all()
    await directed.until_leader(cut_off)
    directed.cluster.start(leader)
    directed.cluster.start(other)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(
    ClusterSetup(
        settings={**SMALL_SEGMENTS, "log.retention.ms": "3600000", "replica.lag.time.max.ms": "4000"}, sound_disks=True
    )
)
async def log_is_reset_before_its_start_is_known(directed: DirectedRun) -> None:
    """The same, and a broker that was down returns meanwhile, with a log end below the new start: no disk is faulty, and
    whichever replica leads next, none of its log is damaged."""
    leader, cut_off, behind = await separate_roles(directed)
    directed.cluster.kill(behind)
    await directed.until(lambda: behind not in members(directed), "an ISR without it")
    await _fill(directed)
    machine, network = directed.world.machine(host(leader)), directed.world.network
    machine.clock_skew_ms = 2 * 3_600_000
    for number in range(20):
        await directed.produce(f"young {number}")
    network.cut(host(cut_off), host(leader))
    await directed.until(lambda: directed.replica(leader).state.log_start_offset > 0, "a later log start")
    directed.cluster.start(behind)
    await asyncio.sleep(2.0)
    directed.cluster.kill(leader)
    machine.clock_skew_ms = 0
    network.heal_all()
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, leader), "another leader")
    await asyncio.sleep(1.0)
    directed.cluster.start(leader)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup())
async def low_watermark_above_the_start(directed: DirectedRun) -> None:
    """One answer to each follower claims that all have recorded a start far beyond the end; one of them leads next."""

    misled: set[int] = set()
    handle_fetched = Partition.handle_fetched

    def falsify(replica: Partition, event: FetchAnswered, buffers: Sequence[Buffer]) -> None:
        if replica.state.config.broker_id not in misled and event.low_watermark is not None:
            misled.add(replica.state.config.broker_id)
            event = replace(event, low_watermark=1 << 40)
        handle_fetched(replica, event, buffers)

    await directed.produce("before")
    with patch.object(Partition, "handle_fetched", falsify):
        await directed.produce("meanwhile")
        await asyncio.sleep(3.0)  # a follower that refused that answer has fetched again
    assert len(misled) == 2
    old = directed.leader
    directed.cluster.kill(old)
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, old), "another leader")
    directed.cluster.start(old)
    await directed.until_isr(*directed.cluster.broker_ids)
