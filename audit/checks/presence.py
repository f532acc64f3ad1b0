"""Checks that every expected replica is present. Pure.

Owns: the meaning of a missing replica, by the source that expects it. A broker for which no directory was given is one
finding for all its replicas (expectation.py), not one for each.
"""

from collections.abc import Collection

from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.protocol.ids import TopicPartition


def check_presence(partition: TopicPartition, present: Collection[int], expected: ExpectedPartition) -> list[Finding]:
    """`there`: the brokers that hold a replica of the partition's topic."""
    absent = {
        broker: why
        for broker, why in expected.holders.items()
        if broker not in present and broker not in expected.absent_brokers
    }
    found = [
        _finding(partition, Kind.MISSING_REPLICA, broker, f"broker {broker} should hold a replica ({why}) and has none")
        for broker, why in absent.items()
    ]
    if not present and expected.holders:
        message = (
            "no replica is left on any broker that was given; brokers that should hold one:"
            f" {', '.join(map(str, expected.holders))}"
        )
        found.append(_finding(partition, Kind.MISSING_REPLICA, None, message))
    if not present and not expected.holders and expected.listed and expected.source is expected.unknown_to is None:
        brokers = sorted(expected.listed)
        message = (
            f"the checkpoints of broker {', '.join(map(str, brokers))} list it, and no replica is left: its topic was"
            " deleted a moment before they were killed, or all replicas are lost"
        )
        found.append(_finding(partition, Kind.UNPROVEN, None, message, others=tuple(brokers)))
    if present and expected.unknown_to is not None:
        message = (
            f"{expected.unknown_to} does not know this partition: its topic is being deleted, or was while broker"
            f" {', '.join(map(str, sorted(present)))} was away, or the state is another cluster's or an older one"
        )
        found.append(_finding(partition, Kind.UNEXPECTED_PARTITION, None, message))
    for broker in expected.replicas:
        if broker not in present and broker not in expected.holders and broker not in expected.absent_brokers:
            message = (
                f"broker {broker} is assigned, was out of sync and has no replica: it would have fetched a new one"
            )
            found.append(_finding(partition, Kind.REPLICA_ABSENT, broker, message))
    return found


def absent_replicas(present: Collection[int], expected: ExpectedPartition) -> tuple[int, ...]:
    """Brokers that should hold a replica and have none, missing brokers included."""
    return tuple(broker for broker in expected.holders if broker not in present)


def _finding(
    partition: TopicPartition, kind: Kind, broker: int | None, message: str, others: tuple[int, ...] = ()
) -> Finding:
    topic, number = partition
    return finding(kind, message, broker=broker, others=others, topic=topic, partition=number)
