"""This broker's knowledge of the cluster, as received from the controller. Pure.

Owns: live brokers, leaders and in-sync replicas of every partition, topic ids, topic settings, and the controller; and
the answers that follow from these alone (Metadata, DescribeCluster, eligibility for an ISR). Leaves to others:
ZooKeeper, sockets and this broker's own replicas. This knowledge may be stale, and never decides a write.

Theory: UpdateMetadata of one controller arrives in order, controllers are ordered by their epoch, and the broker epoch
refuses a request made for an earlier incarnation of this broker (replication rules, section 7). A request that was
resent after its connection broke may still come twice and late. So requests are numbered, and one that comes behind a
later one is refused: settings and the list of live brokers have no epoch of their own. A partition additionally never
goes back: not below its leader epoch, not below its partition epoch, and not to a topic id that was deleted.
"""

from collections.abc import Iterator, Set
from typing import Any

import msgspec

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition, from_wire, is_topic_name
from minibroker.protocol.wire.messages import (
    LEADER_DURING_DELETE,
    CurrentLeader,
    DescribeClusterBroker,
    DescribeClusterResponse,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LiveBroker,
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    StopReplicaRequest,
    UpdateMetadataRequest,
)

DELETED_TOPICS_REMEMBERED = 10_000
"""Ids of deleted topics, so that a late request does not bring one back. Older ones are dropped."""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, as the controller last described it."""

    leader: BrokerId | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    offline_replicas: tuple[BrokerId, ...] = ()
    """Replicas on dead brokers, or in failed log directories of live ones, as the controller reported."""


class TopicInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One topic. Its dicts are replaced, never changed, so that a reader may keep them over an await."""

    topic_id: str
    configs: dict[str, str]
    partitions: dict[int, PartitionInfo]
    partition_count: int = 0
    """Of the topic, as the controller told it. The partitions come with several requests, or have no state yet."""

    def missing(self) -> list[int]:
        """Partitions that are not known yet. Clients must count them: by that they choose the partition of a key."""
        if len(self.partitions) >= self.partition_count:
            return []
        return [number for number in range(self.partition_count) if number not in self.partitions]


class MetadataChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one request changed."""

    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None
    controller_changed: bool = False
    """Another controller, or the same under a new epoch: requests to the old one must be repeated."""
    brokers_changed: bool = False
    partitions_changed: tuple[TopicPartition, ...] = ()
    partitions_deleted: tuple[TopicPartition, ...] = ()
    configs_changed: tuple[str, ...] = ()
    """Topics with changed settings of their own."""


class MetadataImage:
    """The cluster as one broker sees it."""

    def __init__(self, broker_id: BrokerId, cluster_id: str, counters: BrokerCounters | None = None) -> None:
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.controller_id: BrokerId | None = None
        self.controller_epoch: ControllerEpoch = 0
        self.has_been_updated = False
        """Whether this process has received an UpdateMetadata yet."""
        self.changes = 0
        """Requests that changed a partition, or the settings of a topic."""
        self._order_number = 0
        """The highest of an accepted request of this controller."""
        self._addressed_epoch: BrokerEpoch | None = None
        """This broker's own epoch when it last accepted a controller's request."""
        self._counters = counters if counters is not None else BrokerCounters()
        self._brokers: dict[BrokerId, LiveBroker] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._deleted_topic_ids: dict[str, None] = {}
        self._led_epochs: dict[TopicPartition, int] = {}
        """The latest leader epoch that an order has told this broker to lead."""

    # ------------------------------------------------------------------------------------------------ what is known
    @property
    def topics(self) -> dict[str, TopicInfo]:
        """By name. Do not change it."""
        return self._topics

    def partition(self, partition: TopicPartition) -> PartitionInfo | None:
        topic = self._topics.get(partition[0])
        return None if topic is None else topic.partitions.get(partition[1])

    def knows_partition(self, topic: str, partition: int) -> bool:
        info = self._topics.get(topic)
        return info is not None and partition in info.partitions

    def topic_id(self, topic: str) -> str | None:
        info = self._topics.get(topic)
        return None if info is None else info.topic_id

    def topic_configs(self, topic: str) -> dict[str, str]:
        """The topic's own settings; empty for an unknown topic."""
        info = self._topics.get(topic)
        return {} if info is None else info.configs

    def leader_hint(self, partition: TopicPartition, topic_id: str) -> CurrentLeader | None:
        """The leader that a client should use instead, sent with NOT_LEADER_OR_FOLLOWER (KIP-951). None, too, if the
        request names another topic id: epochs of a deleted topic say nothing of the next one. "" names none."""
        info = self.partition(partition)
        if info is None or info.leader is None or topic_id not in ("", self.topic_id(partition.topic)):
            return None
        return CurrentLeader(leader_id=info.leader, leader_epoch=info.leader_epoch)

    def live_broker_ids(self) -> tuple[BrokerId, ...]:
        return tuple(sorted(self._brokers))

    def broker_epoch(self, broker_id: BrokerId) -> BrokerEpoch | None:
        broker = self._brokers.get(broker_id)
        return None if broker is None else broker.broker_epoch

    def eligible_brokers(self) -> dict[BrokerId, BrokerEpoch]:
        """Live brokers that are not stopping, with their epochs: their replicas may join ISRs (KIP-841)."""
        return {each.id: each.broker_epoch for each in self._brokers.values() if not each.shutting_down}

    def is_eligible(self, broker_id: BrokerId, broker_epoch: BrokerEpoch | None) -> bool:
        """Whether a replica that fetches may join an ISR: its broker is eligible, and is the incarnation that fetched
        (KIP-903; None: it did not say)."""
        broker = self._brokers.get(broker_id)
        return broker is not None and not broker.shutting_down and broker_epoch in (None, broker.broker_epoch)

    def address(self, broker_id: BrokerId, listener_name: str) -> tuple[str, int] | None:
        """Host and port of a live broker's listener."""
        broker = self._brokers.get(broker_id)
        return None if broker is None else _address(broker, listener_name)

    def all_partitions(self) -> Iterator[tuple[TopicPartition, PartitionInfo]]:
        for topic in sorted(self._topics):
            partitions = self._topics[topic].partitions
            for number in sorted(partitions):
                yield TopicPartition(topic, number), partitions[number]

    # ---------------------------------------------------------------------------------------------- from the controller
    def admit(
        self,
        request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest,
        own_broker_epoch: BrokerEpoch | None,
    ) -> MetadataChange:
        """Whether a controller's request is accepted (I29); if so, adopts its epoch.

        A broker epoch above ours is possible: the controller saw our registration before its result reached us.
        """
        controller_id, controller_epoch = request.controller_id, request.controller_epoch
        if own_broker_epoch is None or request.broker_epoch < own_broker_epoch:
            return MetadataChange(
                error_code=ErrorCode.STALE_BROKER_EPOCH,
                error_message=f"broker {self.broker_id}: the request is for broker epoch {request.broker_epoch},"
                f" registered is {own_broker_epoch}",
            )
        if controller_epoch < self.controller_epoch:
            return MetadataChange(
                error_code=ErrorCode.STALE_CONTROLLER_EPOCH,
                error_message=f"broker {self.broker_id}: controller {controller_id} has epoch {controller_epoch},"
                f" controller {self.controller_id} has {self.controller_epoch}",
            )
        changed = (controller_id, controller_epoch) != (self.controller_id, self.controller_epoch)
        if not changed and 0 < request.order_number < self._order_number:
            return MetadataChange(
                error_code=ErrorCode.REQUEST_TIMED_OUT,
                error_message=f"broker {self.broker_id}: controller {controller_id} gave up this request, number"
                f" {request.order_number}, and has sent number {self._order_number} since",
            )
        self._order_number = request.order_number if changed else max(self._order_number, request.order_number)
        self._addressed_epoch = own_broker_epoch
        self.controller_id, self.controller_epoch = controller_id, controller_epoch
        return MetadataChange(controller_changed=changed)

    def apply_update(self, request: UpdateMetadataRequest, own_broker_epoch: BrokerEpoch | None) -> MetadataChange:
        """Apply an UpdateMetadata: live brokers as a whole (none listed: unchanged), partitions one by one."""
        admitted = self.admit(request, own_broker_epoch)
        if admitted.error_code != ErrorCode.NONE:
            return admitted
        self.has_been_updated = True
        brokers_changed = bool(request.live_brokers) and self._replace_brokers(request.live_brokers)
        tally = _Tally()
        for topic in request.topic_states:
            self._take_topic(topic, tally)
        return self._counted(tally.change(admitted, brokers_changed))

    def apply_leader_and_isr(
        self, request: LeaderAndIsrRequest, own_broker_epoch: BrokerEpoch | None
    ) -> MetadataChange:
        """Apply a LeaderAndIsr, which may come before the UpdateMetadata with the same content."""
        admitted = self.admit(request, own_broker_epoch)
        if admitted.error_code != ErrorCode.NONE:
            return admitted
        brokers_changed = self._add_brokers(request.live_brokers)
        tally = _Tally()
        for topic in request.topic_states:
            self._take_topic(topic, tally)
        return self._counted(tally.change(admitted, brokers_changed))

    def _counted(self, change: MetadataChange) -> MetadataChange:
        if change.partitions_changed or change.partitions_deleted or change.configs_changed:
            self.changes += 1
        return change

    def _replace_brokers(self, live: list[LiveBroker]) -> bool:
        brokers = {broker.id: broker for broker in sorted(live, key=lambda broker: broker.id)}
        changed = brokers != self._brokers
        self._brokers = brokers
        return changed

    def _add_brokers(self, live: list[LiveBroker]) -> bool:
        """A LeaderAndIsr names the brokers it needs, not all live ones."""
        changed = False
        for broker in live:
            known = self._brokers.get(broker.id)
            if known is None or (broker != known and broker.broker_epoch >= known.broker_epoch):
                self._brokers[broker.id] = broker
                changed = True
        return changed

    def _take_topic(self, topic: Any, tally: "_Tally") -> None:
        """`topic`: an UpdateMetadataTopic or a LeaderAndIsrTopic; their fields have the same names."""
        name = topic.topic_name
        if topic.topic_id in self._deleted_topic_ids:
            return
        known = self._topics.get(name)
        if known is not None and known.topic_id != topic.topic_id:
            self._forget(name, known, tally)  # deleted and created again, and this broker missed the deletion
            known = None
        partitions = {} if known is None else dict(known.partitions)
        for state in topic.partition_states:
            partition = TopicPartition(name, state.partition_index)
            if isinstance(state, LeaderAndIsrPartition):
                self._count_election(partition, state)
            if state.leader == LEADER_DURING_DELETE:
                self._led_epochs.pop(partition, None)
                if partitions.pop(state.partition_index, None) is not None:
                    tally.deleted[partition] = None
            elif _is_newer(state, before := partitions.get(state.partition_index)):
                partitions[state.partition_index] = _partition_info(state, before)
                tally.changed[partition] = None
        was_deleted = any(state.leader == LEADER_DURING_DELETE for state in topic.partition_states)
        if not partitions:
            if was_deleted:
                self._forget(name, TopicInfo(topic_id=topic.topic_id, configs={}, partitions={}), tally)
            return
        if (known is None and topic.configs) or (known is not None and known.configs != topic.configs):
            tally.configs[name] = None
        configs = dict(sorted(topic.configs.items()))
        self._topics[name] = TopicInfo(
            topic_id=topic.topic_id,
            configs=configs,
            partitions=partitions,
            partition_count=topic.partition_count or (0 if known is None else known.partition_count),
        )

    def _count_election(self, partition: TopicPartition, order: LeaderAndIsrPartition) -> None:
        """By orders alone: an UpdateMetadata, which a new controller sends first, does not say what was unclean."""
        if order.leader == self.broker_id and order.leader_epoch > self._led_epochs.get(partition, -1):
            self._led_epochs[partition] = order.leader_epoch
            self._counters.leader_elections += 1
            self._counters.unclean_leader_elections += order.leader_recovery_state != 0

    def _forget(self, name: str, topic: TopicInfo, tally: "_Tally") -> None:
        self._topics.pop(name, None)
        for number in sorted(topic.partitions):
            tally.deleted[TopicPartition(name, number)] = None
            self._led_epochs.pop(TopicPartition(name, number), None)
        if topic.topic_id:
            self._deleted_topic_ids[topic.topic_id] = None
        while len(self._deleted_topic_ids) > DELETED_TOPICS_REMEMBERED:
            del self._deleted_topic_ids[next(iter(self._deleted_topic_ids))]

    # ------------------------------------------------------------------------------------------------------ answers
    def is_of_an_earlier_registration(self, own_broker_epoch: BrokerEpoch | None) -> bool:
        """Whether controllers sent requests to this broker, but none since it registered again: leaderships may have
        moved, and it learns nothing while the controller cannot reach it (hardening rule 17)."""
        return own_broker_epoch is not None and self._addressed_epoch not in (None, own_broker_epoch)

    def answer_metadata(self, request: MetadataRequest, listener_name: str, *, is_fenced: bool) -> MetadataResponse:
        """Brokers with their addresses on the listener that the client uses, and the requested topics (None: all).

        A fenced broker does not name itself as a leader: it would refuse every client (hardening rule 11)."""
        reachable = {
            broker_id: address
            for broker_id, broker in self._brokers.items()
            if (address := _address(broker, listener_name)) is not None
        }
        names = sorted(self._topics) if request.topics is None else [topic.name for topic in request.topics]
        leaders = reachable.keys() - {self.broker_id} if is_fenced else reachable.keys()
        return MetadataResponse(
            brokers=[
                MetadataBroker(node_id=broker_id, host=host, port=port)
                for broker_id, (host, port) in sorted(reachable.items())
            ],
            cluster_id=self.cluster_id,
            controller_id=-1 if self.controller_id is None else self.controller_id,
            fenced=is_fenced,
            topics=[self._describe_topic(name, leaders) for name in dict.fromkeys(names)],
        )

    def _describe_topic(self, name: str, leaders: Set[BrokerId]) -> MetadataTopic:
        topic = self._topics.get(name)
        if topic is None:
            is_possible = is_topic_name(name)
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_possible else ErrorCode.INVALID_TOPIC_EXCEPTION
            return MetadataTopic(error_code=code, name=name)
        partitions = []
        for number in sorted({*topic.partitions, *topic.missing()}):
            info = topic.partitions.get(number)
            if info is None:
                partitions.append(MetadataPartition(error_code=ErrorCode.LEADER_NOT_AVAILABLE, partition_index=number))
                continue
            has_leader = info.leader is not None and info.leader in leaders
            partitions.append(
                MetadataPartition(
                    error_code=ErrorCode.NONE if has_leader else ErrorCode.LEADER_NOT_AVAILABLE,
                    partition_index=number,
                    leader_id=info.leader if has_leader and info.leader is not None else -1,
                    leader_epoch=info.leader_epoch,
                    replica_nodes=list(info.replicas),
                    isr_nodes=list(info.isr),
                    offline_replicas=[
                        replica
                        for replica in info.replicas
                        if replica in info.offline_replicas or replica not in self._brokers
                    ],
                )
            )
        return MetadataTopic(name=name, topic_id=topic.topic_id, partitions=partitions)

    def answer_describe_cluster(self, listener_name: str) -> DescribeClusterResponse:
        brokers = []
        for broker_id in sorted(self._brokers):
            broker = self._brokers[broker_id]
            address = _address(broker, listener_name)
            if address is not None:
                host, port = address
                brokers.append(
                    DescribeClusterBroker(broker_id=broker_id, host=host, port=port, broker_epoch=broker.broker_epoch)
                )
        return DescribeClusterResponse(
            cluster_id=self.cluster_id,
            controller_id=-1 if self.controller_id is None else self.controller_id,
            controller_epoch=self.controller_epoch,
            brokers=brokers,
        )


