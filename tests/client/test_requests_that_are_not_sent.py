"""A connection that closes just before a request is written to it: nothing of the request is under way.

What happens next, once the loss of the connection is reported, is tested in `test_ending_connections`.
"""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.client.consumer.cursor import Cursor, OffsetReset
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.errors import BrokerUnreachable, CallTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.client.producer.sender import Sender
from minibroker.protocol.wire.messages import ListOffsetsRequest, ProduceRequest
from minibroker.runtime import rpc
from minibroker.runtime.ports import Runtime
from minibroker.runtime.rpc import ConnectionClosed
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill
from tests.client.sandbox import LEADER, PARTITION, Sandbox


class Scene:
    """A client whose connection closes when it sends."""

    def __init__(self) -> None:
        self.connection: Any = SimpleNamespace(send=self._send, send_without_reply=self._send)
        self.cluster = SimpleNamespace(
            metadata=SimpleNamespace(topic_id=lambda name: "id"),
            open_connection=lambda leader: self.connection,
        )

    def _send(self, *_: object) -> int:
        raise ConnectionClosed("closed")


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_batches_that_were_not_sent_wait_to_be_sent_again(acks: int) -> None:
    """They are not in doubt, and hold no place of a request in flight."""
    scene, sandbox = Scene(), Sandbox(idempotent=acks == -1, acks=acks)
    batch = sandbox.fill()
    batches = sandbox.accumulator.drain(LEADER, 0.0, 10_000)
    assert batches == [batch]
    channel: Any = SimpleNamespace(broker_id=LEADER, in_flight={})
    sender = SimpleNamespace(
        _on_packed=lambda _: None,
        _on_reply=lambda *_: None,
        _arm=lambda _: None,
        _settings=SimpleNamespace(acks_number=acks),
        _broker_timeout_ms=1_000,
        _cluster=scene.cluster,
        _accumulator=sandbox.accumulator,
        _sent_count=6,
        now_ms=lambda: 5.0,
    )
    assert Sender._send(cast(Any, sender), channel, scene.connection, batches) is False
    assert channel.in_flight == {}
    assert (batch.in_flight, batch.maybe_written, sandbox.queue.in_flight) == (False, False, 0)
    assert isinstance(batch.last_error, BrokerUnreachable)
    assert sandbox.accumulator.drain(LEADER, 0.0, 10_000) == [batch]


def test_a_fetch_that_was_not_sent_is_not_waited_for() -> None:
    scene, cursor = Scene(), Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.seek(5)
    settings: Any = SimpleNamespace(max_wait_ms=1, min_bytes=1, max_bytes=1, isolation_level=0)
    fetcher = SimpleNamespace(
        _cluster=scene.cluster,
        _settings=settings,
        _rotations=Counter(),
        _asked={},
        _on_reply=lambda *_: None,
        now_ms=lambda: 5.0,
    )
    Fetcher._ask(cast(Any, fetcher), LEADER, [cursor])
    assert fetcher._asked == {}


def test_a_fetch_for_which_too_many_calls_wait_is_sent_when_they_have_ended(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand calls of one consumer to one broker: the error ended the look at all leaders, and its timer."""
    monkeypatch.setattr(rpc, "PENDING_MAX", 10)
    fill(cluster, 1)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.position(T0)
            consumer.pause(T0)
            await asyncio.sleep(1)
            cluster.intercept = lambda broker, request: isinstance(request.body, ListOffsetsRequest) or None
            calls = [asyncio.create_task(consumer.end_offsets([T0], timeout_ms=2_000)) for _ in range(12)]
            await asyncio.sleep(0.1)
            consumer.assign([T0])  # drops what is buffered
            consumer.resume(T0)
            await asyncio.sleep(0.1)
            assert "more than 10 requests wait" in str(consumer.connection_state(T0).error)
            assert (await consumer.getone(timeout_ms=5_000)).offset == 0
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(outcome, CallTimedOut)

    cluster.run(main)


def test_batches_for_which_too_many_calls_wait_are_sent_when_those_have_ended(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than ten thousand requests in flight, as a producer without idempotence may be told to have. The error was
    raised in a callback, and the batches counted as in flight until they were too old."""
    monkeypatch.setattr(rpc, "PENDING_MAX", 10)
    cluster.add_topic("wide", 36)
    held: list[tuple[int, IncomingRequest]] = []

    def hold(broker: int, request: IncomingRequest) -> bool | None:
        if not isinstance(request.body, ProduceRequest):
            return None
        held.append((broker, request))
        return True

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            enable_idempotence=False,
            max_in_flight_requests_per_connection=20,
            runtime=runtime,
        ) as producer:
            await producer.send_and_wait("wide", b"a", partition=0)
            cluster.intercept = hold
            deliveries = []
            for partition in range(36):
                deliveries.append(await producer.send("wide", b"b", partition=partition))
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.1)
            cluster.intercept = lambda broker, request: None
            assert len(held) == 30, "ten to each broker"
            for broker, request in held:
                assert isinstance(request.body, ProduceRequest)
                request.respond(cluster.brokers[broker].produce(request.body))
            async with asyncio.timeout(1):
                for delivery in deliveries:
                    await delivery

    cluster.run(main)
