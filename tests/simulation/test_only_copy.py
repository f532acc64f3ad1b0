"""The sequence of the only in-sync copy on a disk that shows its damage: what it may damage, and which replica may then
lead."""

import asyncio
import random

import pytest

from minibroker.protocol.files.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START,
    LogStart,
    LogStartReason,
    format_log_start,
    format_offset_checkpoint,
)
from minibroker.protocol.ids import NONE, TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.simulation.swarm.faults.disk_faults import DiskFaults
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.faulty_disk import FaultyDisk
from minibroker.simulation.swarm.faults.file_changes import put_file
from minibroker.simulation.swarm.faults.rot_places import LOG_DIRECTORY
from minibroker.simulation.swarm.only_copy import OnlyCopy, directory_of, end_of, last_batch, reached
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.storage import SimulatedStorage
from minibroker.simulation.world.trace import Trace
from tests.simulation.test_disk_faults import whole
from tests.simulation.test_promise import PARTITION, under_faults

A = TopicPartition("a", 0)
BATCHES = [bytes(build_batch([(None, b"%d" % offset, 0, ())], base_offset=offset)) for offset in range(3)]


def storage(*batches: bytes) -> SimulatedStorage:
    loop = VirtualLoop()
    disk = SimulatedStorage("broker-1", loop, random.Random(1), Trace(loop))
    disk.provision(directory_of(A))
    put_file(disk, f"{directory_of(A)}/{0:020d}.log", b"".join(batches))
    loop.close()
    return disk


def test_log_on_a_disk_ends_where_its_batches_are_no_longer_consecutive() -> None:
    assert end_of(storage(*BATCHES), A) == 3
    assert end_of(storage(BATCHES[0], BATCHES[2]), A) == 1
    assert end_of(storage(bytes(100)), A) == 0
    assert last_batch(storage(*BATCHES), A) == BATCHES[-1]
    assert last_batch(storage(), A) is None


def test_gap_in_front_of_the_recorded_log_start_is_no_loss() -> None:
    disk = storage(BATCHES[0])
    put_file(disk, f"{directory_of(A)}/{2:020d}.log", BATCHES[2])
    assert end_of(disk, A) == 1
    start = LogStart(topic_id="t", partition=0, offset=2, reason=LogStartReason.RETENTION)
    put_file(disk, f"{directory_of(A)}/{LOG_START}", format_log_start(start))
    assert end_of(disk, A) == 3


def test_disk_shows_the_end_of_a_clean_stop_or_its_last_high_watermark_or_nothing() -> None:
    disk = storage(*BATCHES)
    assert reached(disk, A, 3) == 0
    put_file(disk, f"{LOG_DIRECTORY}/{HIGH_WATERMARK_CHECKPOINT}", format_offset_checkpoint({A: 2}))
    assert reached(disk, A, 3) == 2
    put_file(disk, f"{LOG_DIRECTORY}/.clean_shutdown", b"clean")
    assert reached(disk, A, 3) == 3


def played(injector: FaultInjector, seed: int) -> OnlyCopy:
    rng = random.Random(seed)
    return OnlyCopy(injector, DiskFaults(injector, FaultyDisk(injector), rng), rng)


@pytest.mark.parametrize("seed", range(4))
def test_no_replica_leads_after_damage_to_the_only_copy_until_an_operator_orders_it(seed: int) -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        working = injector.world.loop.create_task(injector.workload.run())
        await injector.wait(lambda: injector.workload.is_enough, 10.0)
        acknowledged = max(offset for _, offset in injector.workload._history.acked)
        assert await played(injector, seed).play()
        await whole(injector)
        assert injector.counts["an operator accepts the loss"] == 1
        assert injector.reference.findings == []
        assert not injector.reference.allows_unclean_election
        assert all(injector.log_end(broker_id, PARTITION) > acknowledged for broker_id in injector.cluster.broker_ids)
        working.cancel()

    under_faults(case)


@pytest.mark.parametrize("is_made_again", [False, True])
def test_leader_of_a_partition_whose_only_copy_is_damaged_is_a_finding(is_made_again: bool) -> None:
    """Not if its topic was deleted and made again: the damaged copy belongs to a topic that is gone (seed 17353396)."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        sequence = played(injector, 1)
        state, leader = injector.reference.state(PARTITION), injector.leader(PARTITION)
        assert state is not None and leader is not None
        sequence._guarded, sequence._copied = {PARTITION: state.czxid - is_made_again}, {PARTITION: 5}
        injector.kill(leader)
        await injector.wait(lambda: not sequence._guarded, 10.0)
        assert not sequence._guarded
        found = [(each.invariant, each.partition) for each in injector.reference.findings]
        assert found == ([] if is_made_again else [("I28", PARTITION)])

    under_faults(case)


@pytest.mark.parametrize("is_copied", [False, True])
def test_operator_elects_a_leader_only_if_it_has_all_of_the_only_copy(is_copied: bool) -> None:
    """Also of a partition whose only in-sync copy is sound: its broker may start late, and the others lack records."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        last = injector.leader(PARTITION)
        assert last is not None
        for other in injector.others(last):
            injector.kill(other)
        assert await injector.wait(lambda: injector.reference.states()[0].members == (last,), 10.0)
        injector.kill(last)
        for other in injector.others(last):
            injector.start(other)
        assert await injector.wait(lambda: injector.reference.states()[0].leader == NONE, 10.0)
        sequence = played(injector, 1)
        sequence._copied = {PARTITION: 0} if is_copied else {}
        await sequence._elect(last)
        await asyncio.sleep(1.0)
        assert (injector.reference.states()[0].leader == NONE) is not is_copied

    under_faults(case)


def test_partition_whose_topic_was_deleted_needs_no_leader() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        assert played(injector, 1)._are_led([PARTITION, TopicPartition("deleted", 0)])

    under_faults(case)
