"""`python -m tests.simulation.model [BOUNDS..] [--mutant NAME..]`: search the small model (`make explore`).

Without arguments: all model bounds without a mutant, then the shortest path to convict each mutant of `convictions`.
Exit codes: 0 all as expected; 10 the unchanged code broke an invariant, or a mutant was not convicted; 130 ended by
Ctrl-C.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec

from minibroker.command_line import ProgressLine
from minibroker.simulation.model.bounds import ALL_BOUNDS, find_bounds
from minibroker.simulation.model.counterexample import write_counterexample
from minibroker.simulation.model.moves import Move
from tests.simulation.model.convictions import BOUNDS_OF, mutant_called
from tests.simulation.model.one_search import UNPATCHED

ROOT = Path(__file__).resolve().parents[3]
STORIES = Path(__file__).parent / "testdata"
EXIT_UNEXPECTED = 10


class SearchResult(msgspec.Struct, kw_only=True):
    """A finished search, as printed with --json."""

    mutant: str
    bounds: str
    states: int
    steps: int
    depth: int
    is_complete: bool
    replicas: int
    seconds: float
    """CPU time: other work on the machine does not count."""
    broken: str | None = None
    path: list[list[str | int]] = []

    @property
    def is_expected(self) -> bool:
        return (self.broken is None) == (self.mutant == UNPATCHED)

    @property
    def moves(self) -> tuple[Move, ...]:
        return tuple(tuple(each) for each in self.path)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--mutant", "mutants", multiple=True, help="Search with this mutant; `-` for the unchanged code.")
@click.option("--depth", default=0, help="Maximal number of steps; 0: the whole search space.")
@click.option("--budget-seconds", default=180.0, show_default=True, help="CPU seconds for each search.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each search.")
@click.option("--write", is_flag=True, help="Store the paths found as counterexamples (tests).")
def explore(
    names: tuple[str, ...],
    mutants: tuple[str, ...],
    depth: int,
    budget_seconds: float,
    as_json: bool,
    write: bool,
) -> None:
    """Search small worlds of the pure cores breadth first."""
    progress = ProgressLine(after_s=0.0)
    searches = _searches(names, mutants)
    started, unexpected = time.monotonic(), 0
    try:
        for number, (mutant, bounds) in enumerate(searches, start=1):
            prefix = f"{number}/{len(searches)} {mutant} {bounds}"
            found = _search(mutant, bounds, depth, budget_seconds, partial(_show, progress, prefix))
            progress.clear()
            click.echo(msgspec.json.encode(found).decode() if as_json else _line(found))
            unexpected += not found.is_expected
            if found.broken is not None and not as_json:
                click.echo(_story(found))
            if found.broken is not None and write:
                (STORIES / f"{mutant}.txt").write_text(_story(found), encoding="utf-8")
    except KeyboardInterrupt:
        progress.clear()
        sys.exit(130)
    if not as_json:
        click.echo(f"{len(searches)} searches, {unexpected} not as expected, {time.monotonic() - started:.0f} s")
    sys.exit(EXIT_UNEXPECTED if unexpected else 0)


def _searches(names: tuple[str, ...], mutants: tuple[str, ...]) -> list[tuple[str, str]]:
    """(mutant, bounds): all without a mutant, then each mutant in its own bounds, unless the user chose some."""
    for each in names:
        if each not in {bounds.name for bounds in ALL_BOUNDS}:
            raise click.UsageError(f"no model bounds are called {each}: {', '.join(s.name for s in ALL_BOUNDS)}")
    if not mutants and not names:
        return [*((UNPATCHED, each.name) for each in ALL_BOUNDS), *BOUNDS_OF.items()]
    found = []
    for mutant in mutants or (UNPATCHED,):
        own = BOUNDS_OF.get(mutant)
        chosen = names or ((own,) if own else tuple(each.name for each in ALL_BOUNDS))
        found += [(mutant, bounds) for bounds in chosen]
    return found


def _search(mutant: str, bounds: str, depth: int, seconds: float, show: Callable[[str], None]) -> SearchResult:
    """Search in a process of its own, which ends with this one."""
    words = ["search", bounds, mutant, str(depth), str(seconds)]
    command = [sys.executable, "-m", "tests.simulation.model.one_search", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last: dict[str, Any] = {}
    try:
        for line in process.stdout:
            last = json.loads(line)
            if "progress" in last:
                coverage = last["progress"]
                show(f"depth {coverage['depth']}, {coverage['states']:,} states, {coverage['steps']:,} steps")
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if "found" not in last:
        raise click.ClickException(f"the search of {bounds} with {mutant} ended with exit code {process.returncode}")
    return msgspec.convert({"mutant": mutant, **last["found"]}, SearchResult)


def _show(progress: ProgressLine, prefix: str, text: str) -> None:
    progress.show(f"{prefix} {text}")


def _line(found: SearchResult) -> str:
    end = "all states" if found.is_complete else f"to depth {found.depth}"
    rate = found.steps / max(found.seconds, 0.01)
    outcome = f"BROKEN after {len(found.path)} steps: {found.broken}" if found.broken else end
    return (
        f"{found.mutant:14} {found.bounds:10} {found.states:9,} states {found.steps:10,} steps  depth {found.depth:2} "
        f"{found.seconds:6.1f} s {rate:7,.0f} steps/s  {outcome}"
    )


def _story(found: SearchResult) -> str:
    """The path as a test of the unchanged code, where nothing breaks."""
    headline = f"{found.broken}"
    if found.mutant != UNPATCHED:
        mutant = mutant_called(found.mutant)
        headline = f"With {found.mutant}, {mutant.title} ({mutant.origin}), this ends in:\n# {found.broken}"
    return write_counterexample(find_bounds(found.bounds), found.moves, headline)


if __name__ == "__main__":
    explore()
