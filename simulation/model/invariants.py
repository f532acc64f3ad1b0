"""The invariants of the small model, checked from outside: logs, high watermarks and ZooKeeper's state must agree.

Owns: I1 to I8, I11, I16 to I19 and hardening rule 11 as functions of values; each returns the violation, beginning with
its number, or None. Does not trust what a replica knows of the others: I5 and I7 compare with what was really sent.

A replica *runs as recorded* if it runs under the incarnation that the ISR lists. A replica that has lost bytes since
then is listed under an older one. I3 and I19 of the other members fail if it counts before it has left the ISR.
"""

from minibroker.broker.replication.state import Role
from minibroker.controller.core.controller_state import Leadership
from minibroker.controller.core.election import PartitionChange
from minibroker.simulation.model.controller import incarnation
from minibroker.simulation.model.replica import ModelReplica, Record, Stimulus, StimulusOutcome


# --------------------------------------------------------------------------------------------------- one replica's step
def check_step(before: ModelReplica, stimulus: Stimulus, outcome: StimulusOutcome) -> str | None:
    """I5, I7, I8, I11 of one step of one replica."""
    after = outcome.replica
    if stimulus[0] == "end":
        return None
    return (
        _check_high_watermark(before, after) or _check_copy(before, stimulus, after) or _check_proposal(before, outcome)
    )


def _check_high_watermark(before: ModelReplica, after: ModelReplica) -> str | None:
    was, now = before.state, after.state
    if not now.is_leader:
        return None
    if was.is_leader and was.leader_epoch == now.leader_epoch and now.high_watermark < was.high_watermark:
        fell = f"fell from {was.high_watermark} to {now.high_watermark}"
        return f"I11: the high watermark of leader {after.broker_id} {fell}"
    if now.high_watermark <= was.high_watermark:
        return None
    for member in now.in_sync_replicas:
        reported = after.reports.get(member, -1)
        if member != after.broker_id and reported < now.high_watermark:
            report = f"ended at {reported}" if reported >= 0 else "nothing"
            return (
                f"I5: leader {after.broker_id} of epoch {now.leader_epoch} raised its high watermark to "
                f"{now.high_watermark}; ISR member {member} reported {report} under this epoch"
            )
    return None


def _check_copy(before: ModelReplica, stimulus: Stimulus, after: ModelReplica) -> str | None:
    if stimulus[0] != "reply" or len(after.log) <= len(before.log):
        return None
    prefix = stimulus[7]
    if before.log == prefix:
        return None
    return (
        f"I7: replica {after.broker_id} copied from offset {len(before.log)} on, but below it holds "
        f"{_show(before.log)} and the leader of epoch {stimulus[1]} held {_show(prefix)}"
    )


def _check_proposal(before: ModelReplica, outcome: StimulusOutcome) -> str | None:
    flying = before.state.proposal_in_flight
    for proposal in outcome.proposals:
        if flying is not None and outcome.replica.state.is_leader and proposal[0] != flying:
            return f"I8: replica {before.broker_id} proposes {proposal[0]} while {flying} is in flight"
    return None


# ------------------------------------------------------------------------------------------------- a controller's write
def check_write(change: PartitionChange, replicas: tuple[ModelReplica, ...]) -> str | None:
    """I1, I6, I8, I27, I28 of one write of the partition's state."""
    before, after = change.before, change.after
    assert before is not None
    if after.leader is not None and after.leader not in after.in_sync_replicas:
        return f"I1: leader {after.leader} is not in ISR {after.in_sync_replicas}"
    if after.partition_epoch != before.partition_epoch + 1:
        return f"I8: version {before.partition_epoch} became {after.partition_epoch}"
    if after.leader != before.leader and after.leader_epoch != before.leader_epoch + 1:
        return f"I27: leader {before.leader} became {after.leader}, epoch {before.leader_epoch} {after.leader_epoch}"
    if after.leader is not None and after.leader not in before.in_sync_replicas:
        return f"I28: {after.leader} was not in ISR {before.in_sync_replicas}"
    joined = [each for each in after.in_sync_replicas if each not in before.in_sync_replicas]
    leader = next((each for each in replicas if each.broker_id == after.leader), None)
    for member in joined:
        assert leader is not None
        found = _check_joiner(after, leader, next(each for each in replicas if each.broker_id == member))
        if found is not None:
            return found
    return None


def check_replacement(change: PartitionChange, registered: tuple[tuple[int, int, int], ...]) -> str | None:
    """Hardening rule 11: a leader that loses leadership and ISR is unregistered, or registered as another process."""
    before, after = change.before, change.after
    assert before is not None
    if before.leader in (None, after.leader) or before.leader in after.in_sync_replicas:
        return None
    epoch, starts, _ = registered[before.leader - 1]
    if not epoch or before.incarnation_of(before.leader) != incarnation(starts):
        return None
    return (
        f"hardening rule 11: {after.leader} replaces leader {before.leader} in epoch {after.leader_epoch}, "
        f"and {before.leader} is still registered under epoch {epoch}"
    )


