"""Epoch files and epochs of batches that contradict each other at a start, or seem to."""

import asyncio

from tests.mutants.directed_run import TOPIC, ClusterSetup, DirectedRun, with_setup
from tests.mutants.schedules.restarts import (
    EPOCH_FIELD_END,
    EPOCHS,
    LOADED_SECONDS,
    LOG,
    RECORDS,
    alone_in_sync,
    batches,
    later_epoch,
    produce_some,
    start_all,
    storage,
)


@with_setup(ClusterSetup())
async def older_epochs_come_back(directed: DirectedRun) -> None:
    """The last broker to stop comes back with an epoch file from before the last election."""
    await produce_some(directed)
    last = directed.leader
    older = bytes(storage(directed, last).find_file(EPOCHS).content)
    directed.cluster.kill(last)
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, last), "another leader")
    directed.cluster.start(last)
    await directed.until_isr(1, 2, 3)
    await produce_some(directed, "later ")
    await alone_in_sync(directed, last)
    directed.cluster.stop(last)
    await directed.until(lambda: not directed.cluster.alive(), "the end of all")
    storage(directed, last).find_file(EPOCHS).content[:] = older
    await start_all(directed, last)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def epoch_rots_after_a_kill(directed: DirectedRun) -> None:
    """The first batch of a later epoch gets the epoch of the batch before while its broker is down."""
    await produce_some(directed)
    first = directed.leader
    directed.cluster.kill(first)
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, first), "another leader")
    directed.cluster.start(first)
    await directed.until_isr(1, 2, 3)
    await produce_some(directed, "later ")
    follower = next(broker_id for broker_id in (1, 2, 3) if broker_id not in (first, directed.leader))
    directed.cluster.kill(follower)
    directed.reference.faulty.add(follower)
    epoch_ends = batches(directed, follower)[RECORDS] + EPOCH_FIELD_END
    content = storage(directed, follower).find_file(LOG).content
    assert content[epoch_ends - 1] == content[batches(directed, follower)[0] + EPOCH_FIELD_END - 1] + 1
    content[epoch_ends - 1] -= 1
    directed.cluster.start(follower)
    await directed.until_isr(1, 2, 3)


@with_setup(ClusterSetup())
async def epoch_of_the_last_batch_rots_upward(directed: DirectedRun) -> None:
    """While all brokers are down, after kills. Its log seems to be the newest."""
    await produce_some(directed)
    for broker_id in directed.cluster.broker_ids:
        directed.cluster.kill(broker_id)
    later_epoch(directed, 1, -1)
    await start_all(directed, 1)
    await directed.until_isr(*directed.cluster.broker_ids)


@with_setup(ClusterSetup(sound_disks=True))
async def kill_between_a_batch_and_its_epoch(directed: DirectedRun) -> None:
    """A follower has no descriptor for the epoch file, and is killed a moment later."""
    await produce_some(directed)
    first = directed.leader
    directed.cluster.kill(first)
    await directed.until(lambda: directed.cluster.leader(TOPIC) not in (None, first), "another leader")
    (follower,) = set(directed.cluster.broker_ids) - {first, directed.leader}
    storage(directed, follower).lacks_descriptors = True
    producing = directed.world.loop.create_task(directed.produce("of the new epoch"))
    await asyncio.sleep(LOADED_SECONDS)
    directed.cluster.kill(follower)
    storage(directed, follower).heal()
    directed.cluster.start(follower)
    directed.cluster.start(first)
    await producing
    await directed.until_isr(*directed.cluster.broker_ids)
