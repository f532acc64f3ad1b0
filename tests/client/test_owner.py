"""A call from a loop, thread or process other than the owner is refused at once; the owner can continue."""

import asyncio
import os
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import ForeignCaller
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, fill

Use = Callable[[Any], Awaitable[object]]

PRODUCER: dict[str, Use] = {
    "send": lambda producer: producer.send("t", b"foreign"),
    "send_and_wait": lambda producer: producer.send_and_wait("t", b"foreign"),
    "send_many": lambda producer: producer.send_many("t", [b"foreign"]),
    "flush": lambda producer: producer.flush(),
    "partitions_for": lambda producer: producer.partitions_for("t"),
    "close": lambda producer: producer.close(),
}
CONSUMER: dict[str, Use] = {
    "getone": lambda consumer: consumer.getone(),
    "getmany": lambda consumer: consumer.getmany(timeout_ms=100),
    "getmany_batches": lambda consumer: consumer.getmany_batches(timeout_ms=100),
    "end_offsets": lambda consumer: consumer.end_offsets([T0]),
    "position": lambda consumer: consumer.position(T0),
    "seek_to_end": lambda consumer: consumer.seek_to_end(),
    "close": lambda consumer: consumer.close(),
}
ADMIN: dict[str, Use] = {
    "list_topics": lambda admin: admin.list_topics(),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "close": lambda admin: admin.close(),
}


def open_client(kind: type[Any], cluster: FakeCluster, runtime: Runtime) -> Any:
    topics = ["t"] if kind is Consumer else []
    return kind(*topics, bootstrap_servers=cluster.bootstrap, runtime=runtime)


def called_from(loop: asyncio.AbstractEventLoop | None, call: Callable[[], object]) -> BaseException | None:
    """What the call raises before it first waits, while that loop, or none, is running. Simulated code may not start
    real threads."""
    ours = asyncio.get_running_loop()
    asyncio._set_running_loop(loop)
    try:
        called = call()
        if isinstance(called, Awaitable):
            next(called.__await__())
    except BaseException as error:
        return error
    finally:
        asyncio._set_running_loop(ours)
    return None


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


CASES = [
    pytest.param(kind, use, id=f"{kind.__name__}-{name}")
    for kind, uses in ((Producer, PRODUCER), (Consumer, CONSUMER), (AdminClient, ADMIN))
    for name, use in uses.items()
]


@pytest.mark.parametrize(("kind", "use"), CASES)
def test_a_call_from_another_event_loop_is_refused_at_once(
    cluster: FakeCluster, kind: type[Any], use: Use, other_loop: asyncio.AbstractEventLoop
) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with open_client(kind, cluster, runtime) as client:
            if kind is Producer:
                await client.send_and_wait("t", b"ours")
            error = called_from(other_loop, lambda: use(client))
            assert isinstance(error, ForeignCaller)
            assert "was called from another event loop" in str(error)
            assert "asyncio.run_coroutine_threadsafe" in str(error)
            if kind is Producer:
                assert (await client.send_and_wait("t", b"ours")).offset == 11
            if kind is AdminClient:
                assert await client.list_topics() == ["t"]

    cluster.run(main)


def test_a_delivery_cannot_be_awaited_on_another_loop(
    cluster: FakeCluster, other_loop: asyncio.AbstractEventLoop
) -> None:
    async def main(runtime: Runtime) -> None:
        async with open_client(Producer, cluster, runtime) as producer:
            await producer.partitions_for("t")
            delivery = await producer.send("t", b"ours")

            assert isinstance(called_from(other_loop, lambda: delivery), ForeignCaller)
            assert (await delivery).offset == 0

    cluster.run(main)


def test_a_call_from_a_thread_without_a_loop_is_refused(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with (
            open_client(Producer, cluster, runtime) as producer,
            open_client(Consumer, cluster, runtime) as consumer,
        ):
            await producer.send_and_wait("t", b"ours")
            for call in (lambda: producer.try_send("t", b"foreign"), lambda: consumer.seek(T0, 0)):
                error = called_from(None, call)
                assert isinstance(error, ForeignCaller)
                assert "a thread without an event loop" in str(error)

    cluster.run(main)


def test_a_call_from_a_forked_process_is_refused(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with open_client(Producer, cluster, runtime) as producer:
            await producer.send_and_wait("t", b"ours")
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    producer.try_send("t", b"foreign")
                except ForeignCaller as error:
                    code = 0 if "start another one after the fork" in str(error) else 2
                except BaseException:
                    traceback.print_exc()
                os._exit(code)
            _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once
            assert os.waitstatus_to_exitcode(status) == 0
            assert (await producer.send_and_wait("t", b"ours")).offset == 1

    cluster.run(main)
