"""An audit of a running cluster while topics are made and deleted, and replicas leave the ISR: no false alarm.

ZooKeeper says what should be there, and is read before the files are.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minibroker.audit import run
from minibroker.audit.checks.findings import Kind, PartitionResult, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading import zookeeper_source
from minibroker.audit.reading.discovery import Inventory
from minibroker.audit.reports.report import AuditReport
from minibroker.protocol.files.cluster_state import ClusterState
from minibroker.protocol.ids import TopicPartition
from tests.audit.damage import ENCODED
from tests.audit.planted_cluster import PlantedCluster

LINES = TopicPartition("lines", 0)


class Topics:
    """A running cluster with a topic of three replicas. ZooKeeper's answers and the files change as the test says."""

    def __init__(self, cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        cluster.write(LINES, ENCODED)
        self.state = cluster.state
        cluster.forget_state()
        self.waits: list[float] = []
        self.now: Callable[[], ClusterState] = lambda: self.state
        self.at_each_wait: Callable[[], None] = lambda: None
        monkeypatch.setattr(zookeeper_source, "read_cluster_from_zookeeper", lambda _: self.now())
        monkeypatch.setattr(time, "sleep", self._wait)

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.at_each_wait()

    def answer(self, *states: ClusterState) -> None:
        """One answer after the other; the last one stays."""
        answers = list(states)
        self.now = lambda: answers.pop(0) if len(answers) > 1 else answers[0]

    def delete(self, *brokers: int) -> None:
        for broker in brokers:
            shutil.rmtree(self.cluster.replica(broker, LINES).directory)
            self.cluster.set_high_watermark(broker, LINES, None)

    def audit(self) -> AuditReport:
        return run.run_audit([str(self.cluster.root)], "local", zookeeper="z:1")


@pytest.fixture
def topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Topics:
    return Topics(PlantedCluster(tmp_path, clean=False), monkeypatch)


def test_a_topic_deleted_between_zookeepers_answer_and_the_listing_is_not_missing(topics: Topics) -> None:
    """No file of it was there in both looks, so nothing had changed, and its replicas were missing. On a real cluster
    with topics that come and go, one audit in four ended so."""
    topics.delete(1, 2, 3)
    topics.answer(topics.state, msgspec.structs.replace(topics.state, partitions={}))
    report = topics.audit()
    assert (report.exit_code, report.partitions) == (0, ())


def test_a_replica_that_left_the_isr_behind_zookeepers_answer_lacks_nothing(topics: Topics) -> None:
    """Its broker was killed, the others went on, and then all was quiet: both looks found the same files."""
    before = topics.state
    topics.cluster.write(LINES, ENCODED[:-1], brokers=[3])
    topics.cluster.write_state(LINES, 1, before.partitions["lines-0"].leader_epoch, [1, 2], replicas=[1, 2, 3])
    topics.cluster.forget_state()
    topics.answer(before, topics.cluster.state)
    report = topics.audit()
    assert [item.message for item in report.findings if item.severity is Severity.ERROR] == []
    assert report.exit_code == 0


def test_the_audit_waits_for_brokers_that_make_the_logs_of_a_topic(topics: Topics) -> None:
    """The states of a topic of 2,000 partitions are in ZooKeeper seconds before its last log is made."""
    to_make = [1, 2, 3]
    topics.delete(*to_make)

    def make_one() -> None:
        if to_make:
            topics.cluster.write(LINES, ENCODED, brokers=[to_make.pop()])
            topics.cluster.forget_state()

    topics.at_each_wait = make_one
    report = topics.audit()
    assert [item.message for item in report.findings if item.severity is Severity.ERROR] == []
    assert (report.exit_code, topics.waits) == (0, [run.STATE_SECONDS] * 3)


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The partitions that are read, look by look."""
    looks: list[list[str]] = []
    check = compare_locally

    def counted(inventory: Inventory, *rest: Any, **how: Any) -> list[PartitionResult]:
        looks.append(sorted(inventory.expected))
        return check(inventory, *rest, **how)

    monkeypatch.setattr(run, "compare_locally", counted)
    return looks


def test_the_audit_does_not_wait_longer_for_a_replica_that_no_broker_makes(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it read the others again, which may take hours."""
    topics.delete(3)
    listed = count_checks(monkeypatch)
    report = topics.audit()
    assert (report.exit_code, report.findings[0].kind, report.findings[0].broker) == (10, Kind.MISSING_REPLICA, 3)
    assert topics.waits == [run.STATE_SECONDS] * (run.ATTEMPTS_MAX - 1)
    assert listed == [["lines-0"]]
