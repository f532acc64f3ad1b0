"""Which in-sync replica may lead when all of them were restarted: a decision on what their files hold. Pure.

Owns: which brokers are asked for their logs, which ones an election waits for, and the choice. Leaves to others: how
logs are asked for (`log_inquiry`) and what else an election depends on (`election`).

Theory (hardening rule 16; KIP-966; Protocol-Aware Recovery, FAST'18). After a stop of the whole cluster no broker runs
under the incarnation that the ISR names, and each log may have lost its unsynced tail, or all of it. Electing the first
broker to come back would truncate good copies. So:

    1. a member whose log is proven whole since the incarnation that the ISR names leads at once: it lost nothing
    2. otherwise the election waits for members, until two of them are undisturbed since then (their machines ran on,
       and no loss is observed), or all are there. A killed process leaves no proof: files may be gone or rolled back
       since. But not of two at once, while at most one disk is faulty, and each log holds what is committed. A member
       on another log directory, with a damaged log, or with none where there was one, counts as present and has
       nothing. One that is offline for another reason (a full disk, a failed call) is waited for: its log may be the
       largest
    3. then the largest (epoch of the last record, log end) leads: no two logs of one epoch differ below the smaller
       end, and a later epoch began with all that was committed before (as in Raft, section 5.4.1). Two undisturbed logs
       are compared with each other only. A single one gives way to a disturbed log only if that is longer as well: a
       log that lost records is shorter than a whole copy, and an epoch may be a flipped bit (decision 0022)
    4. each registered replica, in the ISR or not, is asked up to where it knows the log to be committed, and an
       election by rule 3 waits for each one that is not silent, unless two undisturbed logs decide. A member whose log
       ends below that has lost acknowledged records (a rolled-back disk, missing files): it has nothing. A later epoch
       in its log overrides only what a replica outside the ISR knows
    5. no member leads if none has anything: only an operator may decide what is to be lost. But if all of several
       members are there and none ever had a log, the partition is as it was created

What a broker reports of its log is valid while it is registered and there is no leader: without a leader no log
changes.
"""

from collections.abc import Iterable

import msgspec

from minibroker.controller.core.controller_state import LOG_EPOCH_MAX, ControllerState, Leadership, ReplicaLog
from minibroker.protocol.ids import BrokerId, TopicPartition

UNDISTURBED_MIN = 2
"""Undisturbed logs that suffice: one more than the disks that may be faulty at a time."""

OTHER_DIRECTORY = "has another log directory now than when it was in sync, and counts for nothing"

OTHER_TOPIC = "has a log of another topic of this name"


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """One member of an ISR whose members were all restarted."""

    broker_id: BrokerId
    log: ReplicaLog | None = None
    """The log that it may lead with; None: nothing, or unknown."""
    is_waited_for: bool = False
    must_be_asked: bool = False
    is_absent: bool = False
    """It has no log, and there is no sign that it ever had one."""
    is_proven: bool = False
    is_undisturbed: bool = False
    problem: str | None = None
    """Why it has nothing, or why the election waits for it."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The leader, or why there is none."""

    leader: BrokerId | None
    reason: str
    waits_for: tuple[BrokerId, ...] = ()


def choose(
    state: ControllerState, partition: TopicPartition, leadership: Leadership, is_patient: bool = True
) -> Choice:
    """Choose among the members of this ISR. Without patience (unclean election), wait only for those able to answer."""
    standings = [standing(state, partition, leadership, each) for each in _members(state, partition, leadership)]
    standings = [_held_to(state, partition, leadership, each) for each in standings]
    ready = [each for each in standings if each.log is not None]
    proven = next((each for each in ready if each.is_proven), None)
    if proven is not None:
        why = f"the log of broker {proven.broker_id} is whole since it was in sync"
        return Choice(leader=proven.broker_id, reason=why)
    has_enough_undisturbed = sum(each.is_undisturbed for each in ready) >= UNDISTURBED_MIN
    waited = [each for each in standings if each.is_waited_for and (is_patient or each.must_be_asked)]
    is_alone = bool(ready) and is_patient and not has_enough_undisturbed
    outsiders = _outsiders_to_ask(state, partition, leadership) if is_alone else []
    waits_for = (*(each.broker_id for each in waited), *outsiders)
    problems = "; ".join(f"broker {each.broker_id} {each.problem}" for each in standings if each.problem is not None)
    if waits_for and not has_enough_undisturbed:
        problems = "; ".join((problems, *(f"broker {each} has not said yet what it knows" for each in outsiders)))
        reason = f"waiting for brokers {list(waits_for)}: {problems.removeprefix('; ')}"
        return Choice(leader=None, reason=reason, waits_for=waits_for)
    if not ready and len(standings) > 1 and all(each.is_absent for each in standings):
        return Choice(leader=standings[0].broker_id, reason="no member of the ISR ever had a log of this partition")
    if not ready:
        return Choice(leader=None, reason=f"no member of the ISR has its log: {problems}")
    candidates = _candidates(ready)
    best = max(candidates, key=_size)
    assert best.log is not None
    why = (
        f"no in-sync replica has run on without a restart; of brokers {[each.broker_id for each in candidates]}"
        f" {best.broker_id} has the largest log: epoch {best.log.last_epoch}, end {best.log.log_end_offset}"
    )
    return Choice(leader=best.broker_id, reason=f"{why}; {problems}" if problems else why)


