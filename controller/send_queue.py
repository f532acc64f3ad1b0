"""The orders that still wait for one broker, in sequence and bounded. Pure.

Owns: the order of what is queued for one broker, and its merging. Leaves to others: connections (`broker_channel`).

Theory (replication rules, section 9). A broker must get decisions in the order in which they were taken; but of several
waiting decisions about one partition only the last one matters, because each holds the complete state of that partition
and its epochs. So neighbours of one kind are merged at once. A broker that hangs for minutes while its session lives
would still collect an endless sequence of alternating kinds. Such a sequence is compacted: first all metadata (the
cache may run ahead of the logs), then, in order, the last LeaderAndIsr and the last StopReplica of each partition. What
remains is bounded by the number of partitions, not by time.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from minibroker.controller.core.control_requests import LeaderAndIsr, PartitionOrder, UpdateMetadata
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


def compact(batches: list[OrderBatch]) -> list[OrderBatch]:
    """The same contents in as few batches as the order allows."""
    newest_brokers = batches[-1].live_brokers
    metadata = OrderBatch(kind=UpdateMetadata, live_brokers=newest_brokers, orders={})
    last: dict[tuple[type[PartitionOrder], OrderKey], int] = {}
    for index, batch in enumerate(batches):
        if batch.kind is UpdateMetadata:
            _add(metadata, newest_brokers, list(batch.orders.values()))
        else:
            last.update({(batch.kind, key): index for key in batch.orders})
    found = [metadata]
    for index, batch in enumerate(batches):
        kept = [each for key, each in batch.orders.items() if last.get((batch.kind, key)) == index]
        if not kept:
            continue
        if found[-1].kind is not batch.kind:
            found.append(OrderBatch(kind=batch.kind, live_brokers=newest_brokers, orders={}))
        _add(found[-1], newest_brokers, kept)
    return found


def _add(batch: OrderBatch, live_brokers: tuple[LiveBroker, ...], orders: Sequence[PartitionOrder]) -> None:
    """The last order about a partition counts; `is_new` stays true until the broker has got it."""
    batch.live_brokers = live_brokers
    for each in orders:
        key = (each.partition.topic, each.topic.topic_id, each.partition.partition)
        earlier = batch.orders.pop(key, None)
        if isinstance(earlier, LeaderAndIsr) and isinstance(each, LeaderAndIsr) and earlier.content.is_new:
            each = LeaderAndIsr(each.partition, each.topic, msgspec.structs.replace(each.content, is_new=True))
        batch.orders[key] = each
