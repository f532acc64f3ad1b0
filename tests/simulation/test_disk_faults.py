"""The faulty disk of the swarm: at most one at a time, never the only good copy, and the same run for the same seed."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.producer.producer import Producer
from minibroker.simulation.checks.disks.failed_syncs import FailedSyncChecker
from minibroker.simulation.swarm.choices import RunChoices
from minibroker.simulation.swarm.faults import whole_cluster
from minibroker.simulation.swarm.faults.crash_points import CrashPoints
from minibroker.simulation.swarm.faults.disk_fault_schedule import DiskFaultSchedule
from minibroker.simulation.swarm.faults.disk_faults import DiskFaults
from minibroker.simulation.swarm.faults.disk_options import RUNNING_ROT, draw_faulty
from minibroker.simulation.swarm.faults.fault_injector import RECREATED, FaultInjector
from minibroker.simulation.swarm.faults.faults import Faults
from minibroker.simulation.swarm.faults.faulty_disk import UNSEEN_SECONDS, FaultyDisk
from minibroker.simulation.swarm.faults.file_changes import FileChanges
from minibroker.simulation.swarm.faults.rot_places import RotPlaces
from minibroker.simulation.swarm.faults.whole_cluster import WholeCluster
from minibroker.simulation.swarm.recreated_topic import LATER_RECORDS, RecreatedTopic
from minibroker.simulation.swarm.run import run_seed
from tests.simulation.test_promise import PARTITION, SESSION_SECONDS, under_faults


def test_seed_with_faulty_disks_is_one_run_and_another_than_without() -> None:
    first, again = (run_seed(3, choices=RunChoices(disk_faults=True)) for _ in range(2))
    without = run_seed(3, choices=RunChoices(disk_faults=False))
    assert first.trace_hash == again.trace_hash != without.trace_hash


def test_draw_has_something_of_everything() -> None:
    drawn = [draw_faulty(random.Random(seed)) for seed in range(100)]
    assert {kind for each in drawn for kind in each.faults} >= set(RUNNING_ROT)
    assert all(each.sequences for each in drawn)


def test_second_disk_is_faulty_only_when_the_first_one_is_whole() -> None:
    async def case(injector: FaultInjector) -> None:
        disk = FaultyDisk(injector)
        await whole(injector)
        assert disk.may_become_faulty(1)
        disk.mark_faulty(1)
        place = RotPlaces(random.Random(1)).rot_identity(injector.storage(1))
        assert place is not None
        disk.rot_byte(*place)
        assert disk.may_become_faulty(1)
        assert not disk.may_become_faulty(2)
        assert disk.undo_unscrubbed_rot() == 1
        assert disk.may_become_faulty(2)
        assert injector.reference.faulty == injector.faulty_disks == set()

    under_faults(case)


def test_no_broker_fails_that_holds_the_only_copy_besides_a_faulty_disk() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        FaultyDisk(injector).mark_faulty(1)
        assert injector.kill(2)
        assert not injector.kill(3)
        assert injector.kill(1), "broker 3 has all that it has"

    under_faults(case)


@pytest.mark.parametrize("fault", [Faults.zk_down, Faults.zk_restart])
@pytest.mark.parametrize("is_faulty", [False, True])
def test_zookeeper_is_not_lost_while_a_disk_is_faulty(fault: Callable[[Faults], None], is_faulty: bool) -> None:
    """The member with the faulty disk may be the last of its ISR, and may not lead (seed 17406701)."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        if is_faulty:
            injector.faulty_disks.add(2)
        lines: list[str] = []
        injector.listeners.append(lines.append)
        fault(Faults(injector))
        assert (lines == []) is is_faulty

    under_faults(case)


def test_rot_is_gone_when_the_file_is_another_one() -> None:
    async def case(injector: FaultInjector) -> None:
        disk = FaultyDisk(injector)
        await whole(injector)
        disk.mark_faulty(1)
        assert DiskFaults(injector, disk, random.Random(1)).rot_now(1, "rot_identity")
        [path, *_] = [each.path for each in disk.remaining()]
        content = bytes(injector.storage(1).find_file(path).content)
        injector.cluster.kill(1)
        injector.world.runtime("broker-1").disk.replace_file(path, content)
        assert path not in [each.path for each in disk.remaining()]

    under_faults(case)


def test_broker_is_not_blamed_for_its_view_of_files_that_a_fault_removed() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        checker, process = FailedSyncChecker(injector.cluster, injector.reference), injector.world.process("broker-1")
        checker._had_errors.add(process)
        injector.reference.lost_files.add(process)
        working = injector.world.loop.create_task(injector.workload.run())
        await injector.wait(lambda: injector.log_end(1, PARTITION) > 0, SESSION_SECONDS)
        assert FileChanges(random.Random(1)).all_segments_gone(injector.storage(1)) is not None
        checker.sample()
        assert injector.reference.findings == []
        injector.reference.lost_files.clear()
        checker.sample()
        assert [found.invariant for found in injector.reference.findings] == ["I12"]
        working.cancel()

    under_faults(case)


