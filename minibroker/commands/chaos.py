"""`minibroker chaos`: a real cluster under load and faults, a history of what clients saw, and a verdict."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    EXIT_INTERRUPTED,
    CommandFailed,
    LazyGroup,
    ProgressLine,
    Seconds,
    WrongUsage,
    json_option,
    named_values,
    note,
    print_json,
    print_table,
)
from minibroker.existing_path import ExistingPath
from minibroker.protocol.counted import counted
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.chaos.plan.drawing import Plan
    from minibroker.chaos.report.document import ChaosReport
    from minibroker.chaos.run.options import ChaosOptions

COMMANDS = {
    "run": (
        "minibroker.commands.chaos:run",
        "Break a cluster under load, and judge what it did.",
    ),
    "faults": ("minibroker.commands.chaos:faults", "List the faults, and where each is possible."),
    "plan": ("minibroker.commands.chaos:plan", "Print the faults that a seed draws, without running them."),
    "check": ("minibroker.commands.chaos:check", "Look for anomalies in a recorded history."),
    "table": ("minibroker.commands.chaos:table", "Add up what each kind of fault cost, over several runs."),
}
BACKENDS = click.Choice(["processes", "compose", "simulated"])
DURATION_S = 60.0
SEEDS = 1_000_000
PLAN_BYTES_MAX = 1024 * 1024
"""Of ten thousand faults; a run lasts a day at most."""
REPORT_BYTES_MAX = 256 * 1024 * 1024
"""Of report.json; that of a run of five minutes has some hundred kilobytes."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def chaos() -> None:
    """Break a real cluster under load, and find out whether it kept its promises."""


def plan_options(function: Any) -> Any:
    """What `run` and `plan` have in common."""
    for option in (
        click.option(
            "--faults", "fault_names", metavar="KIND[:TARGET],...|PLAN.json", help="[default: drawn from the seed]"
        ),
        click.option("--seed", type=click.IntRange(0), metavar="N", help="[default: drawn, and printed]"),
        click.option(
            "--duration",
            "duration_s",
            type=Seconds(min=5, max=86_400),
            metavar="SECONDS",
            help=f"Of the faults; recovery and the last read come on top.  [default: {DURATION_S:g}]",
        ),
        click.option("--backend", type=BACKENDS, default="processes", show_default=True),
    ):
        function = option(function)
    return function


@click.command()
@plan_options
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of every broker.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option("--rate", type=click.IntRange(1, 5_000), default=200, show_default=True, help="Records per second.")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="[default: chaos-SEED]")
@click.option(
    "--lie",
    type=click.Choice(["drop", "duplicate", "reorder", "rewrite"]),
    help="Plant one lie: the run must be convicted of it.",
)
@click.option(
    "--lie-in",
    type=click.Choice(["history", "disks"]),
    help="In what clients saw, or in a segment file of one broker before the audit.  [default: history]",
)
@click.option("--client", metavar="COMMAND", help="A program that is the load, in place of the own clients.")
@click.option(
    "--idempotent", metavar="PROCESS,...", default="", help="Of --client: they write each record once, in order."
)
@click.option("--audit", "engine", type=click.Choice(["local", "spark"]), default="local", show_default=True)
@click.option("--keep-disks", is_flag=True, help="Keep the brokers' files also of a run that was cleared.")
@json_option
@read_or_not()
def run(
    backend: Literal["processes", "compose", "simulated"],
    duration_s: float | None,
    seed: int | None,
    fault_names: str | None,
    settings: tuple[str, ...],
    acks: Literal["all", "1", "0"],
    rate: int,
    out: Path | None,
    lie: str | None,
    lie_in: Literal["history", "disks"] | None,
    client: str | None,
    idempotent: str,
    engine: Literal["local", "spark"],
    keep_disks: bool,
    as_json: bool,
) -> int:
    """Break a cluster under load, and judge what it did.

    What its clients saw is checked for anomalies, and its disks are audited. Exit code 0: cleared. 10: convicted. 1:
    nothing was tested, or the run failed. Ctrl-C ends the faults; the cluster is healed, the report tells of what was
    seen, and the exit code is 130 unless that convicts.
    """
    import msgspec

    from minibroker.chaos.run.execution import remove_disks
    from minibroker.chaos.run.options import ChaosOptions

    if lie is None and lie_in is not None:
        raise WrongUsage("--lie-in says where --lie plants it: give --lie drop, duplicate, reorder or rewrite")
    _check_client(client, idempotent, backend)
    _check_audit(engine)
    drawn = _plan(backend, duration_s, seed, fault_names)
    out = _free_directory(out or Path(f"chaos-{drawn.seed}"))
    options = ChaosOptions(
        backend=backend,
        plan=drawn,
        out=out,
        settings=_settings(settings),
        acks=acks,
        rate=rate,
        client=client,
        idempotent=_processes(idempotent),
        lie=lie,
        lie_in=lie_in or "history",
        audit_engine=engine,
    )
    options = msgspec.structs.replace(options, command=_command(options, fault_names))
    note(
        f"seed {drawn.seed}: {counted(len(drawn.faults), 'fault')} within {drawn.duration_s:g} s on {backend};"
        f" recovery and audit follow; the report goes to {out}"
    )
    progress = ProgressLine(after_s=0.0)
    report = _execute(options, progress.show)
    progress.clear()
    if report.verdict.outcome == "cleared" and not keep_disks:
        remove_disks(out)
    _show(report, out, as_json)
    if report.was_interrupted and report.verdict.outcome != "convicted":
        return EXIT_INTERRUPTED
    return report.verdict.exit_code


