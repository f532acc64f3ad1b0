"""Each false write and false commit is found by its rule."""

import pytest

from minibroker.simulation.checks.replication.lineage import Lineage, Writer
from minibroker.simulation.checks.replication.reference_log import LoggedBatch, ReferenceLog

ONE, TWO = Writer(1, 1), Writer(2, 1)


class FoundRules:
    """Collects the rules of findings."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def __call__(self, rule: str, text: str, *facts: str) -> None:
        self.rules.append(rule)


def batch(offset: int, epoch: int, crc: int = 7) -> LoggedBatch:
    return LoggedBatch(offset, offset + 1, epoch, crc, -1, -1, -1, -1)


class Cluster:
    """A lineage in which broker 1 leads epoch 0 and broker 2 epoch 1."""

    def __init__(self) -> None:
        self.found = FoundRules()
        self.lineage = Lineage(self.found)
        self.lineage.leads(0, ONE)
        self.lineage.leads(1, TWO)
        self.logs = {ONE: ReferenceLog(), TWO: ReferenceLog()}

    def write(self, writer: Writer, written: LoggedBatch) -> None:
        self.lineage.appended(self.logs[writer], written, writer)
        self.logs[writer].append(written)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.invariant("I16", "I17", "I19")
def test_copies_in_order_are_no_finding(cluster: Cluster) -> None:
    for writer in (ONE, TWO):
        cluster.write(writer, batch(0, 0))
        cluster.write(writer, batch(1, 0, crc=8))
    cluster.write(TWO, batch(2, 1))
    cluster.lineage.commit(cluster.logs[TWO], 3, TWO)
    cluster.lineage.compare(cluster.logs[ONE], 0, 2, "broker 1")
    assert cluster.found.rules == []
    assert cluster.lineage.committed_end == 3
    assert not cluster.lineage.holds_all(cluster.logs[ONE])


@pytest.mark.invariant("I18")
def test_second_leader_of_an_epoch(cluster: Cluster) -> None:
    cluster.lineage.leads(1, ONE)
    assert cluster.found.rules == ["I18"]


@pytest.mark.invariant("I18")
def test_the_same_broker_restarted_leads_its_old_epoch(cluster: Cluster) -> None:
    cluster.lineage.leads(1, Writer(2, 2))
    assert cluster.found.rules == ["I18"]


@pytest.mark.invariant("I17")
def test_record_of_an_epoch_from_another_writer_than_its_leader(cluster: Cluster) -> None:
    cluster.write(ONE, batch(0, 1))
    assert cluster.found.rules == ["I17"]


@pytest.mark.invariant("I16")
def test_other_bytes_at_the_same_offset_and_epoch(cluster: Cluster) -> None:
    cluster.write(ONE, batch(0, 0, crc=7))
    cluster.write(TWO, batch(0, 0, crc=8))
    assert cluster.found.rules == ["I16"]


@pytest.mark.invariant("I7", "I16")
def test_copy_on_top_of_another_history(cluster: Cluster) -> None:
    cluster.write(ONE, batch(0, 0, crc=7))
    cluster.logs[TWO].append(batch(0, 0, crc=8))
    cluster.write(ONE, batch(1, 0))
    cluster.write(TWO, batch(1, 0))
    assert cluster.found.rules == ["I16"]


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("wrong", [batch(2, 0), batch(0, 0)])
def test_gap_or_overlap_in_a_log(cluster: Cluster, wrong: LoggedBatch) -> None:
    cluster.write(ONE, batch(0, 0))
    cluster.write(ONE, wrong)
    assert "I12" in cluster.found.rules


@pytest.mark.invariant("I12")
def test_epoch_that_falls_along_a_log(cluster: Cluster) -> None:
    cluster.lineage.leads(2, ONE)
    cluster.write(ONE, batch(0, 2))
    cluster.write(ONE, batch(1, 0))
    assert cluster.found.rules == ["I12"]


@pytest.mark.invariant("I19")
def test_other_record_below_a_high_watermark(cluster: Cluster) -> None:
    cluster.write(ONE, batch(0, 0))
    cluster.lineage.commit(cluster.logs[ONE], 1, ONE)
    cluster.write(TWO, batch(0, 1))
    cluster.lineage.compare(cluster.logs[TWO], 0, 1, "broker 2")
    assert cluster.found.rules == ["I19"]


@pytest.mark.invariant("I22")
def test_high_watermark_of_a_follower_above_what_is_committed(cluster: Cluster) -> None:
    cluster.write(ONE, batch(0, 0))
    cluster.write(TWO, batch(0, 0))
    cluster.lineage.compare(cluster.logs[TWO], 1, 1, "broker 2")  # no leader committed it
    assert cluster.found.rules == ["I22"]


@pytest.mark.invariant("I3")
def test_log_without_the_last_committed_batch(cluster: Cluster) -> None:
    cluster.write(ONE, batch(0, 0))
    cluster.lineage.commit(cluster.logs[ONE], 1, ONE)
    assert cluster.lineage.holds_all(cluster.logs[ONE])
    assert not cluster.lineage.holds_all(cluster.logs[TWO])
    assert cluster.lineage.holds_all(ReferenceLog(start=1)), "retention removed it"


@pytest.mark.invariant("I19")
@pytest.mark.parametrize("is_lost", [False, True])
def test_unclean_election_breaks_the_promise_only_if_it_loses_a_record(cluster: Cluster, is_lost: bool) -> None:
    """Else an operator who accepts a loss that is none would let everything pass for the rest of the run."""
    cluster.write(ONE, batch(0, 0))
    if not is_lost:
        cluster.write(TWO, batch(0, 0))
    cluster.lineage.commit(cluster.logs[ONE], 1, ONE)
    cluster.lineage.record_unclean_election(cluster.logs[TWO])
    assert cluster.lineage.is_broken is is_lost
    assert cluster.lineage.committed_end == (0 if is_lost else 1)
    cluster.lineage.compare(cluster.logs[ONE], 0, 2, "broker 1")  # nothing is committed there
    assert cluster.found.rules == ([] if is_lost else ["I22"])
