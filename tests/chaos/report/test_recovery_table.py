"""The table of what each kind of fault cost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minibroker.chaos.plan.drawing import PlannedFault
from minibroker.chaos.report.recovery_table import (
    BadReport,
    ReportedRun,
    Spread,
    cells,
    markdown,
    parse_outcome,
    recovery_table,
)
from minibroker.chaos.report.timeline import FaultEffect
from minibroker.chaos.run.chaos_run import DoneFault
from minibroker.chaos.run.verdict import Outcome, Verdict


def fault(kind: str, began_s: float | None, ended_s: float | None) -> DoneFault:
    return DoneFault(
        planned=PlannedFault(at_s=1, kind=kind, target="leader"), brokers=[1], began_s=began_s, ended_s=ended_s
    )


def run(
    *happened: tuple[str, float, float, float, float | None], outcome: Outcome = "cleared", backend: Any = "processes"
) -> ReportedRun:
    """Of (kind, beginning, end, gap, full ISR)."""
    faults = [fault(kind, began_s, ended_s) for kind, began_s, ended_s, _, _ in happened]
    return ReportedRun(
        backend=backend,
        verdict=Verdict(outcome=outcome, reasons=()),
        faults=(*faults, fault("kill", None, None)),
        effects=(*(FaultEffect(gap_s, "chaos-0", full_s) for _, _, _, gap_s, full_s in happened), None),
    )


def test_median_and_worst_are_those_of_all_runs() -> None:
    (row,) = recovery_table([run(("kill", 1, 2, 0.5, 1.0), ("kill", 3, 4, 2.5, 3.0)), run(("kill", 1, 2, 1.0, 1.5))])
    assert (row.kind, row.runs, row.times, row.measured, row.cut_short) == ("kill", 2, 3, 3, 0)
    assert row.gap == Spread(1.0, 2.5)
    assert row.full_isr == Spread(1.5, 3.0)


def test_faults_that_overlap_are_counted_and_not_measured() -> None:
    rows = recovery_table([run(("kill", 1, 3, 9.0, 9.0), ("pause", 2, 4, 9.0, 9.0), ("kill", 5, 6, 1.0, None))])
    assert [(row.kind, row.times, row.measured, row.cut_short) for row in rows] == [
        ("kill", 2, 1, 1),
        ("pause", 1, 0, 0),
    ]
    assert cells(rows[0])[2:] == ("1", "2 (1 alone)", "1.00, 1.00 s", "-", "1")
    assert cells(rows[1])[3:5] == ("1 (0 alone)", "-")


def test_back_ends_have_rows_of_their_own_and_verdicts_are_told() -> None:
    outcomes = [run(("kill", 1, 2, 1.0, 1.0), backend="compose"), run(("kill", 1, 2, 1.0, 1.0), outcome="convicted")]
    assert [cells(row)[1:3] for row in recovery_table(outcomes)] == [
        ("compose", "1"),
        ("processes", "1 (1 not cleared)"),
    ]


def test_markdown_is_a_table() -> None:
    lines = markdown(recovery_table([run(("kill", 1, 2, 1.0, 1.0))])).splitlines()
    assert lines[2] == "| `kill` | processes | 1 | 1 | 1.00, 1.00 s | 1.00, 1.00 s | 0 |"
    assert len({line.count("|") for line in lines}) == 1


@pytest.mark.parametrize(
    ("told", "other"),
    [
        (b'"began_s":1', b'"began_s":null'),
        (b'"ended_s":2', b'"ended_s":null'),
        (b'"gap_s":0.5', b'"gap_s":-0.5'),
        (b'"gap_s":0.5', b'"gap_s":1e300'),
        (b'"full_isr_s":1.5', b'"full_isr_s":1e300'),
        (b'"kind":"pause"', b'"kind":"\\u001b]0;title\\u0007"'),
        (b'"kind":"pause"', b'"kind":"a|b\\n"'),
        (b'"backend":"processes"', b'"backend":"\\u001b[31m"'),
    ],
)
def test_a_report_that_no_run_writes_is_refused(told: bytes, other: bytes) -> None:
    """It would end the table, or its text be printed on a terminal."""
    content = msgspec.json.encode(run(("pause", 1, 2, 0.5, 1.5)))
    assert told in content
    with pytest.raises(BadReport, match="no report of a chaos run"):
        parse_outcome(content.replace(told, other, 1))


def test_another_file_is_refused() -> None:
    assert parse_outcome(msgspec.json.encode(run(("kill", 1, 2, 1.0, 1.0)))).backend == "processes"
    for content in (
        b"{}",
        b"\xff",
        b"[" * 10_000,
        msgspec.json.encode(run()).replace(b'"effects":[null]', b'"effects":[]'),
    ):
        with pytest.raises(BadReport, match="no report of a chaos run"):
            parse_outcome(content)