def _plan(backend: Any, duration_s: float | None, seed: int | None, fault_names: str | None) -> "Plan":
    """The plan of a file, or a new one. Wrong input is a usage error."""
    from minibroker.chaos.plan.drawing import BadPlan, check_backend, draw_plan, parse_faults, parse_plan

    try:
        if fault_names is not None and fault_names.endswith(".json"):
            if seed is not None or duration_s is not None:
                raise WrongUsage("a plan has its seed and duration: give --faults PLAN.json without them")
            return parse_plan(_content(Path(fault_names)), backend)
        only = parse_faults(fault_names) if fault_names is not None else []
        for kind, _ in only:
            check_backend(kind, backend)
        drawn = int.from_bytes(os.urandom(4)) % SEEDS if seed is None else seed
        return draw_plan(drawn, duration_s or DURATION_S, backend, only)
    except BadPlan as error:
        raise WrongUsage(str(error)) from None


def _content(file: Path) -> bytes:
    from minibroker.audit.reading.regular_files import read_regular

    try:
        return read_regular(str(file), PLAN_BYTES_MAX)
    except FileNotFoundError:
        raise CommandFailed(f"there is no {file}: check the path") from None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}: name the file of a plan") from None


def _settings(settings: tuple[str, ...]) -> dict[str, str]:
    """Wrong names and values are told before anything starts."""
    from minibroker.commands.broker import NECESSARY_SETTINGS, problem_of_settings

    found = named_values(settings, "--set", "NAME=VALUE")
    problem = problem_of_settings([*NECESSARY_SETTINGS, *settings])
    if problem is not None:
        raise WrongUsage(problem)
    return found


def _free_directory(wanted: Path) -> Path:
    """A directory that no earlier run has used: `chaos-7`, `chaos-7-2`, .."""
    number = 1
    found = wanted
    while found.exists() and any(found.iterdir()):
        number += 1
        found = wanted.with_name(f"{wanted.name}-{number}")
    return found


def _command(options: "ChaosOptions", faults: str | None) -> str:
    words = ["minibroker", "chaos", "run", "--backend", options.backend]
    if faults is None or not faults.endswith(".json"):
        words += ["--seed", str(options.plan.seed), "--duration", f"{options.plan.duration_s:g}"]
    words += ["--faults", faults] if faults is not None else []
    for name, value in options.settings.items():
        words += ["--set", f"{name}={value}"]
    words += ["--acks", options.acks, "--rate", f"{options.rate:g}"]
    words += ["--lie", options.lie, "--lie-in", options.lie_in] if options.lie is not None else []
    words += ["--client", options.client] if options.client is not None else []
    words += ["--idempotent", ",".join(options.idempotent)] if options.idempotent else []
    words += ["--audit", options.audit_engine] if options.audit_engine != "local" else []
    return shlex.join(words)


def _check_client(client: str | None, idempotent: str, backend: str) -> None:
    import shutil

    if client is None:
        if idempotent:
            raise WrongUsage("--idempotent names processes of a program: give --client COMMAND")
        return
    if backend == "simulated":
        raise WrongUsage("a program runs in real time: give --client with --backend processes or compose")
    try:
        words = shlex.split(client)
    except ValueError as error:
        raise WrongUsage(f"--client: {client!r} is no command ({error})") from None
    if not words or shutil.which(words[0]) is None:
        raise WrongUsage(f"--client: there is no program {words[0] if words else ''!r}: check the path")


def _processes(names: str) -> tuple[str, ...]:
    return tuple(filter(None, names.split(",")))


def _check_audit(engine: str) -> None:
    """Before the run, not after it."""
    from minibroker import doctor_checks

    complaint = doctor_checks.complaint(doctor_checks.checks_for_audit(engine)) if engine != "local" else None
    if complaint is not None:
        raise CommandFailed(f"{complaint}; --audit local needs neither Java nor Spark")


