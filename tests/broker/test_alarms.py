"""Many deadlines on one timer: each rings once, in time, unless cancelled."""

import asyncio
from collections.abc import Awaitable, Callable

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.alarms import STALE_ENTRIES_MIN, Alarms
from minibroker.simulation.world.world import SimulatedWorld


def in_virtual_time(test: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await test()

    SimulatedWorld().run(main())


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.booleans()), max_size=40))
def test_each_alarm_rings_once_at_its_time_unless_it_was_cancelled(plan: list[tuple[int, int, bool]]) -> None:
    async def check() -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        rung: list[tuple[int, int]] = []
        alarms: Alarms[int] = Alarms(lambda name: rung.append((name, round((loop.time() - begun) * 1000))))
        expected = []
        for name, (set_after, wait, is_cancelled) in enumerate(sorted(plan)):
            await asyncio.sleep(max(0.0, begun + set_after / 1000 - loop.time()))
            key = alarms.set(loop.time() + wait / 1000, name)
            if is_cancelled:
                alarms.cancel(key)
            else:
                expected.append((name, set_after + wait))
        await asyncio.sleep(2)
        assert sorted(rung) == sorted(expected)
        assert len(alarms) == 0

    in_virtual_time(check)


def test_an_earlier_alarm_does_not_wait_for_a_later_one() -> None:
    async def check() -> None:
        rung: list[str] = []
        alarms: Alarms[str] = Alarms(rung.append)
        now = asyncio.get_running_loop().time()
        alarms.set(now + 10, "late")
        alarms.set(now + 1, "early")
        await asyncio.sleep(2)
        assert rung == ["early"]

    in_virtual_time(check)


def test_cancelled_alarms_do_not_pile_up() -> None:
    async def check() -> None:
        alarms: Alarms[int] = Alarms(lambda name: None)
        later = asyncio.get_running_loop().time() + 30
        for number in range(20 * STALE_ENTRIES_MIN):
            alarms.cancel(alarms.set(later, number))
            assert len(alarms._heap) > number or number > STALE_ENTRIES_MIN - 2, "a few are not worth a sweep"
        assert len(alarms._heap) <= 2 * STALE_ENTRIES_MIN

    in_virtual_time(check)


def test_a_sweep_of_cancelled_alarms_leaves_the_others_in_order() -> None:
    """A thinned-out heap need not be one."""

    async def check() -> None:
        begun = asyncio.get_running_loop().time()
        rung: list[int] = []
        alarms: Alarms[int] = Alarms(rung.append)
        waits = [(number * 7_919) % 5_003 for number in range(2 * STALE_ENTRIES_MIN)]
        keys = {wait: alarms.set(begun + wait / 1000, wait) for wait in waits}
        left = [wait for wait in waits if wait % 97 == 0]
        for wait in sorted(set(waits) - set(left)):
            alarms.cancel(keys[wait])
        assert len(alarms._heap) < len(waits), "swept"
        await asyncio.sleep(6)
        assert rung == sorted(left)

    in_virtual_time(check)
