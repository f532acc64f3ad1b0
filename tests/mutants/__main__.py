"""`python -m tests.mutants [replay|search|show|list|table|try]`: plant Kafka's bugs and check that each is caught."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine

import click
import msgspec

from minibroker.command_line import ProgressLine, note
from minibroker.simulation.swarm.choices import WORDS
from tests.mutants.catalogue import CANNOT_APPLY, HARMLESS, MUTANTS, find_mutant
from tests.mutants.mutant import Mutant
from tests.mutants.patching import unified_diff
from tests.mutants.replay import Replay, ReplayedRun, Verdict, write_records
from tests.mutants.summary import summarize, summary_text
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
@click.option("--record", is_flag=True, help="Write what was found to caught.json, and remove what catches no longer.")
@click.option("--from", "first", metavar="NAME", help="Leave out the mutants in front of this one (after Ctrl-C).")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each mutant, and a summary.")
@click.option("--processes", type=click.IntRange(1), default=PROCESSES, show_default=True)
def replay(
    names: tuple[str, ...] = (),
    record: bool = False,
    first: str | None = None,
    as_json: bool = False,
    processes: int = PROCESSES,
) -> None:
    """Run every recorded seed and every directed run, mutated and not.

    Where a recorded seed catches its mutant no longer, or nothing does, seeds are searched anew within a bound. Exits
    with 10 only if nothing caught a mutant: neither its record nor that search."""
    chosen = _chosen(names)
    known = [mutant.name for mutant in chosen]
    if first is not None and first not in known:
        raise click.UsageError(f"no chosen mutant is called {first}")
    session = _Session(chosen[known.index(first) if first is not None else 0 :], as_json, record, processes)
    session.run(session.work.replay)


@mutants.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each mutant, and a summary.")
@click.option("--processes", type=click.IntRange(1), default=PROCESSES, show_default=True)
def search(names: tuple[str, ...], as_json: bool, processes: int) -> None:
    """Search random seeds for every mutant; write what is found to caught.json. Exits with 10 if one has none."""
    session = _Session(_chosen(names), as_json, record=True, processes=processes)
    session.run(session.work.search)


class _Session:
    """Prints each verdict as it comes, then the summary."""

    def __init__(self, chosen: list[Mutant], as_json: bool, record: bool, processes: int) -> None:
        self._progress = ProgressLine()
        self.work = Replay(self._progress.show, processes)
        self._chosen, self._as_json, self._record = chosen, as_json, record
        self._verdicts: list[Verdict] = []
        self._started = time.monotonic()

    def run(self, work: Callable[[list[Mutant], Callable[[Verdict], None]], Coroutine[None, None, None]]) -> None:
        """Do it to the end or to Ctrl-C, and exit."""
        is_complete = True
        try:
            asyncio.run(work(self._chosen, self._print))
        except KeyboardInterrupt:
            is_complete = False
        self._progress.clear()
        if self._record:
            write_records(self._verdicts)
        summary = summarize(self._verdicts, self.work.not_clean)
        if self._as_json:
            click.echo(msgspec.json.encode(summary).decode())
        else:
            click.echo(f"{time.monotonic() - self._started:.0f} s, {summary_text(summary, self._record)}")
        if not is_complete:
            done = {verdict.name for verdict in self._verdicts}
            first = next((mutant.name for mutant in self._chosen if mutant.name not in done), None)
            if first is not None:
                note(f"{len(self._chosen) - len(done)} mutants are left, from {first} on (replay --from {first})")
            sys.exit(130)
        sys.exit(EXIT_NOT_CAUGHT if summary.not_caught else 0)

    def _print(self, verdict: Verdict) -> None:
        self._verdicts.append(verdict)
        self._progress.clear()
        if self._as_json:
            click.echo(msgspec.json.encode(verdict).decode())
            return
        for each in verdict.runs:
            click.echo(_line(verdict, each))


def _line(verdict: Verdict, replayed: ReplayedRun) -> str:
    if replayed.failure is not None:
        result = f"FAILED: {replayed.failure}"
    elif replayed.unpatched_findings:
        result = f"NOT CLEAN without the mutant: {replayed.unpatched_findings[0].text}"
    elif not replayed.caught_by:
        result = "catches it no longer"
    else:
        result = " ".join(replayed.caught_by[0].text.split())[:110]
    anew = "anew: " if replayed is verdict.anew else ""
    return f"{verdict.name:5} {replayed.run:42} {replayed.seconds:5.1f} s  {anew}{result}"


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
    """Run NAME (or -) with RUNS (`17`, `1-20`, `disks:1-20`, `loads:1-20`, `older:1-20`, `schedule:theme:function`) in this process
    and print all findings."""
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
        if first.isdigit() and kind in ("", "seed", *WORDS):
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
