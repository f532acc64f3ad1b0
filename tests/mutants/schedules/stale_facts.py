"""Outdated facts: about a log of an earlier topic, a disk before it failed, or a log before it was damaged."""

import asyncio

from minibroker.client.admin import AdminClient
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import DiskError
from minibroker.simulation.swarm.faults.file_changes import copied, restore
from minibroker.simulation.swarm.faults.rot_places import batches_of
from minibroker.simulation.world.storage import SimulatedStorage
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, report

RECORDS = 20
LOG = f"/data/log/{TOPIC}-0/{0:020d}.log"
EPOCH_FIELD_END = 16
"""Of a batch; no CRC covers the field."""
PAYLOAD = -3
CHECKPOINT_SECONDS = 6.0
"""By then the high watermarks are checkpointed."""
START_SECONDS = 6.0
"""By then a replica that can be elected leads."""
AGAIN = TopicPartition("again", 0)


def _storage(directed: DirectedRun, broker_id: int) -> SimulatedStorage:
    return directed.world.machine(host(broker_id)).storage


async def _produce(directed: DirectedRun, words: str) -> None:
    for number in range(RECORDS):
        await directed.produce(f"{words} {number}")


async def _produce_again(directed: DirectedRun, words: str, records: int) -> None:
    """To the topic that is made twice; no checker compares its old records with the new ones."""
    for number in range(records):
        await directed.produce(f"{words} {number}", acks=1, partition=AGAIN)


async def _make(directed: DirectedRun, admin: AdminClient) -> None:
    await admin.create_topic(AGAIN.topic, partitions=1, replication_factor=3)
    await directed.until(lambda: len(directed.cluster.in_sync_replicas(AGAIN.topic)) == 3, "its ISR")


async def _delete(directed: DirectedRun, admin: AdminClient) -> None:
    await admin.delete_topics([AGAIN.topic])
    cluster = directed.cluster
    await directed.until(
        lambda: all(cluster.replica(each, AGAIN.topic) is None for each in cluster.broker_ids), "its deletion"
    )


def _kill_all(directed: DirectedRun) -> None:
    for broker_id in directed.cluster.broker_ids:
        if broker_id in directed.cluster.alive():
            directed.cluster.kill(broker_id)


@with_setup(ClusterSetup())
async def disk_of_before_a_topic_was_made_again(directed: DirectedRun) -> None:
    """All are killed, and one gets its disk back as it was when another topic had the name, with more records."""
    cluster = directed.cluster
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
        await _make(directed, admin)
        await _produce_again(directed, "before", RECORDS)
        await asyncio.sleep(CHECKPOINT_SECONDS)
        older = copied(_storage(directed, 3).root)
        await _delete(directed, admin)
        await _make(directed, admin)
    await _produce_again(directed, "after", RECORDS // 2)
    await asyncio.sleep(1)
    _kill_all(directed)
    directed.reference.faulty.add(3)
    restore(_storage(directed, 3), older)
    cluster.start(3)
    await directed.until(lambda: cluster.controller() == 3, "a controller, which knows first what it holds itself")
    for broker_id in (1, 2):
        cluster.start(broker_id)
    await asyncio.sleep(2 * START_SECONDS)
    if cluster.leader(AGAIN.topic) is None:
        report(directed, "I36", "no leader: two sound logs are compared with the high watermark of another topic")
    if cluster.leader(AGAIN.topic) == 3:
        report(directed, "I28", "the log of another topic leads: what this one holds is cut on the others")


@with_setup(ClusterSetup(brokers=2, topics={TOPIC: (1, 2, 1)}))
async def log_is_damaged_after_it_was_asked_for(directed: DirectedRun) -> None:
    """The first broker back has reported its log, and waits for the other one, when a byte of the log rots."""
    cluster = directed.cluster
    await _produce(directed, "early")
    _kill_all(directed)
    cluster.start(1)
    await asyncio.sleep(START_SECONDS)
    directed.reference.faulty.add(1)
    log = directed.replica(1).log
    places = [position for position, _ in batches_of(_storage(directed, 1).find_file(LOG).content)]
    _storage(directed, 1).flip_bit(LOG, places[RECORDS // 2] + PAYLOAD)
    await directed.until(lambda: log.damage is not None, "a scrubber that has found it", 60)
    await asyncio.sleep(1)
    cluster.start(2)
    await asyncio.sleep(2 * START_SECONDS)
    if cluster.leader(TOPIC) is None:
        report(directed, "I36", "no leader: the report of broker 1 from before its log was damaged still counts")
    await directed.until_isr(1, 2)


@with_setup(ClusterSetup())
async def disk_fails_before_all_are_killed(directed: DirectedRun) -> None:
    """Broker 1 gets an error from its disk, which has lost the last records and the epoch file; the last remaining epoch
    rots."""
    await _produce(directed, "early")
    await directed.world.spawn(host(1), directed.replica(1).log.flush())
    await _produce(directed, "late")
    for broker_id in (2, 3):
        directed.cluster.kill(broker_id)
    directed.reference.faulty.add(1)
    storage = _storage(directed, 1)
    storage.fail("sync")
    await directed.world.spawn(host(1), _fails_to_sync(directed))
    directed.cluster.kill(1)
    storage.heal()
    content = storage.find_file(LOG).content
    places = [position for position, _ in batches_of(content)]
    del content[places[RECORDS] :]
    storage.flip_bit(LOG, places[RECORDS - 1] + EPOCH_FIELD_END - 1)
    storage.find_directory(LOG.rpartition("/")[0]).entries.pop("leader-epoch-checkpoint")
    for broker_id in (1, 2, 3):
        directed.cluster.start(broker_id)
        await asyncio.sleep(START_SECONDS)
    await directed.until_isr(1, 2, 3)


async def _fails_to_sync(directed: DirectedRun) -> None:
    directory = directed.cluster.brokers[1].log_directory
    try:
        await directed.replica(1).log.flush()
    except DiskError:
        pass
    assert directory.offline
