"""A finding names what was broken, when and where, and the module in which a crash began."""

import pytest

from minibroker.broker.replication.invariants import check_offsets
from minibroker.broker.replication.state import ReplicaState, ReplicationConfig
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.finding import CheckerFinding, crash_finding


def test_finding_prints_rule_partition_and_both_facts() -> None:
    finding = CheckerFinding(
        invariant="I4",
        text="a member ends below the high watermark",
        at_seconds=12.5,
        partition=TopicPartition("a", 1),
        facts=("the end is 3", "the high watermark is 4"),
    )
    assert (
        str(finding)
        == "12.500 I4 a-1 a member ends below the high watermark\n    the end is 3\n    the high watermark is 4"
    )


def test_crash_names_the_module_that_raised() -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=1), high_watermark=7)
    with pytest.raises(AssertionError) as caught:
        check_offsets(state)
    group = ExceptionGroup("tasks", [caught.value])
    assert crash_finding(group, None, "broker-1").origin == "broker.replication.invariants"


def test_crash_inside_a_patch_names_the_patch() -> None:
    def planted() -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError) as caught:
        planted()
    assert crash_finding(caught.value, None).origin == "tests.simulation.checks.test_finding"
