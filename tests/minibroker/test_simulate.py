"""`minibroker simulate`: its output, its exit codes, its usage."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.__main__ import minibroker
from minibroker.command_line import EXIT_FINE, EXIT_FOUND_WRONG, EXIT_USAGE, WrongUsage
from minibroker.commands.simulate import _parse
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.swarm import run
from minibroker.simulation.swarm.outcome import RunOutcome


def test_one_seed_prints_state_changes_and_its_trace_hash() -> None:
    result = CliRunner().invoke(minibroker, ["simulate", "--seed", "11"])
    assert result.exit_code == EXIT_FINE, result.output
    header, *lines = result.output.splitlines()
    assert header.split() == ["time", "broker", "partition", "epoch", "LEO", "HW", "ISR", "what"]
    assert any("follower -> leader" in line for line in lines)
    assert any("world: kill" in line for line in lines)
    assert "trace hash" in result.output
    assert "deliveries" in result.output


def test_json_ends_with_a_summary() -> None:
    result = CliRunner().invoke(minibroker, ["simulate", "--seed", "11", "--json"])
    lines = [json.loads(line) for line in result.output.splitlines()]
    assert {line["event"] for line in lines[:-1]} == {"state", "world"}
    assert lines[-1]["trace_hash"]
    assert lines[-1]["findings"] == []
    assert lines[-1]["counts"]


def test_history_that_cannot_be_written_is_told_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_seed", pytest.fail)
    file = tmp_path / "missing" / "history.jsonl"
    result = CliRunner().invoke(minibroker, ["simulate", "--seed", "1", "--history", str(file)])
    assert result.exit_code == 1
    assert f"{file} cannot be written (No such file or directory): name another file for --history" in result.output


def test_failure_shows_rule_facts_history_and_the_command_that_replays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    run_seed = run.run_seed

    def planted(seed: int, **options: Any) -> RunOutcome:
        outcome = run_seed(seed, **options)
        partition = outcome.coverage.partitions()[0]
        facts = ("broker 1 has a", "broker 2 has b")
        finding = CheckerFinding(invariant="I20", text="they differ", at_seconds=3.0, partition=partition, facts=facts)
        outcome.findings.append(finding)
        return outcome

    monkeypatch.setattr(run, "run_seed", planted)
    result = CliRunner().invoke(minibroker, ["simulate", "--seed", "11", "--quiet"])
    assert result.exit_code == EXIT_FOUND_WRONG
    assert "I20 broke at 3.000 s of a-0: they differ" in result.output
    assert "broker 1 has a" in result.output
    assert "broker 2 has b" in result.output
    assert "the history of a-0 since its replicas last agreed" in result.output
    assert "replay with: minibroker simulate --seed 11" in result.output


def test_many_seeds_are_summarized() -> None:
    result = CliRunner().invoke(minibroker, ["simulate", "--seeds", "11-12", "--workers", "2", "--json"])
    total = json.loads(result.output)
    assert result.exit_code == EXIT_FINE, result.output
    assert total["runs"] == total["counted"] == 2
    assert total["seen"]["election"] >= 4


def test_seeds_are_a_number_or_a_range() -> None:
    assert _parse("3", 7) == range(7, 10)
    assert _parse("17-19", 1) == range(17, 20)
    for wrong in ("", "x", "3-", "9-2", "0"):
        with pytest.raises(WrongUsage):
            _parse(wrong, 1)


def test_exactly_one_mode_must_be_given() -> None:
    for arguments in ([], ["--seed", "1", "--seeds", "2"], ["--speed", "--seed", "1"]):
        assert CliRunner().invoke(minibroker, ["simulate", *arguments]).exit_code != EXIT_FINE


def test_workers_are_not_more_than_a_machine_can_hold() -> None:
    """A million would have been started, as far as the memory goes."""
    result = CliRunner().invoke(minibroker, ["simulate", "--seeds", "0", "--workers", "1000000"])
    assert result.exit_code == EXIT_USAGE
    assert "1000000 is not in the range 1<=x<=" in result.output
