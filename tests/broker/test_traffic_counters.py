"""The counters of a leader's traffic, and the gauges of its followers' lag, against what clients and followers got."""

import asyncio

from msgspec.structs import asdict

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire import messages as m
from tests.broker.requests import TOPIC, ClusterClient, batch, in_cluster

TRAFFIC = (
    "batches_in",
    "records_in",
    "bytes_in",
    "failed_produce",
    "bytes_out",
    "failed_fetch",
    "replication_bytes_out",
)


def request(*batches: bytearray) -> m.ProduceRequest:
    parts = [m.ProducePartition(index=0, records=bytearray(each)) for each in batches]
    return m.ProduceRequest(acks=-1, topic_data=[m.ProduceTopic(name=TOPIC, partition_data=parts)])


def corrupt(records: bytearray) -> bytearray:
    records[-1] ^= 1
    return records


def traffic(client: ClusterClient) -> dict[str, int]:
    """The counters of the leader that count what passes through it."""
    counters = asdict(client.cluster.brokers[client.leader].counters)
    return {name: counters[name] for name in TRAFFIC}


def test_the_counters_of_traffic_are_what_clients_and_followers_sent_and_got() -> None:
    async def check(client: ClusterClient) -> None:
        before = traffic(client)
        sent = [batch(b"a"), batch(b"b", b"c", b"d"), batch(b"e" * 500)]
        await client.ask(client.leader, request(*sent), m.ProduceResponse)
        await client.ask(client.leader, request(corrupt(batch(b"f"))), m.ProduceResponse)
        fetched = [await client.fetch(), await client.fetch()]
        await client.fetch(offset=99)
        size = sum(len(each) for each in sent)
        assert [len(each.records) for each in fetched] == [size, size]
        grown = {name: value - before[name] for name, value in traffic(client).items()}
        assert grown == {
            "batches_in": 3,
            "records_in": 5,
            "bytes_in": size,
            "failed_produce": 1,
            "bytes_out": 2 * size,
            "failed_fetch": 1,
            "replication_bytes_out": 2 * size,
        }

    in_cluster(check)


def test_the_lag_is_that_of_the_follower_that_is_furthest_behind() -> None:
    async def check(client: ClusterClient) -> None:
        cluster, leader = client.cluster, client.leader
        slow, other = client.followers
        cluster.kill(slow)
        for _ in range(7):
            await client.produce(records=build_batch([(None, b"v", 1_000, ())]), acks=1)
        await asyncio.sleep(1)
        assert cluster.brokers[leader].gauges().max_lag == 7
        cluster.start(slow)
        await cluster.until(lambda: cluster.in_sync_replicas(TOPIC) == (1, 2, 3), what="a full ISR")
        assert cluster.brokers[leader].gauges().max_lag == 0
        cluster.kill(slow)
        cluster.kill(leader)
        await cluster.until(lambda: cluster.leader(TOPIC) == other, what="another leader")
        assert cluster.brokers[other].gauges().max_lag == 7, "the others have fetched nothing from it yet"

    in_cluster(check)


def test_every_counter_begins_at_zero() -> None:
    counters = asdict(BrokerCounters())
    assert {each.count + each.nanoseconds for each in counters.pop("requests").values()} == {0}
    assert {name: value for name, value in counters.items() if value} == {}