def _check_joiner(after: Leadership, leader: ModelReplica, joiner: ModelReplica) -> str | None:
    """A joiner with an ended process is listed as that process, and is detected by that."""
    if after.incarnation_of(joiner.broker_id) != incarnation(joiner.starts):
        return None
    state = leader.state
    if not state.is_leader or state.leader_epoch != after.leader_epoch:
        return None
    floor = max(state.high_watermark, state.leader_epoch_start or 0)
    end = len(joiner.log)
    if joiner.state.leader_epoch == after.leader_epoch and end >= floor:
        return None
    return (
        f"I6: {joiner.broker_id} joins ISR {after.in_sync_replicas} of epoch {after.leader_epoch}; it ends at {end} "
        f"and follows epoch {joiner.state.leader_epoch}; leader {leader.broker_id}: "
        f"high watermark {state.high_watermark}, start of its epoch {state.leader_epoch_start}"
    )


# -------------------------------------------------------------------------------------------------------------- a state
def check_state(
    replicas: tuple[ModelReplica, ...],
    reference: Leadership,
    committed: tuple[Record, ...],
    leaders: tuple[int | None, ...],
) -> str | None:
    """I2, I3, I4, I16 to I19 of one state. `leaders`: the leader that ZooKeeper named in each epoch."""
    for replica in replicas:
        found = _check_leader(replica, replicas, leaders) or _check_prefix(replica, committed)
        if found is not None:
            return found
    return _check_matching(replicas) or _check_members(replicas, reference, committed)


def _check_leader(
    replica: ModelReplica, replicas: tuple[ModelReplica, ...], leaders: tuple[int | None, ...]
) -> str | None:
    state = replica.state
    if state.role is not Role.LEADER or state.leader_epoch is None:
        return None
    if leaders[state.leader_epoch] != replica.broker_id:
        return f"I18: {replica.broker_id} leads epoch {state.leader_epoch}, given to {leaders[state.leader_epoch]}"
    visible = replica.log[: state.high_watermark]
    for other in replicas:
        is_member = other.broker_id in state.in_sync_replicas
        if is_member and not other.has_lost and other.log[: state.high_watermark] != visible:
            return (
                f"I2: leader {replica.broker_id} of epoch {state.leader_epoch} shows {_show(visible)}; "
                f"{other.broker_id}, in its ISR, holds {_show(other.log)}"
            )
    return None


def _check_prefix(replica: ModelReplica, committed: tuple[Record, ...]) -> str | None:
    high_watermark = replica.state.high_watermark
    visible = replica.log[:high_watermark]
    if visible == committed[:high_watermark]:
        return None
    return f"I19: {_show(committed)} was committed; below its high watermark {replica.broker_id} shows {_show(visible)}"


def _check_matching(replicas: tuple[ModelReplica, ...]) -> str | None:
    for index, one in enumerate(replicas):
        for other in replicas[index + 1 :]:
            shared = min(len(one.log), len(other.log))
            for offset in range(shared - 1, -1, -1):
                if one.log[offset][0] != other.log[offset][0]:
                    continue
                if one.log[offset] != other.log[offset]:
                    text = (
                        f"offset {offset} of epoch {one.log[offset][0]} holds {_show(one.log)} and {_show(other.log)}"
                    )
                    return f"I17: {text} on {one.broker_id} and {other.broker_id}"
                if one.log[:offset] != other.log[:offset]:
                    text = f"{_show(one.log)} and {_show(other.log)} agree at offset {offset}, but not below"
                    return f"I16: {one.broker_id} and {other.broker_id} hold {text}"
                break
    return None


def _check_members(
    replicas: tuple[ModelReplica, ...], reference: Leadership, committed: tuple[Record, ...]
) -> str | None:
    """Every replica that may be elected cleanly holds all that was ever shown; the current leader's high watermark is
    covered."""
    leader = next((each for each in replicas if each.broker_id == reference.leader), None)
    is_current = leader is not None and leader.state.is_leader and leader.state.leader_epoch == reference.leader_epoch
    if is_current and leader is not None and leader.log[: len(committed)] != committed:
        return f"I19: {_show(committed)} was committed; leader {leader.broker_id} holds {_show(leader.log)}"
    for replica in replicas:
        if reference.incarnation_of(replica.broker_id) != incarnation(replica.starts):
            continue
        if is_current and leader is not None and len(replica.log) < leader.state.high_watermark:
            return (
                f"I4: {replica.broker_id} of ISR {reference.in_sync_replicas} ends at {len(replica.log)}, "
                f"the high watermark of leader {leader.broker_id} is {leader.state.high_watermark}"
            )
        if replica.log[: len(committed)] != committed:
            return (
                f"I3: {_show(committed)} was committed; {replica.broker_id} of ISR {reference.in_sync_replicas} "
                f"holds {_show(replica.log)}"
            )
    return None


def _show(log: tuple[Record, ...]) -> str:
    return " ".join(f"{value}@{epoch}" for epoch, value in log) or "nothing"
