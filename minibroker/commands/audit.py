"""`minibroker audit`: prove from the files that the replicas agree."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from minibroker.command_line import SECONDS_MAX, CommandFailed, WrongUsage, json_option, note
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.audit.reports.report import AuditReport


@contextmanager
def _note_if_interrupted() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        note("interrupted: the audit has no result")
        raise


@click.command()
@click.argument(
    "directories", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path, readable=False)
)
@click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", show_default=True)
@click.option(
    "--acked",
    "lists",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The list that `produce --report` wrote.",
)
@click.option(
    "--output", type=click.Path(path_type=Path, file_okay=False), help="Write a report there: JSON, Parquet and HTML."
)
@click.option("--records", is_flag=True, help="Decode every record, too.")
@click.option("--zookeeper", metavar="HOST:PORT", help="Ask it which replicas should exist.")
@click.option("--allow-unproven", is_flag=True, help="Exit code 0 also if some offsets are unproven.")
@click.option("--master", help="Spark's master.  [default: $SPARK_MASTER, else local[*]]")
@click.option("--ship-package", is_flag=True, help="Send this package to Spark workers that lack it.")
@click.option(
    "--timeout", "timeout_s", type=click.IntRange(1, SECONDS_MAX), default=3600, show_default=True, metavar="SECONDS"
)
@json_option
@_note_if_interrupted()
@read_or_not()
def audit(
    directories: tuple[Path, ...],
    engine: str,
    lists: tuple[Path, ...],
    output: Path | None,
    records: bool,
    zookeeper: str | None,
    allow_unproven: bool,
    master: str | None,
    ship_package: bool,
    timeout_s: int,
    as_json: bool,
) -> int:
    """Prove from the files that the replicas agree.

    DIR is a cluster's data directory, or brokers' log directories. Exit code 0 consistent, 10 findings or unproven, 1
    could not run. Safe on files that are being written.
    """
    from minibroker import doctor_checks
    from minibroker.audit.errors import AuditError
    from minibroker.audit.reports.report import forget_report
    from minibroker.audit.run import run_audit
    from minibroker.step_line import StepLine

    if len(lists) > 1:
        raise WrongUsage(f"--acked takes one list, and was given {len(lists)}: audit once with each")
    complaint = doctor_checks.complaint(doctor_checks.checks_for_audit(engine, master))
    try:
        if output is not None:
            forget_report(str(output))  # also if Java is missing
        if complaint:
            way_out = "; --engine local needs neither Java nor Spark" if engine == "spark" else ""
            raise CommandFailed(complaint + way_out)
        with _ended_after(timeout_s), StepLine() as steps:
            report = run_audit(
                [str(directory) for directory in directories],
                engine,
                str(lists[0]) if lists else None,
                None if output is None else str(output),
                records=records,
                allow_unproven=allow_unproven,
                zookeeper=zookeeper,
                master=master,
                ship_package=ship_package,
                progress=steps.tell,
            )
    except AuditError as error:
        raise CommandFailed(str(error)) from None
    _print(report, as_json)
    if output is not None:
        note(f"report: {output / 'report.html'}")
    if report.exit_code and zookeeper is None:
        _name_zookeeper(directories)
    return report.exit_code


def _name_zookeeper(directories: tuple[Path, ...]) -> None:
    """Of a cluster on this machine that runs: its directory does not say what should be there."""
    from minibroker import doctor_checks

    for directory in directories:
        ports, address = doctor_checks.ports_of_cluster_in(directory)
        if ports:
            note(f"the cluster runs: `--zookeeper {address}` asks its ZooKeeper what should be there")


@contextmanager
def _ended_after(timeout_s: int) -> Iterator[None]:
    """Bound the audit with an alarm, because Spark blocks this thread. The alarm interrupts as Ctrl-C does: py4j would
    catch an error and report it as one of the connection."""
    import signal

    from minibroker.local_cluster.teardown import Ownership

    is_late = False

    def too_late(*_: object) -> None:
        nonlocal is_late
        is_late = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(timeout_s)
    try:
        with Ownership(lambda: None):  # SIGTERM acts as Ctrl-C: a JVM that is starting would never end
            yield
    except KeyboardInterrupt:
        if is_late:
            raise CommandFailed(
                f"the audit did not end within {timeout_s} s: give a longer --timeout, or fewer directories"
            ) from None
        raise
    finally:
        signal.alarm(0)


def _print(report: "AuditReport", as_json: bool) -> None:
    if as_json:
        import msgspec

        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        return
    from minibroker.audit.reports.terminal import print_report

    print_report(report)
