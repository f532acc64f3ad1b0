"""Whole clusters that end and start again while one disk loses records, with little or no trace on it."""

import asyncio

from minibroker.client.admin import AdminClient
from minibroker.protocol.files.checkpoints import format_epoch_checkpoint, parse_epochs_and_owner
from minibroker.protocol.wire.messages import (
    ApiKey,
    ElectionPreview,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersTopic,
    confirmation_of,
)
from minibroker.simulation.swarm.faults.file_changes import put_file
from minibroker.simulation.swarm.faults.rot_places import batches_of
from minibroker.simulation.world.message_holds import requests
from minibroker.simulation.world.storage import SimulatedStorage
from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.actions import host, members, must_be_acknowledged, report, send_to

RECORDS = 20
LOG = f"/data/log/{TOPIC}-0/{0:020d}.log"
EPOCH_FIELD_END = 16
"""Of a batch; no CRC covers the field."""
EPOCHS = f"/data/log/{TOPIC}-0/leader-epoch-checkpoint"
STRAY = f"/data/log/{TOPIC}-0/{500:020d}.log"
PAYLOAD = -3
CHECKPOINT_SECONDS = 6.0
"""By then the high watermarks are checkpointed."""
LOADED_SECONDS = 1.0
"""By then a start has loaded its logs, and checkpointed nothing yet."""
ALL_CHECKPOINTS_SECONDS = 62.0
"""By then the recovery points are checkpointed, too."""
DELETED_SECONDS = 2.5
"""By then a deletion is checkpointed."""
START_SECONDS = 6.0
"""By then a replica that can be elected leads."""
UNANSWERED_SECONDS = 0.8
"""A broker that has not answered for this long does not count as silent yet."""


async def produce_some(directed: DirectedRun, words: str = "") -> None:
    for number in range(RECORDS):
        await directed.produce(f"{words}{number}")


def storage(directed: DirectedRun, broker_id: int) -> SimulatedStorage:
    return directed.world.machine(host(broker_id)).storage


def batches(directed: DirectedRun, broker_id: int) -> list[int]:
    """Where each batch of its log begins, and where the last one ends."""
    content = storage(directed, broker_id).find_file(LOG).content
    return [*(position for position, _ in batches_of(content)), len(content)]


