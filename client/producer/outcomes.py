"""What became of batches: waiting for their outcomes, and failures that the program has not looked at.

Owns: one future for any number of batches; the failed ones until flush() or close() reports them.
"""

import asyncio
import warnings
from collections.abc import Callable, Sequence

from minibroker.client.client_log import ClientLog
from minibroker.client.errors import DeliveryAborted, MinibrokerError, UndeliveredRecords, records
from minibroker.client.limits import CANCELLED_CLOSE_MS, FAILURES_REMEMBERED, Deadline
from minibroker.client.producer.batches import Batch
from minibroker.protocol.counted import counted, some_of


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
    return f"{counted(len(waiting), 'batch')} for {some_of(partitions)} not acknowledged {late}"


def cancelled_close_ms(oldest: Batch | None, obstacle: Callable[[Batch], MinibrokerError | None]) -> float:
    """How long a cancelled program (Ctrl-C) waits for its records: not at all if one of them has met an error, and has
    waited for longer than that already."""
    if oldest is None or obstacle(oldest) is None:
        return CANCELLED_CLOSE_MS
    waited_ms = asyncio.get_running_loop().time() * 1000 - oldest.created_ms
    return 0 if waited_ms >= CANCELLED_CLOSE_MS else CANCELLED_CLOSE_MS


def aborted_by_close(batch: Batch, why: MinibrokerError | None) -> DeliveryAborted:
    """The error of a batch that `close` gave up. `why`: what it waited for."""
    count = _record_count(batch)
    verb = "was" if count == 1 else "were"
    text = f"the producer was closed before {records(count)} for {batch.topic_partition} {verb} acknowledged"
    text += f" ({batch.fate()})" if why is None else f" ({batch.fate()}); last error: {why}"
    return DeliveryAborted(text, maybe_written=batch.maybe_written or batch.in_flight)


def _record_count(batch: Batch) -> int:
    return batch.builder.record_count if batch.packed is None else batch.record_count


def warn_of_unclosed(client_id: str, batches: Sequence[Batch]) -> None:
    """A producer is collected that was never closed, and these batches of it have no outcome."""
    count = sum(map(_record_count, batches))
    text = "a producer was never closed: use `async with Producer(...)`, or `await close()`"
    if count:
        text += f"; {records(count)} that it had taken {'has' if count == 1 else 'have'} no outcome, and may be lost"
        ClientLog(client_id).warning("%s", text)
    warnings.warn(f"{client_id}: {text}", ResourceWarning, stacklevel=3)


class Failures:
    """Failed batches until they are reported, or their deliveries are awaited."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._forgotten_records = 0
        self._first_forgotten: MinibrokerError | None = None

    def add(self, batch: Batch) -> None:
        if batch.observed:
            return
        if len(self._batches) >= FAILURES_REMEMBERED:
            self._batches = [failed for failed in self._batches if not failed.observed]
        if len(self._batches) < FAILURES_REMEMBERED:
            self._batches.append(batch)
        else:
            self._forgotten_records += batch.record_count
            self._first_forgotten = self._first_forgotten or batch.error

    def report(self) -> None:
        """Raise UndeliveredRecords if there are any; each is reported once."""
        unseen = [batch for batch in self._batches if not batch.observed]
        record_count = sum(batch.record_count for batch in unseen) + self._forgotten_records
        first = unseen[0].error if unseen else self._first_forgotten
        self._batches = []
        self._forgotten_records = 0
        self._first_forgotten = None
        if first is not None:
            raise UndeliveredRecords(record_count, first)
