"""The child process of a replay or search: applies one mutant (or none), performs runs, prints a line of JSON for each.

`python -m tests.mutants.one_run NAME|- [--stop] RUN...` where RUN is `seed:17`, `disks:17` (with faulty disks),
`loads:17` (with loads), `older:17` (with an older copy of ZooKeeper's data), `schedule:theme:function`,
`model:bounds@depth` (every order of events of a small model, down to that depth), `core:function` or `test:NODE_ID` (a test of `tests/`). With `--stop` it ends after the first run that catches the mutant.
"""

import contextlib
import importlib
import io
import math
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from minibroker.simulation.swarm.choices import WORDS, choices_of
from tests.mutants.catalogue import find_mutant
from tests.mutants.mutant import SCRIPT_FAILED
from tests.mutants.patching import apply

if TYPE_CHECKING:
    import pytest

    from minibroker.simulation.checks.finding import CheckerFinding
    from tests.mutants.directed_run import Script

UNPATCHED = "-"
_MISTAKE = re.compile(
    r"(ended with |: )(NameError|UnboundLocalError|AttributeError|TypeError|ImportError|RecursionError)\b"
)
"""Errors that a mutant raises because the code around it has changed: B30b was taken for caught after a rename."""


class SerializedFinding(msgspec.Struct, frozen=True):
    """A finding, as the child prints it."""

    invariant: str
    text: str
    origin: str | None


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run."""

    run: str
    findings: list[SerializedFinding]
    seconds: float
    """Real ones."""
    virtual_seconds: float

    def catching_findings(self, modules: frozenset[str]) -> list[SerializedFinding]:
        """Findings that catch a mutant of these modules: an error inside a mutated module does not count, because no
        checker outside of it found it, and neither does a mistake in the mutant's own text."""
        counted = [each for each in self.findings if each.invariant != SCRIPT_FAILED and not _MISTAKE.search(each.text)]
        return [each for each in counted if each.origin is None or each.origin not in modules]


def perform(run: str) -> RunResult:
    """Do one run."""
    kind, _, name = run.partition(":")
    started = time.monotonic()
    findings, virtual_seconds = _KINDS[kind](name)
    findings.sort(key=lambda each: math.inf if each.at_seconds is None else each.at_seconds)
    return RunResult(
        run=run,
        findings=[SerializedFinding(each.invariant, str(each), each.origin) for each in findings],
        seconds=time.monotonic() - started,
        virtual_seconds=virtual_seconds,
    )


def _run_seed(mode: str, name: str) -> "tuple[list[CheckerFinding], float]":
    from minibroker.simulation.swarm.run import run_seed

    outcome = run_seed(int(name), choices=choices_of(mode))
    return outcome.findings, outcome.virtual_seconds


def _run_schedule(name: str) -> "tuple[list[CheckerFinding], float]":
    theme, _, function = name.partition(":")
    module = importlib.import_module(f"tests.mutants.schedules.{theme}")
    from tests.mutants.directed_run import run_schedule

    script: Script = getattr(module, function)
    return run_schedule(script)


def _search_model(name: str) -> "tuple[list[CheckerFinding], float]":
    from minibroker.simulation.checks.finding import CheckerFinding, crash_finding
    from minibroker.simulation.model.bounds import find_bounds
    from minibroker.simulation.model.search import search

    bounds, _, depth = name.partition("@")
    try:
        coverage = search(find_bounds(bounds), lambda _: True, int(depth))
    except Exception as error:  # the core itself, or an invariant of its own
        return [crash_finding(error, None)], 0.0
    if coverage.broken is None:
        return [], 0.0
    invariant, _, text = coverage.broken.partition(":")
    steps = " / ".join(" ".join(map(str, move)) for move in coverage.path)
    return [CheckerFinding(invariant=invariant, text=text.strip(), facts=(steps,))], 0.0


def _run_core(name: str) -> "tuple[list[CheckerFinding], float]":
    from minibroker.simulation.checks.finding import crash_finding
    from tests.mutants.schedules import core

    try:
        found: list[CheckerFinding] = getattr(core, name)()
    except Exception as error:  # the core itself, or an invariant of its own
        found = [crash_finding(error, None)]
    return found, 0.0


class _FailedTests:
    """A pytest plugin: each failure of a test's own call is a finding."""

    def __init__(self) -> None:
        self.findings: list[CheckerFinding] = []

    def pytest_runtest_makereport(self, item: "pytest.Item", call: "pytest.CallInfo[None]") -> None:
        import pytest

        from minibroker.simulation.checks.finding import CheckerFinding, raised_in

        if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
            return
        error = call.excinfo.value
        in_test = [each for each in call.excinfo.traceback if each.path == item.path]
        statement = (in_test or call.excinfo.traceback)[-1].statement
        marker = item.get_closest_marker("invariant")
        found = CheckerFinding(
            invariant="test" if marker is None else marker.args[0],
            text=f"{item.name}: {type(error).__name__} at `{str(statement).strip()}`",
            origin=raised_in(error),
        )
        self.findings.append(found)


def _run_test(name: str) -> "tuple[list[CheckerFinding], float]":
    import pytest

    failed, output = _FailedTests(), io.StringIO()
    with contextlib.redirect_stdout(output):  # results of runs are printed there
        status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "--assert=plain", name], plugins=[failed])
    assert status in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), output.getvalue()
    return failed.findings, 0.0


_KINDS: "dict[str, Callable[[str], tuple[list[CheckerFinding], float]]]" = {
    "seed": partial(_run_seed, "plain"),
    **{word: partial(_run_seed, word) for word in WORDS},
    "schedule": _run_schedule,
    "model": _search_model,
    "core": _run_core,
    "test": _run_test,
}


def main() -> None:
    name, *rest = sys.argv[1:]
    mutant = None if name == UNPATCHED else find_mutant(name)
    stops = "--stop" in rest
    if mutant is not None:
        apply(mutant)
    for run in rest:
        if run == "--stop":
            continue
        result = perform(run)
        print(msgspec.json.encode(result).decode(), flush=True)
        if stops and result.catching_findings(mutant.modules if mutant is not None else frozenset()):
            return


if __name__ == "__main__":
    main()