class _Tally:
    """Collects the changes of a request, in dicts, because they keep their order."""

    def __init__(self) -> None:
        self.changed: dict[TopicPartition, None] = {}
        self.deleted: dict[TopicPartition, None] = {}
        self.configs: dict[str, None] = {}

    def change(self, admitted: MetadataChange, brokers_changed: bool) -> MetadataChange:
        return MetadataChange(
            controller_changed=admitted.controller_changed,
            brokers_changed=brokers_changed,
            partitions_changed=tuple(self.changed),
            partitions_deleted=tuple(partition for partition in self.deleted if partition not in self.changed),
            configs_changed=tuple(self.configs),
        )


def _is_newer(state: Any, known: PartitionInfo | None) -> bool:
    """Whether a description replaces the known one. One of the same epochs does, so that offline replicas can
    change."""
    if known is None or state.leader_epoch > known.leader_epoch:
        return True
    return bool(state.leader_epoch == known.leader_epoch and state.partition_epoch >= known.partition_epoch)


def _partition_info(state: Any, known: PartitionInfo | None) -> PartitionInfo:
    """A LeaderAndIsr does not say which replicas are offline, and may come behind the UpdateMetadata that did."""
    return PartitionInfo(
        leader=from_wire(state.leader),
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        replicas=tuple(state.replicas),
        isr=tuple(state.isr),
        offline_replicas=(() if known is None else known.offline_replicas)
        if isinstance(state, LeaderAndIsrPartition)
        else tuple(state.offline_replicas),
    )


def _address(broker: LiveBroker, listener_name: str) -> tuple[str, int] | None:
    for endpoint in broker.endpoints:
        if endpoint.listener == listener_name:
            return endpoint.host, endpoint.port
    return None
