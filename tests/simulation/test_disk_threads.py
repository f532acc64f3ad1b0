"""Background work of a simulated disk overlaps with the event loop, call by call, as it does on a real one."""

import asyncio
import threading

import pytest

from minibroker.runtime.ports import DiskError, Runtime, disk_error_of
from minibroker.simulation.swarm.choices import RunChoices
from minibroker.simulation.swarm.run import run_seed
from minibroker.simulation.world.storage import Fault
from minibroker.simulation.world.world import SimulatedWorld

CALLS = 6
SEEDS = range(30)


def world_of(seed: int, has_threads: bool = True) -> tuple[SimulatedWorld, Runtime]:
    world = SimulatedWorld(seed)
    world.has_disk_threads = has_threads
    return world, world.runtime("broker-1")


def turns_of(seed: int, has_threads: bool = True) -> list[str]:
    """Who had a turn, while background work writes files and a task counts."""
    (world, runtime), turns = world_of(seed, has_threads), list[str]()

    def work() -> int:
        for number in range(CALLS):
            runtime.disk.make_directory(f"/data/{number}")
            turns.append("work")
        return CALLS

    async def count() -> None:
        while True:
            turns.append("loop")
            await asyncio.sleep(0.0001)

    async def main() -> None:
        counting = asyncio.create_task(count())
        assert await runtime.disk.in_background(work) == CALLS
        counting.cancel()

    world.run(main())
    return turns


def test_the_event_loop_runs_between_two_calls_of_the_work() -> None:
    overlapping = 0
    for seed in SEEDS:
        turns = turns_of(seed)
        assert turns == turns_of(seed), "a run repeats from its seed"
        assert turns.count("work") == CALLS
        overlapping += "loop" in turns[turns.index("work") : len(turns) - turns[::-1].index("work")]
    assert overlapping > len(SEEDS) / 2


def test_without_threads_the_work_is_one_step() -> None:
    for seed in SEEDS:
        turns = turns_of(seed, has_threads=False)
        first = turns.index("work")
        assert turns[first : first + CALLS] == ["work"] * CALLS


def test_a_process_that_dies_leaves_its_work_between_two_calls_and_no_thread() -> None:
    before, done = set(threading.enumerate()), set[int]()
    for seed in SEEDS:
        world, runtime = world_of(seed)

        def work(runtime: Runtime = runtime) -> None:
            for number in range(CALLS):
                runtime.disk.make_directory(f"/data/{number}")

        async def main(world: SimulatedWorld = world, runtime: Runtime = runtime) -> None:
            world.spawn("broker-1", runtime.disk.in_background(work))
            await asyncio.sleep(0.002)
            world.kill("broker-1")
            await asyncio.sleep(1.0)
            done.add(len(world.runtime("broker-1").disk.list_directory("/data")))

        world.run(main())
    assert {0, CALLS} < done
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("fails", [False, True])
def test_a_cancelled_caller_goes_on_when_the_work_is_over_and_is_told_its_error(fails: bool) -> None:
    ends: set[tuple[int, bool]] = set()
    for seed in SEEDS:
        world, runtime = world_of(seed)
        world.machine("broker-1").storage.faults += [Fault("make_directory", f"/data/{CALLS - 1}")] if fails else []
        begun: list[int] = []

        def work(runtime: Runtime = runtime, begun: list[int] = begun) -> None:
            for number in range(CALLS):
                begun.append(number)
                runtime.disk.make_directory(f"/data/{number}")

        async def main(runtime: Runtime = runtime, begun: list[int] = begun) -> None:
            calling = asyncio.create_task(runtime.disk.in_background(work))
            await asyncio.sleep(0.002)
            calling.cancel()
            try:
                await calling  # in some seeds it has ended before
            except asyncio.CancelledError as cancelled:
                ends.add((len(begun), disk_error_of(cancelled) is not None))
            except DiskError:
                assert fails

        world.run(main())
    assert ends == {(0, False), (CALLS, fails)}


def test_a_seed_without_threads_keeps_its_meaning() -> None:
    plain = run_seed(12).trace_hash
    assert run_seed(12, choices=RunChoices(disk_threads=False)).trace_hash == plain, "a seed that draws none"
    threaded = [run_seed(12, choices=RunChoices(disk_threads=True)).trace_hash for _ in range(2)]
    assert threaded[0] == threaded[1] != plain
