"""What leaders tell clients is in the history of a run, and convicts brokers that break their rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from minibroker.broker.replication.leader import FetchGranted, FetchRefused, check_consumer_fetch
from minibroker.broker.replication.state import ReplicaState
from minibroker.broker.requests import fetch
from minibroker.chaos.history.anomalies import check_history
from minibroker.chaos.history.client_history import HistoryEvent, from_json_lines
from minibroker.chaos.plan.drawing import draw_plan, parse_faults
from minibroker.chaos.report.document import ChaosReport
from minibroker.chaos.run.execution import HISTORY_FILE, execute
from minibroker.chaos.run.opening import run_on
from minibroker.chaos.run.options import ChaosOptions

Lie = Callable[[ReplicaState, FetchGranted], FetchGranted]


def run(out: Path) -> ChaosReport:
    plan = draw_plan(3, 5, "simulated", parse_faults("kill:leader"))
    options = ChaosOptions(backend="simulated", plan=plan, out=out, rate=40)
    return run_on("simulated", execute(options, lambda text: None))


def events_of(out: Path) -> list[HistoryEvent]:
    return from_json_lines((out / HISTORY_FILE).read_bytes())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> list[HistoryEvent]:
    out = tmp_path_factory.mktemp("sound")
    assert run(out).verdict.outcome == "cleared"
    return events_of(out)


def test_every_acknowledgement_names_broker_and_epoch(sound: list[HistoryEvent]) -> None:
    acknowledged = [each for each in sound if each.f == "send" and each.type == "ok"]
    assert acknowledged
    assert all(each.broker is not None and each.leader_epoch is not None for each in acknowledged)
    assert len({each.broker for each in acknowledged}) > 1


def test_every_record_came_with_an_answer_that_covers_it(sound: list[HistoryEvent]) -> None:
    ends: dict[tuple[str, str], int] = {}
    for event in sound:
        for answer in event.answers:
            assert answer.leader_epoch is not None
            if answer.end_offset is not None:
                ends[event.process, answer.key] = answer.end_offset
        for record in event.polled:
            assert record.offset < ends[event.process, record.key]


def test_answers_without_records_are_there_too(sound: list[HistoryEvent]) -> None:
    assert any(answer.end_offset is None for event in sound for answer in event.answers)


def test_an_acknowledgement_of_another_broker_in_the_same_epoch_convicts(sound: list[HistoryEvent]) -> None:
    at = max(event.index for event in sound if event.f == "send" and event.type == "ok")
    changed = [replace(event, broker=99) if event.index == at else event for event in sound]
    assert [found.name for found in check_history(changed)] == ["two-writers"]


def lying(monkeypatch: pytest.MonkeyPatch, lie: Lie) -> None:
    """Brokers grant consumers something else."""

    def grant(state: ReplicaState, *asked: int | None) -> FetchGranted | FetchRefused:
        granted = check_consumer_fetch(state, *asked)  # type: ignore[arg-type]
        return lie(state, granted) if isinstance(granted, FetchGranted) else granted

    monkeypatch.setattr(fetch, "check_consumer_fetch", grant)


@pytest.mark.invariant("I22")
def test_leaders_that_serve_what_is_not_committed_are_convicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lying(monkeypatch, lambda state, granted: replace(granted, end_offset=state.log_end_offset))
    report = run(tmp_path)
    assert report.verdict.outcome == "convicted"
    assert report.anomaly_counts["beyond-high-watermark"] > 0


@pytest.mark.invariant("I11")
def test_leaders_whose_high_watermark_falls_are_convicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forgets(state: ReplicaState, granted: FetchGranted) -> FetchGranted:
        """Now and then, while there is nothing to send."""
        is_idle = granted.fetch_offset == granted.high_watermark and granted.high_watermark % 5 == 4
        return replace(granted, high_watermark=granted.high_watermark - 3) if is_idle else granted

    lying(monkeypatch, forgets)
    report = run(tmp_path)
    assert report.verdict.outcome == "convicted"
    assert set(report.anomaly_counts) == {"high-watermark-falls"}
