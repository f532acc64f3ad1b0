"""Whole runs on simulated brokers: cleared with defaults, convicted of what is planted."""

from __future__ import annotations

import asyncio
import itertools
import re
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from msgspec.structs import replace

from minibroker.audit.errors import AuditError
from minibroker.broker.broker import Broker
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.requests import handlers
from minibroker.chaos.history.lies import LIE_BY_NAME
from minibroker.chaos.plan.disk_lies import DISK_LIE_BY_NAME
from minibroker.chaos.plan.drawing import draw_plan, parse_faults
from minibroker.chaos.report.document import ChaosReport
from minibroker.chaos.run.chaos_load import TOPIC, VALUE_BYTES
from minibroker.chaos.run.chaos_run import ChaosRun
from minibroker.chaos.run.execution import HISTORY_FILE, HTML_FILE, JSON_FILE, execute
from minibroker.chaos.run.opening import run_on
from minibroker.chaos.run.options import ChaosOptions, LieIn
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import Record
from minibroker.client.errors import LogTruncated, Where
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.ids import TopicPartition


def run(
    out: Path,
    faults: str = "kill:leader,bit-flip",
    lie: str | None = None,
    lie_in: LieIn = "history",
    seconds: float = 8,
    **settings: str,
) -> ChaosReport:
    plan = draw_plan(3, seconds, "simulated", parse_faults(faults))
    options = ChaosOptions(backend="simulated", plan=plan, out=out, rate=40, lie=lie, lie_in=lie_in, settings=settings)
    return run_on("simulated", execute(options, lambda text: None))


@pytest.fixture(scope="module")
def cleared(tmp_path_factory: pytest.TempPathFactory) -> tuple[ChaosReport, Path]:
    out = tmp_path_factory.mktemp("cleared")
    return run(out), out


def test_defaults_are_cleared(cleared: tuple[ChaosReport, Path]) -> None:
    report, _ = cleared
    assert report.verdict.outcome == "cleared", report.verdict.reasons
    assert report.counts["elections"] > 0
    assert any(fault.began_s is not None for fault in report.faults)


def failing(*_: object) -> NoReturn:
    raise KeyError("planted")


@pytest.mark.parametrize(
    ("owner", "name", "reason"),
    [
        (PartitionLog, "append", "would have ended it: .*planted"),
        (Broker, "serve", "ended by itself: .*planted"),
        (handlers, "answer_offset_for_leader_epoch", "met a bug in OFFSET_FOR_LEADER_EPOCH"),
    ],
    ids=["in a callback", "at its end", "in a query"],
)
def test_bug_of_a_broker_convicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str, reason: str
) -> None:
    """An exception in a callback, as of each broken invariant, ends a real broker: here the run was cleared. So it was
    of a query, which the other broker repeats. One that ended the broker ended the run, without a report."""
    begin = ChaosRun._start_clients

    def begin_and_plant(self: ChaosRun) -> Any:
        asyncio.get_running_loop().call_later(2, lambda: monkeypatch.setattr(owner, name, failing))
        asyncio.get_running_loop().call_later(9, monkeypatch.undo)
        return begin(self)

    monkeypatch.setattr(ChaosRun, "_start_clients", begin_and_plant)
    verdict = run(tmp_path, faults="kill:leader").verdict
    assert verdict.outcome == "convicted"
    assert any(re.search(reason, each) for each in verdict.reasons), verdict.reasons


@pytest.mark.parametrize("changed", [{"key": b"other"}, {"value": b"producer-1.0/3"}, {"headers": (("a", b""),)}])
def test_record_that_is_read_otherwise_than_it_was_written_convicts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """The history tells records apart by the beginning of their values, and knows nothing else of them."""
    getmany = Consumer.getmany

    async def changing(
        self: Consumer, *partitions: TopicPartition, **limits: Any
    ) -> dict[TopicPartition, list[Record]]:
        found = await getmany(self, *partitions, **limits)
        name = b"producer-1.0/3".ljust(VALUE_BYTES, b".")
        return {
            partition: [replace(each, **changed) if each.value == name else each for each in records]
            for partition, records in found.items()
        }

    monkeypatch.setattr(Consumer, "getmany", changing)
    verdict = run(tmp_path, faults="kill:leader").verdict
    assert verdict.outcome == "convicted"
    assert "producer-1.0/3" in verdict.reasons[0], verdict.reasons


