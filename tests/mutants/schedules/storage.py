"""Orders of events around the data on a disk, and what a start trusts of it."""

import asyncio

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.checkpoints import WHOLE_SINCE, parse_offset_checkpoint
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from minibroker.runtime.ports import FileMissing
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import admin_client, broker_epoch, host, report, send_to, until_registered_again

AGAIN = "again"
MARKS_FILE = "/data/log/replication-offset-checkpoint"
CHAIN_FILE = f"/data/log/{WHOLE_SINCE}"
SELDOM = {"replica.high.watermark.checkpoint.interval.ms": "60000"}


# ------------------------------------------------------------------------------------------------------------- marks
async def _mark_after_a_restart(directed: DirectedRun, broker_id: int) -> int:
    """The high watermark that a killed broker knows once its logs are loaded, before it hears of a newer one."""
    cluster = directed.cluster
    before = cluster.brokers[broker_id]
    cluster.kill(broker_id)
    cluster.start(broker_id)
    while cluster.brokers[broker_id] is before or cluster.replica(broker_id, TOPIC) is None:  # noqa: ASYNC110
        await asyncio.sleep(0.000_1)
    return directed.replica(broker_id).state.high_watermark


def _marks_in_file(directed: DirectedRun, broker_id: int) -> dict[str, int]:
    """By the name of the topic."""
    storage = directed.world.machine(host(broker_id)).storage
    marks = parse_offset_checkpoint(bytes(storage.find_file(MARKS_FILE).content))
    return {partition.topic: mark for partition, mark in marks.items()}


@with_setup(ClusterSetup(settings={"replica.high.watermark.checkpoint.interval.ms": "500"}))
async def high_watermarks_over_a_restart(directed: DirectedRun) -> None:
    """KAFKA-769: the mark was in the checkpoint when the broker was killed."""
    follower = directed.followers()[0]
    for number in range(3):
        await directed.produce(f"{number}")
    await asyncio.sleep(1.5)
    before = directed.replica(follower).state.high_watermark
    found = await _mark_after_a_restart(directed, follower)
    if found < before:
        report(directed, "I11", f"broker {follower} had the mark {before} in its checkpoint, and starts with {found}")


@with_setup(ClusterSetup(settings={"replica.high.watermark.checkpoint.interval.ms": "4000"}))
async def high_watermarks_over_a_deletion_and_a_restart(directed: DirectedRun) -> None:
    """KAFKA-1647: another topic is deleted, which writes the checkpoint soon; then the broker is killed."""
    follower = directed.followers()[0]
    async with admin_client(directed) as admin:
        await admin.create_topic(AGAIN, partitions=1, replication_factor=3)
        for number in range(3):
            await directed.produce(f"{number}")
        await directed.produce("of a topic that goes", acks=1, partition=TopicPartition(AGAIN, 0))
        before = 3
        await directed.until(lambda: _has_mark(directed, follower, before), "a checkpoint of both")
        await admin.delete_topic(AGAIN)
    await directed.until(lambda: AGAIN not in _marks_in_file(directed, follower), "a checkpoint without the other", 3.0)
    found = await _mark_after_a_restart(directed, follower)
    if found < before:
        report(directed, "I11", f"broker {follower} had the mark {before} in its checkpoint, and starts with {found}")


def _has_mark(directed: DirectedRun, broker_id: int, mark: int) -> bool:
    try:
        marks = _marks_in_file(directed, broker_id)
    except FileMissing:
        return False  # no checkpoint yet
    return marks.get(AGAIN, 0) > 0 and marks.get(TOPIC, 0) >= mark


# ------------------------------------------------------------------------------------------------------------ starts
async def _stop_and_start(directed: DirectedRun, broker_id: int, no_room_for: str | None = None) -> None:
    """A clean stop: all data written so far is synced. `no_room_for`: a file that the start cannot write."""
    process, old_epoch = directed.world.process(host(broker_id)), broker_epoch(directed, broker_id)
    storage = directed.world.machine(host(broker_id)).storage
    directed.cluster.stop(broker_id)
    await directed.until(lambda: not process.alive, "the end of a clean stop")
    if no_room_for is not None:
        storage.fail("replace_file", path_prefix=no_room_for, is_full=True)
    directed.cluster.start(broker_id)
    await until_registered_again(directed, broker_id, old_epoch)
    await directed.until_isr(*directed.cluster.broker_ids)
    storage.heal()


def _lose_power_in_a_write(directed: DirectedRun, broker_id: int) -> None:
    """All pages of the last batch but one reach the disk: its header is intact, its content is not."""
    path = directed.replica(broker_id).log.segments[-1].log_path
    storage = directed.world.machine(host(broker_id)).storage
    written = bytes(storage.find_file(path).content)
    directed.world.power_loss(host(broker_id), tear=False)
    node = storage.find_file(path)
    assert len(node.content) < len(written), "something was not synced"
    node.content[:] = written
    node.content[-1] ^= 0xFF
    node.sync()


