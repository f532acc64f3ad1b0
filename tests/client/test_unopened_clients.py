"""What a program may call on a client that is not open: before `start` and after `close` every call says so."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import ClientClosed
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0

CLIENTS: dict[str, type[Any]] = {each.__name__: each for each in (AdminClient, Consumer, Producer)}
CALLS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "AdminClient": {
        "alter_configs": lambda admin: admin.alter_configs({"retention.ms": "1"}, topic="t"),
        "create_topic": lambda admin: admin.create_topic("u"),
        "create_topics": lambda admin: admin.create_topics([]),
        "delete_producer_name": lambda admin: admin.delete_producer_name("me"),
        "delete_producer_names": lambda admin: admin.delete_producer_names(["me"]),
        "delete_topic": lambda admin: admin.delete_topic("t"),
        "delete_topics": lambda admin: admin.delete_topics(["t"]),
        "describe_cluster": lambda admin: admin.describe_cluster(),
        "describe_configs": lambda admin: admin.describe_configs(topic="t"),
        "describe_replica_state": lambda admin: admin.describe_replica_state(["t"]),
        "describe_topics": lambda admin: admin.describe_topics(),
        "list_offsets": lambda admin: admin.list_offsets({T0: 0}),
        "list_producer_names": lambda admin: admin.list_producer_names(),
        "list_topics": lambda admin: admin.list_topics(),
        "offsets": lambda admin: admin.offsets("t"),
    },
    "Consumer": {
        "__anext__": lambda consumer: consumer.__anext__(),
        "add_answer_callback": lambda consumer: consumer.add_answer_callback(print),
        "assign": lambda consumer: consumer.assign([T0]),
        "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0]),
        "connection_state": lambda consumer: consumer.connection_state(T0),
        "end_offsets": lambda consumer: consumer.end_offsets([T0]),
        "getmany": lambda consumer: consumer.getmany(),
        "getmany_batches": lambda consumer: consumer.getmany_batches(),
        "getone": lambda consumer: consumer.getone(),
        "highwater": lambda consumer: consumer.highwater(T0),
        "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}),
        "partitions_for": lambda consumer: consumer.partitions_for("t"),
        "pause": lambda consumer: consumer.pause(T0),
        "position": lambda consumer: consumer.position(T0),
        "resume": lambda consumer: consumer.resume(T0),
        "seek": lambda consumer: consumer.seek(T0, 0),
        "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(),
        "seek_to_end": lambda consumer: consumer.seek_to_end(),
    },
    "Producer": {
        "flush": lambda producer: producer.flush(),
        "partitions_for": lambda producer: producer.partitions_for("t"),
        "send": lambda producer: producer.send("t", b"v"),
        "send_and_wait": lambda producer: producer.send_and_wait("t", b"v"),
        "send_many": lambda producer: producer.send_many("t", [b"v"]),
        "try_send": lambda producer: producer.try_send("t", b"v"),
    },
}
ALWAYS_ANSWERED = {"assignment", "buffered_bytes", "close", "metrics", "paused", "stop"}
"""What tells of the client itself, and closing once more."""
EACH_CALL = [(client, call) for client, calls in CALLS.items() for call in calls]


def opened_with(cluster: FakeCluster, client: str, runtime: Runtime) -> Any:
    return CLIENTS[client](bootstrap_servers=cluster.bootstrap, runtime=runtime)


async def outcome_of(client: Any, kind: str, call: str) -> Any:
    result = CALLS[kind][call](client)
    return await result if inspect.isawaitable(result) else result


@pytest.mark.parametrize("kind", CLIENTS)
def test_each_public_call_is_in_the_table(kind: str) -> None:
    public = {name for name in dir(CLIENTS[kind]) if not name.startswith("_")}
    assert public - ALWAYS_ANSWERED - {"start"} == {call for call in CALLS[kind] if not call.startswith("_")}


@pytest.mark.parametrize(("kind", "call"), EACH_CALL, ids=lambda each: each)
def test_a_call_before_start_is_refused(cluster: FakeCluster, kind: str, call: str) -> None:
    async def main(runtime: Runtime) -> None:
        with pytest.raises(ClientClosed, match="is not open: use `async with"):
            await outcome_of(opened_with(cluster, kind, runtime), kind, call)

    cluster.run(main)
    assert cluster.partition("t").values() == []


@pytest.mark.parametrize(("kind", "call"), EACH_CALL, ids=lambda each: each)
def test_a_call_after_close_is_refused(cluster: FakeCluster, kind: str, call: str) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened_with(cluster, kind, runtime) as client:
            pass
        with pytest.raises(ClientClosed if call != "__anext__" else StopAsyncIteration):
            await outcome_of(client, kind, call)

    cluster.run(main)
    assert cluster.partition("t").values() == []


@pytest.mark.parametrize("closed", [False, True], ids=["open", "closed"])
@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_is_started_once(cluster: FakeCluster, kind: str, closed: bool) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened_with(cluster, kind, runtime) as client:
            if closed:
                await client.close()
            with pytest.raises(ClientClosed, match="is started once"):
                await client.start()

    cluster.run(main)


@pytest.mark.parametrize("kind", CLIENTS)
def test_a_client_that_was_closed_unopened_cannot_be_started(cluster: FakeCluster, kind: str) -> None:
    async def main(runtime: Runtime) -> None:
        client = opened_with(cluster, kind, runtime)
        await client.close()
        await client.close()
        with pytest.raises(ClientClosed, match="is started once"):
            await client.start()

    cluster.run(main)


@pytest.mark.parametrize("kind", ["Consumer", "Producer"])
def test_what_an_unopened_client_has_counted_is_nothing(cluster: FakeCluster, kind: str) -> None:
    """A dashboard adds these numbers up."""

    async def main(runtime: Runtime) -> None:
        client = opened_with(cluster, kind, runtime)
        before = client.metrics()
        counted = [value for name in before.__struct_fields__ if not isinstance(value := getattr(before, name), dict)]
        assert counted and set(counted) == {0}
        async with client:
            assert client.metrics() == before

    cluster.run(main)
