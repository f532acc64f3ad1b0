"""`minibroker simulate --seeds` as its user sees it; the runs are planted."""

import json
import multiprocessing
import signal
from collections.abc import Generator, Iterable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from minibroker import swarm_runs
from minibroker.__main__ import minibroker
from minibroker.code_version import code_digest, commit_of, fresh_seed
from minibroker.command_line import EXIT_FINE, EXIT_FOUND_WRONG, EXIT_USAGE, WrongUsage
from minibroker.simulation.swarm.loads.load_options import LOAD_ACTS
from minibroker.swarm_runs import RUNS_TO_ENTER_ALL, RunResult
from tests.minibroker.run_results import run_result


class PlantedRuns:
    """In place of real ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[int] = []
        self.findings: dict[int, str] = {}
        self.injected: dict[str, int] = {}
        self.interrupted_at: int | None = None
        self.options: dict[str, Any] = {}
        monkeypatch.setattr(swarm_runs, "run_many", self._run_many)

    def _run_many(self, seeds: Iterable[int], **options: Any) -> Generator[RunResult]:
        self.options = options
        for seed in seeds:
            if seed == self.interrupted_at:
                raise KeyboardInterrupt
            self.ran.append(seed)
            findings = [self.findings[seed]] if seed in self.findings else []
            yield run_result(seed, *findings, injected=self.injected)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> PlantedRuns:
    return PlantedRuns(monkeypatch)


def simulate(*arguments: str) -> Result:
    return CliRunner().invoke(minibroker, ["simulate", *arguments])


def test_failed_seed_is_shown_with_the_command_that_repeats_it(runs: PlantedRuns) -> None:
    runs.findings[7] = "I21 lost"
    found = simulate("--seeds", "5-9", "--disk-faults", "--brokers", "5")
    assert found.exit_code == EXIT_FOUND_WRONG
    replay = "minibroker simulate --seed 7 --disk-faults --brokers 5"
    assert f"seed 7: I21 lost; replay with: {replay}" in found.stdout
    found = simulate("--seeds", "5-9", "--json", "--no-loads", "--older-zookeeper")
    assert json.loads(found.stdout)["replay"] == {"7": "minibroker simulate --seed 7 --no-loads --older-zookeeper"}


def test_interrupted_swarm_goes_on_and_runs_each_seed_once(runs: PlantedRuns, tmp_path: Path) -> None:
    long = ("--seeds", "6", "--first-seed", "100", "--resume", str(tmp_path / "state.json"), "--no-coverage")
    runs.interrupted_at, runs.findings[101] = 103, "I21 lost"
    found = simulate(*long)
    assert found.exit_code != EXIT_FINE
    assert "ended after 3 of 6 runs; the same command goes on" in found.stderr
    runs.interrupted_at = None
    found = simulate(*long)
    assert runs.ran == [100, 101, 102, 103, 104, 105]
    assert found.exit_code == EXIT_FOUND_WRONG
    assert "replay with: minibroker simulate --seed 101" in found.stdout
    assert "6 runs (seeds 100 to 105), 6 count, 1 failed" in found.stdout


def test_finished_swarm_shows_its_sum_again_and_a_longer_one_adds_to_it(runs: PlantedRuns, tmp_path: Path) -> None:
    long = ("--first-seed", "100", "--resume", str(tmp_path / "state.json"), "--json")
    first = simulate("--seeds", "3", *long)
    again = simulate("--seeds", "3", *long)
    assert json.loads(first.stdout)["runs"] == json.loads(again.stdout)["runs"] == 3
    assert runs.ran == [100, 101, 102]
    assert json.loads(simulate("--seeds", "4", *long).stdout)["runs"] == 4
    assert runs.ran == [100, 101, 102, 103]
    assert first.exit_code == again.exit_code == EXIT_FINE


def test_other_options_need_another_file(runs: PlantedRuns, tmp_path: Path) -> None:
    long = ("--seeds", "3", "--resume", str(tmp_path / "state.json"))
    simulate(*long, "--first-seed", "100")
    found = simulate(*long, "--first-seed", "200")
    assert found.exit_code == WrongUsage.exit_code
    assert runs.ran == [100, 101, 102]


def test_seeds_of_the_commit(runs: PlantedRuns) -> None:
    simulate("--seeds", "2", "--first-seed", "commit")
    first = fresh_seed(commit_of() or code_digest())
    assert runs.ran == [first, first + 1]


def test_swarm_that_entered_little_fails_and_names_it(runs: PlantedRuns) -> None:
    runs.injected = {f"load {act}": 1 for act in LOAD_ACTS}
    found = simulate("--seeds", str(RUNS_TO_ENTER_ALL))
    assert found.exit_code == EXIT_FOUND_WRONG
    assert f"never entered in {RUNS_TO_ENTER_ALL} runs: API: PRODUCE, FETCH" in found.stdout
    report = json.loads(simulate("--seeds", str(RUNS_TO_ENTER_ALL), "--json").stdout)["coverage"]
    assert "API FETCH" in report["never_entered"]


def test_few_runs_tell_how_much_they_never_entered_and_name_it_on_request(runs: PlantedRuns) -> None:
    found = simulate("--seeds", "2", "--no-coverage")
    assert found.exit_code == EXIT_FINE
    assert "never entered" not in found.stdout
    assert runs.options["trace_lines"] is False
    found = simulate("--seeds", "2")
    assert "; --coverage and --json name them" in found.stdout
    found = simulate("--seeds", "2", "--coverage")
    assert "  API: PRODUCE, FETCH" in found.stdout
    assert found.exit_code == EXIT_FINE
    assert runs.options["trace_lines"] is True


def test_coverage_and_a_file_belong_to_many_runs(tmp_path: Path) -> None:
    for option in (("--coverage",), ("--resume", str(tmp_path / "state.json"))):
        assert simulate("--seed", "1", *option).exit_code != EXIT_FINE


def test_a_file_that_cannot_be_written_is_named_before_the_first_run(tmp_path: Path) -> None:
    """Once the runs were made, and then the name of a temporary file was told."""
    result = simulate("--seeds", "3", "--resume", str(tmp_path / "missing" / "state"))
    assert (result.exit_code, f"create the directory {tmp_path}/missing" in result.stderr) == (1, True)
    assert "give --seeds NUMBER with them" in simulate("--resume", str(tmp_path / "state")).stderr


class InterruptedPool:
    """In place of worker processes: Ctrl-C or SIGTERM comes while they are started."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number
        self.began_with: set[int] = set()
        self.is_terminated = False

    def Pool(self, *_: object, **__: object) -> "InterruptedPool":
        resource_tracker.ensure_running()  # as the first semaphore does
        self.began_with = {*signal.pthread_sigmask(signal.SIG_BLOCK, ())}
        if self.number is signal.SIGINT:
            signal.raise_signal(self.number)
        return self

    def imap_unordered(self, run: object, jobs: Iterable[object]) -> list[object]:
        signal.raise_signal(self.number)
        return [next(iter(jobs))]

    def terminate(self) -> None:
        self.is_terminated = True

    def join(self) -> None:
        assert self.is_terminated


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_are_ended_by_an_interrupt_and_do_not_see_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Those that still imported printed tracebacks; after SIGTERM all ran on."""
    pool = InterruptedPool(number)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: pool)
    with pytest.raises(KeyboardInterrupt):
        next(swarm_runs.run_many(range(10**18)))  # a list of them would fill the memory
    assert pool.is_terminated
    assert signal.SIGINT in pool.began_with
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_seed_of_other_digits_is_wrong_usage() -> None:
    """It was a ValueError."""
    assert simulate("--seeds", "2", "--first-seed", "²").exit_code == EXIT_USAGE
