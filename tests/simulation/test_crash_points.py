"""A broker ends between two of its disk calls, where the promise allows its failure; its next start continues from
there."""

import random

import pytest

from minibroker.runtime.ports import Disk
from minibroker.simulation.swarm.faults.crash_points import CrashPoints
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.world.node import ProcessDead
from minibroker.simulation.world.world import SimulatedWorld
from tests.simulation.test_disk_faults import whole
from tests.simulation.test_promise import SESSION_SECONDS, under_faults


def test_trap_replaces_the_nth_call_that_changes_something() -> None:
    world = SimulatedWorld()

    def end() -> None:
        world.kill("broker-1")
        raise ProcessDead("broker-1")

    disk: Disk = world.runtime("broker-1").disk
    world.machine("broker-1").storage.trap(3, end)
    file = disk.open("/data/log", create=True)
    file.append([b"one"])
    assert file.read_at(0, 3) == b"one"
    file.append([b" two"])
    with pytest.raises(ProcessDead):
        file.append([b" three"])
    assert world.runtime("broker-1").disk.read_file("/data/log", 100) == b"one two"


@pytest.mark.parametrize("kind", ["dies_in_a_start", "dies_in_a_close", "dies_at_work"])
def test_broker_that_died_between_two_calls_is_in_sync_again(kind: str) -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        injector.world.loop.create_task(injector.workload.run())
        for seed in range(4):
            await getattr(CrashPoints(injector, random.Random(seed)), kind)()
            for broker_id in injector.cluster.broker_ids:
                injector.start(broker_id)
            await whole(injector)
        assert injector.counts[f"disk {kind}"]

    under_faults(case)


def test_a_broker_that_may_not_fail_survives_its_crash_point() -> None:
    async def case(injector: FaultInjector) -> None:
        await whole(injector)
        injector.kept_down.add(2)  # a sequence keeps one broker down, and may stop all
        points = CrashPoints(injector, random.Random(1))
        points.set_trap("dies_at_work", 1, (1, 1))
        injector.workload.burst(injector.partition(), 5, acks="all")
        await injector.wait(lambda: not injector.is_alive(1), SESSION_SECONDS)
        assert injector.is_alive(1)
        assert not injector.counts["disk dies_at_work"]

    under_faults(case)
