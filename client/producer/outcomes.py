"""Waiting for batches. Owns: one future for any number of them."""

import asyncio
from collections.abc import Sequence

from minibroker.client.limits import Deadline
from minibroker.client.producer.batches import Batch


async def without_outcome(batches: Sequence[Batch], deadline: Deadline) -> list[Batch]:
    """Wait until each of these has its outcome and return []; at the deadline return those that still have none."""
    left = len(batches)
    all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def one_done() -> None:
        nonlocal left
        left -= 1
        if not left and not all_done.done():
            all_done.set_result(None)

    for batch in batches:
        batch.when_done(one_done)
    try:
        async with asyncio.timeout(deadline.remaining_ms() / 1000):
            await all_done
    except TimeoutError:
        return [batch for batch in batches if not batch.done]
    return []


def not_acknowledged(waiting: Sequence[Batch], deadline: Deadline) -> str:
    """The message about batches that still have no outcome."""
    partitions = sorted({str(batch.topic_partition) for batch in waiting})
    late = f"after {round(deadline.timeout_ms)} ms"
    return f"{len(waiting)} batches for {', '.join(partitions[:5])} are not acknowledged {late}"