def best_log(
    state: ControllerState, partition: TopicPartition, leadership: Leadership, broker_ids: Iterable[BrokerId]
) -> BrokerId | None:
    """The one of these, in the ISR or not, that lost least as far as is known, for an operator who accepts a loss:
    rules 3 and 4, without waiting for any broker."""
    standings = [_reported(state, partition, leadership, each) for each in broker_ids]
    held = [_held_to(state, partition, leadership, each) for each in standings]
    ready = [each for each in held if each.log is not None] or standings
    return max(_candidates(ready), key=_size).broker_id if ready else None


def _reported(
    state: ControllerState, partition: TopicPartition, leadership: Leadership, broker_id: BrokerId
) -> Standing:
    log = state.logs[broker_id][partition]
    recorded = leadership.incarnation_of(broker_id)
    is_undisturbed = recorded in log.undisturbed_since or recorded in log.whole_since
    return Standing(broker_id=broker_id, log=log, is_undisturbed=is_undisturbed)


def _candidates(ready: list[Standing]) -> list[Standing]:
    """The members among which the largest log leads."""
    undisturbed = [each for each in ready if each.is_undisturbed]
    if len(undisturbed) >= UNDISTURBED_MIN:
        return undisturbed
    return [each for each in ready if _may_outdo(each, undisturbed)]


def standing(
    state: ControllerState, partition: TopicPartition, leadership: Leadership, broker_id: BrokerId
) -> Standing:
    """What the controller knows of one member."""
    broker = state.brokers.get(broker_id)
    if broker is None:
        return Standing(broker_id=broker_id, is_waited_for=True, problem="is not registered")
    if not state.has_its_directory(leadership, broker_id):
        return Standing(broker_id=broker_id, problem=OTHER_DIRECTORY)
    if broker_id in state.shutting_down:
        return Standing(broker_id=broker_id, is_waited_for=True, problem="is shutting down")
    log = state.logs.get(broker_id, {}).get(partition)
    if log is None:
        problem = "has not said yet what its log holds"
        return Standing(broker_id=broker_id, is_waited_for=True, must_be_asked=True, problem=problem)
    if broker_id in state.unresponsive:
        return Standing(broker_id=broker_id, is_waited_for=True, problem="does not answer any more")
    if (damage := damage_of(leadership, log)) is not None:
        return Standing(broker_id=broker_id, problem=f"has a damaged log: {damage}")
    if log.unavailable is not None or not state.is_online(partition, broker_id):
        return Standing(broker_id=broker_id, is_waited_for=True, problem="has an offline replica")
    recorded = leadership.incarnation_of(broker_id)
    is_undisturbed = recorded in log.undisturbed_since
    if is_of_another_topic(state, partition, log):
        return Standing(broker_id=broker_id, is_absent=True, problem=OTHER_TOPIC)
    if not log.exists and not is_undisturbed:
        return Standing(broker_id=broker_id, is_absent=True, problem="has no log, and may have had one")
    is_proven = log.exists and recorded in log.whole_since
    return Standing(broker_id=broker_id, log=log, is_proven=is_proven, is_undisturbed=is_undisturbed or is_proven)


