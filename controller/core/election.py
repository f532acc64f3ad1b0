"""The leader and the ISR of a partition: decisions as values. Pure.

Owns: the elections (initial, offline, unclean, controlled shutdown, preferred) and the ISR changes that go with them.
Leaves to others: how a decision is written or announced.

Theory (replication rules, section 9; hardening rule 1). Kafka runs an election because of an event. Here one function,
`elect`, compares a partition with the facts and returns what it ought to be. The same comparison serves a broker that
failed, one that returned, one that is shutting down, a failed log directory and a controller that has just taken over.
So a half-done election of a failed controller is finished without knowing that it was begun. In order of preference:

    1. the leader stays while it is usable; members that are not usable leave the ISR, in a new epoch. While a usable
       leader does not answer, nothing changes
    2. offline election: the first usable ISR member that answers, in assignment order; members that are not usable
       leave the ISR. While none of the usable members answers, the election waits for the first answer; only a live
       leader that is not usable as recorded (restarted, for example) is taken away meanwhile
    3. a leader that is shutting down stays if no other member can take over
    4. if no member that ran on is there, a restarted one (its log may be short), by what `restarted_members` knows of
       their logs; it alone is the ISR. A member that has another log directory now does not lead
    5. unclean election, where it is allowed: the restarted member that lost least. It waits only for those that must
       be asked first (`choose` with is_patient=False). If none has anything: the first eligible replica, one on its old
       log directory first, then one that answers, once all had time to answer. The leader alone is the ISR
    6. no leader, a new epoch, and the ISR stays as it is, so it is never empty (KAFKA-708)
"""

import msgspec

from minibroker.controller.core import restarted_members
from minibroker.controller.core.controller_state import LOG_EPOCH_MAX, ControllerState, Leadership, check_leadership
from minibroker.protocol.ids import BrokerId, TopicPartition


class PartitionChange(msgspec.Struct, frozen=True, kw_only=True):
    """A decision: this partition is to become `after`, provided that it is `before` (None: it does not exist)."""

    partition: TopicPartition
    before: Leadership | None
    after: Leadership
    """Its partition epoch is that of `before`: the new one is known after the write."""
    reason: str

    @property
    def starts_epoch(self) -> bool:
        return self.before is None or self.after.leader_epoch > self.before.leader_epoch

    @property
    def is_election(self) -> bool:
        return self.before is None or self.before.leader != self.after.leader


def elect_all(state: ControllerState, partitions: list[TopicPartition], reason: str) -> list[PartitionChange]:
    """The changes that make these partitions fit the facts."""
    changes = [elect(state, partition, reason) for partition in partitions]
    return [change for change in changes if change is not None]