def _execute(options: Any, tell: Any) -> "ChaosReport":
    """Errors of the environment become one sentence."""
    from minibroker.chaos.history.lies import NoPlace
    from minibroker.chaos.run.execution import execute
    from minibroker.chaos.run.opening import run_on
    from minibroker.harness.cluster import UnsupportedByBackend
    from minibroker.harness.container_engine import ComposeFailed, compose_command
    from minibroker.local_cluster.cluster_file import ClusterBusy, ClusterFailed
    from minibroker.local_cluster.teardown import TeardownTimedOut
    from minibroker.local_cluster.zookeeper_jars import MissingZooKeeper
    from minibroker.local_cluster.zookeeper_process import MissingJava, PortTaken, ZooKeeperFailed

    try:
        if options.backend == "compose":
            compose_command()  # before the run has a directory
        return run_on(options.backend, execute(options, tell))
    except NoPlace as error:
        raise CommandFailed(f"no lie can be planted: {error}; give it more time or a higher --rate") from None
    except UnsupportedByBackend as error:
        raise WrongUsage(str(error)) from None
    except (ComposeFailed, ClusterBusy, ClusterFailed, TeardownTimedOut) as error:
        raise CommandFailed(str(error)) from None
    except (MissingZooKeeper, MissingJava, PortTaken, ZooKeeperFailed) as error:
        raise CommandFailed(str(error)) from None


def _show(report: "ChaosReport", out: Path, as_json: bool) -> None:
    verdict, counts = report.verdict, report.counts
    if as_json:
        print_json(
            {
                "outcome": verdict.outcome,
                "interrupted": report.was_interrupted,
                "reasons": list(verdict.reasons),
                "seed": report.seed,
                "counts": counts,
                "audit": report.audit.summary,
                "directory": str(out),
                "command": report.command,
            }
        )
        return
    done = [fault for fault in report.faults if fault.began_s is not None]
    click.echo(
        f"seed {report.seed}: {counted(len(done), 'fault')}, {counted(counts['sends'], 'send')} "
        f"({counts['ok']} acknowledged, {counts['fail']} failed, {counts['info']} unknown), "
        f"{counted(counts['records_read'], 'record')} read, "
        f"{counted(counts['elections'], 'election')}, {counted(counts['truncations'], 'truncation')}"
    )
    for fault in report.faults:
        if fault.left_out is not None:
            click.echo(f"left out: {fault.planned.kind} of {fault.planned.target}: {fault.left_out}")
    click.echo(f"audit: {report.audit.summary}")
    for reason in verdict.reasons:
        click.echo(f"  {reason}")
    colour = {"cleared": "green", "convicted": "red"}.get(verdict.outcome, "yellow")
    interrupted = " as far as it ran: Ctrl-C ended the faults" if report.was_interrupted else ""
    click.secho(verdict.outcome + interrupted, fg=colour, bold=True)
    for anomaly in report.anomalies[:5]:
        click.echo(f"  {anomaly.name} {anomaly.key}: {anomaly.text}; {'; '.join(anomaly.facts)}")
    note(f"report: {out / 'report.html'}; again: {report.command}")


@click.command()
@json_option
def faults(as_json: bool) -> int:
    """List the faults, and where each is possible."""
    from minibroker.chaos.plan.fault_kinds import BACKENDS as ALL
    from minibroker.chaos.plan.fault_kinds import KINDS

    if as_json:
        for kind in KINDS:
            print_json(
                {
                    "name": kind.name,
                    "text": kind.text,
                    "targets": list(kind.targets),
                    "backends": list(kind.backends),
                    "needs": kind.needs,
                }
            )
        return EXIT_FINE
    rows = [
        (
            kind.name,
            *(backend in kind.backends for backend in ALL),
            kind.targets,
            kind.text + (f" (needs {kind.needs})" if kind.needs else ""),
        )
        for kind in KINDS
    ]
    print_table(("FAULT", *(backend.upper() for backend in ALL), "TARGETS", "WHAT"), rows)
    return EXIT_FINE


@click.command()
@plan_options
@json_option
def plan(
    backend: Literal["processes", "compose", "simulated"],
    duration_s: float | None,
    seed: int | None,
    fault_names: str | None,
    as_json: bool,
) -> int:
    """Print the faults that a seed draws, without running them.

    With --json it is a file for --faults.
    """
    import msgspec

    drawn = _plan(backend, duration_s, seed, fault_names)
    if as_json:
        print_json(msgspec.to_builtins(drawn))
        return EXIT_FINE
    rows = [(f"{f.at_s:.2f}", f.kind, f.target, f.partition, f"{f.for_s:.2f}") for f in drawn.faults]
    print_table(("AT S", "FAULT", "TARGET", "PARTITION", "FOR S"), rows)
    note(f"seed {drawn.seed}, {drawn.duration_s:g} s, at most {drawn.overlap_max} at the same time")
    return EXIT_FINE


