"""`minibroker simulate`: a whole cluster in one process, with faults and the order of events drawn from a seed."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    ProgressLine,
    WrongUsage,
    is_whole_number,
    json_option,
    note,
    print_json,
    print_table,
)
from minibroker.commands.simulate_many import SEEDS_SHOWN, ManySeeds, run_seeds
from minibroker.protocol.counted import counted
from minibroker.simulation.swarm.choices import RunChoices
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.simulation.checks.finding import CheckerFinding
    from minibroker.simulation.swarm.outcome import RunOutcome

OF_COMMIT = "commit"
SPEED_VIRTUAL_SECONDS = 60
WORKERS_MAX = 256
"""Each is a process of a hundred megabytes."""


@click.command()
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Show this one run, line by line.")
@click.option(
    "--seeds", metavar="NUMBER or A-B", help="Run this many seeds (or this range) on all cores, and summarize."
)
@click.option(
    "--first-seed",
    default="1",
    show_default=True,
    metavar="N|commit",
    help="With --seeds. `commit`: seeds that belong to this commit, and to no other.",
)
@click.option(
    "--beyond", is_flag=True, help="Lose acknowledged records on purpose, and check that the loss is found and named."
)
@click.option(
    "--disk-faults/--no-disk-faults",
    default=None,
    help="Disk faults, and stops of all brokers, in every run or in none.  [default: in half of them]",
)
@click.option(
    "--loads/--no-loads",
    default=None,
    help="Clients that use the whole client library, and settings that bite, in every run or in none.  [default: in a "
    "quarter of them]",
)
@click.option(
    "--older-zookeeper/--no-older-zookeeper",
    default=None,
    help="An older copy of ZooKeeper's data is put in while no broker runs, in every run or in none.  [default: in a "
    "tenth of them]",
)
@click.option(
    "--disk-threads/--no-disk-threads",
    default=None,
    help="Work in the background of a disk overlaps with the event loop, as in threads, in every run or in none.  "
    "[default: in a fifth of them]",
)
@click.option("--brokers", type=click.IntRange(3, 9), default=3, show_default=True)
@click.option("--speed", is_flag=True, help="Measure virtual seconds per real second under a fixed load, on one core.")
@click.option("--quiet", is_flag=True, help="With --seed: only the summary and the findings.")
@click.option(
    "--coverage/--no-coverage",
    default=None,
    help="With --seeds: trace the lines that run and name all that was never entered, or do neither.  [default: traced "
    "if slipcover is installed; named from 300 runs on]",
)
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="With --seeds: keep in this file what is done, and go on from there.",
)
@click.option("--workers", type=click.IntRange(1, WORKERS_MAX), metavar="N", help="With --seeds.  [default: all cores]")
@click.option(
    "--history",
    type=click.Path(dir_okay=False, writable=True),
    metavar="FILE",
    help="With --seed: write the clients' operations and their results, as JSON lines.",
)
@json_option
@read_or_not()
def simulate(
    seed: int | None,
    seeds: str | None,
    first_seed: str,
    beyond: bool,
    disk_faults: bool | None,
    loads: bool | None,
    older_zookeeper: bool | None,
    disk_threads: bool | None,
    brokers: int,
    speed: bool,
    quiet: bool,
    coverage: bool | None,
    resume: Path | None,
    workers: int | None,
    history: str | None,
    as_json: bool,
) -> int:
    """Run a cluster under faults drawn from a seed, and check it.

    A seed and a commit determine a run to the last byte (its trace hash). Exit code 10 if an invariant is violated, or
    if many runs never saw a kind of event, or never entered a part of the code that they should.
    """
    if beyond and disk_faults:
        raise WrongUsage("--beyond breaks the promise on purpose, --disk-faults stays within it: give one of them")
    if beyond and loads:
        raise WrongUsage("--beyond runs have no loads: give one of them")
    if beyond and older_zookeeper:
        raise WrongUsage("--beyond runs keep ZooKeeper's data: give one of them")
    if beyond and disk_threads:
        raise WrongUsage("--beyond runs have no threads of disks: give one of them")
    if seeds is None and (coverage is not None or resume is not None):
        raise WrongUsage("--coverage and --resume belong to many runs: give --seeds NUMBER with them")
    if (seed is not None) + (seeds is not None) + speed != 1:
        raise WrongUsage("give one of --seed N (one run, shown), --seeds NUMBER (many runs, summed up), and --speed")
    if history is not None and seed is None:
        raise WrongUsage("--history belongs to one run: give --seed N with it")
    if resume is not None and not resume.parent.is_dir():
        raise CommandFailed(f"{resume} cannot be written: create the directory {resume.parent}, or name another file")
    if history is not None:
        _require_writable(Path(history))
    if speed:
        return _speed(as_json)
    choices = RunChoices(
        brokers=brokers,
        beyond=beyond,
        disk_faults=disk_faults,
        loads=loads,
        older_zookeeper=older_zookeeper,
        disk_threads=disk_threads,
    )
    if seed is not None:
        return _one(seed, choices, quiet, history, as_json)
    assert seeds is not None
    found = _parse(seeds, _first_seed(first_seed))
    first = first_seed if first_seed == OF_COMMIT and "-" not in seeds else str(found[0])
    wanted = ManySeeds(seeds=found, first=first, choices=choices, workers=workers, coverage=coverage, resume=resume)
    return run_seeds(wanted, as_json)


def _first_seed(text: str) -> int:
    if text == OF_COMMIT:
        from minibroker.code_version import code_digest, commit_of, fresh_seed

        return fresh_seed(commit_of() or code_digest())
    if not is_whole_number(text):
        raise WrongUsage(f"--first-seed {text}: give a number, or `{OF_COMMIT}`")
    return int(text)


def _parse(seeds: str, first_seed: int) -> range:
    first, dash, last = seeds.partition("-")
    if not is_whole_number(first) or (dash and not is_whole_number(last)):
        raise WrongUsage(f"--seeds {seeds}: give a number, as in 1000, or a range, as in 17-99")
    found = range(int(first), int(last) + 1) if dash else range(first_seed, first_seed + int(first))
    if not found:
        raise WrongUsage(f"--seeds {seeds} contains no seed")
    return found


def _speed(as_json: bool) -> int:
    import msgspec

    from minibroker.simulation_speed import measure_all

    progress, rows = ProgressLine(after_s=0.0), []
    for found in measure_all(SPEED_VIRTUAL_SECONDS):
        load = found.load
        progress.show(f"{load.brokers} brokers, {load.partitions} partitions: {found.factor:.0f}")
        if as_json:
            print_json(msgspec.to_builtins(found) | {"factor": round(found.factor, 1)})
        batched = f"{load.linger_ms} ms" if load.linger_ms else "no"
        row = (load.brokers, load.partitions, load.records_per_second, batched, f"{found.factor:.1f}")
        rates = (found.callbacks / found.cpu_seconds, found.deliveries / found.cpu_seconds)
        rows.append((*row, f"{found.callbacks / SPEED_VIRTUAL_SECONDS:.0f}", *(f"{rate:.0f}" for rate in rates)))
    progress.clear()
    if not as_json:
        per_virtual = ("virtual s per real s", "events per virtual s")
        print_table(("brokers", "partitions", "records/s", "batched", *per_virtual, "events/s", "deliveries/s"), rows)
        note(f"replication factor 3, acks=all, {SPEED_VIRTUAL_SECONDS} virtual seconds; real: CPU seconds of one core")
    return EXIT_FINE


# ---------------------------------------------------------------------------------------------------------- one seed
def _require_writable(file: Path) -> None:
    """Before the run: it takes a minute, and its history would be lost."""
    try:
        file.open("ab").close()
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written ({error.strerror}): name another file for --history") from None


def _one(seed: int, choices: RunChoices, quiet: bool, history: str | None, as_json: bool) -> int:
    from minibroker.chaos.history.client_history import to_json_lines
    from minibroker.simulation.swarm.narrator import HEADER, NarratedLine
    from minibroker.simulation.swarm.run import run_beyond, run_seed

    def show(line: NarratedLine) -> None:
        if as_json and not quiet:
            print_json(line.as_json())
        elif not quiet:
            click.echo(str(line))

    if not quiet and not as_json:
        click.secho(HEADER, bold=True)
    started = time.perf_counter()
    if choices.beyond:
        outcome = run_beyond(seed, choices=choices, on_line=show)
    else:
        outcome = run_seed(seed, choices=choices, on_line=show)
    real_seconds = time.perf_counter() - started
    if history is not None:
        Path(history).write_bytes(to_json_lines(outcome.history.events.events))
    command = choices.replay(seed)
    if as_json:
        print_json(_as_json(outcome, real_seconds, command))
    else:
        _print_outcome(outcome, real_seconds, command)
    return EXIT_FOUND_WRONG if outcome.findings else EXIT_FINE


def _as_json(outcome: "RunOutcome", real_seconds: float, command: str) -> dict[str, Any]:
    return {
        "event": "summary",
        "seed": outcome.seed,
        "trace_hash": outcome.trace_hash,
        "findings": [_finding_as_json(outcome, finding) for finding in outcome.findings],
        "losses": [str(each) for each in outcome.losses],
        "counts": outcome.counts,
        "missing": outcome.missing,
        "replay": command,
        "acknowledged": dict(outcome.acknowledged),
        "read": len(outcome.history.read),
        "unknown": outcome.history.unknown,
        "virtual_seconds": round(outcome.virtual_seconds, 6),
        "real_seconds": round(real_seconds, 3),
        "deliveries": outcome.deliveries,
        "events": outcome.callbacks,
        "seen": dict(outcome.coverage.seen.most_common()),
        "injected": dict(outcome.injected.most_common()),
    }


def _finding_as_json(outcome: "RunOutcome", finding: "CheckerFinding") -> dict[str, Any]:
    assert outcome.narrator is not None
    return {
        "invariant": finding.invariant,
        "text": finding.text,
        "at_seconds": finding.at_seconds,
        "partition": None if finding.partition is None else str(finding.partition),
        "facts": list(finding.facts),
        "history": [line.as_json() for line in outcome.narrator.shortest_history(finding)],
    }


def _print_outcome(outcome: "RunOutcome", real_seconds: float, command: str) -> None:
    for loss in outcome.losses:
        click.echo(f"lost and named: {loss.partition} {loss.text}; {'; '.join(loss.facts)}")
    for finding in outcome.findings[:1]:
        _print_finding(outcome, finding)
    for finding in outcome.findings[1:SEEDS_SHOWN]:
        click.echo(f"also: {finding}")
    click.echo()
    click.echo(f"seed {outcome.seed}: {outcome.summary}")
    rates = f"{outcome.deliveries / real_seconds:,.0f} deliveries and {outcome.callbacks / real_seconds:,.0f} events"
    click.echo(
        f"{outcome.virtual_seconds:.1f} virtual seconds in {real_seconds:.2f} real ones, {rates} per real second; "
        f"trace hash {outcome.trace_hash}"
    )
    if outcome.findings:
        click.secho(f"{counted(len(outcome.findings), 'finding')}; replay with: {command}", fg="red", bold=True)
    else:
        lost = f"{len(outcome.losses)} acknowledged records are lost, each is named, and the replicas are identical"
        click.secho(lost if outcome.losses else "every invariant held", fg="green")


def _print_finding(outcome: "RunOutcome", finding: "CheckerFinding") -> None:
    assert outcome.narrator is not None
    from minibroker.simulation.swarm.narrator import HEADER

    click.echo()
    where = f" of {finding.partition}" if finding.partition is not None else ""
    when = "at the end" if finding.at_seconds is None else f"at {finding.at_seconds:.3f} s"
    click.secho(f"{finding.invariant} broke {when}{where}: {finding.text}", fg="red", bold=True)
    for fact in finding.facts:
        click.echo(f"    {fact}")
    click.echo(f"the history{where} since its replicas last agreed:")
    click.echo(HEADER)
    for line in outcome.narrator.shortest_history(finding):
        click.echo(str(line))