def _shorten(directed: DirectedRun, broker_id: int) -> None:
    """Remove the last half of its batches."""
    directed.reference.faulty.add(broker_id)
    places = batches(directed, broker_id)
    del storage(directed, broker_id).find_file(LOG).content[places[len(places) // 2] :]


async def alone_in_sync(directed: DirectedRun, last: int) -> None:
    """The others stop, one after the other, and have all records."""
    for broker_id in directed.cluster.broker_ids:
        if broker_id != last:
            directed.cluster.stop(broker_id)
            await directed.until(lambda b=broker_id: b not in directed.cluster.alive(), "its end")  # type: ignore[misc]
            await directed.until(lambda b=broker_id: b not in members(directed), "a smaller ISR")  # type: ignore[misc]


async def start_all(directed: DirectedRun, first: int) -> None:
    """The broker with the changed disk is back long before the others. It must not lead."""
    for broker_id in (first, *directed.cluster.broker_ids):
        if broker_id not in directed.cluster.alive():
            directed.cluster.start(broker_id)
            await asyncio.sleep(START_SECONDS)


async def _elect_another(directed: DirectedRun, last: int) -> None:
    """An operator elects another replica, if there is no leader."""
    if directed.cluster.leader(TOPIC) == last:
        report(directed, "I28", f"broker {last} leads, whose log is not what it was")
        return
    directed.reference.allows_unclean_election = True
    another = min(set(directed.cluster.broker_ids) - {last})
    topics = [ElectLeadersTopic(topic_name=TOPIC, partitions=[0])]
    offered = await send_to(directed, directed.controller, ElectLeadersRequest(topics=topics, leader=another))
    assert isinstance(offered, ElectLeadersResponse)
    confirmed = [confirmation_of(each) for each in offered.partitions]
    await send_to(directed, directed.controller, ElectLeadersRequest(confirmed=confirmed, leader=another))
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup())
async def killed_log_is_shorter(directed: DirectedRun) -> None:
    """All are killed; one log loses whole batches at its end, before a checkpoint covers them."""
    await produce_some(directed)
    for broker_id in directed.cluster.broker_ids:
        directed.cluster.kill(broker_id)
    _shorten(directed, 1)
    await start_all(directed, 1)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def only_member_is_shorter_than_its_high_watermark(directed: DirectedRun) -> None:
    """The same for the only in-sync replica, after its high watermark was checkpointed."""
    await produce_some(directed)
    await alone_in_sync(directed, 1)
    await asyncio.sleep(CHECKPOINT_SECONDS)
    directed.cluster.kill(1)
    _shorten(directed, 1)
    await start_all(directed, 1)
    await _elect_another(directed, 1)


@with_setup(ClusterSetup())
async def only_member_is_shorter_than_others_know(directed: DirectedRun) -> None:
    """The same before a checkpoint covers the records; the others are up, and had stopped cleanly."""
    await produce_some(directed)
    await alone_in_sync(directed, 1)
    directed.cluster.kill(1)
    _shorten(directed, 1)
    for broker_id in (2, 3, 1):
        directed.cluster.start(broker_id)
        await asyncio.sleep(START_SECONDS)
    await _elect_another(directed, 1)


async def _last_member_ends_after_another(directed: DirectedRun) -> None:
    """Broker 3 has none of the records and is up, 2 has stopped cleanly, and 1 was killed as the only member."""
    directed.cluster.kill(3)
    await directed.until_isr(1, 2)
    await produce_some(directed)
    directed.cluster.stop(2)
    await directed.until(lambda: 2 not in directed.cluster.alive(), "its end")
    await directed.until_isr(1)
    directed.cluster.kill(1)
    directed.cluster.start(3)
    await asyncio.sleep(START_SECONDS)


@with_setup(ClusterSetup())
async def only_member_is_back_together_with_one_that_knows_more(directed: DirectedRun) -> None:
    """Its log is shorter; the other one, outside of the ISR, has registered and answered no order yet."""
    await _last_member_ends_after_another(directed)
    _shorten(directed, 1)
    orders = directed.world.network.hold(host(3), host(2), requests(ApiKey.UPDATE_METADATA))
    directed.cluster.start(2)
    await orders.caught()
    directed.cluster.start(1)
    await asyncio.sleep(UNANSWERED_SECONDS)
    orders.release()
    await asyncio.sleep(START_SECONDS)
    await _elect_another(directed, 1)


@with_setup(ClusterSetup())
async def only_member_is_back_together_with_a_silent_one(directed: DirectedRun) -> None:
    """The controller does not reach the other one, which may know more."""
    await _last_member_ends_after_another(directed)
    directed.world.network.partition(host(3), host(2))
    for broker_id in (2, 1):
        directed.cluster.start(broker_id)
    await must_be_acknowledged(directed, "after the only member was back", START_SECONDS)


@with_setup(ClusterSetup())
async def only_member_rots_in_its_last_segment(directed: DirectedRun) -> None:
    """A batch in the middle of unsynced records rots; no checkpoint covers it yet, and the machine kept running."""
    await alone_in_sync(directed, 1)
    directed.cluster.start(2)
    await directed.until_isr(1, 2)
    await produce_some(directed)
    directed.cluster.kill(2)
    await directed.until_isr(1)
    directed.cluster.kill(1)
    directed.reference.faulty.add(1)
    storage(directed, 1).flip_bit(LOG, batches(directed, 1)[RECORDS // 2] + PAYLOAD)
    await start_all(directed, 1)
    await _elect_another(directed, 1)


@with_setup(ClusterSetup())
async def only_one_start_can_see_the_damage(directed: DirectedRun) -> None:
    """A clean stop recorded its log ends; the next start finds the log shorter, and loses power."""
    await produce_some(directed)
    await alone_in_sync(directed, 1)
    directed.cluster.stop(1)
    await directed.until(lambda: not directed.cluster.alive(), "the end of all")
    _shorten(directed, 1)
    directed.cluster.start(1)
    await asyncio.sleep(START_SECONDS)
    directed.world.power_loss(host(1), tear=False)
    await start_all(directed, 1)
    await _elect_another(directed, 1)


@with_setup(ClusterSetup())
async def start_dies_after_claiming_the_directory(directed: DirectedRun) -> None:
    """One loses power, the others are killed; its first start fails after it has claimed its directory."""
    await produce_some(directed)
    directed.world.power_loss(host(1), tear=False)
    for broker_id in (2, 3):
        directed.cluster.kill(broker_id)
    storage(directed, 1).fail("remove")
    directed.cluster.start(1)
    await directed.until(lambda: bool(directed.world.crashes), "a start that fails")
    directed.world.crashes.clear()
    storage(directed, 1).heal()
    await start_all(directed, 1)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup(sound_disks=True))
async def start_dies_before_it_checkpoints(directed: DirectedRun) -> None:
    """One loses power below its checkpointed high watermark, and its first start is killed once its log is loaded."""
    await produce_some(directed)
    await asyncio.sleep(CHECKPOINT_SECONDS)
    directed.world.power_loss(host(1), tear=False)
    for broker_id in (2, 3):
        directed.cluster.kill(broker_id)
    directed.cluster.start(1)
    await asyncio.sleep(LOADED_SECONDS)
    directed.cluster.kill(1)
    await start_all(directed, 1)
    await directed.until_isr(1, 2, 3)


def later_epoch(directed: DirectedRun, broker_id: int, batch: int) -> None:
    """One bit of the epoch of this batch rots."""
    directed.reference.faulty.add(broker_id)
    place = batches(directed, broker_id)[:-1][batch]
    storage(directed, broker_id).flip_bit(LOG, place + EPOCH_FIELD_END - 1)


async def _lose_a_tail_that_was_not_synced(directed: DirectedRun) -> None:
    """Broker 1 loses its power and half of the records, the others are killed; the last epoch of its log rots."""
    await produce_some(directed)
    await directed.world.spawn(host(1), directed.replica(1).log.flush())
    await produce_some(directed, "late ")
    directed.world.power_loss(host(1), tear=False)
    for broker_id in directed.cluster.broker_ids[1:]:
        directed.cluster.kill(broker_id)
    later_epoch(directed, 1, -1)
    await start_all(directed, 1)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup())
async def epoch_rots_beside_two_undisturbed_logs(directed: DirectedRun) -> None:
    """The reviewer's f7b."""
    await _lose_a_tail_that_was_not_synced(directed)


@with_setup(ClusterSetup(brokers=2, topics={TOPIC: (1, 2, 1)}))
async def epoch_rots_beside_one_undisturbed_log(directed: DirectedRun) -> None:
    """The same with two replicas."""
    await _lose_a_tail_that_was_not_synced(directed)


async def _all_lose_power(directed: DirectedRun) -> None:
    for broker_id in directed.cluster.broker_ids:
        directed.world.power_loss(host(broker_id), tear=False)


FLUSHED = {"log.flush.interval.messages": "1"}


@with_setup(ClusterSetup(settings=FLUSHED))
async def epoch_rots_where_all_lose_power(directed: DirectedRun) -> None:
    """Of a batch in the middle, before a checkpoint shows how far the log was committed: the reviewer's f7."""
    await produce_some(directed)
    await _all_lose_power(directed)
    later_epoch(directed, 1, RECORDS // 2)
    await start_all(directed, 1)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup(settings=FLUSHED))
async def epoch_rots_in_a_log_that_is_cut(directed: DirectedRun) -> None:
    """Its recovery points are gone, too; only the others know how far the log was committed."""
    await produce_some(directed)
    await asyncio.sleep(CHECKPOINT_SECONDS)
    await _all_lose_power(directed)
    _shorten(directed, 1)
    storage(directed, 1).find_directory("/data/log").entries.pop(RECOVERY_POINTS.rpartition("/")[2])
    later_epoch(directed, 1, -1)
    await start_all(directed, 1)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def epochs_of_another_partition_come(directed: DirectedRun) -> None:
    """The last broker to stop finds an epoch file that ends in the same epoch, but belongs to another log; a follower
    that was down since before that epoch asks it where the earlier one ended."""
    await produce_some(directed)
    leader, away = directed.leader, directed.followers()[0]
    (last,) = set(directed.cluster.broker_ids) - {leader, away}
    directed.cluster.stop(away)
    await directed.until(lambda: away not in directed.cluster.alive() and away not in members(directed), "its end")
    directed.cluster.kill(leader)
    await directed.until(lambda: directed.cluster.leader(TOPIC) == last, "another leader")
    await produce_some(directed, "later ")
    directed.cluster.stop(last)
    await directed.until(lambda: not directed.cluster.alive(), "the end of all")
    directed.reference.faulty.add(last)
    file = storage(directed, last).find_file(EPOCHS)
    entries, owner = parse_epochs_and_owner(bytes(file.content))
    assert owner is not None
    shifted = [(epoch, 5 if start else 0) for epoch, start in entries]
    file.content[:] = format_epoch_checkpoint(shifted, (owner[0], owner[1] + 1))
    directed.cluster.start(last)
    await directed.until(lambda: directed.cluster.leader(TOPIC) == last, "a leader")
    directed.cluster.start(away)
    directed.cluster.start(leader)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def stray_segment_lies_behind_the_end(directed: DirectedRun) -> None:
    """The only in-sync replica stops cleanly; then its directory gets an empty file with a segment's name."""
    await produce_some(directed)
    await alone_in_sync(directed, 1)
    directed.cluster.stop(1)
    await directed.until(lambda: not directed.cluster.alive(), "the end of all")
    directed.reference.faulty.add(1)
    put_file(storage(directed, 1), STRAY, b"")
    await start_all(directed, 1)
    await _elect_another(directed, 1)


RECOVERY_POINTS = "/data/log/recovery-point-offset-checkpoint"
SOON = {"log.flush.offset.checkpoint.interval.ms": "1000"}


@with_setup(ClusterSetup())
async def only_member_is_shorter_than_its_clean_stop_says(directed: DirectedRun) -> None:
    """Its recovery points are unreadable, too."""
    await produce_some(directed)
    await alone_in_sync(directed, 1)
    directed.cluster.stop(1)
    await directed.until(lambda: not directed.cluster.alive(), "the end of all")
    directed.reference.faulty.add(1)
    _shorten(directed, 1)
    storage(directed, 1).flip_bit(RECOVERY_POINTS, 30)
    await start_all(directed, 1)
    await _elect_another(directed, 1)


@with_setup(ClusterSetup(settings={**FLUSHED, **SOON}))
async def only_member_rots_below_its_checkpoints_and_loses_power(directed: DirectedRun) -> None:
    """A record in the middle of the last segment rots, which is synced and committed according to both checkpoints."""
    await produce_some(directed)
    await alone_in_sync(directed, 1)
    await asyncio.sleep(CHECKPOINT_SECONDS)
    directed.world.power_loss(host(1), tear=False)
    directed.reference.faulty.add(1)
    storage(directed, 1).flip_bit(LOG, batches(directed, 1)[RECORDS // 2] + PAYLOAD)
    await start_all(directed, 1)
    await _elect_another(directed, 1)


@with_setup(ClusterSetup(sound_disks=True))
async def topic_was_deleted_before_all_are_killed(directed: DirectedRun) -> None:
    """Two of three come back, and do not have to wait for the third."""
    cluster, topic = directed.cluster, "gone"
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
        await admin.create_topic(topic, partitions=1, replication_factor=3)
        await directed.until(lambda: len(cluster.in_sync_replicas(topic)) == 3, "its ISR")
        await produce_some(directed)
        await asyncio.sleep(ALL_CHECKPOINTS_SECONDS)
        await admin.delete_topics([topic])
    await directed.until(lambda: all(cluster.replica(b, topic) is None for b in cluster.broker_ids), "its deletion")
    await asyncio.sleep(DELETED_SECONDS)
    for broker_id in cluster.broker_ids:
        cluster.kill(broker_id)
    for broker_id in (1, 2):
        cluster.start(broker_id)
    await asyncio.sleep(2 * START_SECONDS)
    if cluster.leader(TOPIC) is None:
        report(directed, "I36", "no leader: two brokers count as having lost a log that was deleted")
    cluster.start(3)
    await directed.until_isr(1, 2, 3)


async def _preview(directed: DirectedRun) -> ElectionPreview:
    answer = await send_to(directed, directed.controller, ElectLeadersRequest())
    assert isinstance(answer, ElectLeadersResponse)
    (told,) = answer.partitions
    return told


@with_setup(ClusterSetup())
async def candidate_changes_before_the_operator_confirms(directed: DirectedRun) -> None:
    """The disk of the last in-sync replica is lost. An operator is offered the replica that has all records, which stops
    before the order arrives; the one that is still up stopped long before, and has half of them."""
    cluster = directed.cluster

    async def stop(broker_id: int) -> None:
        cluster.stop(broker_id)
        await directed.until(lambda: broker_id not in cluster.alive(), "its end")

    await produce_some(directed, "early ")
    await stop(3)
    await directed.until(lambda: 3 not in members(directed), "a smaller ISR")
    await produce_some(directed, "late ")
    await stop(2)
    await directed.until(lambda: members(directed) == (1,), "an ISR of one")
    await stop(1)
    directed.reference.faulty.add(1)
    storage(directed, 1).wipe()
    storage(directed, 1).provision("/data")
    for broker_id in (1, 2, 3):
        cluster.start(broker_id)
    await asyncio.sleep(START_SECONDS)
    directed.reference.allows_unclean_election = True
    told = await _preview(directed)
    assert told.chosen == 2, told
    await stop(2)
    await send_to(directed, directed.controller, ElectLeadersRequest(confirmed=[confirmation_of(told)]))
    if cluster.leader(TOPIC) is not None:
        report(directed, "I28", f"broker {cluster.leader(TOPIC)} leads, and broker 2 was named")
    cluster.start(2)
    await asyncio.sleep(START_SECONDS)
    if cluster.leader(TOPIC) is None:
        await send_to(
            directed, directed.controller, ElectLeadersRequest(confirmed=[confirmation_of(await _preview(directed))])
        )
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def operator_elects_beside_a_rotten_epoch(directed: DirectedRun) -> None:
    """One broker lost power, half of the records, and a bit of an epoch; the other two were killed, and one of them does
    not come back. No replica is elected, so an operator accepts the loss of the records that it may have had."""
    await produce_some(directed)
    await directed.world.spawn(host(1), directed.replica(1).log.flush())
    await produce_some(directed, "late ")
    directed.world.power_loss(host(1), tear=False)
    for broker_id in (2, 3):
        directed.cluster.kill(broker_id)
    later_epoch(directed, 1, -1)
    for broker_id in (1, 2):
        directed.cluster.start(broker_id)
    await asyncio.sleep(START_SECONDS)
    told = await _preview(directed)
    if told.chosen != 2:
        report(directed, "I28", f"broker {told.chosen} is offered, broker 2 has more: {told.candidates}")
    directed.cluster.start(3)
    await directed.until_isr(1, 2, 3)