def test_records_that_a_seek_elsewhere_loses_convict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that moves in one partition reads on in the others. All of it counted as moved."""
    seek, getmany = Consumer.seek, Consumer.getmany
    losing: dict[Consumer, set[TopicPartition]] = {}

    def seeking(self: Consumer, partition: TopicPartition, offset: int) -> None:
        seek(self, partition, offset)
        losing[self] = {*self.assignment()} - {partition}

    async def losing_one(self: Consumer, *partitions: TopicPartition, **limits: Any) -> Any:
        found = await getmany(self, *partitions, **limits)
        hurt = losing.pop(self, set()) if found else set()
        return {each: records[each in hurt :] for each, records in found.items()}

    monkeypatch.setattr(Consumer, "seek", seeking)
    monkeypatch.setattr(Consumer, "getmany", losing_one)
    report = run(tmp_path, faults="kill:leader")
    assert report.verdict.outcome == "convicted"
    assert {*report.anomaly_counts} == {"poll-skip", "offset-gap"}


def test_reader_that_is_told_of_a_truncated_log_convicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that was below a high watermark is ever truncated. The reader went back and read the same again."""
    getmany, calls = Consumer.getmany, itertools.count()

    async def truncated(self: Consumer, *partitions: TopicPartition, **limits: Any) -> Any:
        if next(calls) == 40:
            raise LogTruncated(Where(topic_partition=TopicPartition(TOPIC, 0)), 7, 3)
        return await getmany(self, *partitions, **limits)

    monkeypatch.setattr(Consumer, "getmany", truncated)
    verdict = run(tmp_path, faults="kill:leader").verdict
    assert verdict.outcome == "convicted"
    assert "was truncated" in verdict.reasons[0], verdict.reasons


@pytest.mark.invariant("I19", "I21")
def test_lost_disks_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    report = run(tmp_path, faults="disk-lost", seconds=40)
    assert report.verdict.outcome == "cleared", report.verdict.reasons
    lost = [fault for fault in report.faults if fault.planned.kind == "disk-lost" and fault.began_s is not None]
    assert len({broker for fault in lost for broker in fault.brokers}) > 1


def test_a_run_repeats_from_its_seed(cleared: tuple[ChaosReport, Path], tmp_path: Path) -> None:
    _, out = cleared
    run(tmp_path)
    assert (tmp_path / HISTORY_FILE).read_bytes() == (out / HISTORY_FILE).read_bytes()


def test_the_report_is_one_page_that_needs_no_network(cleared: tuple[ChaosReport, Path]) -> None:
    report, out = cleared
    page = (out / HTML_FILE).read_text()
    assert "Cleared" in page and f"seed {report.seed}" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    assert msgspec.json.decode((out / JSON_FILE).read_bytes())["verdict"]["outcome"] == "cleared"


@pytest.mark.parametrize("lie", sorted(LIE_BY_NAME))
def test_a_run_is_convicted_of_the_lie_in_its_history(lie: str, tmp_path: Path) -> None:
    report = run(tmp_path, lie=lie)
    kind = LIE_BY_NAME[lie]
    assert report.verdict.outcome == "convicted"
    assert kind.must <= set(report.anomaly_counts) <= kind.must | kind.may
    assert not report.audit.findings and not report.troubles
    assert "What convicts it" in (tmp_path / HTML_FILE).read_text()


@pytest.mark.parametrize("lie", sorted(DISK_LIE_BY_NAME))
def test_a_run_is_convicted_of_the_lie_on_its_disks(lie: str, tmp_path: Path) -> None:
    report = run(tmp_path, lie=lie, lie_in="disks")
    kind = DISK_LIE_BY_NAME[lie]
    assert report.verdict.outcome == "convicted"
    found = {finding.split()[0] for finding in report.audit.findings}
    assert kind.must <= found <= kind.must | kind.may, report.audit.findings
    assert report.lie is not None
    partition = report.lie.split()[5].split("/")[0]
    assert all(finding.split()[1] == f"{partition}:" for finding in report.audit.findings)
    assert not report.anomaly_counts and not report.troubles


def test_a_run_whose_disks_could_not_be_audited_is_not_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*given: object, **named: object) -> None:
        raise AuditError("Spark did not start")

    monkeypatch.setattr(SimulatedHarness, "audit", fails)
    report = run(tmp_path)
    assert report.verdict.outcome == "nothing was tested"
    assert report.verdict.reasons == ("the disks were not audited: Spark did not start",)


def test_a_run_without_an_election_tests_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, faults="reset")
    assert report.verdict.outcome == "nothing was tested"