def damage_of(leadership: Leadership, log: ReplicaLog) -> str | None:
    """Why the log must not be trusted. One whose last epoch is impossible would refuse to lead a possible one."""
    if log.damage is None and log.last_epoch > max(LOG_EPOCH_MAX, leadership.leader_epoch):
        return f"its last record has leader epoch {log.last_epoch}, and the partition is in {leadership.leader_epoch}"
    return log.damage


def is_of_another_topic(state: ControllerState, partition: TopicPartition, log: ReplicaLog) -> bool:
    return log.topic_id not in ("", state.topics[partition.topic].topic_id)


def _held_to(state: ControllerState, partition: TopicPartition, leadership: Leadership, member: Standing) -> Standing:
    """A log that ends below what another replica knows to be committed has lost records."""
    if member.log is None:
        return member
    known = _committed(state, partition, leadership, member.log)
    if not known or member.log.log_end_offset >= max(known)[0]:
        return member
    high_watermark, holder = max(known)
    problem = (
        f"has lost records: its log ends at {member.log.log_end_offset}, and broker {holder} knows that all up to"
        f" {high_watermark} was committed"
    )
    return Standing(broker_id=member.broker_id, problem=problem)


def _committed(
    state: ControllerState, partition: TopicPartition, leadership: Leadership, member_log: ReplicaLog
) -> list[tuple[int, BrokerId]]:
    """Up to where replicas know the log to be committed, and which ones. One outside the ISR may know it from before an
    accepted loss, which began a later epoch. A member was aligned after every such loss."""
    topic_id = state.topics[partition.topic].topic_id
    return [
        (log.high_watermark, each)
        for each, logs in state.logs.items()
        if (log := logs.get(partition)) is not None
        and log.topic_id == topic_id
        and log.damage is None
        and (each in leadership.in_sync_replicas or log.last_epoch >= member_log.last_epoch)
    ]


def _outsiders_to_ask(state: ControllerState, partition: TopicPartition, leadership: Leadership) -> list[BrokerId]:
    """Replicas outside the ISR that are live, and have not reported yet what they know: also one that registered a
    moment ago and has answered no order yet. One that is silent for longer is not waited for."""
    return [
        each
        for each in state.assignment(partition)
        if each not in leadership.in_sync_replicas
        and state.is_eligible(partition, each)
        and each not in state.silent_seconds
        and partition not in state.logs.get(each, {})
    ]


def needs_logs(state: ControllerState, partition: TopicPartition) -> bool:
    """Whether members of the ISR are live, but none has run on without a restart since it was in sync. Offline replicas
    are asked, too: they report why."""
    leadership = state.leaderships.get(partition)
    if leadership is None or state.is_being_deleted(partition.topic) or partition in state.unreadable:
        return False
    present = [each for each in leadership.in_sync_replicas if state.is_live(each)]
    online = [each for each in present if state.is_online(partition, each)]
    return bool(present) and not any(state.runs_as_recorded(leadership, each) for each in online)


def questions(state: ControllerState, partitions: Iterable[TopicPartition]) -> dict[BrokerId, list[TopicPartition]]:
    """Which brokers must still be asked about which of these partitions."""
    found: dict[BrokerId, list[TopicPartition]] = {}
    for partition in partitions:
        if not needs_logs(state, partition):
            continue
        leadership = state.leaderships[partition]
        for broker_id in _members(state, partition, leadership):
            is_asked = partition in state.asked_logs.get(broker_id, ())
            if not is_asked and standing(state, partition, leadership, broker_id).must_be_asked:
                found.setdefault(broker_id, []).append(partition)
        for broker_id in _outsiders_to_ask(state, partition, leadership):
            if partition not in state.asked_logs.get(broker_id, ()):
                found.setdefault(broker_id, []).append(partition)
    return found


def _members(state: ControllerState, partition: TopicPartition, leadership: Leadership) -> list[BrokerId]:
    return [each for each in state.assignment(partition) if each in leadership.in_sync_replicas]


def _may_outdo(member: Standing, undisturbed: list[Standing]) -> bool:
    """An undisturbed log, or one that is longer than each of them."""
    return member in undisturbed or all(_size(member)[1] > _size(each)[1] for each in undisturbed)


def _size(standing: Standing) -> tuple[int, int]:
    assert standing.log is not None
    return standing.log.last_epoch, standing.log.log_end_offset