@with_setup(ClusterSetup(settings=SELDOM, sound_disks=True))
async def power_loss_soon_after_a_clean_start(directed: DirectedRun) -> None:
    """KAFKA-10471: a clean stop, a start, some records, and a power loss in the middle of a write. The disk is full while
    it starts: else the sync of the directory that comes with `whole-since` would make the marker's removal durable."""
    follower = directed.followers()[0]
    await directed.produce("before")
    await _stop_and_start(directed, follower, no_room_for=CHAIN_FILE)
    for number in range(3):
        await directed.produce(f"{number}")
    _lose_power_in_a_write(directed, follower)
    directed.cluster.start(follower)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup(settings=SELDOM, sound_disks=True))
async def start_aborted_while_it_recovers(directed: DirectedRun) -> None:
    """KAFKA-15375: a power loss in the middle of a write, a start that ends while it recovers, another start."""
    cluster, follower = directed.cluster, directed.followers()[0]
    await directed.produce("before")
    await _stop_and_start(directed, follower)
    for number in range(3):
        await directed.produce(f"{number}")
    _lose_power_in_a_write(directed, follower)
    storage = directed.world.machine(host(follower)).storage
    storage.fail("read", path_prefix=f"/data/log/{TOPIC}-0")
    cluster.start(follower)
    await directed.until(lambda: bool(directed.world.crashes), "the end of the first start")
    directed.world.crashes.clear()
    storage.heal()
    cluster.start(follower)
    await directed.until_isr(*cluster.broker_ids)


@with_setup(ClusterSetup())
async def appends_after_an_io_error(directed: DirectedRun) -> None:
    """KAFKA-10778: one append fails; nothing is appended in that process from then on."""
    follower = directed.followers()[0]
    await directed.produce("before")
    storage = directed.world.machine(host(follower)).storage
    path = directed.replica(follower).log.segments[-1].log_path
    storage.fail("append", path_prefix=path, times=1)
    await directed.produce("it fails at one follower", acks=1)
    await asyncio.sleep(0.5)
    size = len(storage.find_file(path).content)
    process = directed.world.process(host(follower))
    for number in range(3):
        await directed.produce(f"{number}", acks=1)
        await asyncio.sleep(2.0)
    if process.alive and len(storage.find_file(path).content) > size:
        report(directed, "I15", f"broker {follower} goes on to append to {path} after an IO error")
    directed.cluster.kill(follower)


@with_setup(ClusterSetup(settings={"log.segment.bytes": "1024", "log.flush.offset.checkpoint.interval.ms": "500"}))
async def epochs_of_closed_segments(directed: DirectedRun) -> None:
    """KAFKA-16541: leaders change, segments are closed and synced; then all brokers lose power, one after the other."""
    cluster = directed.cluster
    for number in range(3):
        leader = directed.leader
        for count in range(8):
            await directed.produce(f"{number}-{count}".ljust(200, "."))
        cluster.kill(leader)
        await directed.until(lambda old=leader: cluster.leader(TOPIC) not in (None, old), "another leader")  # type: ignore[misc]
        cluster.start(leader)
        await directed.until_isr(*cluster.broker_ids)
    for count in range(8):
        await directed.produce(f"last-{count}".ljust(200, "."))
    await asyncio.sleep(3.0)
    for broker_id in cluster.broker_ids:
        old_epoch = broker_epoch(directed, broker_id)
        cluster.power_loss(broker_id)
        cluster.start(broker_id)
        await until_registered_again(directed, broker_id, old_epoch)
        await directed.until_isr(*cluster.broker_ids)


# ------------------------------------------------------------------------------------------------------------ epochs
@with_setup(ClusterSetup())
async def undefined_epoch_is_asked(directed: DirectedRun) -> None:
    """KAFKA-6857: a request for the end of the undefined epoch."""
    leader = directed.leader
    await directed.produce("everywhere")
    question = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=directed.replica(leader).state.leader_epoch or 0, leader_epoch=-1
    )
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=TOPIC, partitions=[question])])
    reply = await send_to(directed, leader, request)
    assert isinstance(reply, OffsetForLeaderEpochResponse)
    answer = reply.topics[0].partitions[0]
    if answer.error_code == ErrorCode.NONE and (answer.leader_epoch, answer.end_offset) != (-1, -1):
        said = f"epoch {answer.leader_epoch} ending at {answer.end_offset}"
        report(directed, "I7", f"{FIRST}: the undefined epoch is answered with {said}")


# -------------------------------------------------------------------------------------------------------------- full
@with_setup(ClusterSetup())
async def disk_is_full_for_a_moment(directed: DirectedRun) -> None:
    """KAFKA-698: an append fails for lack of room; soon there is room again."""
    follower = directed.followers()[0]
    await directed.produce("before")
    storage = directed.world.machine(host(follower)).storage
    storage.fail("append", path_prefix=directed.replica(follower).log.segments[-1].log_path, times=1, is_full=True)
    for number in range(3):
        await directed.produce(f"{number}", acks=1)
    await asyncio.sleep(3.0)
    await directed.produce("after")
