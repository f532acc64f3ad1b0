"""The core under any order of events: brokers come, go and restart, writes are lost or overtaken, controllers change.

The model is the smallest ZooKeeper that can refuse a write: a dict of states with versions. Every write checks the
invariants of partition states, so that a violation fails where it is caused.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.controller.core.alter_partition import check_proposal
from minibroker.controller.core.control_requests import LeaderAndIsr, UpdateMetadata
from minibroker.controller.core.controller_state import (
    ControllerSettings,
    ControllerState,
    Leadership,
    RegisteredBroker,
    ReplicaLog,
    Topic,
)
from minibroker.controller.core.election import PartitionChange
from minibroker.controller.core.events import (
    AlterPartitionReceived,
    Answer,
    AnswersDue,
    AskLogs,
    BrokerAnswered,
    ContinueWith,
    ControlledShutdownReceived,
    ControllerEffect,
    ControllerEvent,
    LeadershipsWritten,
    LogsReceived,
    RebalanceDue,
    RegistrationsChanged,
    Send,
    TookOver,
    WriteLeaderships,
)
from minibroker.controller.core.steps import step
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionTopic,
    BrokerState,
    ControlledShutdownRequest,
    TopicPartitions,
)

BROKERS = (1, 2, 3)
P0, P1 = TopicPartition("lines", 0), TopicPartition("lines", 1)
TOPICS = {"lines": Topic(topic_id="t", assignment={0: (1, 2, 3), 1: (3, 1)})}


class World:
    """ZooKeeper, the brokers, and one controller at a time."""

    def __init__(self, unclean: bool) -> None:
        self.unclean = unclean
        self.states: dict[TopicPartition, Leadership] = {}
        self.registered: dict[int, RegisteredBroker] = {}
        self.transactions = 0
        self.incarnations = 0
        self.received: dict[tuple[int, TopicPartition], tuple[int, int]] = {}
        self.leader_of_epoch: dict[tuple[TopicPartition, int], int | None] = {}
        self.lose_writes = 0
        self.was_overtaken = False
        self.controller_epoch = 0
        self.take_over()

    # ---------------------------------------------------------------------------------------------------- the shell
    def take_over(self) -> None:
        self.controller_epoch += 1
        self.state = ControllerState(
            settings=ControllerSettings(controller_id=1, unclean_leader_election=self.unclean),
            controller_epoch=self.controller_epoch,
            brokers=dict(self.registered),
            topics=dict(TOPICS),
            leaderships=dict(self.states),
        )
        self.has_metadata: set[int] = set()
        self.process(TookOver())

    def process(self, event: ControllerEvent) -> list[Answer]:
        answers = [answer for effect in step(self.state, event) for answer in self.perform(effect)]
        if isinstance(event, TookOver | RegistrationsChanged):
            self.answer()
        return answers

    def answer(self) -> None:
        """Answer for brokers that still have the registration that the controller knows."""
        for broker_id in sorted(self.state.unresponsive):
            broker = self.state.brokers[broker_id]
            if self.registered.get(broker_id) == broker:
                self.process(BrokerAnswered(broker_id=broker_id, broker_epoch=broker.broker_epoch))
        self.process(AnswersDue())

    def perform(self, effect: ControllerEffect) -> list[Answer]:
        match effect:
            case WriteLeaderships():
                return self.process(self.write(effect.changes))
            case ContinueWith():
                return self.process(effect.event)
            case Answer():
                return [effect]
            case Send():
                self.send(effect)
            case AskLogs():
                return self.process(self.logs_of(effect))
        return []

    def logs_of(self, effect: AskLogs) -> LogsReceived:
        """A broker reports its log at once: the higher its id, the longer its log."""
        broker = effect.broker
        logs = {
            each: ReplicaLog(whole_since=frozenset(), log_end_offset=broker.broker_id) for each in effect.partitions
        }
        return LogsReceived(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch, logs=logs)

    def write(self, changes: tuple[PartitionChange, ...]) -> LeadershipsWritten:
        written, lost = [], {}
        for change in changes:
            now = self.states.get(change.partition)
            if now != change.before:
                lost[change.partition] = now
                continue
            after = msgspec.structs.replace(change.after, partition_epoch=0 if now is None else now.partition_epoch + 1)
            self.check(change, after)
            self.states[change.partition] = after
            if self.lose_writes:  # it succeeded, but only a read of ZooKeeper shows that
                self.lose_writes -= 1
                lost[change.partition] = after
            else:
                written.append(msgspec.structs.replace(change, after=after))
        return LeadershipsWritten(written=tuple(written), lost=lost)

    def send(self, effect: Send) -> None:
        if self.registered.get(effect.broker_id) != self.state.brokers[effect.broker_id]:
            return  # it refuses orders for its earlier registration
        if not effect.orders or isinstance(effect.orders[0], UpdateMetadata):
            self.has_metadata.add(effect.broker_id)
        for order in effect.orders:
            if isinstance(order, LeaderAndIsr):
                assert effect.broker_id in self.has_metadata, "LeaderAndIsr before any UpdateMetadata"
                self.receive(effect.broker_id, order)

    def receive(self, broker_id: int, order: LeaderAndIsr) -> None:
        """I29 from a broker's side: one controller never sends it an older state than before."""
        content, key = order.content, (broker_id, order.partition)
        now = (content.leader_epoch, content.partition_epoch)
        assert now >= self.received.get(key, (-1, -1)), f"{key} received {self.received[key]}, then {now}"
        self.received[key] = now
        stored = self.states[order.partition]
        assert now <= (stored.leader_epoch, stored.partition_epoch), "sent before it was written"

    # -------------------------------------------------------------------------------------------------- invariants
    def check(self, change: PartitionChange, after: Leadership) -> None:
        before, partition = change.before, change.partition
        assignment = TOPICS[partition.topic].assignment[partition.partition]
        members = after.in_sync_replicas
        assert members and set(members) <= set(assignment), "I9"
        assert after.leader is None or after.leader in members, "I1"
        eligible = [each for each in members if self.state.is_eligible(partition, each)]
        if before is None:
            assert list(members) == eligible, "I34"
            return
        assert after.leader_epoch in (before.leader_epoch, before.leader_epoch + 1), "I27"
        assert after.controller_epoch >= before.controller_epoch, "I27"
        if after.leader != before.leader or len(members) < len(before.in_sync_replicas):
            was_asked = change.reason == "asked for by the leader"
            assert after.leader_epoch > before.leader_epoch or (was_asked and after.leader == before.leader), "I27"
        if after.leader is not None:
            self.check_leader(change, after, before)
        key = (partition, after.leader_epoch)
        assert self.leader_of_epoch.setdefault(key, after.leader) == after.leader, "I18"

    def check_leader(self, change: PartitionChange, after: Leadership, before: Leadership) -> None:
        partition, leader, members = change.partition, after.leader, after.in_sync_replicas
        assert leader is not None
        assert self.state.is_live(leader), "I28: an unregistered leader"
        if leader not in before.in_sync_replicas:
            assert self.unclean and members == (leader,) and after.is_recovering, "I28"
        newcomers = [each for each in members if each not in before.in_sync_replicas]
        assert all(self.state.is_eligible(partition, each) for each in newcomers), "I34"
        assert all(self.state.is_live(each) for each in members), "I34: an unregistered member with a live leader"
        for broker_id, incarnation in after.incarnations:
            assert self.state.brokers[broker_id].incarnation_id == incarnation, "I31"
        restarted = not self.state.runs_as_recorded(before, leader)
        if restarted and leader in before.in_sync_replicas:
            whole = [each for each in before.in_sync_replicas if self.state.runs_as_recorded(before, each)]
            assert not [each for each in whole if self.state.is_online(partition, each)], "hardening rule 1"
            assert members == (leader,), "hardening rule 1"
            are_live = [self.state.is_live(each) for each in before.in_sync_replicas]
            assert all(are_live) or (self.unclean and after.is_recovering), "hardening rule 16"

    # ------------------------------------------------------------------------------------------------------ actions
    def register(self, broker_id: int, same_incarnation: bool) -> None:
        self.transactions += 1
        before = self.registered.get(broker_id)
        self.incarnations += 1
        incarnation = before.incarnation_id if before is not None and same_incarnation else f"n{self.incarnations}"
        self.registered[broker_id] = RegisteredBroker(
            broker_id=broker_id, broker_epoch=self.transactions, incarnation_id=incarnation
        )
        self.has_metadata.discard(broker_id)
        self.received = {key: epochs for key, epochs in self.received.items() if key[0] != broker_id}

    def kill(self, broker_id: int) -> None:
        self.registered.pop(broker_id, None)

    def read_registrations(self) -> None:
        self.process(RegistrationsChanged(brokers=dict(self.registered)))

    def alter(self, partition: TopicPartition, members: list[int], stale_by: int) -> None:
        """The leader proposes itself and some live brokers, with the epochs that it knows."""
        stored = self.states.get(partition)
        if stored is None or stored.leader is None or stored.leader not in self.registered:
            return
        requested = sorted({stored.leader, *members})
        proposal = AlterPartitionData(
            partition_index=partition.partition,
            leader_epoch=stored.leader_epoch,
            partition_epoch=max(0, stored.partition_epoch - stale_by),
            new_isr_with_epochs=[
                BrokerState(
                    broker_id=each,
                    broker_epoch=self.registered[each].broker_epoch if each in self.registered else -1,
                )
                for each in requested
            ],
        )
        request = AlterPartitionRequest(
            broker_id=stored.leader,
            broker_epoch=self.registered[stored.leader].broker_epoch,
            topics=[AlterPartitionTopic(topic_name=partition.topic, partitions=[proposal])],
        )
        assert len(self.process(AlterPartitionReceived(request_id=1, request=request))) == 1

    def shut_down(self, broker_id: int, offline: list[TopicPartitions] | None) -> None:
        if broker_id not in self.state.brokers:
            return
        request = ControlledShutdownRequest(
            broker_id=broker_id,
            broker_epoch=self.state.brokers[broker_id].broker_epoch,
            offline_partitions=offline,
        )
        assert len(self.process(ControlledShutdownReceived(request_id=1, request=request))) == 1

    def overtake(self, partition: TopicPartition) -> None:
        """A write that was in flight when its controller failed arrives now."""
        stored = self.states.get(partition)
        if stored is not None:
            self.states[partition] = msgspec.structs.replace(stored, partition_epoch=stored.partition_epoch + 1)
            self.was_overtaken = True

    def check_settled(self) -> None:
        """After a read of all registrations, nothing is left to decide, and each partition that can be is led (I37)."""
        if self.was_overtaken:
            self.take_over()  # a controller notices it only when it writes that partition
        self.read_registrations()
        for partition in (P0, P1):
            stored = self.states.get(partition)
            assert stored == self.state.leaderships.get(partition), "the cache differs from ZooKeeper"
            if stored is None:
                assert not [
                    each for each in self.state.assignment(partition) if self.state.is_eligible(partition, each)
                ]
                continue
            able = [each for each in stored.in_sync_replicas if self.state.is_eligible(partition, each)]
            whole = [each for each in able if self.state.runs_as_recorded(stored, each)]
            all_able = len(able) == len(stored.in_sync_replicas)
            assert stored.leader is not None or not (whole or all_able), f"I37: {stored} has no leader"


