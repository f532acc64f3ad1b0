"""Orders of events around disks that fail, fill up, or get no file descriptor."""

import asyncio
import contextlib

from minibroker.broker.broker import Broker
from minibroker.broker.log.config import FREE_BYTES_TO_HEAL
from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import DescribeReplicaStateRequest, DescribeReplicaStateResponse
from minibroker.runtime.rpc import PeerBroken
from minibroker.simulation.world.storage import FileNode, SimulatedStorage
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import (
    admin_client,
    broker_epoch,
    host,
    members,
    report,
    send_to,
    until_changes_are_noted,
    until_registered_again,
)

SEGMENTS = {"log.segment.bytes": "1024"}
OTHER = "other"


def _storage(directed: DirectedRun, broker_id: int) -> SimulatedStorage:
    return directed.world.machine(host(broker_id)).storage


async def _restart(directed: DirectedRun, broker_id: int) -> None:
    old_epoch = broker_epoch(directed, broker_id)
    if broker_id in directed.cluster.alive():
        directed.cluster.kill(broker_id)
    _storage(directed, broker_id).heal()
    directed.cluster.start(broker_id)
    await until_registered_again(directed, broker_id, old_epoch)


@with_setup(ClusterSetup(topics={TOPIC: (1, 1, 1)}, settings={"log.flush.interval.messages": "1"}))
async def sync_finds_no_room(directed: DirectedRun) -> None:
    """ATC 2020: a sync fails for lack of room and the kernel drops the pages; there is room a moment later; then the
    machine loses power, with or without further acknowledgements."""
    leader = directed.leader
    await directed.produce("before")
    path = directed.replica(leader).log.segments[-1].log_path
    _storage(directed, leader).fail("sync", path_prefix=path, times=1, is_full=True, forgets=True)
    sending = [directed.produce_soon(f"{number}") for number in range(3)]
    await asyncio.sleep(6)
    old_epoch = broker_epoch(directed, leader)
    directed.world.power_loss(host(leader), tear=False)
    directed.cluster.start(leader)
    await until_registered_again(directed, leader, old_epoch)
    await asyncio.gather(*sending)


@with_setup(ClusterSetup(settings={**SEGMENTS, "unclean.leader.election.enable": "true"}))
async def cut_finds_no_room(directed: DirectedRun) -> None:
    """A deposed leader truncates several segments, and has no room for the new name of the second. When there is room
    again the others are down, and it leads with the rest of its log: it must know its log end."""
    cluster, old = directed.cluster, directed.leader
    others = directed.followers()
    await directed.produce("everywhere")
    for other in others:
        directed.world.network.partition(host(old), host(other))
    for number in range(20):
        await directed.produce(f"{number}".ljust(200, "."), acks=1)
    await directed.until(lambda: directed.replica(old).log.segment_count >= 4, "some segments of the old leader")
    await asyncio.sleep(0.1)
    cluster.kill(old)
    directed.world.network.heal_all()
    await directed.until(lambda: cluster.leader(TOPIC) in others, "another leader")
    await directed.produce("of the next leader", acks=1)
    storage = _storage(directed, old)
    storage.fail("rename", path_prefix=_log_path(directed, old, 2), times=1, is_full=True)
    storage.fill()
    before = cluster.brokers[old]
    cluster.start(old)
    await directed.until(lambda: _is_full(directed, old, before), "a full directory")
    for other in others:
        cluster.kill(other)
    storage.heal()
    await directed.until_leader(old)
    for number in range(3):
        await directed.produce(f"after {number}", acks=1)
    for other in others:
        cluster.start(other)
    await directed.until_isr(*cluster.broker_ids)


def _is_full(directed: DirectedRun, broker_id: int, before: Broker) -> bool:
    broker = directed.cluster.brokers[broker_id]
    return broker is not before and hasattr(broker, "log_directory") and broker.log_directory.full


def _log_path(directed: DirectedRun, broker_id: int, number: int) -> str:
    """Path of one of a stopped broker's segments, by its place."""
    logs = [path for path, _ in _storage(directed, broker_id).files(f"/data/log/{TOPIC}-0/") if path.endswith(".log")]
    return logs[number]


@with_setup(ClusterSetup(settings=SEGMENTS))
async def idle_leader_on_a_failed_disk(directed: DirectedRun) -> None:
    """The error comes in a periodic task of the leader's directory when writes have stopped (seeds 911468 and 914494)."""
    leader = directed.leader
    await directed.produce("first")
    await until_changes_are_noted()
    for number in range(8):
        await directed.produce(f"{number}".ljust(200, "."))
    _storage(directed, leader).fail("sync")
    await asyncio.sleep(5)
    directory = directed.cluster.brokers[leader].log_directory
    if directory.offline and directed.cluster.leader(TOPIC) == leader:
        report(directed, "I36", f"broker {leader} leads on a log directory that is offline")
    await _restart(directed, leader)


