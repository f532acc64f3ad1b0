"""`python -m tests.mutation_score --sample 400 --seed 1`: the mutation score of a random sample."""

import asyncio
import sys
import time

import click
import msgspec

from minibroker.command_line import ProgressLine, note
from tests.mutants.patching import ROOT
from tests.mutants.workers import PROCESSES
from tests.mutation_score.population import operators
from tests.mutation_score.report import scores, scores_text, survivor_text
from tests.mutation_score.results import Result
from tests.mutation_score.sample import kept_draw
from tests.mutation_score.scoring import Scoring
from tests.mutation_score.survivors import load_survivors

EXIT_BELOW_GOAL = 10


@click.command()
@click.option("--sample", type=click.IntRange(1), default=400, show_default=True, help="How many mutants.")
@click.option("--seed", type=int, default=1, show_default=True, help="Draws them.")
@click.option(
    "--folder", "folders", multiple=True, metavar="NAME", help="Draw only from this, as broker.log (repeatable)."
)
@click.option(
    "--operator",
    "operator_names",
    multiple=True,
    type=click.Choice(sorted(operators())),
    metavar="NAME",
    help="Draw only mutations by this, as RemoveCall (repeatable).",
)
@click.option("--handlers", "handlers_only", is_flag=True, help="Draw only from the bodies of `except` and `finally`.")
@click.option(
    "--tests",
    "tests_below",
    multiple=True,
    metavar="PATH",
    help="Try only tests below this, as tests/broker/log (repeatable).",
)
@click.option("--tests-only", is_flag=True, help="Do not try the survivors on seeds of the swarm.")
@click.option("--report", "report_only", is_flag=True, help="Try nothing; report what is known of this sample.")
@click.option("--mutant", "names", multiple=True, metavar="NAME", help="Only this mutant of the sample (repeatable).")
@click.option("--verbose", is_flag=True, help="A line for each mutant as it is tried.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each mutant, then the scores.")
@click.option("--processes", type=click.IntRange(1), default=PROCESSES, show_default=True)
def main(
    sample: int,
    seed: int,
    folders: tuple[str, ...],
    operator_names: tuple[str, ...],
    handlers_only: bool,
    tests_below: tuple[str, ...],
    tests_only: bool,
    report_only: bool,
    names: tuple[str, ...],
    verbose: bool,
    as_json: bool,
    processes: int,
) -> None:
    """Draw mutants, try them, and report the score and the survivors. Goes on where the last run ended.

    Exits with 10 if a folder is below its goal."""
    started, progress = time.monotonic(), ProgressLine()
    drawn = kept_draw(ROOT, sample, seed, folders, operator_names, handlers_only=handlers_only)
    mutants = [each for each in drawn if not names or each.name in names]
    if not mutants:
        raise click.UsageError(f"this sample has no mutant {' '.join(names)}")
    survivors = load_survivors()
    scoring = Scoring(mutants, survivors, tests_below)

    def on_result(result: Result) -> None:
        progress.clear()
        if verbose:
            note(f"{result.seconds:6.1f} s {result.place}: {result.killer or 'survived'} (of {result.killers})")

    is_complete = True
    if not report_only:
        try:
            asyncio.run(scoring.run(processes, not tests_only, progress.show, on_result))
        except KeyboardInterrupt:
            is_complete = False
        progress.clear()
    tried = [(mutant, result) for mutant in mutants if (result := scoring.result(mutant)) is not None]
    rows = scores(tried, survivors)
    for mutant, result in tried:
        if as_json:
            click.echo(msgspec.json.encode({"mutant": mutant, "result": result}).decode())
        elif result.killer is None:
            click.echo(survivor_text(mutant, result, survivors.get(mutant.name)))
    if as_json:
        click.echo(msgspec.json.encode({"scores": rows}).decode())
    else:
        click.echo(scores_text(rows))
        for killer in scoring.failed_killers:
            note(f"not used, as it fails or is skipped on the code as it is: {killer.killer}")
    note(f"{len(tried)} of {len(mutants)} mutants are tried, in {time.monotonic() - started:.0f} s")
    if not is_complete:
        note("stopped; the same command goes on from here")
        sys.exit(130)
    is_below = any(row.score is not None and row.score < row.goal for row in rows)
    sys.exit(EXIT_BELOW_GOAL if is_below else 0)


if __name__ == "__main__":
    main()
