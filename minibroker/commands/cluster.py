"""`minibroker cluster ..`: start, watch, break and stop a cluster on this machine."""

import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minibroker.command_line import (
    DEFAULT_DATA_DIRECTORY,
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    LazyGroup,
    ProgressLine,
    WrongUsage,
    bootstrap_option,
    json_option,
    named_values,
    note,
    print_json,
    print_table,
    run_async,
    timeout_option,
    with_port,
)
from minibroker.protocol.counted import counted, some_of
from minibroker.protocol.printable_text import printable
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.local_cluster.cluster_file import RequestedCluster
    from minibroker.local_cluster.local_cluster import LocalCluster
    from minibroker.observation.cluster_view import ClusterView

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS = {
    "up": ("minibroker.commands.cluster:up", "Start a ZooKeeper and brokers in the background."),
    "status": ("minibroker.commands.cluster:status", "Print brokers, leaders and problems."),
    "wait": ("minibroker.commands.cluster:wait", "Wait until a cluster is healthy."),
    "kill": (
        "minibroker.commands.cluster_broker:kill",
        "SIGKILL a process; --power-loss cuts a broker's unsynced tail.",
    ),
    "pause": ("minibroker.commands.cluster_broker:pause", "SIGSTOP a process: it hangs."),
    "resume": ("minibroker.commands.cluster_broker:resume", "SIGCONT a paused process."),
    "stop": (
        "minibroker.commands.cluster_broker:stop",
        "Stop a process cleanly: a broker hands leadership over.",
    ),
    "start": ("minibroker.commands.cluster_broker:start", "Start what is down: all, or the named brokers."),
    "down": ("minibroker.commands.cluster:down", "Stop everything; --wipe removes the data."),
}


def data_dir_option(function: F) -> F:
    return click.option(
        "--data-dir",
        "data_dir",
        envvar="MINIBROKER_DATA_DIR",
        type=click.Path(path_type=Path, file_okay=False, readable=False),
        default=DEFAULT_DATA_DIRECTORY,
        show_default=True,
        callback=_require_directory,
        help="Holds all files of this cluster.",
    )(function)