@with_setup(ClusterSetup(settings=SEGMENTS))
async def broker_on_a_failed_disk_is_asked(directed: DirectedRun) -> None:
    """`cluster wait`, `status` and `replicas --check` rely on what brokers report about themselves."""
    follower = directed.followers()[0]
    for number in range(8):
        await directed.produce(f"{number}".ljust(200, "."))
    _storage(directed, follower).fail("sync")
    directory = directed.cluster.brokers[follower].log_directory
    await directed.until(lambda: directory.offline, "a directory that is offline")
    await asyncio.sleep(1)
    answer = await send_to(directed, follower, DescribeReplicaStateRequest())
    assert isinstance(answer, DescribeReplicaStateResponse)
    roles = {replica.role for topic in answer.topics for replica in topic.partitions}
    if answer.log_directory != "offline" or roles != {"offline"}:
        said = f"its log directory is {answer.log_directory}, its replicas are {sorted(roles)}"
        report(directed, "I42", f"broker {follower}, whose disk has failed, says that {said}")
    await _restart(directed, follower)


@with_setup(ClusterSetup(settings=SEGMENTS))
async def no_descriptors_for_a_moment(directed: DirectedRun) -> None:
    """EMFILE at the leader and at a follower; connections break and cannot be reopened; then it passes."""
    for broker_id in (directed.followers()[0], directed.leader):
        await directed.produce(f"before {broker_id}".ljust(300, "."))
        directed.world.take_descriptors(host(broker_id))
        for other in directed.cluster.broker_ids:
            directed.world.network.reset_connections(host(broker_id), host(other))
        sending = [directed.produce_soon(f"{broker_id}-{number}".ljust(300, ".")) for number in range(12)]
        await asyncio.sleep(3)
        directed.world.give_descriptors(host(broker_id))
        await asyncio.gather(*sending)
        await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup())
async def topic_is_made_without_descriptors(directed: DirectedRun) -> None:
    """A new replica cannot be created for lack of a descriptor; once there is one, it is created without a new order."""
    follower = directed.followers()[0]
    directed.world.take_descriptors(host(follower))
    async with admin_client(directed) as admin:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(4):
                await admin.create_topic(OTHER, partitions=3, replication_factor=3)
    directed.world.give_descriptors(host(follower))
    await asyncio.sleep(10)
    sizes = [len(directed.cluster.in_sync_replicas(OTHER, number)) for number in range(3)]
    if min(sizes) < 3:
        report(directed, "I36", f"broker {follower} has descriptors again, and the ISRs of {OTHER} have sizes {sizes}")


@with_setup(ClusterSetup())
async def topic_is_deleted_on_a_full_disk(directed: DirectedRun) -> None:
    """A topic is deleted, which makes room on the full disk."""
    full = directed.leader
    async with admin_client(directed) as admin:
        await admin.create_topic(OTHER, partitions=1, replication_factor=3)
    for number in range(40):
        await directed.produce(f"{number}".ljust(1_000, "."), acks=1, partition=TopicPartition(OTHER, 0))
    storage = _storage(directed, full)
    storage.fill()
    for number in range(3):
        await directed.produce(f"{number}", acks=1)
    directory = directed.cluster.brokers[full].log_directory
    await directed.until(lambda: directory.full, "a full directory")
    storage.capacity_bytes += FREE_BYTES_TO_HEAL - 20_000
    async with admin_client(directed) as admin:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(8):
                await admin.delete_topic(OTHER)
    await asyncio.sleep(2)
    if directory.full:
        report(directed, "I36", f"broker {full} keeps a deleted topic on its full disk")
    storage.heal()


RETENTION = {
    **SEGMENTS,
    "log.retention.bytes": "4096",
    "log.retention.check.interval.ms": "500",
}


async def _fill(directed: DirectedRun, broker_id: int) -> None:
    """So that little is lacking to heal: less than retention gives back, more than comes back by itself."""
    storage = _storage(directed, broker_id)
    storage.fill()
    directory = directed.cluster.brokers[broker_id].log_directory
    await directed.until(lambda: directory.full, "a full directory", 15)
    storage.capacity_bytes = storage.used_bytes + FREE_BYTES_TO_HEAL - 2_000


