"""The orders that still wait for one broker, in sequence and bounded. Pure.

Owns: the order of what is queued for one broker, and its merging. Leaves to others: connections (`broker_channel`).

Theory (replication rules, section 9). A broker must get decisions in the order in which they were taken; but of several
waiting decisions about one partition only the last one matters, because each holds the complete state of that partition
and its epochs. So neighbours of one kind are merged at once. A broker that hangs for minutes while its session lives
would still collect an endless sequence of alternating kinds. Such a sequence is compacted: first all metadata (the
cache may run ahead of the logs), then, in order, the last LeaderAndIsr and the last StopReplica of each partition. What
remains is bounded by the number of partitions, not by time.

Orders about different partitions need no order among them. So an election overtakes logs that are to be created or
deleted, which may take a broker many seconds.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from minibroker.controller.core.control_requests import LeaderAndIsr, PartitionOrder, UpdateMetadata
from minibroker.controller.core.controller_state import Topic
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import LiveBroker

BATCHES_MAX = 50
"""Batches a queue may hold before it is compacted. The queue of a healthy broker holds a handful."""

OrderKey: TypeAlias = tuple[str, str, int]


class OrderBatch(msgspec.Struct, kw_only=True):
    """Orders of one kind. None: UpdateMetadata that only names the live brokers."""

    kind: type[PartitionOrder]
    live_brokers: tuple[LiveBroker, ...]
    orders: dict[OrderKey, PartitionOrder]


class SendQueue:
    """First-in, first-out queue of batches."""

    def __init__(self) -> None:
        self._batches: list[OrderBatch] = []

    def __len__(self) -> int:
        return len(self._batches)

    def put(self, live_brokers: tuple[LiveBroker, ...], orders: Sequence[PartitionOrder]) -> None:
        kind = type(orders[0]) if orders else UpdateMetadata
        assert all(type(each) is kind for each in orders), "a batch is of one kind"
        if not self._batches or self._batches[-1].kind is not kind:
            self._batches.append(OrderBatch(kind=kind, live_brokers=live_brokers, orders={}))
        _add(self._batches[-1], live_brokers, orders)
        if len(self._batches) > BATCHES_MAX:
            self._batches = compact(self._batches)

    def take(self) -> OrderBatch | None:
        """The oldest batch; nothing is merged into it from now on."""
        return self._batches.pop(0) if self._batches else None

    def holds_election(self) -> bool:
        """Whether an order waits about a log that should be there."""
        return any(_is_election(each) for batch in self._batches for each in batch.orders.values())

    def put_back(self, batch: OrderBatch, left: Sequence[PartitionOrder]) -> None:
        """These orders of a taken batch were not sent yet: elections go before them."""
        rest = OrderBatch(kind=batch.kind, live_brokers=batch.live_brokers, orders={})
        _add(rest, batch.live_brokers, left)
        self._batches = _with_elections_first(compact([rest, *self._batches]))


def compact(batches: list[OrderBatch]) -> list[OrderBatch]:
    """The same contents in as few batches as the order allows. A log that is to be created stays new. Each order gets
    the newest settings of its topic: the metadata that told them goes first now."""
    newest_brokers = batches[-1].live_brokers
    metadata = OrderBatch(kind=UpdateMetadata, live_brokers=newest_brokers, orders={})
    last: dict[tuple[type[PartitionOrder], OrderKey], int] = {}
    new = {key for batch in batches for key, each in batch.orders.items() if _is_new(each)}
    topics = {key[:2]: each.topic for batch in batches for key, each in batch.orders.items()}
    for index, batch in enumerate(batches):
        if batch.kind is UpdateMetadata:
            _add(metadata, newest_brokers, list(batch.orders.values()))
        else:
            last.update({(batch.kind, key): index for key in batch.orders})
    found = [metadata]
    for index, batch in enumerate(batches):
        kept = [
            _with_topic(_as_new(each) if key in new else each, topics[key[:2]])
            for key, each in batch.orders.items()
            if last.get((batch.kind, key)) == index
        ]
        if not kept:
            continue
        if found[-1].kind is not batch.kind:
            found.append(OrderBatch(kind=batch.kind, live_brokers=newest_brokers, orders={}))
        _add(found[-1], newest_brokers, kept)
    return found


def _key(order: PartitionOrder) -> OrderKey:
    return order.partition.topic, order.topic.topic_id, order.partition.partition


def _is_new(order: PartitionOrder) -> bool:
    return isinstance(order, LeaderAndIsr) and order.content.is_new


def _is_election(order: PartitionOrder) -> bool:
    return isinstance(order, LeaderAndIsr) and not order.content.is_new


def _as_new(order: PartitionOrder) -> PartitionOrder:
    if not isinstance(order, LeaderAndIsr):
        return order
    return LeaderAndIsr(order.partition, order.topic, msgspec.structs.replace(order.content, is_new=True))


def _with_topic(order: PartitionOrder, topic: Topic) -> PartitionOrder:
    return order if order.topic is topic else msgspec.structs.replace(order, topic=topic)


def _with_elections_first(compacted: list[OrderBatch]) -> list[OrderBatch]:
    """Elections right behind the metadata, but for partitions of which an earlier order waits (of any topic id)."""
    metadata, *others = compacted
    first = OrderBatch(kind=LeaderAndIsr, live_brokers=metadata.live_brokers, orders={})
    seen: set[TopicPartition] = set()
    for batch in others:
        early = {key for key, each in batch.orders.items() if _is_election(each) and each.partition not in seen}
        seen.update(each.partition for each in batch.orders.values())
        first.orders |= {key: each for key, each in batch.orders.items() if key in early}
        batch.orders = {key: each for key, each in batch.orders.items() if key not in early}
    return [metadata, *(batch for batch in (first, *others) if batch.orders)]


def _add(batch: OrderBatch, live_brokers: tuple[LiveBroker, ...], orders: Sequence[PartitionOrder]) -> None:
    """The last order about a partition counts; `is_new` stays true until the broker has got it."""
    batch.live_brokers = live_brokers
    for each in orders:
        key = _key(each)
        earlier = batch.orders.pop(key, None)
        batch.orders[key] = _as_new(each) if earlier is not None and _is_new(earlier) else each
