"""Each invariant of the small model can be broken: states made by hand that contradict one of them."""

from minibroker.broker.replication.state import ReplicationConfig, Role
from minibroker.controller.core.controller_state import Leadership
from minibroker.controller.core.election import PartitionChange
from minibroker.simulation.model.controller import PARTITION, incarnation
from minibroker.simulation.model.invariants import check_state, check_step, check_write
from minibroker.simulation.model.replica import ModelReplica, Record, StimulusOutcome, fresh

A, B, OTHER_A = (0, "a"), (1, "b"), (0, "x")


def _replica(broker_id: int, *log: Record, high_watermark: int = 0, leads: int | None = None) -> ModelReplica:
    replica = fresh(ReplicationConfig(broker_id=broker_id), broker_id)
    replica.log = log
    replica.state.log_end_offset, replica.state.high_watermark = len(log), high_watermark
    if leads is not None:
        replica.state.role, replica.state.leader_epoch = Role.LEADER, leads
        replica.state.in_sync_replicas = (broker_id,)
    return replica


def _reference(leader: int, *members: int, epoch: int = 0, version: int = 0) -> Leadership:
    return Leadership(
        leader=leader,
        leader_epoch=epoch,
        in_sync_replicas=members,
        incarnations=tuple((each, incarnation(1)) for each in members),
        controller_epoch=1,
        partition_epoch=version,
    )


def _state(*replicas: ModelReplica, reference: Leadership | None = None, committed: tuple[Record, ...] = ()) -> str:
    found = check_state(replicas, reference or _reference(1, 1), committed, (1, 1))
    return "" if found is None else found.partition(":")[0]


def _write(before: Leadership, after: Leadership, *replicas: ModelReplica) -> str:
    change = PartitionChange(partition=PARTITION, before=before, after=after, reason="by hand")
    found = check_write(change, replicas)
    return "" if found is None else found.partition(":")[0]


def test_a_sound_state_breaks_nothing() -> None:
    leader = _replica(1, A, B, high_watermark=1, leads=1)
    assert _state(leader, _replica(2, A), reference=_reference(1, 1, 2, epoch=1), committed=(A,)) == ""


def test_what_a_leader_shows_is_in_its_whole_isr() -> None:
    leader = _replica(1, A, high_watermark=1, leads=0)
    leader.state.in_sync_replicas = (1, 2)
    assert _state(leader, _replica(2), committed=(A,)) == "I2"


def test_members_of_the_isr_hold_what_was_committed() -> None:
    assert _state(_replica(1, A), _replica(2), reference=_reference(1, 1, 2), committed=(A,)) == "I3"


def test_members_of_the_isr_reach_the_high_watermark_of_the_current_leader() -> None:
    leader = _replica(1, A, high_watermark=1, leads=0)
    assert _state(leader, _replica(2), reference=_reference(1, 1, 2), committed=(A,)) == "I4"


def test_equal_offset_and_epoch_mean_equal_records() -> None:
    assert _state(_replica(1, A), _replica(2, OTHER_A)) == "I17"
    assert _state(_replica(1, A, B), _replica(2, (0, "x"), B)) == "I16"


def test_an_epoch_has_the_leader_that_zookeeper_named() -> None:
    assert _state(_replica(1), _replica(2, leads=1)) == "I18"


def test_what_was_committed_stays() -> None:
    assert _state(_replica(1, B, high_watermark=1), committed=(A,)) == "I19"
    assert _state(_replica(1, B, leads=1), reference=_reference(1, 1, epoch=1), committed=(A,)) == "I19"


def test_a_leader_counts_only_what_was_reported_to_it() -> None:
    before, after = _replica(1, A, leads=0), _replica(1, A, high_watermark=1, leads=0)
    after.state.in_sync_replicas = (1, 2)
    assert str(check_step(before, ("fetched",), StimulusOutcome(after))).startswith("I5: ")
    after.reports = {2: 1}
    assert check_step(before, ("fetched",), StimulusOutcome(after)) is None
    assert str(check_step(after, ("fetched",), StimulusOutcome(before))).startswith("I11: ")


def test_a_copy_continues_the_log_of_the_leader() -> None:
    before, after = _replica(2, A), _replica(2, A, B)
    reply = ("reply", 1, 1, 0, 0, False, (B,), (OTHER_A,))
    assert str(check_step(before, reply, StimulusOutcome(after))).startswith("I7: ")
    assert check_step(before, (*reply[:7], (A,)), StimulusOutcome(after)) is None


def test_one_proposal_is_in_flight() -> None:
    replica = _replica(1, leads=0)
    replica.state.proposal_in_flight = 1
    assert str(check_step(replica, ("lag",), StimulusOutcome(replica, proposals=((2, 0, 0, ()),)))).startswith("I8: ")


def test_writes_of_the_partitions_state() -> None:
    before = _reference(1, 1, 2)
    assert _write(before, _reference(3, 1, 2, epoch=1, version=1)) == "I1"
    assert _write(before, _reference(1, 1, version=2)) == "I8"
    assert _write(before, _reference(2, 1, 2, version=1)) == "I27"
    assert _write(before, _reference(3, 3, epoch=1, version=1)) == "I28"


def test_a_joiner_has_reached_the_high_watermark_in_the_present_epoch() -> None:
    leader, joiner = _replica(1, A, high_watermark=1, leads=0), _replica(2, A)
    leader.state.leader_epoch_start, joiner.state.leader_epoch = 0, 0
    before, after = _reference(1, 1), _reference(1, 1, 2, version=1)
    assert _write(before, after, leader, joiner) == ""
    joiner.log = ()
    assert _write(before, after, leader, joiner) == "I6"
