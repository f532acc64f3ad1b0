"""What a replay says of a mutant whose recorded runs catch it no longer. The children are replaced: no run is made."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence

import pytest
from click.testing import CliRunner

from tests.mutants import __main__ as command
from tests.mutants import replay as replaying
from tests.mutants.mutant import Edit, Mutant, UnitTest
from tests.mutants.one_run import RunResult, SerializedFinding
from tests.mutants.recorded import MutantRecord, RecordedRun
from tests.mutants.replay import SEEDS_ANEW_MAX, Outcome, Replay, Verdict
from tests.mutants.summary import summarize, summary_text

DIRECTED = "test:tests/one.py::test_it"
MUTANT = Mutant(
    name="X1",
    title="",
    origin="",
    rule="",
    breaks=(),
    edits=(Edit("broker.replication.isr", "", ""),),
    schedule=UnitTest(DIRECTED.removeprefix("test:")),
)


class Children:
    """Stands for all children. A run finds something if it is named here."""

    def __init__(self, catching: Sequence[str], not_clean: Sequence[str] = ()) -> None:
        self.catching, self.not_clean = catching, not_clean
        self.mutated: list[str] = []
        self.found_not_clean: dict[str, str] = {}

    async def results(
        self, name: str | None, runs: Sequence[str], stops: bool = False
    ) -> AsyncGenerator[RunResult, None]:
        for run in list(runs):
            if name is not None:
                self.mutated.append(run)
            found = run in (self.not_clean if name is None else (*self.catching, *self.not_clean))
            findings = [SerializedFinding("I1", "I1 it broke", None)] if found else []
            yield RunResult(run=run, findings=findings, seconds=1.0, virtual_seconds=1.0)
            if stops and found:
                return


def replay(monkeypatch: pytest.MonkeyPatch, children: Children, seed: str | None = "seed:7") -> Verdict:
    recorded = None if seed is None else RecordedRun(run=seed, invariant="I1", finding="I1 it broke", seconds=1.0)
    monkeypatch.setattr(replaying, "child_results", children.results)
    monkeypatch.setattr(replaying, "load_records", lambda: {"X1": MutantRecord(seed=recorded)})
    verdicts: list[Verdict] = []
    session = Replay(lambda _: None, 1)
    asyncio.run(session.replay([MUTANT], verdicts.append))
    children.found_not_clean = session.not_clean
    return verdicts[0]


def test_no_seed_is_searched_while_all_recorded_runs_catch_it(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children(["seed:7", DIRECTED])
    verdict = replay(monkeypatch, children)
    assert (verdict.outcome, verdict.stale, children.mutated) == (Outcome.RECORD, [], ["seed:7", DIRECTED])


def test_a_stale_seed_is_replaced_by_the_first_that_catches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = replay(monkeypatch, Children(["seed:5", "seed:9"]))
    assert (verdict.outcome, verdict.stale) == (Outcome.ANEW, ["seed:7", DIRECTED])
    assert verdict.anew is not None and verdict.anew.run == "seed:5"
    assert "X1: seed:7 catches it no longer, seed:5 does" in summary_text(summarize([verdict], {}), is_recorded=False)


def test_a_directed_run_is_enough_where_no_seed_is_found_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children([DIRECTED, f"seed:{SEEDS_ANEW_MAX + 1}"])
    verdict = replay(monkeypatch, children)
    assert (verdict.outcome, verdict.stale, verdict.anew) == (Outcome.RECORD, ["seed:7"], None)
    assert len(children.mutated) == SEEDS_ANEW_MAX + 2
    assert summarize([verdict], {}).not_caught == []


@pytest.mark.parametrize("seed", ["seed:7", None])
def test_a_mutant_that_nothing_catches_is_reported(monkeypatch: pytest.MonkeyPatch, seed: str | None) -> None:
    verdict = replay(monkeypatch, Children([]), seed)
    assert summarize([verdict], {}).not_caught == ["X1"]


def test_a_run_that_is_not_clean_without_the_mutant_catches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    children = Children([], not_clean=["seed:7", "seed:2"])
    assert summarize([replay(monkeypatch, children)], {}).not_caught == ["X1"]
    assert list(children.found_not_clean) == ["seed:7", "seed:2"]


def test_the_search_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replaying, "SECONDS_ANEW_MAX", 0.0)
    children = Children([DIRECTED, "seed:1"])
    assert replay(monkeypatch, children).stale == ["seed:7"]
    assert children.mutated == ["seed:7", DIRECTED]


def test_what_is_recorded_is_what_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    old = RecordedRun(run="seed:7", invariant="I1", finding="I1 it broke", seconds=1.0)
    written: dict[str, MutantRecord] = {}
    verdict = replay(monkeypatch, Children(["seed:5"]))
    monkeypatch.setattr(replaying, "load_records", lambda: {"X1": MutantRecord(seed=old, schedule=old)})
    monkeypatch.setattr(replaying, "save_records", written.update)
    replaying.write_records([verdict])
    seed = written["X1"].seed
    assert seed is not None and (seed.run, seed.tries) == ("seed:5", 5)
    assert written["X1"].schedule is None


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("at the end crash broker-3 ended with RecursionError: maximum recursion depth exceeded", False),
        ("at the end crash broker-3 ended with AttributeError: 'Store' object has no attribute '_fence'", False),
        ("at the end I44 test_it: NameError at `state.fenced`", False),
        ("at the end crash broker-3 ended with AssertionError: I13: a leader's epoch is in its history", True),
        ("at the end I44 test_it: AssertionError at `assert log.damage is None`", True),
    ],
)
def test_a_mistake_in_a_mutants_own_text_does_not_catch_it(text: str, counts: bool) -> None:
    finding = SerializedFinding("crash", text, "simulation.world.loop")
    result = RunResult(run="seed:1", findings=[finding], seconds=1.0, virtual_seconds=1.0)
    assert bool(result.catching_findings(MUTANT.modules)) is counts


@pytest.mark.parametrize(("catching", "exit_code"), [([DIRECTED], 0), (["seed:3"], 0), ([], 10)])
def test_the_command_fails_only_if_nothing_catches_a_mutant(
    monkeypatch: pytest.MonkeyPatch, catching: list[str], exit_code: int
) -> None:
    monkeypatch.setattr(replaying, "child_results", Children(catching).results)
    monkeypatch.setattr(replaying, "load_records", dict)
    monkeypatch.setattr(command, "MUTANTS", (MUTANT,))
    result = CliRunner().invoke(command.mutants, ["replay", "--json", "--from", "X1"])
    assert result.exit_code == exit_code, result.output
    verdict, summary = (json.loads(line) for line in result.output.splitlines())
    assert verdict["name"] == "X1"
    assert summary["not_caught"] == (["X1"] if exit_code else [])
