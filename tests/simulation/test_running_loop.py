"""While a virtual loop runs, asyncio knows it without asking the kernel; other threads and later code are as before."""

import asyncio
import threading
from asyncio import events

import pytest

from minibroker.simulation.world.loop import VirtualLoop


def test_the_loop_is_known_while_it_runs_and_only_then() -> None:
    ordinary = asyncio.get_running_loop, events.get_running_loop, events._get_running_loop
    loop = VirtualLoop()

    async def main() -> list[asyncio.AbstractEventLoop | None]:
        await asyncio.sleep(1)
        return [asyncio.get_running_loop(), events.get_running_loop(), events._get_running_loop()]

    assert loop.run(main()) == [loop] * 3
    assert (asyncio.get_running_loop, events.get_running_loop, events._get_running_loop) == ordinary
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


def test_another_thread_has_no_running_loop() -> None:
    asked, answered = threading.Event(), threading.Event()
    found: list[object] = []

    def ask() -> None:
        asked.wait(10)
        found.append(events._get_running_loop())
        try:
            found.append(asyncio.get_running_loop())
        except RuntimeError as error:
            found.append(str(error))
        answered.set()

    async def main() -> None:
        asked.set()
        answered.wait(10)

    thread = threading.Thread(target=ask)
    thread.start()
    VirtualLoop().run(main())
    thread.join()
    assert found == [None, "no running event loop"]
