"""What the controller knows of the cluster: brokers, topics, and the leader of each partition. Pure.

Owns: the facts and the queries on them (which broker is live, which log is whole). Leaves to others: how facts are
learnt (`active_controller`), what follows from them (`election`, `steps`) and how brokers learn them
(`control_requests`).

Theory (replication rules, section 9; hardening rule 1). Kafka keeps a state machine per partition and per replica; here
both are derived from the facts, so that they cannot disagree with them:

    partition   new: no state in ZooKeeper yet     online: has a leader     offline: has none
    replica     online: its broker is registered and its log directory works     offline: otherwise
                being deleted: `deletions` names its topic

A replica is *usable* for an election if it is online, its broker is not in a controlled shutdown, and the broker runs
under the incarnation that was recorded when the replica was last known to be in sync: a restarted broker may have lost
the tail of its log, however short its absence.
"""

from collections.abc import Iterable

import msgspec

from minibroker.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, LeaderEpoch, PartitionEpoch, TopicPartition

LOG_EPOCH_MAX = 2**30
"""A later leader epoch in a log is a flipped bit: no cluster has so many elections, and few more would fit."""


class RegisteredBroker(msgspec.Struct, frozen=True, kw_only=True):
    """One registration under /brokers/ids."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    incarnation_id: str
    directory_id: str = ""
    """Of its log directory."""
    listeners: tuple[tuple[str, str, int], ...] = ()
    """(listener name, host, port)"""


class Leadership(msgspec.Struct, frozen=True, kw_only=True):
    """The partition state in ZooKeeper, and its version there."""

    leader: BrokerId | None
    leader_epoch: LeaderEpoch
    in_sync_replicas: tuple[BrokerId, ...]
    """In order of the assignment; never empty."""
    incarnations: tuple[tuple[BrokerId, str], ...]
    """Of the in-sync replicas, when each was last known to be in sync."""
    directories: tuple[tuple[BrokerId, str], ...] = ()
    """Their log directories at that time; a member that is missing here has an unknown one."""
    controller_epoch: ControllerEpoch
    partition_epoch: PartitionEpoch
    is_recovering: bool = False
    """After an unclean election, until the leader ends it."""
    topic_id: str = ""
    """Id of the topic; empty: not known, an earlier version wrote this state."""

    def incarnation_of(self, broker_id: BrokerId) -> str | None:
        return dict(self.incarnations).get(broker_id)

    def directory_of(self, broker_id: BrokerId) -> str | None:
        return dict(self.directories).get(broker_id)


class ReplicaLog(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker reports of the files of one replica (GetReplicaLogInfo)."""

    whole_since: frozenset[str] = frozenset()
    """Incarnations of that broker since which its logs are proven whole."""
    undisturbed_since: frozenset[str] = frozenset()
    """Incarnations since which no loss was observed."""
    exists: bool = True
    topic_id: str = ""
    damage: str | None = None
    """Why the log must not be trusted."""
    unavailable: str | None = None
    """Why the log cannot be used now, though it may be sound: its disk is full, or a call to it failed."""
    log_start_offset: int = 0
    log_end_offset: int = 0
    last_epoch: int = -1
    high_watermark: int = -1
    """Everything below it was committed."""


class LossChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The leader that an operator has confirmed."""

    partition: TopicPartition
    leader: BrokerId
    leader_epoch: int
    """Of the partition, when the operator was asked."""
    latest_epoch_in_logs: int = -1
    """That one of the reported logs has reached. It is above the partition's only after an older copy of ZooKeeper's
    data was put in."""
    broker_epoch: BrokerEpoch
    """Of the registration that reported what its log holds."""
    live_members: tuple[BrokerEpoch, ...] = ()
    """Registrations of ISR members that were asked what their logs hold."""


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic: /brokers/topics/<t> and /config/topics/<t>."""

    topic_id: str
    assignment: dict[int, tuple[BrokerId, ...]]
    """Replicas by partition, in order of preference."""
    configs: dict[str, str] = {}