def elect(state: ControllerState, partition: TopicPartition, reason: str) -> PartitionChange | None:
    """Compare one partition with the facts; None if it is as it ought to be, or must stay as it is for now."""
    assignment = state.assignment(partition)
    if not assignment or state.is_being_deleted(partition.topic) or partition in state.unreadable:
        return None
    before = state.leaderships.get(partition)
    if before is None:  # new, unless an earlier controller has already erased its state
        return None if partition.topic in state.deletions else _initial(state, partition, assignment)
    members = [each for each in assignment if each in before.in_sync_replicas]
    present = [each for each in members if state.is_online(partition, each)]
    unrestarted = [each for each in present if state.runs_as_recorded(before, each)]
    usable = [each for each in unrestarted if each not in state.shutting_down]
    eligible = [each for each in assignment if state.is_eligible(partition, each)]

    answering = state.answering(usable)
    if before.leader in usable and before.leader not in answering:
        return None  # it may stay; but while it is unknown whether it lives, no other member leaves the ISR
    if answering:
        leader = before.leader if before.leader in usable else answering[0]
        return _change(state, partition, before, leader, usable, reason)
    if usable:  # wait for the first answer; meanwhile a restarted leader must not be announced as leader
        if before.leader is None or before.leader in unrestarted or not state.is_live(before.leader):
            return None
        return _change(state, partition, before, None, members, f"{reason}; no answer yet from brokers {usable}")
    if before.leader is not None and before.leader in unrestarted:  # it is shutting down, and no member can take over
        return _change(
            state, partition, before, before.leader, [before.leader], f"{reason}; no other replica can take over"
        )
    why_no_leader, is_waiting = "no in-sync replica is live", state.is_gathering
    have_nothing = [each for each in eligible if each in members and not state.has_its_directory(before, each)]
    if present and not unrestarted:
        choice = restarted_members.choose(state, partition, before)
        if choice.leader is not None:
            return _change(state, partition, before, choice.leader, [choice.leader], f"{reason}; {choice.reason}")
        why_no_leader = choice.reason
        if state.allows_unclean_election(partition.topic):
            choice = restarted_members.choose(state, partition, before, is_patient=False)
            if choice.leader is not None:
                why = f"{reason}; unclean election, records may be lost: {choice.reason}"
                return _change(state, partition, before, choice.leader, [choice.leader], why, is_unclean=True)
            is_waiting = is_waiting or bool(choice.waits_for)
            have_nothing = members
    if eligible and not is_waiting and state.allows_unclean_election(partition.topic):
        why = f"{reason}; unclean election: no in-sync replica is live, records may be lost"
        candidates = [each for each in eligible if each not in have_nothing] or eligible
        first = next(iter(state.answering(candidates)), candidates[0])  # nothing replaces a silent one: it is the ISR
        return _change(state, partition, before, first, [first], why, is_unclean=True)
    if before.leader is None or not members:
        return None
    return _change(state, partition, before, None, members, f"{reason}; {why_no_leader}")


def change_to(
    state: ControllerState,
    partition: TopicPartition,
    before: Leadership,
    leader: BrokerId,
    reason: str,
    latest_epoch_in_logs: int = -1,
) -> PartitionChange | None:
    """This replica becomes leader and the whole ISR, whatever the others held, in an epoch that no log has reached."""
    return _change(
        state,
        partition,
        before,
        leader,
        [leader],
        reason,
        is_unclean=True,
        latest_epoch_in_logs=latest_epoch_in_logs,
    )


def elect_preferred(state: ControllerState, partition: TopicPartition, reason: str) -> PartitionChange | None:
    """The first replica of the assignment leads, if it is usable and in sync; the ISR stays. A leader that does not
    answer would go on leading: it is fenced first, or answers again."""
    assignment, before = state.assignment(partition), state.leaderships.get(partition)
    if before is None or not assignment or state.is_being_deleted(partition.topic):
        return None
    preferred = assignment[0]
    is_able = (
        preferred in before.in_sync_replicas
        and state.is_eligible(partition, preferred)
        and state.runs_as_recorded(before, preferred)
        and preferred in state.answering([preferred])
    )
    if before.leader == preferred or not is_able or before.leader in state.unresponsive:
        return None
    members = [each for each in assignment if each in before.in_sync_replicas]
    return _change(state, partition, before, preferred, members, reason)


def imbalanced_partitions(state: ControllerState) -> list[TopicPartition]:
    """Partitions not led by their preferred leader, of brokers that lead too few of theirs."""
    preferred_of: dict[BrokerId, list[TopicPartition]] = {}
    for partition in state.partitions():
        assignment = state.assignment(partition)
        if partition in state.leaderships and partition.topic not in state.deletions:
            preferred_of.setdefault(assignment[0], []).append(partition)
    found: list[TopicPartition] = []
    for broker_id in sorted(preferred_of):
        preferred = preferred_of[broker_id]
        elsewhere = [each for each in preferred if state.leaderships[each].leader != broker_id]
        if len(elsewhere) * 100 > state.settings.leader_imbalance_percentage * len(preferred):
            found += elsewhere
    return sorted(found)


