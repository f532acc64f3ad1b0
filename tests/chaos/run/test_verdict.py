"""What convicts a run, what clears it, and what does not count."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.chaos.run.verdict import judge

GOOD: dict[str, Any] = {
    "anomalies": {},
    "audit_problems": (),
    "why_no_audit": None,
    "troubles": (),
    "elections": 1,
    "acknowledged": 100,
    "read": {"a-0": 1, "a-1": 1},
}


def test_a_run_without_a_problem_is_cleared() -> None:
    verdict = judge(**GOOD)
    assert (verdict.outcome, verdict.exit_code, verdict.reasons) == ("cleared", 0, ())


@pytest.mark.parametrize(
    "bad", [{"anomalies": {"lost-write": 2}}, {"audit_problems": ("gone",)}, {"troubles": ("no recovery",)}]
)
def test_each_kind_of_evidence_convicts_alone(bad: dict[str, Any]) -> None:
    verdict = judge(**GOOD | bad)
    assert (verdict.outcome, verdict.exit_code, len(verdict.reasons)) == ("convicted", 10, 1)


@pytest.mark.parametrize(
    "lacking",
    [
        {"elections": 0},
        {"acknowledged": 99},
        {"read": {"a-0": 1, "a-1": 0}},
        {"why_no_audit": "Spark did not start"},
        {"why_no_load": "x"},
    ],
)
def test_a_run_in_which_little_happened_does_not_count(lacking: dict[str, Any]) -> None:
    verdict = judge(**GOOD | lacking)
    assert (verdict.outcome, verdict.exit_code, len(verdict.reasons)) == ("nothing was tested", 1, 1)


def test_a_program_that_fails_is_the_only_reason_of_a_run_without_a_load() -> None:
    """Faults and time, which the other reasons ask for, would not help."""
    verdict = judge(**GOOD | {"why_no_load": "it ended", "elections": 0, "acknowledged": 0})
    assert (verdict.outcome, verdict.reasons) == ("nothing was tested", ("it ended",))


def test_a_conviction_stands_even_if_little_was_tested() -> None:
    assert judge(**GOOD | {"elections": 0, "troubles": ("no recovery",)}).outcome == "convicted"