async def _must_heal(directed: DirectedRun, broker_id: int, why: str) -> None:
    directory = directed.cluster.brokers[broker_id].log_directory
    await asyncio.sleep(10)
    if directory.full:
        report(directed, "I36", f"broker {broker_id} is on a full disk still: {why}")
    _storage(directed, broker_id).heal()


@with_setup(ClusterSetup(settings=RETENTION))
async def follower_on_a_full_disk(directed: DirectedRun) -> None:
    """A follower's disk is full; its leader deletes by retention, and the follower may go as far."""
    follower = directed.followers()[0]
    writing = asyncio.create_task(_write(directed, 60))
    await asyncio.sleep(0.2)
    await _fill(directed, follower)
    await writing
    await _must_heal(directed, follower, "its leader deletes by retention, it does not")


@with_setup(ClusterSetup(topics={TOPIC: (1, 1, 1)}, settings=RETENTION))
async def only_replica_on_a_full_disk(directed: DirectedRun) -> None:
    """No other broker has the partition: its own retention is the only cure."""
    leader = directed.leader
    await directed.produce("before".ljust(200, "."))
    writing = asyncio.create_task(_write(directed, 60))
    await asyncio.sleep(0.2)
    await _fill(directed, leader)
    await _must_heal(directed, leader, "it is the whole in-sync set, and does not apply retention")
    await writing


@with_setup(ClusterSetup(settings={**RETENTION, "log.retention.check.interval.ms": "300000"}))
async def leader_keeps_more_than_retention(directed: DirectedRun) -> None:
    """A follower's disk is full, and its leader has not deleted anything yet: neither may the follower."""
    follower = directed.followers()[0]
    writing = asyncio.create_task(_write(directed, 60))
    await asyncio.sleep(0.2)
    await _fill(directed, follower)
    await writing
    for _ in range(80):
        await asyncio.sleep(0.1)
        start = directed.replica(follower).log.log_start_offset
        leaders = directed.replica(directed.leader).state.log_start_offset
        if start > leaders:
            report(directed, "I39", f"broker {follower} starts at {start}, its leader at {leaders}")
            break
    _storage(directed, follower).heal()
    await directed.until_isr(*directed.cluster.broker_ids)


async def _write(directed: DirectedRun, count: int) -> None:
    for number in range(count):
        await directed.produce(f"{number}".ljust(300, "."), acks=1)


@with_setup(ClusterSetup(topics={TOPIC: (1, 3, 2)}))
async def topic_is_deleted_whose_directory_cannot_be_renamed(directed: DirectedRun) -> None:
    """An operator has mounted another disk at a partition's directory. The other replicas of the broker have no part in
    it."""
    follower = directed.followers()[0]
    async with admin_client(directed) as admin:
        await admin.create_topic(OTHER, partitions=1, replication_factor=3)
        await directed.until(lambda: len(directed.cluster.in_sync_replicas(OTHER)) == 3, "a full ISR")
        _storage(directed, follower).fail("rename", path_prefix=f"/data/log/{OTHER}-0", is_bad_entry=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                await admin.delete_topic(OTHER)
    await asyncio.sleep(2)
    directory = directed.cluster.brokers[follower].log_directory
    if directory.offline or follower not in members(directed):
        report(directed, "I36", f"broker {follower} is out of use for one directory: {directory.offline_reason}")
    await _restart(directed, follower)


@with_setup(ClusterSetup())
async def directory_with_a_number_beyond_all_messages(directed: DirectedRun) -> None:
    """An operator made a directory that looks like a partition's; then the broker is asked what replicas it has."""
    follower = directed.followers()[0]
    directed.cluster.kill(follower)
    _storage(directed, follower).provision(f"/data/log/{TOPIC}-{2**32}")
    await _restart(directed, follower)
    try:
        await send_to(directed, follower, DescribeReplicaStateRequest())
    except PeerBroken as error:
        report(directed, "I42", f"what broker {follower} says of its replicas cannot be read: {error}")


@with_setup(ClusterSetup())
async def marker_of_a_clean_stop_is_huge(directed: DirectedRun) -> None:
    """A small file was replaced by another one. That is no reason to stay offline."""
    follower = directed.followers()[0]
    directed.cluster.kill(follower)
    storage = _storage(directed, follower)
    directory, name = storage.parent_of("/data/log/.clean_shutdown")
    directory.entries[name] = marker = FileNode()
    marker.content += bytes(SMALL_FILE_BYTES_MAX + 1)
    directed.cluster.start(follower)
    await directed.produce("meanwhile")
