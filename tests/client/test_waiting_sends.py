"""Which calls of `send` must queue, and what one is told that waits in vain."""

import asyncio

import pytest

from minibroker.client.errors import BufferTimedOut
from minibroker.client.limits import Deadline
from minibroker.client.producer.waiting_sends import WaitingSends


async def test_while_a_call_waits_the_others_of_its_topic_must_wait_behind_it() -> None:
    waiting = WaitingSends()
    assert not waiting.must_wait("t")
    async with waiting.first_in_queue("t", Deadline(1_000)):
        assert waiting.must_wait("t")
        assert not waiting.must_wait("other")
        with waiting.serving():
            assert not waiting.must_wait("t"), "the first one is served"
        assert waiting.must_wait("t")
        with pytest.raises(ValueError, match="wrong"), waiting.serving():
            raise ValueError("wrong")
        assert waiting.must_wait("t")
    assert not waiting.must_wait("t")
    assert waiting.queues == {}


@pytest.mark.parametrize(("others", "text"), [(1, "1 other call"), (2, "2 other calls")])
async def test_a_call_that_waits_in_vain_is_told_how_many_others_do(others: int, text: str) -> None:
    waiting, ended = WaitingSends(), asyncio.Event()

    async def call() -> None:
        async with waiting.first_in_queue("t", Deadline(60_000)):
            await ended.wait()

    before = [asyncio.ensure_future(call()) for _ in range(others)]
    await asyncio.sleep(0)
    with pytest.raises(BufferTimedOut, match=f"send waits for room or metadata of topic 't', behind {text}$"):
        async with waiting.first_in_queue("t", Deadline(0)):
            pass
    assert waiting.must_wait("t"), "for those in front"
    ended.set()
    await asyncio.gather(*before)
    assert waiting.queues == {}
