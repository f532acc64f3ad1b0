"""Processes of a simulated world: killed, paused, slowed, started again."""

import asyncio

import pytest

from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.runtime.ports import LockHeld, Runtime
from minibroker.simulation.world.node import ProcessDead
from minibroker.simulation.world.world import ProcessCrashed, SimulatedWorld


def test_killed_process_does_nothing_more() -> None:
    world = SimulatedWorld()
    ticks: list[float] = []

    async def helper() -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(world.loop.elapsed)

    async def program(runtime: Runtime) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(helper())
            asyncio.get_running_loop().call_later(3.5, ticks.append, -1.0)

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(2.5)
        world.kill("broker-1")
        assert not world.is_alive("broker-1")
        await asyncio.sleep(10)

    world.run(main())
    assert ticks == [1, 2]


@pytest.mark.parametrize("is_killed", [True, False])
def test_an_unretrieved_error_fails_the_run_unless_its_process_is_dead(is_killed: bool) -> None:
    """Seed 17060692: the task that waited for the failed one was killed at the same moment."""
    world = SimulatedWorld()
    failed: list[asyncio.Future[None]] = []

    async def fail() -> None:
        raise OSError("in the moment of the kill")

    async def program(runtime: Runtime) -> None:
        failed.append(asyncio.ensure_future(fail()))
        await asyncio.sleep(10)

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(1)
        if is_killed:
            world.kill("broker-1")
        context = {"message": "never retrieved", "exception": failed[0].exception(), "future": failed[0]}
        world.loop.call_exception_handler(context)
        assert bool(world.loop.unhandled) is not is_killed
        world.loop.unhandled.clear()

    world.run(main())


def test_cleanup_of_a_killed_process_reaches_no_port() -> None:
    world = SimulatedWorld()

    async def program(runtime: Runtime) -> None:
        file = runtime.disk.open("/data/log", create=True)
        try:
            await asyncio.sleep(100)
        finally:
            file.append([b"cleanup"])

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(1)
        world.kill("broker-1")
        assert world.runtime("broker-1").disk.read_file("/data/log", SMALL_FILE_BYTES_MAX) == b""

    world.run(main())


def test_cleanup_of_a_killed_process_that_awaits_is_cut_short() -> None:
    world = SimulatedWorld()

    async def program(runtime: Runtime) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(100))
                await asyncio.sleep(100)
        finally:
            await asyncio.sleep(1)

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(1)
        world.kill("broker-1")
        await asyncio.sleep(200)

    world.run(main())


def test_a_program_may_kill_its_own_process() -> None:
    world = SimulatedWorld()
    reached: list[str] = []

    async def program(runtime: Runtime) -> None:
        world.kill("broker-1")
        reached.append("after the kill")
        runtime.disk.open("/data/log", create=True)
        reached.append("after the port")

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(1)
        assert not world.runtime("observer").disk.exists("/data/log")

    world.run(main())
    assert reached == ["after the kill"]


def test_ports_of_a_dead_process_are_closed() -> None:
    world = SimulatedWorld()

    async def main() -> None:
        old = world.runtime("broker-1")
        world.kill("broker-1")
        with pytest.raises(ProcessDead):
            old.disk.exists("/data")
        with pytest.raises(ProcessDead):
            old.clock.now_ms()
        with pytest.raises(ProcessDead):
            await old.network.connect(asyncio.BufferedProtocol, "broker-1", 1, 1)
        with pytest.raises(ProcessDead):
            await old.open_coordination("", 1000).start()

    world.run(main())


def test_restarted_node_finds_its_files_and_its_lock_free() -> None:
    world = SimulatedWorld()
    starts: list[bytes] = []

    async def program(runtime: Runtime) -> None:
        runtime.disk.lock("/data/.lock")
        with pytest.raises(LockHeld):
            runtime.disk.lock("/data/.lock")
        file = runtime.disk.open("/data/log", create=True)
        file.append([b"x"])
        starts.append(runtime.disk.read_file("/data/log", SMALL_FILE_BYTES_MAX))
        await asyncio.sleep(1000)

    async def main() -> None:
        for _ in range(3):
            world.start("broker-1", program)
            await asyncio.sleep(1)
            world.kill("broker-1")

    world.run(main())
    assert starts == [b"x", b"xx", b"xxx"]


