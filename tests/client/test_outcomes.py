"""What became of batches: who waits for them, which failures are reported, and the words about those given up."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from minibroker.client.errors import BrokerUnreachable, DeliveryAborted, MinibrokerError, UndeliveredRecords
from minibroker.client.limits import CANCELLED_CLOSE_MS, FAILURES_REMEMBERED, Deadline
from minibroker.client.producer.batches import Batch, PartitionQueue
from minibroker.client.producer.deliveries import Deliveries, Delivery
from minibroker.client.producer.outcomes import (
    Failures,
    aborted_by_close,
    cancelled_close_ms,
    not_acknowledged,
    without_outcome,
)
from minibroker.protocol.ids import TopicPartition
from tests.client.sandbox import Sandbox, identity_acknowledged

LOST = BrokerUnreachable("lost")


def failed(record_count: int = 1, error: MinibrokerError = LOST) -> Batch:
    batch = Sandbox().fill(record_count)
    batch.finish(error)
    return batch


def test_a_batch_with_its_outcome_keeps_no_records() -> None:
    """A program may keep its deliveries for ever."""
    batch = Sandbox().fill(2)
    batch.pack()
    batch.finish(None)
    assert batch.packed is None
    assert batch.builder.record_count == 0


def batch_of(partition: int, created_ms: float = 0) -> Batch:
    return Batch(PartitionQueue(TopicPartition("t", partition)), 1_000, created_ms, 0)


def all_of(batch: Batch) -> Deliveries:
    deliveries = Deliveries(0)
    deliveries.add(batch, 0, batch.record_count)
    return deliveries


def test_records_that_continue_a_range_take_no_room_of_their_own() -> None:
    """A call of a million records has a few ranges, and each look-up searches them."""
    first, second = batch_of(0), batch_of(1)
    deliveries = Deliveries(0)
    for batch, first_delta, count in ((first, 0, 2), (first, 2, 3), (first, 5, 1), (second, 0, 4), (first, 6, 1)):
        deliveries.add(batch, first_delta, count)
    assert (len(deliveries), deliveries._starts) == (11, [0, 6, 10])


# ---------------------------------------------------------------------------------------------------------- failures
@pytest.mark.parametrize("promise", [lambda batch: Delivery(batch, 0, 0), all_of], ids=["one record", "many"])
async def test_a_failure_that_a_task_waits_for_is_not_reported_again(
    promise: Callable[[Batch], Awaitable[Any]],
) -> None:
    """The task has not run yet when `flush` looks."""
    batch, failures = Sandbox().fill(2), Failures()
    waiting = asyncio.ensure_future(promise(batch))
    await asyncio.sleep(0)
    batch.finish(LOST)
    failures.add(batch)
    failures.report()
    batch.notify()
    with pytest.raises(BrokerUnreachable):
        await waiting


def test_a_failure_is_reported_once_and_those_that_were_looked_at_never() -> None:
    failures, seen = Failures(), failed(7)
    with pytest.raises(BrokerUnreachable):
        Delivery(seen, 0, 0).result()
    for batch in (seen, failed(2, BrokerUnreachable("the first")), failed(3)):
        failures.add(batch)
    with pytest.raises(UndeliveredRecords, match=r"^5 records .* the first failure: the first$"):
        failures.report()
    failures.report()


def test_failures_beyond_the_limit_are_counted_and_those_looked_at_make_room() -> None:
    failures, batches = Failures(), [failed() for _ in range(FAILURES_REMEMBERED)]
    for batch in batches:
        failures.add(batch)
    failures.add(failed(2))
    batches[0].observed = True
    failures.add(failed(4))
    for batch in batches:
        batch.observed = True
    with pytest.raises(UndeliveredRecords, match=r"^6 records"):
        failures.report()


def test_failures_beyond_the_limit_are_no_silent_loss_although_all_others_were_looked_at() -> None:
    """Nothing was raised: the program may have waited for the first deliveries, and not for those of the surplus."""
    failures, batches = Failures(), [failed() for _ in range(FAILURES_REMEMBERED)]
    for batch in (*batches, failed(2, BrokerUnreachable("the first beyond")), failed(3)):
        failures.add(batch)
    for batch in batches:
        batch.observed = True
    with pytest.raises(UndeliveredRecords, match=r"^5 records .* the first failure: the first beyond$"):
        failures.report()
    failures.report()


def test_failures_that_a_task_waits_for_are_not_counted_beyond_the_limit_either() -> None:
    failures, awaited = Failures(), Sandbox().fill(9)
    for _ in range(FAILURES_REMEMBERED):
        failures.add(failed())
    awaited.observe()
    awaited.finish(LOST)
    failures.add(awaited)
    with pytest.raises(UndeliveredRecords, match=f"^{FAILURES_REMEMBERED} records"):
        failures.report()
    failures.add(failed(3))
    with pytest.raises(UndeliveredRecords, match=r"^3 records"):
        failures.report()


@pytest.mark.parametrize("failing", range(9))
def test_the_first_error_of_a_call_is_that_of_its_own_records(failing: int) -> None:
    """A batch may begin with records of others, and end with theirs; after a split only some of its parts fail."""
    other = Sandbox().fill(1)
    other.finish(None)
    batch = Sandbox().fill(9)
    for delta in range(9):
        part = failed() if delta == failing else Sandbox().fill(1)
        if delta != failing:
            part.finish(None)
        batch.parts.append((delta, part))
    batch.finish(LOST)
    deliveries = Deliveries(0)
    deliveries.add(other, 0, 1)
    deliveries.add(batch, 3, 4)
    deliveries.add(other, 0, 1)
    deliveries.add(batch, 8, 1)
    assert deliveries.first_error() is (LOST if failing in (3, 4, 5, 6, 8) else None)


# ----------------------------------------------------------------------------------------------------------- waiting
async def test_those_without_outcome_at_the_deadline_are_returned() -> None:
    first, second = Sandbox().fill(), Sandbox().fill()

    def finish() -> None:
        first.finish(None)
        first.notify()

    asyncio.get_running_loop().call_soon(finish)
    assert await without_outcome([first, second], Deadline(20)) == [second]


async def test_the_wait_ends_with_the_last_outcome() -> None:
    batches = [Sandbox().fill() for _ in range(3)]
    waiting = asyncio.ensure_future(without_outcome(batches, Deadline(60_000)))
    for batch in batches:
        await asyncio.sleep(0)
        assert not waiting.done()
        batch.finish(LOST)
        batch.notify()
    assert await waiting == []


async def test_the_message_about_late_batches_names_five_partitions() -> None:
    late = [batch_of(partition) for partition in (6, 5, 4, 3, 2, 1, 1)]
    expected = "7 batches for t-1, t-2, t-3, t-4, t-5 and 1 more not acknowledged after 1500 ms"
    assert not_acknowledged(late, Deadline(1_500)) == expected
    assert not_acknowledged(late[:1], Deadline(20)) == "1 batch for t-6 not acknowledged after 20 ms"


@pytest.mark.parametrize(
    ("age_ms", "obstacle", "expected_ms"),
    [
        (CANCELLED_CLOSE_MS + 1_000, LOST, 0),
        (0, LOST, CANCELLED_CLOSE_MS),
        (CANCELLED_CLOSE_MS + 1_000, None, CANCELLED_CLOSE_MS),
        (None, LOST, CANCELLED_CLOSE_MS),
    ],
)
async def test_a_cancelled_program_does_not_wait_for_records_that_have_failed_for_long(
    age_ms: float | None, obstacle: MinibrokerError | None, expected_ms: float
) -> None:
    now_ms = asyncio.get_running_loop().time() * 1000
    oldest = None if age_ms is None else batch_of(0, created_ms=now_ms - age_ms)
    assert cancelled_close_ms(oldest, lambda batch: obstacle) == expected_ms


def test_a_delivery_that_is_kept_keeps_no_records() -> None:
    """A program that keeps the delivery of each record would keep all that it ever sent."""
    batch = Sandbox().fill()
    packed = batch.builder
    batch.finish(None)
    assert batch.builder is not packed
    assert packed not in gc.get_referents(batch.append)


# ---------------------------------------------------------------------------------------------- given up by `close`
def given_up(batch: Batch, why: MinibrokerError | None = None) -> tuple[str, bool]:
    error = aborted_by_close(batch, why)
    assert isinstance(error, DeliveryAborted)
    return str(error), error.maybe_written


@pytest.mark.parametrize(
    ("count", "records", "it"), [(1, "1 record for t-0 was", "it"), (3, "3 records for t-0 were", "they")]
)
def test_a_batch_given_up_by_close_is_counted_in_each_state(count: int, records: str, it: str) -> None:
    text = f"the producer was closed before {records} acknowledged"
    sandbox = identity_acknowledged()
    batch = sandbox.accumulator.open(sandbox.queue, 0, 1_000)
    for _ in range(count):
        batch.append(None, b"v", 0)
    assert given_up(batch) == (f"{text} (nothing was written)", False)
    sandbox.accumulator.seal(sandbox.queue)
    assert given_up(batch, LOST) == (f"{text} (nothing was written); last error: lost", False)
    assert sandbox.send() is batch
    unanswered = f"{it} may still have been written: attempt 1 is not answered yet"
    assert given_up(batch) == (f"{text} ({unanswered})", True)
    sandbox.lose()
    lost = f"{it} may still have been written: attempt 1 got no answer"
    assert given_up(batch, LOST) == (f"{text} ({lost}); last error: lost", True)
