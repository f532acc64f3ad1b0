"""The failover cases: which broker is the target, and when a run is worthless."""

import signal
from typing import Any

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.cases.failover import BOTH, CONTROLLER, LEADER, PAUSED, checked_run
from minibroker.bench.load.generator import failover_report

MS = 1_000_000
LOG = [(0, b"warm...."), (1, b"%020d.." % 0), (2, b"%020d.." % 1)]


def acknowledged(*more: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return [(1 * MS, 0, 1), (9 * MS, 1, 2), *more]


def report(**more: Any) -> dict[str, Any]:
    return failover_report(acknowledged(), [], LOG) | more


def test_target_leader_needs_another_broker_as_controller() -> None:
    assert LEADER.suits(leader=1, controller=2)
    assert not LEADER.suits(leader=2, controller=2)
    assert LEADER.victim(leader=1, controller=2) == 1


def test_target_controller_needs_another_broker_as_leader() -> None:
    assert CONTROLLER.suits(leader=1, controller=2)
    assert CONTROLLER.victim(leader=1, controller=2) == 2


def test_target_both_needs_one_broker_in_both_roles() -> None:
    assert BOTH.suits(leader=2, controller=2)
    assert not BOTH.suits(leader=1, controller=2)
    assert PAUSED.number == signal.SIGSTOP


def test_the_figure_is_the_gap_around_the_signal() -> None:
    run = checked_run(report(), 5 * MS, {"elected_ms": 1.0})
    assert (run.gap_s, run.errors) == (0.008, 0)
    assert run.step_times == {"elected_ms": 1.0, "last_before_ms": -4.0, "first_after_ms": 4.0}


def test_an_acknowledged_record_that_is_not_in_the_log_fails_the_run() -> None:
    lost = failover_report(acknowledged((10 * MS, 2, 3)), [], LOG)
    with pytest.raises(CaseFailed, match="1 acknowledged records are not in the log"):
        checked_run(lost, 5 * MS, {})


def test_an_acknowledged_record_at_another_offset_is_lost_too() -> None:
    moved = failover_report([(1 * MS, 0, 2), (9 * MS, 1, 1)], [], LOG)
    assert moved["lost"] == 2


def test_a_record_that_is_written_twice_fails_the_run() -> None:
    twice = failover_report(acknowledged(), [], [*LOG, (3, b"%020d.." % 1)])
    with pytest.raises(CaseFailed, match="twice in the log: 1 record of an idempotent producer"):
        checked_run(twice, 5 * MS, {})


def test_a_run_without_an_acknowledgement_after_the_signal_fails() -> None:
    with pytest.raises(CaseFailed, match="nothing was acknowledged"):
        checked_run(report(), 10 * MS, {})
