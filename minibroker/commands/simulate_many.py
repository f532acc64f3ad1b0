"""`minibroker simulate --seeds`: many runs, their progress, their sum, and the file from which they go on.

Owns: what a user sees of many runs. Leaves to others: the runs and their sum (`swarm_runs`), what they never entered
(`swarm_coverage`), the file (`swarm_state`).
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    WrongUsage,
    note,
    print_json,
    print_table,
)
from minibroker.simulation.swarm.choices import RunChoices

if TYPE_CHECKING:
    from minibroker.swarm_coverage.report import CoverageReport
    from minibroker.swarm_runs import RunResult, SwarmSummary
    from minibroker.swarm_state import StateFile, SwarmState

SEEDS_SHOWN = 12
PROGRESS_SECONDS = 60
"""Between two lines of progress of a long swarm whose output is no terminal."""


class ManySeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    seeds: range
    first: str
    """The first seed as it was given: a number, or `commit`."""
    choices: RunChoices
    workers: int | None
    coverage: bool | None
    resume: Path | None

    @property
    def traces_lines(self) -> bool:
        """Raises CommandFailed if it was asked for and cannot be."""
        from minibroker.swarm_coverage.line_trace import is_available

        if self.coverage and not is_available():
            raise CommandFailed("--coverage needs the package slipcover: run `make setup`, or pip install slipcover")
        return self.coverage is not False and is_available()


def run_seeds(wanted: ManySeeds, as_json: bool) -> int:
    """Run them and show the sum; returns the exit code."""
    from minibroker.swarm_runs import run_many
    from minibroker.swarm_state import StateFile

    choices, trace_lines = wanted.choices, wanted.traces_lines
    file = None if wanted.resume is None else StateFile(wanted.resume)
    state = _state(wanted, file)
    if file is not None:
        file.save(state)  # a place that cannot be written is told now, and not after the first runs
    total, seeds = state.summary, range(state.first_seed, state.first_seed + len(wanted.seeds))
    started = time.monotonic() - state.seconds
    workers = min(wanted.workers or len(os.sched_getaffinity(0)), max(len(seeds) - state.done, 1))
    results = run_many(state.left(len(seeds)), workers=workers, choices=choices, trace_lines=trace_lines)
    try:
        for result in _with_progress(results, total, len(seeds), is_long=file is not None):
            total.add(result)
            state.add(result.seed)
            state.seconds = time.monotonic() - started
            if result.findings:
                text = f"seed {result.seed}: {result.findings[0]}; replay with: {choices.replay(result.seed)}"
                click.secho(text, fg="red", err=as_json)
            if file is not None:
                file.save_now_and_then(state)
    finally:
        results.close()
        if file is not None:
            file.save(state)
        if total.runs < len(seeds):
            on = "" if file is None else f"; the same command goes on, from {file.path}"
            note(f"ended after {total.runs} of {len(seeds)} runs{on}")
    if as_json:
        replay = {str(seed): choices.replay(seed) for seed in sorted(total.failed)}
        facts = {"real_seconds": round(state.seconds, 3), "seeds": [seeds[0], seeds[-1]], "replay": replay}
        print_json(total.as_json() | facts | ({"commit": state.commit or None} if file is not None else {}))
    else:
        _print_sum(total, wanted, seeds, state.seconds)
    return EXIT_FOUND_WRONG if total.complaints else EXIT_FINE


def _state(wanted: ManySeeds, file: "StateFile | None") -> "SwarmState":
    """Of a new swarm, or of the one in the file."""
    from minibroker.code_version import code_digest, commit_of
    from minibroker.swarm_runs import SwarmSummary
    from minibroker.swarm_state import NoState, OtherOptions, SwarmState, continued

    choices, first = wanted.choices, wanted.seeds[0]
    new = SwarmState(
        commit="" if file is None else commit_of() or "",
        code="" if file is None else code_digest(),
        options={**msgspec.structs.asdict(choices), "first_seed": wanted.first},
        first_seed=first,
        done_below=first,
        summary=SwarmSummary(choices=choices),
    )
    if file is None:
        return new
    try:
        return continued(file, new, note)
    except (NoState, OtherOptions) as error:
        raise WrongUsage(str(error)) from None


def _with_progress(
    results: "Iterable[RunResult]", total: "SwarmSummary", number: int, *, is_long: bool
) -> "Iterator[RunResult]":
    """The results, with progress on a terminal; a long swarm shows it elsewhere, too, a line per minute."""
    if not sys.stderr.isatty():
        yield from _with_lines(results, total, number) if is_long else results
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("runs, {task.fields[failed]} failed"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=number, completed=total.runs, failed=len(total.failed))
        for result in results:
            yield result
            progress.update(task, completed=total.runs, failed=len(total.failed))


def _with_lines(results: "Iterable[RunResult]", total: "SwarmSummary", number: int) -> "Iterator[RunResult]":
    shown, before, began = time.monotonic(), total.runs, time.monotonic()
    for result in results:
        yield result
        now = time.monotonic()
        if now - shown >= PROGRESS_SECONDS:
            shown, rate = now, (total.runs - before) / (now - began)
            left = (number - total.runs) / rate / 60
            note(
                f"{total.runs} of {number} runs, {len(total.failed)} failed; {rate:.1f} per second, {left:.0f} min left"
            )


def _print_sum(total: "SwarmSummary", wanted: ManySeeds, seeds: range, real_seconds: float) -> None:
    print_table(("seen", "times"), total.seen.most_common())
    click.echo()
    print_table(("injected", "times"), total.injected.most_common())
    click.echo()
    for what, seconds in total.repairs.items():
        click.echo(f"{what}: {seconds}")
    if wanted.coverage is not False and not wanted.choices.beyond:
        coverage = total.coverage
        _print_coverage(coverage, is_named=bool(wanted.coverage) and not total.must_enter_all)
    click.echo(
        f"{total.runs} runs (seeds {seeds[0]} to {seeds[-1]}), {total.counted} count, {len(total.failed)} failed; "
        f"{total.acknowledged:,} acknowledged records"
    )
    rates = ""
    if real_seconds:  # a file may say that its runs took no time
        rates = f"; {total.deliveries / real_seconds:,.0f} deliveries and {total.events / real_seconds:,.0f} events"
        rates += " per real second"
    click.echo(
        f"{total.virtual_seconds:,.0f} virtual seconds in {real_seconds:,.0f} real ones "
        f"({total.run_seconds / max(1, total.runs):.2f} s of one core per run){rates}"
    )
    for seed, missing in list(sorted(total.not_counted.items()))[:SEEDS_SHOWN]:
        note(f"seed {seed} does not count: {', '.join(missing)}")
    for complaint in total.complaints:
        click.secho(complaint, fg="red")
    for seed in sorted(total.failed)[:SEEDS_SHOWN]:
        click.echo(f"replay with: {wanted.choices.replay(seed)}")
    if wanted.choices.beyond:
        click.echo(f"{total.losses:,} acknowledged records were lost in {total.runs_with_losses} runs, each one named")
    elif not total.complaints:
        click.secho("every invariant held in every run", fg="green")


def _print_coverage(coverage: "CoverageReport", *, is_named: bool) -> None:
    shares = [f"{each.folder} {each.percent:.1f} %" for each in (*coverage.folders, coverage.total)]
    possible = f"without excused functions {coverage.total.percent_of_possible:.1f} %"
    traced = f"{', '.join(shares)}; {possible}" if coverage.folders else "not traced (slipcover is not installed)"
    click.echo(f"lines that ran: {traced}")
    never = f"never entered: {len(coverage.never_entered)}, and {len(coverage.excused)} more with a reason"
    never += f" ({len(coverage.waiting)} of them wait for a load or a fault)" if coverage.waiting else ""
    click.echo(never if is_named or not coverage.never_entered else f"{never}; --coverage and --json name them")
    if is_named and coverage.needless:
        click.echo(f"entered though it has a reason not to be: {', '.join(coverage.needless)}")
    for where, names in coverage.grouped.items() if is_named else ():
        click.echo(f"  {where}: {', '.join(names)}")