def test_disk_is_not_whole_while_the_kernel_shows_what_a_failed_sync_lost() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        disk, storage = FaultyDisk(injector), injector.storage(1)
        disk.mark_faulty(1)
        file = storage.find_file("/data/log/meta.properties")
        file.content += b"more"
        storage.forget_unsynced("/data/log/meta.properties")
        disk.settle()
        assert disk.broker == 1
        await injector.wait(lambda: False, UNSEEN_SECONDS + 0.1)
        disk.settle()
        assert disk.broker is None
        injector.cluster.power_loss(1)
        assert file.content.endswith(b"more")

    under_faults(case)


def test_disk_is_not_whole_while_a_loss_of_power_would_bring_the_rot_back() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        working = injector.world.loop.create_task(injector.workload.run())
        await injector.wait(lambda: injector.log_end(1, PARTITION) > 0, SESSION_SECONDS)
        working.cancel()
        disk, storage = FaultyDisk(injector), injector.storage(1)
        disk.mark_faulty(1)
        directory = storage.find_directory("/data/log")
        path = storage.files(f"/data/log/{PARTITION}/")[0][0]
        assert path.endswith(".log")
        storage.find_directory(path.rpartition("/")[0]).sync()
        disk.rot_byte(path, 0, ord("?"))
        directory.entries["elsewhere"] = directory.entries.pop(str(PARTITION))
        disk.settle()
        assert disk.broker == 1, "the rename is not synced"
        directory.sync()
        disk.settle()
        assert disk.broker is None

    under_faults(case)


def test_broker_that_refuses_its_rotten_identity_starts_once_the_rot_is_undone() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        disk, path = FaultyDisk(injector), "/data/log/meta.properties"
        disk.mark_faulty(1)
        file = injector.storage(1).find_file(path)
        sound = bytes(file.content)
        at = sound.index(b"directory.id=") + len("directory.id=")
        injector.kill(1)
        disk.rot_byte(path, at, ord("b") if sound[at] != ord("b") else ord("c"))
        injector.start(1)
        await injector.wait(lambda: False, SESSION_SECONDS)
        assert [type(crash[1]).__name__ for crash in injector.world.crashes] == ["LogDirectoryError"]
        injector.world.crashes.clear()
        disk.undo_unscrubbed_rot()
        assert bytes(file.content) == sound
        injector.start(1)
        assert await injector.wait(lambda: injector.is_in_every_isr(1), 10.0)

    under_faults(case)


def test_disk_is_not_whole_while_lost_files_are_open_or_a_segment_is_zeroed() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        working = injector.world.loop.create_task(injector.workload.run())
        await injector.wait(lambda: injector.log_end(1, PARTITION) > 0, SESSION_SECONDS)
        disk = FaultyDisk(injector)
        faults = DiskFaults(injector, disk, random.Random(1))
        assert faults.apply_change(1, "zeroed_segment", faults.changes.zeroed_segment)
        injector.reference.lost_files.add(injector.world.process("broker-1"))
        disk.rot.clear()
        disk.settle()
        assert disk.broker == 1, "its broker runs on"
        injector.reference.lost_files.clear()
        disk.settle()
        assert disk.broker is None
        faults.apply_change(1, "zeroed_segment", faults.changes.zeroed_segment)
        disk.settle()
        assert disk.broker == 1, "the segment is damaged"
        working.cancel()

    under_faults(case)


SLOW_SCRUB = {"log.scrub.bytes.per.second": "65536", "log.scrub.interval.ms": "1000"}


