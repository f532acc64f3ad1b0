"""Orders of events around bytes that rot on a disk, and which replica still counts."""

import asyncio

from minibroker.protocol.record_batch import decode_records, read_header
from minibroker.protocol.wire.messages import ApiKey, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from minibroker.simulation.world.message_holds import requests
from tests.mutants.directed_run import FIRST, TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, members, read_all, report, send_to, separate_roles

COLD = {"log.tail.cache.bytes": "0", "log.segment.bytes": "1024"}
"""Everything is read from the disk, and most records are in closed segments."""
QUESTIONS_MAX = 50
"""Of all followers in some seconds; a follower that spins asks thousands of times."""
BASE_OFFSET, EPOCH, PAYLOAD = 7, 15, -3
"""Bytes of a batch: the lowest of its base offset and of its leader epoch, both outside of the CRC, and one inside."""


async def _fill(directed: DirectedRun, count: int = 40) -> None:
    for number in range(count):
        await directed.produce(f"{number}")


def _rot(directed: DirectedRun, broker_id: int, batch: int, byte: int) -> int:
    """Flip a bit of a batch in the first segment; its base offset."""
    storage = directed.world.machine(host(broker_id)).storage
    path = directed.replica(broker_id).log.segments[0].log_path
    content = bytes(storage.find_file(path).content)
    position = 0
    for _ in range(batch):
        position += read_header(content, position).size_bytes
    header = read_header(content, position)
    storage.flip_bit(path, position + byte + (header.size_bytes if byte < 0 else 0))
    return header.base_offset


async def _look_at_what_is_served(directed: DirectedRun, broker_id: int, offset: int) -> None:
    """I22: a leader serves exactly the acknowledged records from an offset on."""
    partition = FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=offset, last_fetched_epoch=-1, partition_max_bytes=1 << 20
    )
    reply = await send_to(directed, broker_id, FetchRequest(topics=[FetchTopic(topic=TOPIC, partitions=[partition])]))
    assert isinstance(reply, FetchResponse)
    data = bytes(reply.responses[0].partitions[0].records)
    position, expected = 0, offset
    while position < len(data):
        header = read_header(data, position)
        records = decode_records(data[position : position + header.size_bytes])
        for record in records:
            if record.offset >= offset:
                if record.offset != expected:
                    report(
                        directed, "I22", f"broker {broker_id} serves offset {record.offset} where {expected} belongs"
                    )
                    return
                if directed.history.acked.get((FIRST, record.offset)) != record.value:
                    report(directed, "I22", f"broker {broker_id} serves another record at offset {record.offset}")
                    return
                expected += 1
        position += header.size_bytes


@with_setup(ClusterSetup(settings=COLD))
async def leader_reads_a_flipped_offset(directed: DirectedRun) -> None:
    """A bit of a base offset flips in a closed segment of the leader; a consumer reads it all."""
    await _fill(directed)
    leader = directed.leader
    offset = _rot(directed, leader, 3, BASE_OFFSET)
    await _look_at_what_is_served(directed, leader, offset)
    await _look_at_what_is_served(directed, leader, offset - 1)
    await read_all(directed)


@with_setup(ClusterSetup(settings=COLD))
async def leader_reads_a_flipped_payload(directed: DirectedRun) -> None:
    """Bytes inside the CRC rot on the leader: leadership moves, and it repairs itself."""
    await _fill(directed)
    _rot(directed, directed.leader, 3, PAYLOAD)
    await read_all(directed)


async def _begin_odd_epoch(directed: DirectedRun, *alive: int) -> None:
    """Begin an odd epoch from 3 on, after an epoch without records: leaders change without writes."""
    while True:
        leader = directed.leader
        epoch = directed.replica(leader).state.leader_epoch
        if epoch is not None and epoch >= 3 and epoch % 2:
            return
        directed.cluster.kill(leader)
        await directed.until(lambda old=leader: directed.cluster.leader(TOPIC) not in (None, old), "a leader")  # type: ignore[misc]
        directed.cluster.start(leader)
        await directed.until_isr(*alive)


