"""A change of a broker's registration while that is being read is not lost."""

import asyncio
from typing import Any

from minibroker.protocol.znodes import broker_path
from tests.broker.test_registration import start_broker
from tests.broker.virtual_zookeeper import World, run

PATH = broker_path(1)
HELD_UP_SECONDS = 0.5


class HeldUpAnswers:
    """The next answer to a read comes late: what it says may be over by then."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.read = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != "get":
            return found

        async def late(*arguments: Any, **options: Any) -> Any:
            answer = await found(*arguments, **options)
            if not self.read.is_set():
                self.read.set()
                await asyncio.sleep(HELD_UP_SECONDS)
            return answer

        return late


def test_a_registration_that_is_removed_while_it_is_read_is_made_again() -> None:
    """Else the broker would serve on as if it were registered, while the controller has given its leaderships away."""

    async def story(world: World) -> None:
        broker = await start_broker(world, world.process("one"))
        observer = await world.observer()
        former = broker.registration.broker_epoch
        answers: Any = HeldUpAnswers(broker.coordination)
        broker.registration._coordination = answers
        broker.registration._attention.set()  # as after each lost connection to ZooKeeper
        await answers.read.wait()
        await observer.delete(PATH)
        await asyncio.sleep(HELD_UP_SECONDS + 1.0)
        stat = await observer.exists(PATH)
        assert stat is not None
        assert former != stat.czxid == broker.registration.broker_epoch
        assert broker.events == ["registered", "lost", "registered"]

    run(story)