def test_a_slow_scrubber_gets_as_long_as_it_needs_for_a_large_disk() -> None:
    """Rot behind the scrubber's place is found in the next round, and a round of 2 MB takes half a minute."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        servers, runtime = injector.cluster.bootstrap_servers, injector.cluster.client_runtime()
        async with Producer(bootstrap_servers=servers, runtime=runtime) as producer:
            await producer.send_many(PARTITION.topic, [bytes(8_000)] * 256)
        schedule = DiskFaultSchedule(injector, draw_faulty(random.Random(1)), random.Random(1))
        counters = injector.cluster.brokers[1].counters
        rounds = counters.scrub_rounds
        assert await injector.wait(lambda: counters.scrub_rounds > rounds + 1, 90.0)
        await asyncio.sleep(5.0)
        schedule.disk.mark_faulty(1)
        [path, *_] = [path for path, _ in injector.storage(1).files(f"/data/log/{PARTITION}/") if path.endswith(".log")]
        schedule.disk.rot_byte(path, 1_000, ord("?"))
        assert await schedule.repair() == []

    under_faults(case, SLOW_SCRUB)


def test_rot_in_a_log_of_a_deleted_topic_is_no_brokers_to_repair() -> None:
    """An older copy of the disk brings the log back, and no replica has another one to copy."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        servers, runtime = injector.cluster.bootstrap_servers, injector.cluster.client_runtime()
        schedule = DiskFaultSchedule(injector, draw_faulty(random.Random(1)), random.Random(1))
        faults, storage = DiskFaults(injector, schedule.disk, random.Random(1)), injector.storage(1)
        async with (
            AdminClient(bootstrap_servers=servers, runtime=runtime) as admin,
            Producer(bootstrap_servers=servers, runtime=runtime) as producer,
        ):
            await admin.create_topic("gone", partitions=1, replication_factor=3)
            for topic in ("gone", PARTITION.topic):
                await producer.send_and_wait(topic, b"value", partition=0)
            faults.changes.copies.take(storage)
            await admin.delete_topic("gone")
        await faults.while_down(1, lambda: faults.apply_change(1, "older_disk", faults.changes.older_disk))
        await whole(injector)
        schedule.disk.mark_faulty(1)
        there, gone = (f"/data/log/{name}-0/00000000000000000000.log" for name in (PARTITION.topic, "gone"))
        schedule.disk.rot_byte(there, 70, ord("?"))
        schedule.disk.rot_byte(gone, 70, ord("?"))
        assert [each.path for each in schedule.disk.unrepaired()] == [there]
        assert await schedule.repair() == []
        assert [each.path for each in schedule.disk.remaining()] == [gone]

    under_faults(case, {"log.scrub.interval.ms": "1000"})


def test_an_operator_starts_a_broker_again_that_has_given_up_a_repair() -> None:
    """A replica that is damaged four times within an hour stays offline, as docs/OPERATIONS.md says."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        servers, runtime = injector.cluster.bootstrap_servers, injector.cluster.client_runtime()
        schedule = DiskFaultSchedule(injector, draw_faulty(random.Random(1)), random.Random(1))
        async with Producer(bootstrap_servers=servers, runtime=runtime) as producer:
            await producer.send_and_wait(PARTITION.topic, b"value", partition=0)
        for byte in b"1234":
            assert await injector.wait(lambda: schedule.disk.may_become_faulty(1), 10.0)
            schedule.disk.mark_faulty(1)
            schedule.disk.rot_byte(f"/data/log/{PARTITION}/00000000000000000000.log", 70, byte)
            await asyncio.sleep(3.0)
        assert await schedule.repair() == []
        assert await injector.wait(lambda: injector.is_in_every_isr(1), 10.0)

    under_faults(case, {"log.scrub.interval.ms": "1000"})


async def whole(injector: FaultInjector) -> None:
    assert await injector.wait(lambda: all(map(injector.is_in_every_isr, injector.cluster.broker_ids)), SESSION_SECONDS)
    assert injector.state(PARTITION) is not None


def test_topic_is_made_again_after_its_deletion_had_to_wait_for_a_broker() -> None:
    """The request to delete it ends in doubt, and the topic is deleted later."""

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        topic = RecreatedTopic(injector, random.Random(1))
        assert await topic.recreate()
        down = min(injector.others(injector.cluster.controller() or 0))
        assert injector.kill(down)
        assert not await topic.recreate()
        injector.start(down)
        assert await injector.wait(lambda: injector.reference.state(RECREATED) is None, SESSION_SECONDS)
        assert await topic.recreate()
        assert not injector.workload.recreated.keys() - set(range(LATER_RECORDS))

    under_faults(case)


class InOrder(random.Random):
    """The victim is the first choice; the others end in this order."""

    ends: tuple[int, ...] = ()

    def choice(self, seq: Any) -> Any:
        return self.ends[0] if self.ends[0] in seq else seq[0]

    def sample(self, population: Any, k: int, **_: Any) -> Any:
        return [each for each in self.ends if each in population]


def test_no_isr_is_left_to_a_broker_without_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 17492314. The other members were killed one after another, and a controller that ran on left the ISR to the
    leader, which had lost its tail."""
    monkeypatch.setattr(whole_cluster, "BETWEEN_ENDS", (0.5,))
    left: list[tuple[int, ...]] = []

    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        [state] = injector.guarded_states()
        while (controller := injector.cluster.controller()) in (None, *state.members):
            if controller is not None:
                injector.bounce(controller)
            await asyncio.sleep(SESSION_SECONDS)
        [state] = injector.guarded_states()
        leader, members = state.leader, set(state.members)
        assert len(members) == 3
        rng = InOrder(1)
        rng.ends = (leader, *members - {leader}, *set(injector.cluster.broker_ids) - members)
        sequences = WholeCluster(
            injector, DiskFaults(injector, FaultyDisk(injector), rng), CrashPoints(injector, rng), rng
        )
        start = injector.start

        def look_and_start(broker_id: int) -> None:
            [state] = injector.guarded_states()
            left.append(state.members)
            start(broker_id)

        monkeypatch.setattr(injector, "start", look_and_start)
        await sequences.all_end_and_one_dies_in_its_start()
        assert left and left[0] != (leader,)

    under_faults(case, brokers=5)