@with_setup(ClusterSetup(settings={"log.tail.cache.bytes": "0", "log.scrub.bytes.per.second": "0"}))
async def follower_copies_a_flipped_epoch(directed: DirectedRun) -> None:
    """The epoch of the leader's last batch becomes one without records, while a follower is down."""
    await _fill(directed, 3)
    away = directed.followers()[0]
    directed.cluster.kill(away)
    await directed.until(lambda: len(members(directed)) == 2, "an ISR of two")
    await _begin_odd_epoch(directed, *members(directed))
    await directed.produce("of an odd epoch")
    leader = directed.leader
    storage = directed.world.machine(host(leader)).storage
    path = directed.replica(leader).log.segments[-1].log_path
    content = bytes(storage.find_file(path).content)
    position = 0
    while position + (size := read_header(content, position).size_bytes) < len(content):
        position += size
    storage.flip_bit(path, position + EPOCH, 1)
    asked = directed.world.network.count_frames(match=requests(ApiKey.OFFSET_FOR_LEADER_EPOCH))
    directed.cluster.start(away)
    await asyncio.sleep(5.0)
    if len(asked.seen) > QUESTIONS_MAX:
        report(directed, "I38", f"{len(asked.seen)} questions where an epoch ended within 5 s")


@with_setup(ClusterSetup(settings=COLD))
async def damage_outside_of_the_isr(directed: DirectedRun) -> None:
    """A follower outside of the ISR finds its log damaged: no election would ever concern it."""
    leader, _, follower = await separate_roles(directed)
    await _fill(directed)
    directed.world.network.partition(host(leader), host(follower))
    await directed.produce("it lacks this", acks=1)
    await directed.until(lambda: follower not in members(directed), "an ISR without it")
    replica = directed.replica(follower)
    if not replica.state.is_offline:
        replica.services.repairs.damaged(replica, "reported by the test")
    directed.world.network.heal_all()
    await asyncio.sleep(3.0)


@with_setup(ClusterSetup(brokers=2, topics={TOPIC: (1, 2, 1)}, settings=COLD))
async def two_copies_rot_at_different_places(directed: DirectedRun) -> None:
    """Each of two copies lacks what the other has."""
    await _fill(directed)
    leader, follower = directed.leader, directed.followers()[0]
    _rot(directed, leader, 2, PAYLOAD)
    _rot(directed, follower, 6, PAYLOAD)
    await read_all(directed)


@with_setup(ClusterSetup(settings=COLD))
async def rot_in_records_that_are_never_read(directed: DirectedRun) -> None:
    """A follower's copy rots. It is cold: no client or replica ever reads it."""
    await _fill(directed)
    _rot(directed, directed.followers()[0], 3, PAYLOAD)
    await asyncio.sleep(70.0)


@with_setup(ClusterSetup())
async def directory_where_a_segment_belongs(directed: DirectedRun) -> None:
    """A directory has the name of a segment."""
    await _fill(directed, 3)
    follower = directed.followers()[0]
    path = f"{directed.replica(follower).log.directory}/{99:020d}.log"
    directed.cluster.kill(follower)
    directed.world.machine(host(follower)).storage.provision(path)
    directed.cluster.start(follower)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(
    ClusterSetup(
        settings={
            **COLD,
            "log.scrub.bytes.per.second": "0",
            "log.flush.offset.checkpoint.interval.ms": "500",
        }
    )
)
async def restart_with_a_damaged_log(directed: DirectedRun) -> None:
    """A follower that is cut off from all brokers finds damage and is killed before it is repaired."""
    _, _, follower = await separate_roles(directed)
    await _fill(directed)
    await asyncio.sleep(3.0)  # the closed segments count as synced: no start reads them
    for other in directed.cluster.broker_ids:
        if other != follower:
            directed.world.network.partition(host(follower), host(other))
    _rot(directed, follower, 3, PAYLOAD)
    replica = directed.replica(follower)
    replica.services.repairs.damaged(replica, "reported by the test")
    await asyncio.sleep(0.1)
    directed.cluster.kill(follower)
    directed.world.network.heal_all()
    directed.cluster.start(follower)
    await directed.until_isr(*directed.cluster.broker_ids)