def _require_directory(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Click lets devices and pipes pass."""
    if value.exists() and not value.is_dir():
        raise click.BadParameter(f"'{value}' is not a directory: name one, or a path that does not exist yet")
    return value


@click.group(cls=LazyGroup, lazy=COMMANDS)
def cluster() -> None:
    """Start, watch, break and stop a cluster on this machine.

    Name a broker by its number, or as controller or leader:TOPIC-PARTITION; zookeeper is the cluster's own ZooKeeper.
    """


def run_on_cluster(
    work: Coroutine[Any, Any, Any],
    data_dir: Path,
    timeout_s: float,
    doing: str,
    waiting: str = "waiting for brokers and ZooKeeper",
) -> Any:
    """Run `work`; every error of the launcher becomes a CommandFailed, of wrong input a WrongUsage. `waiting` is shown
    if it takes a while."""
    from minibroker.local_cluster.broker_names import BadBrokerName
    from minibroker.local_cluster.cluster_file import ClusterBusy, ClusterFailed, ClusterMissing
    from minibroker.local_cluster.teardown import TeardownTimedOut
    from minibroker.local_cluster.zookeeper_jars import MissingZooKeeper
    from minibroker.local_cluster.zookeeper_process import MissingJava, PortTaken, ZooKeeperFailed
    from minibroker.observation.broker_queries import NoAnswer
    from minibroker.waiting_line import waiting_line

    async def shown() -> Any:
        async with waiting_line(waiting):
            return await work

    not_there = (ClusterFailed, ClusterMissing, ClusterBusy, NoAnswer)
    try:
        with closing(work):
            return run_async(shown(), timeout_s, doing)
    except BadBrokerName as error:
        raise WrongUsage(str(error)) from None
    except (*not_there, MissingJava, MissingZooKeeper, PortTaken, ZooKeeperFailed, TeardownTimedOut) as error:
        raise CommandFailed(pasteable(str(error), data_dir)) from None


def pasteable(text: str, data_dir: Path) -> str:
    """The text; the commands that it names are for this cluster."""
    from minibroker.local_cluster.pasteable_cures import with_data_directory

    return with_data_directory(text, data_dir)


# ------------------------------------------------------------------------------------------------- the whole cluster
@click.command()
@click.option("--brokers", type=click.IntRange(1, 50), help="[default: as before, else 3]")
@data_dir_option
@click.option(
    "--port", type=click.IntRange(1, 65000), help="Port of the first broker.  [default: as before, else 9092]"
)
@click.option("--zookeeper-port", type=click.IntRange(1, 65535), help="[default: as before, else 2181]")
@click.option(
    "--zookeeper",
    metavar="HOST:PORT",
    callback=lambda ctx, param, value: with_port(value, 2181) if value else None,
    help="Use this ZooKeeper instead of starting one.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of every broker; KEY= forgets one that was kept.",
)
@timeout_option(60)
@json_option
def up(
    brokers: int | None,
    data_dir: Path,
    port: int | None,
    zookeeper_port: int | None,
    zookeeper: str | None,
    settings: tuple[str, ...],
    timeout_s: float,
    as_json: bool,
) -> int:
    """Start a ZooKeeper and brokers in the background.

    They keep running when this command ends; `minibroker cluster down` stops them. The replication factor is 3 (or the
    number of brokers, if fewer), min.insync.replicas 2. Existing data is used again, with the cluster's former ports
    and settings; options given now override them.
    """
    from minibroker.local_cluster.cluster_file import RequestedCluster

    requested = RequestedCluster(
        brokers=brokers,
        port=port,
        zookeeper_port=zookeeper_port,
        zookeeper=zookeeper,
        settings=named_values(settings, "--set"),
    )
    with _telling_what_is_stopped() as tell:
        local, is_old = _local_cluster(data_dir, requested)
        if is_old and not local.is_running():
            _refuse_fewer_brokers(local, data_dir)
        _check_settings(local)
        _check_machine(local, data_dir)
        if is_old and not local.is_running():
            _note_what_is_kept(local, data_dir, requested)
        starting = local.up(timeout_s, keep_running=is_old, tell=tell)
        view = run_on_cluster(starting, data_dir, timeout_s + 15, "cluster up", "starting ZooKeeper and brokers")
    if as_json:
        print_json({"bootstrap_servers": local.bootstrap_servers, "zookeeper": local.record.zookeeper.connect})
        return EXIT_FINE
    _print_brokers(local, view)
    if local.record.brokers[1].port != 9092:
        note(f"for further commands: export MINIBROKER_BOOTSTRAP_SERVERS={local.bootstrap_servers}")
    return EXIT_FINE


@contextmanager
def _telling_what_is_stopped() -> Iterator[Callable[[str], None]]:
    """After Ctrl-C."""
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        with suppress(OSError):  # a terminal that was closed takes nothing, and brokers must be stopped
            ProgressLine.erase()
            note(text)

    try:
        yield tell
    except KeyboardInterrupt:
        if not told:
            note("interrupted: nothing was started")
        raise


def _note_what_is_kept(local: "LocalCluster", data_dir: Path, requested: "RequestedCluster") -> None:
    """Name the settings that the user did not give now, and what the options given now change."""
    from minibroker.local_cluster.cluster_file import differences, read_cluster_file

    kept = {key: value for key, value in local.record.settings.items() if key not in requested.settings}
    if kept:
        texts = " ".join(f"--set {key}={value}" for key, value in kept.items())
        note(f"kept from the former cluster in {data_dir}: {texts}")
    changed = differences(read_cluster_file(data_dir), local.record)
    if changed:
        note(f"changed from the former cluster in {data_dir}: {'; '.join(changed)}")


def _refuse_fewer_brokers(local: "LocalCluster", data_dir: Path) -> None:
    """Raise CommandFailed before anything is told or done."""
    from minibroker.local_cluster.cluster_file import ClusterFailed, read_cluster_file, refuse_fewer_brokers

    try:
        refuse_fewer_brokers(data_dir, read_cluster_file(data_dir), local.record)
    except ClusterFailed as error:
        raise CommandFailed(pasteable(str(error), data_dir)) from None


def _check_settings(local: "LocalCluster") -> None:
    """Raise WrongUsage where a broker would refuse its settings, or two processes would have one port."""
    from minibroker.commands.broker import problem_of_settings
    from minibroker.local_cluster.broker_process import (
        broker_settings,
        inherited_variables,
        problem_of_common_settings,
    )
    from minibroker.local_cluster.cluster_file import shared_port
    from minibroker.local_cluster.zookeeper_process import OTHER_PORTS

    if problem := problem_of_common_settings(local.record.settings):
        raise WrongUsage(problem)
    if problem := shared_port(local.record):
        raise WrongUsage(f"{problem}: {OTHER_PORTS}")
    for broker_id in local.broker_ids:
        settings = broker_settings(local.data_directory, local.record, broker_id)
        problem = problem_of_settings(settings, inherited_variables())
        if problem is not None:
            raise WrongUsage(f"broker {broker_id} would not start: {problem}")


def _check_machine(local: "LocalCluster", data_dir: Path) -> None:
    """Raise CommandFailed with what the machine lacks, and the cure."""
    from minibroker import doctor_checks

    ports = [broker.port for broker in local.record.brokers.values()]
    own_zookeeper = local.record.zookeeper.port is not None
    ports += [local.record.zookeeper.port] if local.record.zookeeper.port else []
    held, _ = doctor_checks.ports_of_cluster_in(data_dir)
    checks = doctor_checks.checks_for_cluster(data_dir, [] if held else ports, own_zookeeper=own_zookeeper)
    if not own_zookeeper:
        checks.append(run_async(doctor_checks.check_zookeeper(local.record.zookeeper.connect, "start that ZooKeeper")))
    complaint = doctor_checks.complaint(checks)
    if complaint:
        raise CommandFailed(complaint)


def _local_cluster(data_dir: Path, requested: "RequestedCluster") -> "tuple[LocalCluster, bool]":
    """The cluster in the directory, or a new one; and whether there was data."""
    from minibroker.local_cluster.cluster_file import CLUSTER_FILE, ClusterMissing
    from minibroker.local_cluster.local_cluster import LocalCluster

    if (data_dir / CLUSTER_FILE).exists():
        try:
            return LocalCluster.resumed(data_dir, requested), True
        except ClusterMissing as error:
            raise CommandFailed(str(error)) from None
    new = LocalCluster(
        data_dir,
        requested.brokers or 3,
        port=requested.port or 9092,
        zookeeper_port=requested.zookeeper_port or 2181,
        zookeeper=requested.zookeeper,
        settings=requested.settings,
    )
    return new, False


def _broker_rows(
    local: "LocalCluster", view: "ClusterView | None"
) -> list[tuple[int, str, str, int | None, int | None, str]]:
    """ID, state, address, pid while it lives, partitions that it leads, role."""
    rows = []
    for broker_id in local.broker_ids:
        process = local.record.brokers[broker_id].process
        led = sum(1 for p in view.partitions.values() if p.leader_id == broker_id) if view else None
        role = "controller" if view is not None and view.controller_id == broker_id else ""
        state = local.process_state(broker_id)
        pid = process.pid if process and state in ("running", "paused") else None
        rows.append((broker_id, state, local.server(broker_id), pid, led, role))
    return rows


def _print_brokers(local: "LocalCluster", view: "ClusterView | None") -> None:
    print_table(("BROKER", "STATE", "ADDRESS", "PID", "LEADS", ""), _broker_rows(local, view))
    zookeeper = local.record.zookeeper
    click.echo(f"zookeeper {local.zookeeper.state_text()} at {zookeeper.connect}; data in {local.data_directory}")


def _refuse_unrecorded(data_dir: Path) -> None:
    """Without `cluster.json` a cluster may run: its directory was removed, or the file. Raises ClusterFailed."""
    from minibroker.local_cluster.cluster_file import CLUSTER_FILE
    from minibroker.local_cluster.unrecorded_processes import refuse_unrecorded

    if not os.path.lexists(data_dir / CLUSTER_FILE):  # or this user may not look
        refuse_unrecorded(data_dir.absolute())


def _refuse_servers(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        other = f"`minibroker replicas --check -b {value}`"
        raise click.UsageError(f"`cluster status` is of a cluster on this machine: of another one give {other}", ctx)


@click.command()
@data_dir_option
@click.option("-b", "--bootstrap-servers", callback=_refuse_servers, expose_value=False, hidden=True)
@timeout_option(15)
@json_option
@read_or_not()
def status(data_dir: Path, timeout_s: float, as_json: bool) -> int:
    """Print brokers, leaders and problems.

    Exit code 10 unless the cluster is healthy.
    """
    from minibroker.local_cluster.cluster_file import ClusterFailed, ClusterMissing
    from minibroker.local_cluster.local_cluster import LocalCluster
    from minibroker.observation.broker_queries import NoAnswer
    from minibroker.observation.cluster_view import health_problems, with_present_leaders

    async def look() -> tuple[LocalCluster, "ClusterView | None", list[str]]:
        try:
            local = LocalCluster.open(data_dir)
        except ClusterMissing as error:
            _refuse_unrecorded(data_dir)
            other = "of a cluster elsewhere: `minibroker replicas --check -b HOST:PORT`"
            raise ClusterMissing(f"{error}; {other}") from None
        try:
            view = await local.look()
            problems = local.process_problems() + health_problems(view, len(local.record.brokers))
            return local, with_present_leaders(view), problems
        except (NoAnswer, ClusterFailed) as error:
            return local, None, [*local.process_problems(), str(error)]

    local, view, reasons = run_on_cluster(look(), data_dir, timeout_s, "cluster status")
    reasons = [pasteable(reason, data_dir) for reason in reasons]
    if as_json:
        print_json(
            {
                "healthy": not reasons,
                "reasons": reasons,
                "bootstrap_servers": local.bootstrap_servers,
                "controller": view.controller_id if view else None,
                "brokers": {
                    broker_id: {"state": state, "address": address, "pid": pid, "leads": leads}
                    for broker_id, state, address, pid, leads, _ in _broker_rows(local, view)
                },
                "zookeeper": {"state": local.zookeeper.state_text(), "address": local.record.zookeeper.connect},
                "marked_for_deletion": sorted(view.topic_deletions) if view else None,
                "partitions": len(view.partitions) if view else None,
                "leaders": {str(name): each.leader_id for name, each in view.partitions.items()} if view else None,
            }
        )
    else:
        _print_brokers(local, view)
        _print_health(reasons)
    return EXIT_FOUND_WRONG if reasons else EXIT_FINE


def _print_health(reasons: list[str]) -> None:
    if not reasons:
        click.secho("healthy", fg="green")
    for reason in reasons:
        click.echo(f"{click.style('unhealthy', fg='red')}: {printable(reason)}")


@click.command()
@bootstrap_option
@click.option("--brokers", type=click.IntRange(1, 1000), default=1, show_default=True, help="At least this many.")
@timeout_option(60)
@json_option
def wait(bootstrap_servers: str, brokers: int, timeout_s: float, as_json: bool) -> int:
    """Wait until a cluster is healthy.

    Works with any cluster. Healthy: at least --brokers brokers are registered and answer, a controller is elected,
    every partition has a leader and all its replicas in sync, every assigned replica exists, no served log is damaged,
    and no log directory is full or offline.
    Exit code 1 if it is not healthy in time.
    """
    import asyncio
    import time

    from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
    from minibroker.observation.cluster_view import problems_of, view_cluster

    async def until_healthy() -> "tuple[ClusterView, float]":
        started = time.monotonic()
        progress = ProgressLine()
        reasons: list[str] = []
        shortest = ""  # without cures, which a line of the terminal would cut
        async with BrokerQueries("minibroker-wait") as queries:
            while time.monotonic() - started < timeout_s:
                try:
                    view = await view_cluster(queries, bootstrap_servers, timeout_s=min(2.0, timeout_s))
                    problems = problems_of(view, brokers)
                    reasons, shortest = list(map(str, problems)), problems[0].what if problems else ""
                    if not reasons:
                        progress.clear()
                        return view, time.monotonic() - started
                except NoAnswer as error:
                    reasons, shortest = [str(error)], error.fact
                progress.show(f"waiting, {time.monotonic() - started:.0f} s: {shortest}")
                await asyncio.sleep(0.1)
        progress.clear()
        raise CommandFailed(f"not healthy after {timeout_s:g} s: {some_of(reasons, '; ')}")

    view, seconds = run_async(until_healthy(), timeout_s + 10, "cluster wait")
    ids = [broker.broker_id for broker in view.brokers]
    if as_json:
        print_json({"healthy": True, "brokers": ids, "controller": view.controller_id, "seconds": round(seconds, 3)})
    else:
        partitions = counted(len(view.partitions), "partition")
        click.echo(f"healthy: brokers {ids}, controller {view.controller_id}, {partitions}; after {seconds:.1f} s")
    return EXIT_FINE


@click.command()
@data_dir_option
@click.option("--wipe", is_flag=True, help="Also remove the cluster's files; other files stay.")
@timeout_option(30, "Kill processes that have not stopped after this many seconds.")
@json_option
def down(data_dir: Path, wipe: bool, timeout_s: float, as_json: bool) -> int:
    """Stop everything; --wipe removes the data.

    Leaves a snapshot of leaders, epochs and in-sync replicas for `minibroker audit DIR`.
    """
    from minibroker.local_cluster.cluster_file import is_unused, only_stop, remove_failed_start
    from minibroker.local_cluster.cluster_snapshot import why_no_state
    from minibroker.local_cluster.local_cluster import LocalCluster
    from minibroker.protocol.files.cluster_state import CLUSTER_STATE

    stop_s = timeout_s + 30  # with the kill of a broker that does not stop

    async def end() -> list[str]:
        _refuse_unrecorded(data_dir)
        if wipe and remove_failed_start(data_dir):
            return []
        async with only_stop(data_dir, stop_s):
            problems = await LocalCluster.open(data_dir).down(timeout_s=timeout_s, wipe=wipe)
        is_told = wipe or any(CLUSTER_STATE in problem for problem in problems)
        return problems if is_told else [*problems, *why_no_state(data_dir)]

    try:
        told = run_on_cluster(end(), data_dir, 2 * stop_s, "cluster down", "stopping brokers and ZooKeeper")
    except KeyboardInterrupt:
        again = "`minibroker cluster down` again stops the rest"
        note(pasteable(f"interrupted: a part of the cluster may still run; {again}", data_dir))
        raise
    problems = [pasteable(problem, data_dir) for problem in told]
    wiped = wipe and is_unused(data_dir)
    if as_json:
        print_json({"down": True, "wiped": wiped, "problems": problems})
    else:
        for problem in problems:
            note(problem)
        click.echo("down" + ("; its data is removed" if wiped else f"; the data stays in {data_dir}"))
    return EXIT_FINE
