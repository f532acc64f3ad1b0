"""The child process of a trial: loads one mutated module in place of its file and lets killers have a go at it.

Reads a Trial from stdin and prints a TrialResult. Tests run until one fails, then seeds of the swarm. Its caller limits
the real time; the CPU time is limited here, because the machine may be busy.
"""

import contextlib
import io
import linecache
import os
import resource
import sys
import tempfile
from typing import TYPE_CHECKING

import msgspec

from tests.mutants.one_run import perform
from tests.mutants.patching import PACKAGE, apply_codes, source_path

if TYPE_CHECKING:
    import pytest

MEMORY_BYTES_MAX = 4 << 30
PROFILE = "mutation-score"
EXAMPLES_MAX = 30
"""Of each property: a third of the usual, because each runs for many mutants."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What the child shall do."""

    module: str
    source: str
    tests: tuple[str, ...] = ()
    """pytest node ids: file by file in this order, because most mutants are killed before the second file is loaded."""
    seeds: tuple[str, ...] = ()
    """`seed:1` and `disks:1`, as `tests.mutants.one_run` names runs."""
    cpu_seconds_max: int
    seconds_per_test_max: float


class TrialResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    killer: str | None
    """The test or seed that failed; None if all passed."""
    text: str = ""


class _FirstFailure:
    """A pytest plugin that notes the first failure, of collecting also."""

    def __init__(self) -> None:
        self.found: TrialResult | None = None

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        self._note(report)

    def pytest_collectreport(self, report: "pytest.CollectReport") -> None:
        self._note(report)

    def _note(self, report: "pytest.TestReport | pytest.CollectReport") -> None:
        if report.failed and self.found is None:
            last = str(report.longrepr).strip().splitlines()[-1:]
            self.found = TrialResult(killer=report.nodeid, text="".join(last)[:200])


def pytest_arguments() -> list[str]:
    """Of trials and of the measurement before them: nothing random, nothing written into the project."""
    import hypothesis

    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile(
        PROFILE, deadline=None, derandomize=True, database=None, phases=phases, max_examples=EXAMPLES_MAX
    )
    return ["-q", "-x", "-p", "no:cacheprovider", "--assert=plain", f"--hypothesis-profile={PROFILE}"]


def _run_tests(trial: Trial) -> TrialResult | None:
    by_file: dict[str, list[str]] = {}
    for test in trial.tests:
        by_file.setdefault(test.partition("::")[0], []).append(test)
    for tests in by_file.values():
        if (found := _run_session(tests, trial.seconds_per_test_max)) is not None:
            return found
    return None


def _run_session(tests: list[str], seconds_per_test_max: float) -> TrialResult | None:
    import pytest

    failure, output = _FirstFailure(), io.StringIO()
    arguments = [*pytest_arguments(), f"--timeout={seconds_per_test_max:.0f}", *tests]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[failure])
    if failure.found is None and status != pytest.ExitCode.OK:
        return TrialResult(killer="pytest", text=output.getvalue()[-500:])
    return failure.found


def _run_seeds(trial: Trial) -> TrialResult | None:
    for seed in trial.seeds:
        if findings := perform(seed).findings:
            return TrialResult(killer=seed, text=findings[0].text[:200])
    return None


def try_mutant(trial: Trial) -> TrialResult:
    """Once a process: what is loaded stays mutated."""
    try:
        path = str(source_path(trial.module))
        linecache.cache[path] = (len(trial.source), None, trial.source.splitlines(keepends=True), path)  # for `inspect`
        code = compile(trial.source, path, "exec")
        apply_codes({PACKAGE + trial.module: code}, trial.module)
        found = _run_tests(trial) if trial.tests else None
        return found or _run_seeds(trial) or TrialResult(killer=None)
    except BaseException as error:  # the module does not even load, or ends the process
        return TrialResult(killer="import", text=repr(error)[:200])


def main() -> None:
    trial = msgspec.json.decode(sys.stdin.buffer.read(), type=Trial)
    resource.setrlimit(resource.RLIMIT_CPU, (trial.cpu_seconds_max, trial.cpu_seconds_max))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.dup(1)
    os.dup2(2, 1)  # what a test prints is no answer
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        result = try_mutant(trial)
    os.write(answers, msgspec.json.encode(result) + b"\n")
    os._exit(0)  # a mutant may have left threads that never end


if __name__ == "__main__":
    main()
