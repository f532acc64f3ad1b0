"""Checks after the faults: does the cluster converge in bounded time, and did it keep its promises?

Owns: the wait for convergence (liveness) and the comparison of replicas, acknowledgements and reads (safety).
"""

import asyncio
import math
from collections.abc import Collection, Mapping

from minibroker.broker.disk_faults.scrubber import TICK_SECONDS
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.state import ReplicaState
from minibroker.chaos.history.promise import Promise
from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.disks.witnessed import compare_notes, lacking_notes
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import RunOptions
from minibroker.simulation.swarm.workload import Workload

FULL_ISR_SECONDS = 40
ANSWER_MS = 15_000
READ_SECONDS = 60
IDLE_SECONDS = 2
NOTHING = b"no record"
"""In the place of a record that was not read: a record may have no value."""
WITNESS_SECONDS = 45
"""One interval of the notes, plus the time to compute a digest that is not recorded."""
CALLBACKS_PER_IDLE_SECOND_MAX = 4_000
CALLBACKS_PER_SCRUBBED_SEGMENT = 3
"""It is read in the background, and the scrubber wakes when that is done."""
CALLBACKS_PER_SEGMENT_IN_THREAD = 10
"""Where disk threads are simulated, the read waits some times more (`SimulatedDisk.in_background`)."""


async def converge(cluster: SimulatedCluster, options: RunOptions, reference: ReferenceState, history: History) -> None:
    """I36: every replica returns to the ISR. Until then a broker may be held by what it did on a slow disk."""
    seconds = FULL_ISR_SECONDS + math.ceil(cluster.held_seconds())
    try:
        await cluster.until(lambda: not out_of_sync(cluster, options, reference), seconds, "a full ISR")
    except AssertionError as error:
        missing = ", ".join(out_of_sync(cluster, options, reference)[:3])
        history.find("I36", f"{error}: {missing}", None, f"true: {reference.states()[:2]}")


def out_of_sync(cluster: SimulatedCluster, options: RunOptions, reference: ReferenceState) -> list[str]:
    """According to the leader and to ZooKeeper: a leader whose proposal hangs does not know its result."""
    found = [
        f"{state.partition} ISR {state.members} by ZooKeeper's word"
        for state in reference.states()
        if len(state.members) != state.replication_factor
    ]
    for name, (partitions, replication_factor, _) in sorted(options.topics.items()):
        for number in range(partitions):
            members = cluster.in_sync_replicas(name, number)
            if len(members) != replication_factor:
                found.append(f"{name}-{number} leader {cluster.leader(name, number)} ISR {members}")
    return found


async def take_records(cluster: SimulatedCluster, workload: Workload, history: History) -> None:
    """I37: each partition acknowledges a new record soon. One that needs all its replicas waits for a broker that a
    slow disk still holds."""
    answer_ms = ANSWER_MS + 1_000 * math.ceil(cluster.held_seconds())
    async with Producer(
        bootstrap_servers=cluster.bootstrap_servers, delivery_timeout_ms=answer_ms, runtime=cluster.client_runtime()
    ) as producer:
        for partition in workload.partitions:
            value = f"last-{partition}".encode()
            operation = history.sends("last", partition, value)
            try:
                found = await producer.send_and_wait(partition.topic, value, partition=partition.partition)
                assert found.offset is not None
                history.wrote(operation, found.offset, found.leader_epoch, is_promised=True)
                history.acked[partition, found.offset] = value
            except MinibrokerError as error:
                history.failed(operation, error)
                history.find("I37", f"takes no record: {str(error)[:300]}", partition)


async def stay_idle(cluster: SimulatedCluster, history: History) -> None:
    """I36: without any client request, nothing spins."""
    loop = cluster.world.loop
    has_threads = cluster.world.has_disk_threads
    per_segment = CALLBACKS_PER_SEGMENT_IN_THREAD if has_threads else CALLBACKS_PER_SCRUBBED_SEGMENT
    scrubbing = per_segment * _scrubbed_segments_per_second(cluster)
    before = loop.callbacks_run
    await asyncio.sleep(IDLE_SECONDS)
    rate = (loop.callbacks_run - before) / IDLE_SECONDS
    if rate > CALLBACKS_PER_IDLE_SECOND_MAX + scrubbing:
        history.find("I36", f"an idle cluster runs {rate:.0f} callbacks per second")