@click.command()
@click.argument("history", type=ExistingPath(path_type=Path))
@click.option("--idempotent", metavar="PROCESS,...", default="", help="They write each record once, in order.")
@click.option("--all-sends", is_flag=True, help="The history has every send, so what else is read was invented.")
@click.option("--unfinished", is_flag=True, help="The history does not end with a read of everything.")
@click.option(
    "--last-reader",
    metavar="PROCESS",
    default="final-reader",
    show_default=True,
    help="It reads everything at the end; without such a process all reads count.",
)
@json_option
@read_or_not()
def check(history: Path, idempotent: str, all_sends: bool, unfinished: bool, last_reader: str, as_json: bool) -> int:
    """Look for anomalies in a recorded history.

    HISTORY is a file, or the directory of a run. Exit code 10 if there is an anomaly. docs/CHAOS.md describes the
    format, and each anomaly.
    """
    import msgspec

    from minibroker.chaos.history.anomalies import judge_history
    from minibroker.chaos.history.history_file import BadHistory
    from minibroker.chaos.history.promise import Promise
    from minibroker.chaos.run.history_reading import read_history
    from minibroker.protocol.printable_text import printable

    history = _history_file(history)
    promise = Promise(
        in_order=frozenset(_processes(idempotent)),
        knows_all_sends=all_sends,
        is_final=not unfinished,
        last_reader=last_reader,
        values_are_unique=True,
    )
    progress = ProgressLine()
    try:
        found = judge_history(lambda: read_history(history, progress.show), promise)
    except BadHistory as error:
        raise CommandFailed(f"{history}: {error}") from None
    except OSError as error:
        raise CommandFailed(
            f"{history} cannot be read: {error.strerror}: name a file, because it is read several times"
        ) from None
    finally:
        progress.clear()
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        for anomaly in found.anomalies:
            told = f"{anomaly.name} {anomaly.key}: {anomaly.text}; {'; '.join(anomaly.facts)}"
            click.echo(printable(told))  # another program wrote the values
        sums = ", ".join(f"{name} {count}" for name, count in found.counts.items())
        verdict = click.style(sums, fg="red") if sums else click.style("no anomaly", fg="green")
        click.echo(f"{verdict} in {found.operations} operations; readers were {found.lag_s:.3f} s behind at worst")
    return EXIT_FOUND_WRONG if found.counts else EXIT_FINE


def _history_file(path: Path) -> Path:
    """The file itself, or that of a run's directory."""
    from minibroker.chaos.run.execution import HISTORY_FILE

    if not path.is_dir():
        return path
    if not (path / HISTORY_FILE).exists():
        raise CommandFailed(f"{path} holds no {HISTORY_FILE}: name the file, or the directory of a chaos run")
    return path / HISTORY_FILE


@click.command()
@click.argument("runs", nargs=-1, required=True, type=ExistingPath(path_type=Path), metavar="RUN...")
@click.option("--markdown", "as_markdown", is_flag=True, help="A table for a page.")
@json_option
def table(runs: tuple[Path, ...], as_markdown: bool, as_json: bool) -> int:
    """Add up what each kind of fault cost, over several runs.

    RUN is the directory of a run, or its report.json. The times are those of faults that came while no other lasted.
    """
    import msgspec

    from minibroker.chaos.report.recovery_table import HEADER, cells, markdown, recovery_table

    if as_markdown and as_json:
        raise WrongUsage("--markdown and --json are two forms: give one of them")
    outcomes = [_outcome(path) for path in runs]
    rows = recovery_table(outcomes)
    if as_json:
        for row in rows:
            print_json(msgspec.to_builtins(row))
        return EXIT_FINE
    if as_markdown:
        click.echo(markdown(rows))
    else:
        print_table([name.upper() for name in HEADER], [cells(row) for row in rows])
    cleared = sum(outcome.verdict.outcome == "cleared" for outcome in outcomes)
    note(f"{counted(len(outcomes), 'run')}, {cleared} of them cleared; {sum(row.times for row in rows)} faults")
    return EXIT_FINE


def _outcome(path: Path) -> Any:
    """Of a run. Raises CommandFailed."""
    from minibroker.audit.reading.regular_files import read_regular
    from minibroker.chaos.report.recovery_table import BadReport, parse_outcome
    from minibroker.chaos.run.execution import JSON_FILE

    file = path / JSON_FILE if path.is_dir() else path
    if not file.exists():
        raise CommandFailed(f"{path} holds no {JSON_FILE}: name the directory of a chaos run that has ended")
    try:
        return parse_outcome(read_regular(str(file), REPORT_BYTES_MAX))
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}: name the directory of a chaos run") from None
    except BadReport as error:
        raise CommandFailed(f"{file} {error}: name the directory of a chaos run") from None