def test_each_process_draws_its_own_random_numbers() -> None:
    def draw(seed: int) -> list[float]:
        world = SimulatedWorld(seed)
        return [world.runtime(name).random.random() for name in ("a", "b")]

    assert draw(1) == draw(1)
    assert len({*draw(1), *draw(2)}) == 4


def test_paused_process_stops_and_goes_on_later() -> None:
    world = SimulatedWorld()
    ticks: list[float] = []

    async def program(runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(world.loop.elapsed)

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(2.5)
        world.pause("broker-1")
        await asyncio.sleep(5)
        world.resume("broker-1")
        await asyncio.sleep(2)

    world.run(main())
    assert ticks == [1, 2, 7.5, 8.5, 9.5][: len(ticks)]
    assert len(ticks) >= 4


def test_late_work_of_a_paused_process_runs_in_its_order() -> None:
    world = SimulatedWorld()
    order: list[int] = []

    async def program(runtime: Runtime) -> None:
        for number in (3, 1, 2):
            asyncio.get_running_loop().call_later(number, order.append, number)
        await asyncio.sleep(100)

    async def main() -> None:
        world.start("broker-1", program)
        world.pause("broker-1")
        world.resume("broker-1")
        await asyncio.sleep(0.5)
        world.pause("broker-1")
        await asyncio.sleep(50)
        assert order == []
        world.resume("broker-1")
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    world.run(main())
    assert order == [1, 2, 3]


def test_a_slow_disk_call_stops_its_process_only() -> None:
    world = SimulatedWorld()
    seen: list[tuple[str, float]] = []

    async def note(name: str) -> None:
        await asyncio.sleep(0.1)
        seen.append((name, world.loop.elapsed))

    async def program(runtime: Runtime) -> None:
        other = asyncio.ensure_future(note("same process"))
        await asyncio.sleep(0.05)
        loop = asyncio.get_running_loop()
        began = loop.time()
        runtime.disk.open("/data/log", create=True).sync()
        assert loop.time() - began == pytest.approx(2)
        await other

    async def main() -> None:
        world.machine("broker-1").storage.cost.sync = 2.0
        world.start("broker-1", program)
        await note("elsewhere")
        await asyncio.sleep(5)

    world.run(main())
    assert [name for name, _ in seen] == ["elsewhere", "same process"]
    assert seen[1][1] == pytest.approx(2.05)


def test_a_crashed_program_fails_the_run() -> None:
    world = SimulatedWorld()

    async def program(runtime: Runtime) -> None:
        raise AssertionError("an invariant is broken")

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(1)
        assert not world.is_alive("broker-1")

    with pytest.raises(ProcessCrashed, match=r"broker-1.*an invariant is broken"):
        world.run(main())


def test_a_program_that_ends_ends_its_process() -> None:
    world = SimulatedWorld()

    async def linger() -> None:
        await asyncio.sleep(1000)

    async def program(runtime: Runtime) -> None:
        runtime.disk.lock("/data/.lock")
        asyncio.get_running_loop().create_task(linger())

    async def main() -> None:
        world.start("broker-1", program)
        await asyncio.sleep(1)
        assert not world.is_alive("broker-1")
        world.runtime("broker-1").disk.lock("/data/.lock")

    world.run(main())


def test_wall_clocks_follow_virtual_time_and_may_be_wrong() -> None:
    world = SimulatedWorld()

    async def main() -> None:
        right, wrong = world.runtime("right").clock, world.runtime("wrong").clock
        world.machine("wrong").clock_skew_ms = -3_600_000
        began, began_ns = right.now_ms(), right.monotonic_ns()
        await asyncio.sleep(2.5)
        assert right.now_ms() - began == 2_500
        assert right.monotonic_ns() - began_ns == 2_500_000_000
        assert right.now_ms() - wrong.now_ms() == 3_600_000

    world.run(main())