def _scrubbed_segments_per_second(cluster: SimulatedCluster) -> float:
    """With the smallest segments a round of the scrubbers reads hundreds of files, and here a round begins soon after
    the one before."""
    total = 0.0
    for manager in filter(None, map(cluster.manager, cluster.alive())):
        segments = sum(len(partition.log.segments) for partition in manager.partitions.values())
        total += segments / max(TICK_SECONDS, manager.config.log_scrub_interval_ms / 1000)
    return total


async def compare_witness(cluster: SimulatedCluster, reference: ReferenceState, history: History) -> None:
    """The notes in ZooKeeper follow soon, and match what the replicas hold."""
    try:
        await cluster.until(lambda: not lacking_notes(cluster, reference.states()), WITNESS_SECONDS, "the witness")
    except AssertionError as error:
        history.find("witness", f"{error}: {'; '.join(lacking_notes(cluster, reference.states())[:2])}")
    for each in compare_notes(cluster, reference.states()):
        history.find(each.invariant, each.text, each.partition, *each.facts)


def compare_replicas(cluster: SimulatedCluster, workload: Workload, history: History) -> None:
    """I20: equal bytes from the highest log start on, equal ends and high watermarks, equal epochs of each offset."""
    for partition in workload.partitions:
        replicas = {
            b: replica
            for b in cluster.broker_ids
            if (replica := cluster.replica(b, partition.topic, partition.partition)) is not None
        }
        states = {b: r.state for b, r in replicas.items()}
        ends = {b: (s.log_end_offset, s.high_watermark) for b, s in states.items()}
        if len(set(ends.values())) != 1 or any(end != high_watermark for end, high_watermark in ends.values()):
            history.find("I20", f"(end, high watermark) by broker: {ends}", partition)
            continue
        start = max(s.log_start_offset for s in states.values())
        contents = {b: log_bytes(r, start) for b, r in replicas.items()}
        if len(set(contents.values())) != 1:
            sizes = {b: len(content) for b, content in contents.items()}
            history.find("I20", f"bytes differ from {start} on: {sizes}", partition)
        for offset in range(start, next(iter(ends.values()))[0]):
            if len({s.epoch_history.epoch_at(offset) for s in states.values()}) != 1:
                histories = {b: s.epoch_history.entries for b, s in states.items()}
                history.find("I20", f"epochs at {offset} differ: {histories}", partition)
                break


def log_bytes(replica: Partition, start: int) -> bytes:
    end = replica.state.log_end_offset
    if start >= end:
        return b""
    parts: list[bytes] = []
    while start < end:
        found = b"".join(bytes(part) for part in replica.log.read(start, 1 << 30, end).parts)
        if not found:
            break
        parts.append(found)
        start = end_of(found)
    return b"".join(parts)


def end_of(batches: bytes) -> int:
    position, end = 0, 0
    while position < len(batches):
        base = int.from_bytes(batches[position : position + 8], "big")
        length = int.from_bytes(batches[position + 8 : position + 12], "big")
        end = base + int.from_bytes(batches[position + 23 : position + 27], "big") + 1
        position += 12 + length
    return end


async def compare_history(
    cluster: SimulatedCluster, workload: Workload, history: History, knows_all_sends: bool = False
) -> None:
    """I21, I22, I25 and I26 over all records that can be read now. `knows_all_sends`: see `Promise`."""
    ends = {each: max((s.high_watermark for s in _states(cluster, each)), default=0) for each in workload.partitions}
    starts, held = await _read_all(workload, history)
    _compare_range(cluster, history, starts, ends, held)
    in_order = {kind.process for kind in workload.producers() if kind.idempotent}
    others = {kind.process for kind in workload.producers() if not kind.idempotent}
    history.check_events(
        Promise(
            in_order=frozenset({*in_order, "burst acks=all", *history.idempotent}),
            first_copies_in_order=frozenset({*others, "burst acks=1", *history.not_idempotent}),
            knows_all_sends=knows_all_sends,
            log_starts={str(partition): start for partition, start in starts.items()},
            deleting=frozenset(str(each) for each in workload.partitions if workload.deletes(each.topic)),
        )
    )
    for (partition, offset), value in sorted(history.acked.items(), key=lambda item: item[0]):
        if offset >= starts.get(partition, 0) and held.get((partition, offset), NOTHING) != value:
            facts = (f"{value!r:.60} was acknowledged", f"{held.get((partition, offset), NOTHING)!r:.60} is held")
            history.find("I21", f"offset {offset} lost its record", partition, *facts)
    for (partition, offset), value in sorted(history.read.items(), key=lambda item: item[0]):
        if offset >= starts.get(partition, 0) and held.get((partition, offset), NOTHING) != value:
            facts = (f"{value!r:.60} was read", f"{held.get((partition, offset), NOTHING)!r:.60} is held")
            history.find("I22", f"offset {offset} changed", partition, *facts)
    seen: dict[bytes | None, tuple[TopicPartition, int]] = {}
    gone = {key: value for key, value in history.read.items() if key[1] < starts.get(key[0], 0)}
    for key, value in sorted((gone | held).items(), key=lambda item: item[0]):
        if value is not None and value.startswith(b"all-") and value in seen:
            history.find("I25", f"{value!r:.60} stands at {seen[value][1]} and {key[1]}", key[0])
        seen[value] = key
        if value in history.surely_failed:
            facts = (f"{value!r:.60} is at {key[1]}", "its failure said that nothing was written")
            history.find("I26", "a failed record is in the log", key[0], *facts)


