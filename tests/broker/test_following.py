"""Which leader a replica is copied from: its own leader's fetcher, and no other. How many at a time."""

import asyncio
from typing import Any, cast

import msgspec

from minibroker.broker.replication.events import AskEpochEnd
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.framing import CONTROL_FRAME_MAX_BYTES
from minibroker.protocol.wire.messages import FetchRequest, FetchResponse, OffsetForLeaderEpochRequest
from minibroker.testing import simulated
from tests.broker.test_replica_fetcher import Wire, _fetcher, _follower

PARTITIONS = [TopicPartition("lines", number) for number in range(6)]


def copied(c: SimulatedHarness, broker_id: int) -> dict[TopicPartition, list[int]]:
    """The leaders whose fetchers have each partition."""
    fetchers = c.simulation.brokers[broker_id].manager._fetchers
    return {
        name: [leader for leader, fetcher in sorted(fetchers.items()) if name in fetcher.partitions]
        for name in PARTITIONS
    }


@simulated(brokers=3)
async def test_a_replica_is_copied_from_its_leader_only_also_after_elections(c: SimulatedHarness) -> None:
    """A fetcher that went on would refuse, and be sent, every record of the former leader."""
    await c.create_topic("lines", partitions=len(PARTITIONS))
    for victim in (1, 2, 3):
        await c.kill(victim)
        await asyncio.sleep(2)
        await c.start(victim)
        await c.wait_in_sync()
        leaders = {name: await c.leader(name.topic, name.partition) for name in PARTITIONS}
        for broker_id in c.broker_ids:
            assert copied(c, broker_id) == {
                name: [] if leader == broker_id else [leader] for name, leader in leaders.items()
            }


@simulated(brokers=3, settings={"auto.leader.rebalance.enable": "false"})
async def test_a_broker_that_stops_copies_from_no_leader_any_more(c: SimulatedHarness) -> None:
    """Also not from one that an order names while it closes: a controller that does not know of the stop would take its
    replica into the ISR again, and acknowledgements would wait for it."""
    await c.create_topic("lines")
    leader = await c.wait_for_leader("lines")
    following, stopping = [b for b in c.simulation.assignments()[TopicPartition("lines", 0)] if b != leader]
    manager = c.simulation.brokers[stopping].manager
    assert [*manager._fetchers] == [leader]
    await manager.stop()
    await c.kill(leader)
    assert await c.wait_for_leader("lines", other_than=leader) == following
    await asyncio.sleep(1)
    assert manager._followed[TopicPartition("lines", 0)].leader_id == following
    assert all(each._connection is None for each in manager._fetchers.values())


async def test_many_partitions_are_listed_by_requests_that_the_leader_takes() -> None:
    """A request of more than 1 MiB, or with more than 10,000 partitions, is refused, and its connection closed. All
    partitions were listed by the first one of each connection: a follower of 5,000 topics of one leader never copied
    anything again."""
    fetcher, wire, names = _fetcher(), Wire(), [TopicPartition(f"{number:0249d}", 0) for number in range(4_500)]
    fetcher._connection = cast(Any, wire)
    for each in names:
        fetcher.partitions[each] = _follower(flushes=False, synced_end=0)
        fetcher._questions[each] = AskEpochEnd(leader_epoch=1, epoch=0)
    fetcher._list_all_again()
    fetcher._send_all()
    while len(fetches := [each for each in wire.sent if isinstance(each, FetchRequest)]) < 5:
        wire.answers[wire.sent.index(fetches[-1])](FetchResponse())
    questions = [each for each in wire.sent if isinstance(each, OffsetForLeaderEpochRequest)]
    for sent in (fetches, questions):
        assert [topic.topic for each in sent for topic in each.topics] == [each.topic for each in names]
        assert max(len(msgspec.msgpack.encode(each)) for each in sent) < CONTROL_FRAME_MAX_BYTES / 2
    assert [each.session_epoch for each in fetches] == [0, 1, 2, 3, 4]
    assert not fetcher._to_list
    assert not fetcher._questions