def _initial(
    state: ControllerState, partition: TopicPartition, assignment: tuple[BrokerId, ...]
) -> PartitionChange | None:
    """The first replica that answers leads. All that are online and not shutting down are in sync: none has any record
    yet."""
    members = [each for each in assignment if state.is_eligible(partition, each)]
    answering = state.answering(members)
    if not answering:
        return None
    after = Leadership(
        leader=answering[0],
        leader_epoch=0,
        in_sync_replicas=tuple(members),
        incarnations=tuple((each, state.brokers[each].incarnation_id) for each in members),
        directories=tuple((each, state.brokers[each].directory_id) for each in members),
        controller_epoch=state.controller_epoch,
        partition_epoch=0,
        topic_id=state.topics[partition.topic].topic_id,
    )
    check_leadership(after, assignment)
    return PartitionChange(partition=partition, before=None, after=after, reason="new partition")


def _change(
    state: ControllerState,
    partition: TopicPartition,
    before: Leadership,
    leader: BrokerId | None,
    members: list[BrokerId],
    reason: str,
    is_unclean: bool = False,
    latest_epoch_in_logs: int = -1,
) -> PartitionChange | None:
    """The decision as a value; None if nothing changes. Each change by a controller starts a new epoch."""
    incarnations = _incarnations(state, before, leader, members)
    is_whole = len(members) == len(state.assignment(partition))  # of an only replica, whose leader ends no recovery
    was = (before.leader, set(before.in_sync_replicas), set(before.incarnations))
    if was == (leader, set(members), set(incarnations)):
        return None
    after = Leadership(
        leader=leader,
        leader_epoch=max(before.leader_epoch, latest_epoch_in_logs, _latest_epoch_in_logs(state, partition)) + 1,
        in_sync_replicas=tuple(members),
        incarnations=incarnations,
        directories=_directories(state, before, leader, members),
        controller_epoch=state.controller_epoch,
        partition_epoch=before.partition_epoch,
        is_recovering=is_unclean or (before.is_recovering and not is_whole),
        topic_id=state.topics[partition.topic].topic_id,
    )
    check_leadership(after, state.assignment(partition))
    return PartitionChange(partition=partition, before=before, after=after, reason=reason)


def _latest_epoch_in_logs(state: ControllerState, partition: TopicPartition) -> int:
    """The latest leader epoch that a reported sound log of this topic has reached; -1 if none is known. It is above the
    recorded one only after an older copy of ZooKeeper's data was put in."""
    logs = [logs[partition] for logs in state.logs.values() if partition in logs]
    epochs = [
        each.last_epoch
        for each in logs
        if each.damage is None and not restarted_members.is_of_another_topic(state, partition, each)
    ]
    return max((each for each in epochs if each <= LOG_EPOCH_MAX), default=-1)


def _incarnations(
    state: ControllerState, before: Leadership, leader: BrokerId | None, members: list[BrokerId]
) -> tuple[tuple[BrokerId, str], ...]:
    """The leader's log is the reference from now on, so its present incarnation counts; the others keep theirs."""
    found: list[tuple[BrokerId, str]] = []
    for broker_id in members:
        recorded = before.incarnation_of(broker_id)
        incarnation = state.brokers[broker_id].incarnation_id if broker_id == leader else recorded
        if incarnation is not None:
            found.append((broker_id, incarnation))
    return tuple(found)


def _directories(
    state: ControllerState, before: Leadership, leader: BrokerId | None, members: list[BrokerId]
) -> tuple[tuple[BrokerId, str], ...]:
    """The same for log directories. An unknown one stays unknown until its replica leads or rejoins the ISR."""
    found: list[tuple[BrokerId, str]] = []
    for broker_id in members:
        recorded = before.directory_of(broker_id)
        directory = state.brokers[broker_id].directory_id if broker_id == leader else recorded
        if directory is not None:
            found.append((broker_id, directory))
    return tuple(found)