def _states(cluster: SimulatedCluster, partition: TopicPartition) -> list[ReplicaState]:
    """Of the living replicas."""
    replicas = [cluster.replica(b, partition.topic, partition.partition) for b in cluster.broker_ids]
    return [replica.state for replica in replicas if replica is not None]


def _compare_range(
    cluster: SimulatedCluster,
    history: History,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    held: Collection[tuple[TopicPartition, int]],
) -> None:
    """I23: what was read is all that the replicas hold. A start that consumers are told excuses records in front of it,
    and what is not read contradicts nothing: so neither may come from the answers of brokers alone. `ends`: the high
    watermarks before the read."""
    for partition, end in ends.items():
        first = max((state.log_start_offset for state in _states(cluster, partition)), default=0)
        if starts.get(partition, end + 1) > first:
            facts = (f"consumers are told {starts.get(partition)}", f"its replicas begin at {first} or earlier")
            history.find("I23", "consumers are told of a later start than the log's", partition, *facts)
        unread = [offset for offset in range(first, end) if (partition, offset) not in held]
        if unread:
            text = f"{len(unread)} of {end - first} records were not read, the first at {unread[0]}"
            history.find("I23", text, partition)


async def compare_settings(cluster: SimulatedCluster, history: History) -> None:
    """The settings that were changed last are described."""
    if not history.settings.owners():
        return
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
        for of in history.settings.owners():
            topic, broker_id = (of, None) if isinstance(of, str) else (None, of)
            source = "dynamic-broker" if topic is None else "dynamic-topic"
            described = await admin.describe_configs(topic=topic, broker_id=broker_id, timeout_ms=ANSWER_MS)
            own = {name: entry.value for name, entry in described.items() if entry.source == source}
            for why in history.settings.wrong(of, own):
                history.find("client: alter_configs", f"of {of}: {why}")


def compare_lookups(workload: Workload, history: History) -> None:
    """Every answer by time was the first record that is not older."""
    deleting = filter(workload.deletes, {partition.topic for partition in workload.partitions})
    for asked, why in history.lookups.wrong(history.timestamps_ms, deleting):
        history.find("client: offsets_for_times", f"{asked}: {why}", asked.partition)


async def _read_all(
    workload: Workload, history: History
) -> tuple[dict[TopicPartition, int], dict[tuple[TopicPartition, int], bytes | None]]:
    held: dict[tuple[TopicPartition, int], bytes | None] = {}
    async with workload.consumer() as consumer:
        consumer.assign(workload.partitions)
        ends = await consumer.end_offsets(workload.partitions)
        positions: dict[TopicPartition, int] = {}
        try:
            async with asyncio.timeout(READ_SECONDS):
                while any([await consumer.position(each) < end for each, end in sorted(ends.items())]):
                    found = await consumer.getmany(timeout_ms=1000)
                    history.polls("final reader", found)
                    for partition, records in found.items():
                        for record in records:
                            held[partition, record.offset] = record.value
                            positions[partition] = record.offset + 1
        except TimeoutError:
            history.find("I23", f"not all could be read: {positions} of {ends}")
        starts = await consumer.beginning_offsets(workload.partitions)
    return starts, held
