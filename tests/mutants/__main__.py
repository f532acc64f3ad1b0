"""`python -m tests.mutants [replay|search|show|list|table|try]`: plant Kafka's bugs and check that each is caught."""

import asyncio
import sys
import time

import click
import msgspec

from minibroker.command_line import ProgressLine
from tests.mutants.catalogue import CANNOT_APPLY, HARMLESS, MUTANTS, find_mutant
from tests.mutants.mutant import Mutant
from tests.mutants.patching import unified_diff
from tests.mutants.replay import Replay, ReplayedRun
from tests.mutants.table import write_table
from tests.mutants.workers import PROCESSES

EXIT_NOT_CAUGHT = 10


@click.group(invoke_without_command=True)
@click.pass_context
def mutants(context: click.Context) -> None:
    """Without a command: replay everything that is recorded."""
    if context.invoked_subcommand is None:
        context.invoke(replay)


def _chosen(names: tuple[str, ...]) -> list[Mutant]:
    """Without names: all. `B04` also names B04a and B04b."""
    if not names:
        return list(MUTANTS)
    known = (*MUTANTS, *HARMLESS)
    chosen = [each for each in known if any(each.name == n or each.name[:-1] == n for n in names)]
    if not chosen:
        raise click.UsageError(f"no mutant is called {' or '.join(names)}")
    return chosen


@mutants.command()
@click.argument("names", nargs=-1)
@click.option("--record", is_flag=True, help="Write what was found to caught.json.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each run.")
@click.option("--processes", type=click.IntRange(1), default=PROCESSES, show_default=True)
def replay(
    names: tuple[str, ...] = (), record: bool = False, as_json: bool = False, processes: int = PROCESSES
) -> None:
    """Run every recorded seed and schedule, mutated and not."""
    _report(_chosen(names), as_json, processes, searches=False, record=record)


@mutants.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each mutant that was caught.")
@click.option("--processes", type=click.IntRange(1), default=PROCESSES, show_default=True)
def search(names: tuple[str, ...], as_json: bool, processes: int) -> None:
    """Search random seeds for every mutant; write what is found to caught.json."""
    _report(_chosen(names), as_json, processes, searches=True, record=True)


def _report(chosen: list[Mutant], as_json: bool, processes: int, searches: bool, record: bool) -> None:
    progress, started = ProgressLine(after_s=0.0), time.monotonic()
    session = Replay(progress.show, processes)
    try:
        verdicts = asyncio.run(session.search(chosen) if searches else session.replay(chosen, record))
    except KeyboardInterrupt:
        progress.clear()
        sys.exit(130)
    progress.clear()
    for verdict in verdicts:
        click.echo(msgspec.json.encode(verdict).decode() if as_json else _line(verdict))
    caught = {verdict.name for verdict in verdicts if verdict.is_caught}
    missed = [mutant.name for mutant in chosen if mutant.name not in caught]
    wrong = [verdict for verdict in verdicts if not verdict.is_caught]
    if not as_json:
        seconds = time.monotonic() - started
        click.echo(f"{len(caught)} of {len(chosen)} mutants caught in {len(verdicts)} runs, {seconds:.0f} s")
        if missed:
            click.echo(f"not caught: {' '.join(missed)}")
    sys.exit(EXIT_NOT_CAUGHT if missed or wrong else 0)


def _line(replayed: ReplayedRun) -> str:
    if replayed.failure is not None:
        result = f"FAILED: {replayed.failure}"
    elif replayed.unpatched_findings:
        result = f"NOT CLEAN without the mutant: {replayed.unpatched_findings[0].text}"
    elif not replayed.caught_by:
        result = "NOT CAUGHT"
    else:
        result = " ".join(replayed.caught_by[0].text.split())[:110]
    return f"{replayed.name:5} {replayed.run:42} {replayed.seconds:5.1f} s  {result}"


@mutants.command()
@click.argument("name")
def show(name: str) -> None:
    """Print a mutant as a diff."""
    for mutant in _chosen((name,)):
        click.echo(f"{mutant.name} {mutant.title} [{mutant.origin}]\nRule: {mutant.rule}\n{unified_diff(mutant)}")


@mutants.command(name="list")
def list_all() -> None:
    """Names and titles."""
    for mutant in (*MUTANTS, *HARMLESS):
        click.echo(f"{mutant.name:5} {mutant.title} [{mutant.origin}]")
    for each in CANNOT_APPLY:
        click.echo(f"{each.name:5} cannot apply: {each.reason}")


@mutants.command(name="try")
@click.argument("name")
@click.argument("runs", nargs=-1, required=True)
def try_runs(name: str, runs: tuple[str, ...]) -> None:
    """Run NAME (or -) with RUNS (`17`, `1-20`, `disks:1-20`, `schedule:theme:function`) in this process and print all
    findings."""
    from tests.mutants.one_run import UNPATCHED, perform
    from tests.mutants.patching import apply

    mutant = None if name == UNPATCHED else find_mutant(name)
    if mutant is not None:
        apply(mutant)
    for run in _expanded(runs):
        result = perform(run)
        catching = result.catching_findings(mutant.modules) if mutant is not None else result.findings
        click.echo(
            f"{run} {result.seconds:.1f} s ({result.virtual_seconds:.1f} virtual): {len(catching)} catching findings"
        )
        for each in result.findings[:6]:
            click.echo(f"    {each.text[:400]}")


def _expanded(runs: tuple[str, ...]) -> list[str]:
    found: list[str] = []
    for run in runs:
        kind, _, seeds = run.rpartition(":")
        first, _, last = seeds.partition("-")
        if first.isdigit() and kind in ("", "seed", "disks"):
            found += [f"{kind or 'seed'}:{seed}" for seed in range(int(first), int(last or first) + 1)]
        else:
            found.append(run)
    return found


@mutants.command()
def table() -> None:
    """Write the table in docs/SIMULATION.md from the catalogue and caught.json."""
    write_table()


if __name__ == "__main__":
    mutants()