broker_ids = st.sampled_from(BROKERS)
partitions = st.sampled_from([P0, P1])
actions = st.one_of(
    st.tuples(st.just("register"), broker_ids, st.booleans()),
    st.tuples(st.just("kill"), broker_ids),
    st.tuples(st.just("read_registrations")),
    st.tuples(st.just("alter"), partitions, st.lists(broker_ids, max_size=3), st.integers(0, 1)),
    st.tuples(st.just("shut_down"), broker_ids, st.none()),
    st.tuples(
        st.just("shut_down"),
        broker_ids,
        st.sampled_from([[], [TopicPartitions(topic_name="lines", partitions=[0])]]),
    ),
    st.tuples(st.just("overtake"), partitions),
    st.tuples(st.just("lose_write")),
    st.tuples(st.just("rebalance")),
    st.tuples(st.just("take_over")),
)


@pytest.mark.invariant("I1", "I9", "I18", "I27", "I28", "I29", "I31", "I34", "I37", "I38")
@pytest.mark.parametrize("unclean", [False, True], ids=["clean", "unclean"])
@settings(max_examples=300)
@given(script=st.lists(actions, max_size=30))
def test_partition_states_stay_legal_in_any_order_of_events(unclean: bool, script: list[tuple[object, ...]]) -> None:
    world = World(unclean)
    for broker_id in BROKERS:
        world.register(broker_id, same_incarnation=False)
    world.read_registrations()
    for name, *arguments in script:
        if name == "lose_write":
            world.lose_writes = 1
        elif name == "rebalance":
            world.process(RebalanceDue())
        else:
            getattr(world, str(name))(*arguments)
    world.check_settled()


def test_checking_a_proposal_changes_nothing() -> None:
    world = World(unclean=False)
    for broker_id in BROKERS:
        world.register(broker_id, same_incarnation=False)
    world.read_registrations()
    before = msgspec.json.encode(world.state.leaderships[P0])
    proposal = AlterPartitionData(
        partition_index=0,
        leader_epoch=0,
        partition_epoch=0,
        new_isr_with_epochs=[BrokerState(broker_id=1, broker_epoch=1)],
    )
    assert isinstance(check_proposal(world.state, 1, P0, proposal), PartitionChange)
    assert msgspec.json.encode(world.state.leaderships[P0]) == before