class Deletion(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the deletion of one topic."""

    is_started: bool = False
    """Decided: from now on no leader is elected for it, and no order creates a replica."""
    is_recorded: bool = False
    """Also written to ZooKeeper, so that the next controller knows it too: brokers may get orders to delete."""
    is_erased: bool = False
    """Every replica is gone; the topic's znodes may be removed."""
    erased: frozenset[tuple[int, BrokerId]] = frozenset()
    """(partition, broker): the broker has answered that the replica is gone."""


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Configuration that decisions depend on."""

    controller_id: BrokerId
    unclean_leader_election: bool = False
    leader_imbalance_percentage: int = 10
    default_replication_factor: int = 1
    default_partitions: int = 1
    delete_topics: bool = True
    answer_seconds_max: float = 6.0
    """A leader that leaves an order unanswered for this long is replaced, even while its session lives."""


UNCLEAN_CONFIG = "unclean.leader.election.enable"


class ControllerState(msgspec.Struct, kw_only=True):
    """Everything one controller knows in one controller epoch. Changed only within `steps.step`."""

    settings: ControllerSettings
    controller_epoch: ControllerEpoch
    brokers: dict[BrokerId, RegisteredBroker] = {}
    shutting_down: frozenset[BrokerId] = frozenset()
    offline_replicas: dict[BrokerId, frozenset[TopicPartition]] = {}
    """Replicas of live brokers that cannot serve: their log directory failed or is full (hardening rule 13), or their
    log is damaged or waits for a descriptor."""
    newest_reports: dict[BrokerEpoch, int] = {}
    """Of registrations that have reported their offline replicas: the number of the last report."""
    lost_connections: dict[BrokerId, float] = {}
    """When the liveness connections to these registered brokers broke that are not open again (loop seconds)."""
    logs: dict[BrokerId, dict[TopicPartition, ReplicaLog]] = {}
    """Logs that registered brokers reported of partitions without a leader."""
    asked_logs: dict[BrokerId, frozenset[TopicPartition]] = {}
    """Logs that were asked for and are not reported yet."""
    unresponsive: frozenset[BrokerId] = frozenset()
    """Registrations that have answered no order yet, or none lately: it is unknown whether they can serve."""
    is_gathering: bool = False
    """This controller is new, and gives all brokers time to answer before it elects among those that do."""
    newly_registered: frozenset[BrokerId] = frozenset()
    """Those of `unresponsive` that registered during this controller epoch and have not answered since."""
    silent_seconds: dict[BrokerId, float] = {}
    """How long an order to these brokers has been waiting for its answer."""
    topics: dict[str, Topic] = {}
    leaderships: dict[TopicPartition, Leadership] = {}
    """Partitions without an entry are new."""
    deletions: dict[str, Deletion] = {}
    unreadable: frozenset[TopicPartition] = frozenset()
    """Partitions with a state in ZooKeeper that cannot be parsed: left alone until an operator repairs it."""

    # ------------------------------------------------------------------------------------------------- brokers
    def live_brokers(self) -> list[RegisteredBroker]:
        """Registered brokers, by id."""
        return [self.brokers[broker_id] for broker_id in sorted(self.brokers)]

    def is_live(self, broker_id: BrokerId) -> bool:
        return broker_id in self.brokers

    def is_registered_as(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> bool:
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.broker_epoch == broker_epoch

    # ------------------------------------------------------------------------------------------------ replicas
    def is_online(self, partition: TopicPartition, broker_id: BrokerId) -> bool:
        """Its broker is registered and has not reported the replica as offline."""
        return broker_id in self.brokers and partition not in self.offline_replicas.get(broker_id, ())

    def is_eligible(self, partition: TopicPartition, broker_id: BrokerId) -> bool:
        """As far as its broker is concerned, it may be in the ISR (KIP-841)."""
        return self.is_online(partition, broker_id) and broker_id not in self.shutting_down

    def runs_as_recorded(self, leadership: Leadership, broker_id: BrokerId) -> bool:
        """It runs under the incarnation that was in sync (hardening rule 1)."""
        broker = self.brokers.get(broker_id)
        return broker is not None and leadership.incarnation_of(broker_id) == broker.incarnation_id

    def has_its_directory(self, leadership: Leadership, broker_id: BrokerId) -> bool:
        """It runs on the log directory that it had when it was in sync (hardening rule 15): another one, blank or
        foreign, holds no acknowledged record, whatever id the broker claims."""
        broker = self.brokers.get(broker_id)
        return broker is not None and leadership.directory_of(broker_id) in (None, broker.directory_id)

    def forget_logs(self, partitions: Iterable[TopicPartition]) -> None:
        """These partitions have a leader, or are gone: from now on their logs may change."""
        gone = frozenset(partitions)
        self.logs = {
            broker_id: {each: log for each, log in logs.items() if each not in gone}
            for broker_id, logs in self.logs.items()
        }
        self.asked_logs = {broker_id: asked - gone for broker_id, asked in self.asked_logs.items()}

    def forget_logs_of(self, broker_id: BrokerId, partitions: Iterable[TopicPartition]) -> None:
        """The same for replicas of one broker that went offline or came back online."""
        gone = frozenset(partitions)
        self.logs = {
            **self.logs,
            broker_id: {each: log for each, log in self.logs.get(broker_id, {}).items() if each not in gone},
        }
        self.asked_logs = {**self.asked_logs, broker_id: self.asked_logs.get(broker_id, frozenset()) - gone}

    def forget_topic(self, topic: str) -> None:
        """It is gone. What was left of it would count for the next topic of its name."""
        partitions = self.partitions_of(topic) if topic in self.topics else []
        for partition in partitions:
            self.leaderships.pop(partition, None)
        self.forget_logs(partitions)
        self.topics.pop(topic, None)
        self.deletions.pop(topic, None)
        self.offline_replicas = {
            broker_id: frozenset(each for each in offline if each.topic != topic)
            for broker_id, offline in self.offline_replicas.items()
        }
        self.unreadable = frozenset(each for each in self.unreadable if each.topic != topic)

    def answering(self, broker_ids: Iterable[BrokerId]) -> list[BrokerId]:
        """The brokers that answer orders, in the given order (hardening rule 17); none while this controller still
        gathers answers."""
        return [] if self.is_gathering else [each for each in broker_ids if each not in self.unresponsive]

    # ---------------------------------------------------------------------------------------------- partitions
    def assignment(self, partition: TopicPartition) -> tuple[BrokerId, ...]:
        """Its replicas in order of preference; none for a partition that does not exist."""
        topic = self.topics.get(partition.topic)
        return () if topic is None else topic.assignment.get(partition.partition, ())

    def partitions(self) -> list[TopicPartition]:
        """All partitions, sorted."""
        return [partition for topic in sorted(self.topics) for partition in self.partitions_of(topic)]

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for number in sorted(self.topics[topic].assignment)]

    def partitions_on(self, broker_ids: "frozenset[BrokerId] | set[BrokerId]") -> list[TopicPartition]:
        """Partitions that have a replica on any of these brokers, sorted."""
        return [each for each in self.partitions() if not broker_ids.isdisjoint(self.assignment(each))]

    def is_being_deleted(self, topic: str) -> bool:
        """Its deletion has started: no leader may be elected for it."""
        deletion = self.deletions.get(topic)
        return deletion is not None and deletion.is_started

    def offline_replicas_of(self, partition: TopicPartition) -> list[BrokerId]:
        return [each for each in self.assignment(partition) if not self.is_online(partition, each)]

    def allows_unclean_election(self, topic: str) -> bool:
        configured = self.topics[topic].configs.get(UNCLEAN_CONFIG)
        return self.settings.unclean_leader_election if configured is None else configured.lower() == "true"


def check_leadership(leadership: Leadership, assignment: tuple[BrokerId, ...]) -> None:
    """I1 and I9 as assertions: what is about to be written is legal, or this program has a bug."""
    members = leadership.in_sync_replicas
    assert members, f"empty ISR: {leadership}"
    assert len(set(members)) == len(members), f"a broker is twice in the ISR: {leadership}"
    assert set(members) <= set(assignment), f"ISR {members} is not within the assignment {assignment}"
    assert leadership.leader is None or leadership.leader in members, f"the leader is not in the ISR: {leadership}"
    assert leadership.leader_epoch >= 0, f"negative leader epoch: {leadership}"
    assert leadership.controller_epoch >= 1, f"no controller won epoch {leadership.controller_epoch}"
    assert {broker_id for broker_id, _ in leadership.incarnations} <= set(members), f"not an ISR member: {leadership}"
    assert {broker_id for broker_id, _ in leadership.directories} <= set(members), f"not an ISR member: {leadership}"
