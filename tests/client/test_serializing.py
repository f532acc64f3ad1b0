"""Serializers of a producer, deserializers of a consumer."""

import json
from typing import Any

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import InvalidCall, UndeserializableRecord
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def not_003(value: bytes) -> int:
    if value == b"000003":
        raise ValueError("a poisoned record")
    return int(value)


def test_each_way_to_send_serializes(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        servers = cluster.bootstrap
        producer = Producer(
            bootstrap_servers=servers, key_serializer=str.encode, value_serializer=as_json, runtime=runtime
        )
        async with producer:
            await producer.send_and_wait("t", {"number": 0}, key="k")
            await producer.send("t", {"number": 1})
            await producer.send("t", b"2".decode())
            await (await producer.send_many("t", [{"number": 3}, None], keys=["a", None]))
            assert (await _taken(producer)).offset == 5

    cluster.run(main)
    assert cluster.partition("t").values() == [b'{"number": 0}', b'{"number": 1}', b'"2"', b'{"number": 3}', None, b"5"]


async def _taken(producer: Producer) -> Any:
    delivery = producer.try_send("t", 5)
    assert delivery is not None
    return await delivery


def test_bytes_are_serialized_like_anything_else(cluster: FakeCluster) -> None:
    """An open batch with room takes plain bytes on a path of its own."""

    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, value_serializer=bytes.upper, runtime=runtime)
        async with producer:
            for value in (b"a", b"b"):
                await producer.send("t", value)

    cluster.run(main)
    assert cluster.partition("t").values() == [b"A", b"B"]


def test_a_deserializer_gets_what_is_there(cluster: FakeCluster) -> None:
    fill(cluster, 15)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, key_deserializer=bytes.decode, value_deserializer=int) as consumer:
            record = await consumer.getone()
            assert (record.key, record.value) == ("k", 0)
            (records,) = (await consumer.getmany(timeout_ms=1_000, max_records=20)).values()
            assert [record.value for record in records] == list(range(1, 15))
            consumer.seek(T0, 3)
            (batch, *_) = await consumer.getmany_batches(timeout_ms=1_000)
            assert batch.values[0] == b"000003", "columns stay bytes"

    cluster.run(main)


def test_a_record_that_a_deserializer_refuses_stops_the_consumer_in_front_of_it(cluster: FakeCluster) -> None:
    fill(cluster, 25)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, value_deserializer=not_003) as consumer:
            seen = [(await consumer.getone()).value for _ in range(3)]
            for _ in range(2):
                with pytest.raises(
                    UndeserializableRecord, match=r"offset 3 of t-0 .* seek\(TopicPartition\('t', 0\), 4\)"
                ):
                    await consumer.getone()
            consumer.seek(T0, 4)
            seen += [(await consumer.getone()).value for _ in range(21)]
            assert seen == [number for number in range(25) if number != 3]

    cluster.run(main)


def test_records_in_front_of_a_refused_one_are_returned_first(cluster: FakeCluster) -> None:
    fill(cluster, 25)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, value_deserializer=not_003) as consumer:
            assert (await consumer.getone()).value == 0
            consumer.pause(T0)  # drops what is decoded
            consumer.resume(T0)
            (records,) = (await consumer.getmany(timeout_ms=1_000)).values()
            assert [record.value for record in records] == [1, 2]
            with pytest.raises(UndeserializableRecord) as raised:
                await consumer.getmany(timeout_ms=1_000)
            assert isinstance(raised.value.__cause__, ValueError)
            assert raised.value.topic_partition == T0

    cluster.run(main)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(InvalidCall, match="value_serializer is 'json'"):
        Producer(value_serializer="json")  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="key_deserializer is 5"):
        Consumer("t", key_deserializer=5)  # type: ignore[arg-type]
