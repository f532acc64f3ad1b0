"""`minibroker doctor`: all checks, one line each, with the cure."""

from pathlib import Path

import click
from click.core import ParameterSource

from minibroker.command_line import (
    DEFAULT_DATA_DIRECTORY,
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    bootstrap_option,
    default_servers,
    json_option,
    print_json,
    run_async,
    timeout_option,
)
from minibroker.protocol.printable_text import printable
from minibroker.unread_output import read_or_not


@click.command()
@bootstrap_option
@click.option("--data-dir", envvar="MINIBROKER_DATA_DIR", default=DEFAULT_DATA_DIRECTORY, show_default=True)
@click.option("--brokers", type=click.IntRange(1, 50), default=3, show_default=True)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=9092, show_default=True, help="Port of the first broker."
)
@click.option("--zookeeper-port", type=click.IntRange(1, 65535), default=2181, show_default=True)
@click.option("--zookeeper", metavar="HOST:PORT", help="Also check this ZooKeeper.")
@timeout_option(30)
@json_option
@read_or_not()
def doctor(
    bootstrap_servers: str,
    data_dir: str,
    brokers: int,
    port: int,
    zookeeper_port: int,
    zookeeper: str | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Check this machine and cluster; one cure per problem.

    Exit code 10 if anything is wrong. It changes nothing.
    """
    from minibroker import doctor_checks
    from minibroker.waiting_line import waiting_line

    directory = Path(data_dir)
    is_given = click.get_current_context().get_parameter_source("bootstrap_servers") is not ParameterSource.DEFAULT
    servers = bootstrap_servers if is_given else default_servers(data_dir)
    ours, known_zookeeper = doctor_checks.ports_of_cluster_in(directory)

    findings: list[doctor_checks.DoctorFinding] = []

    async def examine() -> None:
        findings[:] = [
            doctor_checks.check_python(),
            doctor_checks.check_packages(),
            doctor_checks.check_java(),
            doctor_checks.check_zookeeper_jars(),
            doctor_checks.check_spark(),
            doctor_checks.check_open_files(),
            *doctor_checks.check_open_files_of_brokers(directory),
            doctor_checks.check_disk(directory),
            *doctor_checks.check_ports(
                doctor_checks.known_ports(directory) or [zookeeper_port, *range(port, port + brokers)],
                lambda holder: is_given or (directory.exists() and directory.samefile(holder)),
                others_may=is_given,
            ),
        ]
        if zookeeper or ours:
            findings.append(
                await doctor_checks.check_zookeeper(zookeeper or known_zookeeper or f"127.0.0.1:{zookeeper_port}")
            )
        findings.extend(doctor_checks.check_local_brokers(directory))
        async with waiting_line(f"asking the brokers at {servers}"):
            findings.extend(await doctor_checks.check_listeners(servers, must_answer=is_given))
            findings.extend(await doctor_checks.check_partitions(servers))

    try:
        run_async(examine(), timeout_s)
    except CommandFailed:
        what = f"the brokers at {servers} had not answered all questions within {timeout_s:g} s"
        findings.append(doctor_checks.DoctorFinding("time", False, what, "give a longer --timeout, or others with -b"))
    for finding in findings:
        if as_json:
            print_json({"check": finding.check, "well": finding.well, "what": finding.what, "cure": finding.cure})
        else:
            label = click.style("fine ", fg="green") if finding.well else click.style("WRONG", fg="red", bold=True)
            cure = "" if finding.well else f". Cure: {finding.cure}"
            click.echo(f"{label}  {printable(f'{finding.check}: {finding.what}{cure}')}")
    return EXIT_FINE if all(finding.well for finding in findings) else EXIT_FOUND_WRONG
