"""No follower lacks what its leader has (I39): the checker, on replicas of two brokers that never start."""

from types import SimpleNamespace
from typing import cast

import pytest

from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import PartitionState
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.checks.replication.leaders_starts import LeaderStartChecker
from minibroker.simulation.cluster import SimulatedCluster

A = TopicPartition("a", 0)
EPOCH = 3
LEADERS_START = 48
NOTHING, POWER_LOSS, FAULTY = "nothing", "power loss", "faulty disk"
LEADER_FAULTY = "faulty disk of the leader"
UNCLEAN = "unclean election"


class Replica:
    """The part of a replica that the checker reads: of leader epoch 3, led by broker 1."""

    def __init__(self, role: Role, start: int, first_offset: int) -> None:
        self.topic_partition = A
        segments = [SimpleNamespace(base_offset=first_offset)]
        self.log = SimpleNamespace(damage=None, size_bytes=1, segments=segments, recorded_start_offset=start)
        self.state = SimpleNamespace(
            role=role,
            is_leader=role is Role.LEADER,
            leader_id=1,
            leader_epoch=EPOCH,
            log_start_offset=start,
            low_watermark=start,
        )


def replica(role: Role, start: int, first_offset: int) -> Partition:
    return cast(Partition, Replica(role, start, first_offset))


def answer(leader_epoch: int, start: int | None, *, diverging: bool = False) -> ev.FetchAnswered:
    return ev.FetchAnswered(
        leader_epoch=leader_epoch,
        fetch_offset=100,
        error_code=ErrorCode.NONE,
        log_start_offset=start,
        diverging=diverging,
    )


@pytest.mark.invariant("I39")
@pytest.mark.parametrize(
    ("happened", "answered", "first_offset", "found"),
    [
        (NOTHING, None, 56, True),
        (NOTHING, None, 48, False),
        (POWER_LOSS, None, 56, False),
        (POWER_LOSS, answer(EPOCH, LEADERS_START), 56, True),
        (FAULTY, None, 56, False),
        (FAULTY, answer(EPOCH, LEADERS_START), 56, True),
        (FAULTY, answer(EPOCH, LEADERS_START), 48, False),
        (FAULTY, answer(EPOCH - 1, LEADERS_START), 56, False),
        (FAULTY, answer(EPOCH, None), 56, False),
        (FAULTY, answer(EPOCH, LEADERS_START, diverging=True), 56, False),
        (LEADER_FAULTY, None, 56, False),
        (LEADER_FAULTY, answer(EPOCH, LEADERS_START), 56, True),
        (UNCLEAN, None, 56, False),
        (UNCLEAN, answer(EPOCH, LEADERS_START), 56, True),
    ],
)
def test_a_disk_may_lack_records_until_its_leader_says_where_its_log_starts(
    happened: str,
    answered: ev.FetchAnswered | None,
    first_offset: int,
    found: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower that led before has a start of its own which no other replica heard of; a segment that its disk lost
    below that start looks deleted until the new leader answers (seed 17351561). A power loss may leave such a hole. And
    a leader's disk may hold an older start than the one that was recorded there (seed 17362972), and a leader that was
    elected uncleanly may start below what the last members of the ISR deleted (seed 17250724)."""
    cluster = SimulatedCluster(0, brokers=2)
    reference = ReferenceState(cluster, {"a": (1, 2, 1)})
    replicas = {1: replica(Role.LEADER, LEADERS_START, 40), 2: replica(Role.FOLLOWER, 64, first_offset)}
    monkeypatch.setattr(cluster, "replica", lambda broker_id, topic, partition: replicas[broker_id])
    monkeypatch.setattr(reference, "states", lambda: [cast(ReferencePartition, SimpleNamespace(partition=A))])
    if happened == FAULTY:
        reference.faulty.add(2)
    if happened == LEADER_FAULTY:
        reference.faulty.add(1)
    if happened == UNCLEAN:
        reference.uncleanly_led.add(A)
    checker = LeaderStartChecker(cluster, reference)
    inside = cluster.world.process("broker-2").context.run
    inside(checker.replica_loaded, replica(Role.FOLLOWER, 64, 40))
    cluster.world.machine("broker-2").storage.boots += happened == POWER_LOSS
    inside(checker.replica_loaded, replicas[2])
    if answered is not None:
        inside(checker.stepped, replicas[2], answered, (), False)
    checker.sample()
    assert [finding.invariant for finding in reference.findings] == (["I39"] if found else [])


@pytest.mark.parametrize(("leader", "found"), [(2, False), (3, True), (-1, False)])
def test_a_leader_from_outside_the_isr_is_remembered(leader: int, found: bool) -> None:
    reference = ReferenceState(SimulatedCluster(0, brokers=3), {"a": (1, 3, 1)})
    reference.allows_unclean_election = True
    before = SimpleNamespace(leader=1, leader_epoch=4, controller_epoch=1, members=(1, 2))
    after = SimpleNamespace(leader=leader, leader_epoch=5, controller_epoch=1, isr=[leader])
    reference._check_transition(cast(ReferencePartition, before), cast(PartitionState, after), A, ())
    assert (A in reference.uncleanly_led, reference.findings) == (found, [])
