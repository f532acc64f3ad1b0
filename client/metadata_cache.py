"""What the client knows of the cluster: brokers, controller, leaders with their epochs. Pure.

Owns: which updates to accept. A partition's entry is accepted only if its leader epoch is not below the known one: a
broker that lags must not direct the client back to a former leader (KIP-320). A topic with another id is another topic
of the same name: its entries start from scratch, and a former id is not accepted for a while. Not for ever: ids have no
order, so that of a broker that lagged may have taken the place of the present one. Leaves to others: how and when
metadata is fetched.
"""

import math
from collections.abc import Mapping
from itertools import count, takewhile
from typing import NamedTuple

import msgspec

from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.ids import BrokerId, LeaderEpoch, TopicPartition, from_wire
from minibroker.protocol.wire.messages import CurrentLeader, MetadataPartition, MetadataResponse, MetadataTopic


class Address(NamedTuple):
    """Host and port of a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CachedPartition(msgspec.Struct, frozen=True):
    """What is known of one partition."""

    leader: BrokerId | None
    leader_epoch: LeaderEpoch | None
    replicas: tuple[BrokerId, ...] = ()
    isr: tuple[BrokerId, ...] = ()
    offline: tuple[BrokerId, ...] = ()
    error: ErrorCode = ErrorCode.NONE


class CachedTopic(msgspec.Struct, frozen=True):
    """What is known of one topic."""

    topic_id: str
    partitions: dict[int, CachedPartition]
    error: ErrorCode = ErrorCode.NONE


FORMER_ID_MS = 10_000.0
"""How long a former id is refused: longer than a broker may lag before the controller takes it for dead."""
FORMER_IDS_MAX = 1_000
"""Former ids of topics that were deleted and created again: a broker that lags may still report them for a while."""
UNKNOWN_PARTITION = CachedPartition(leader=None, leader_epoch=None, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class MetadataCache:
    """The newest accepted view of the cluster."""

    def __init__(self) -> None:
        self.brokers: dict[BrokerId, Address] = {}
        self.topics: dict[str, CachedTopic] = {}
        self.controller_id: BrokerId | None = None
        self.is_from_fenced = False
        """The broker that sent the last answer has lost ZooKeeper: it leads nothing, and may not know the leaders."""
        self._former_ids: dict[str, float] = {}
        """Each with the time, in ms, at which another one took its place."""
        self._hinted: set[TopicPartition] = set()
        """Partitions of which a hint was accepted since the last answer."""
        self.cluster_id = ""
        self.updated_at_ms: float | None = None
        self.version = 0
        """Rises with every change, so that a waiter notices it."""

    def update(self, response: MetadataResponse, now_ms: float) -> None:
        """Apply an answer. Topics that it does not name stay as they were."""
        self.brokers = {broker.node_id: Address(broker.host, broker.port) for broker in response.brokers}
        self.controller_id = from_wire(response.controller_id)
        self.is_from_fenced = response.fenced
        self.cluster_id = response.cluster_id or self.cluster_id
        for topic in response.topics:
            self.topics[topic.name] = self._newer_topic(topic, now_ms)
        self._hinted.clear()
        self.updated_at_ms = now_ms
        self.version += 1

    def _newer_topic(self, topic: MetadataTopic, now_ms: float) -> CachedTopic:
        known = self.topics.get(topic.name)
        error = error_code(topic.error_code)
        if error is not ErrorCode.NONE and not topic.partitions:
            # A broker that has just started knows no topics: keep what is known, with its epochs, next to the error.
            kept = known.partitions if known is not None else {}
            return CachedTopic(topic_id=known.topic_id if known is not None else "", partitions=kept, error=error)
        if known is not None and now_ms - self._former_ids.get(topic.topic_id, -math.inf) < FORMER_ID_MS:
            return known
        same = known is not None and (known.topic_id == topic.topic_id or not known.topic_id or not topic.topic_id)
        before = known.partitions if known is not None and same else {}
        if known is not None and not same:
            self._retire_id(known.topic_id, now_ms)
        partitions = {p.partition_index: _newer_partition(before.get(p.partition_index), p) for p in topic.partitions}
        for index, info in before.items():
            partitions.setdefault(index, info)  # partitions are added, never removed, while the id stays
        return CachedTopic(topic_id=topic.topic_id, partitions=_without_gaps(partitions), error=error)

    def _retire_id(self, topic_id: str, now_ms: float) -> None:
        self._former_ids.pop(topic_id, None)
        self._former_ids[topic_id] = now_ms
        if len(self._former_ids) > FORMER_IDS_MAX:
            del self._former_ids[next(iter(self._former_ids))]

    def topic_id(self, topic: str) -> str | None:
        """None where it is not known."""
        info = self.topics.get(topic)
        return info.topic_id or None if info is not None else None

    def apply_hint(self, partition: TopicPartition, hint: CurrentLeader | None, topic_id: str) -> bool:
        """A refusal named the leader (KIP-951): accept it if its epoch is newer. Returns whether that changed anything.

        `topic_id`: as the refused request named it; "" named none. A hint about another topic of the name is dropped:
        epochs of a deleted topic may be higher than all of the next one, whose metadata would not be accepted then.

        A leader of the same epoch is accepted, too, if none was known. A hint is followed without a pause, so only one
        is accepted until metadata is fetched, which has its pauses: a broker that names ever later epochs would
        otherwise be asked without any.
        """
        if hint is None or hint.leader_epoch < 0 or partition in self._hinted:
            return False
        topic = self.topics.get(partition.topic)
        known = topic.partitions.get(partition.partition) if topic is not None else None
        if topic is None or known is None or topic.topic_id != topic_id:
            return False
        leader = from_wire(hint.leader_id)
        epoch = -1 if known.leader_epoch is None else known.leader_epoch
        if hint.leader_epoch < epoch or (hint.leader_epoch == epoch and (known.leader is not None or leader is None)):
            return False
        topic.partitions[partition.partition] = msgspec.structs.replace(
            known, leader=leader, leader_epoch=hint.leader_epoch, error=ErrorCode.NONE
        )
        self._hinted.add(partition)
        self.version += 1
        return True

    def partition(self, partition: TopicPartition) -> CachedPartition:
        """What is known of it; UNKNOWN_PARTITION if nothing is."""
        topic = self.topics.get(partition.topic)
        if topic is None:
            return UNKNOWN_PARTITION
        return topic.partitions.get(partition.partition, UNKNOWN_PARTITION)


def _without_gaps(partitions: Mapping[int, CachedPartition]) -> dict[int, CachedPartition]:
    """In order from 0 on. A broker numbers them without gaps; one behind a gap cannot be chosen by a count."""
    return {index: partitions[index] for index in takewhile(partitions.__contains__, count())}


def _newer_partition(known: CachedPartition | None, update: MetadataPartition) -> CachedPartition:
    epoch = from_wire(update.leader_epoch)
    if known is not None and known.leader_epoch is not None and (epoch is None or epoch < known.leader_epoch):
        return known
    return CachedPartition(
        leader=from_wire(update.leader_id),
        leader_epoch=epoch,
        replicas=tuple(update.replica_nodes),
        isr=tuple(update.isr_nodes),
        offline=tuple(update.offline_replicas),
        error=error_code(update.error_code),
    )
