"""Who lacks what its leader's log begins with (I39): only a log that began anew, and is not in sync, may."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.replication.state import Role
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.leaders_starts import LeadersStarts
from minibroker.simulation.checks.truth import Truth
from minibroker.simulation.cluster import SimulatedCluster

A = TopicPartition("a", 0)
LEADER, FOLLOWER = 1, 2
BEGAN, LATER = 8, 16
"""Where the follower's log began anew, and a later segment of it."""


class Case:
    """A leader whose log starts at 0, and a follower; as much of them as the judge looks at."""

    def __init__(self, members: tuple[int, ...], first: int) -> None:
        self.cluster = SimulatedCluster(0, brokers=2)
        self.truth = Truth(self.cluster, {"a": (1, 2, 1)})
        self.judge = LeadersStarts(self.cluster, self.truth)
        self.log = SimpleNamespace(
            topic_partition=A, size_bytes=1, damage=None, segments=[SimpleNamespace(base_offset=first)]
        )
        follows = SimpleNamespace(leader_id=LEADER, leader_epoch=3, role=Role.FOLLOWER, is_leader=False)
        leads = SimpleNamespace(leader_id=LEADER, leader_epoch=3, role=Role.LEADER, is_leader=True, log_start_offset=0)
        replicas = {
            LEADER: SimpleNamespace(topic_partition=A, state=leads),
            FOLLOWER: SimpleNamespace(topic_partition=A, state=follows, log=self.log),
        }
        true = SimpleNamespace(partition=A, members=members)
        doors = (
            (self.cluster, "replica", lambda broker_id, topic, partition=0: replicas[broker_id]),
            (self.truth, "states", lambda: [true]),
            (self.truth, "state", lambda partition: true),
        )
        for owner, name, told in doors:
            setattr(owner, name, told)

    def begin_anew(self, offset: int) -> None:
        """Inside the follower's process."""
        emptied = SimpleNamespace(topic_partition=A, size_bytes=0, segments=[SimpleNamespace(base_offset=offset)])
        process = self.cluster.world.process(f"broker-{FOLLOWER}")
        process.context.run(self.judge.cut, cast(Any, emptied), False)

    @property
    def found(self) -> list[str]:
        self.judge.look()
        return [finding.invariant for finding in self.truth.findings]


@pytest.mark.invariant("I39")
def test_a_follower_that_has_deleted_what_its_leader_has_not_is_found() -> None:
    assert Case(members=(LEADER,), first=BEGAN).found == ["I39"]


@pytest.mark.invariant("I39")
def test_a_log_that_began_anew_where_an_earlier_leaders_began_may_lack_what_lies_in_front() -> None:
    case = Case(members=(LEADER,), first=BEGAN)
    case.begin_anew(BEGAN)
    assert case.found == []


@pytest.mark.invariant("I39")
@pytest.mark.parametrize(("members", "first"), [((LEADER, FOLLOWER), BEGAN), ((LEADER,), LATER)])
def test_a_member_or_a_log_that_has_deleted_since_may_not(members: tuple[int, ...], first: int) -> None:
    case = Case(members, first)
    case.begin_anew(BEGAN)
    assert case.found == ["I39"]
