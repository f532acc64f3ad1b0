"""`minibroker producer ..`: list and delete the names of producers."""

import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    LazyGroup,
    bootstrap_option,
    json_option,
    note,
    print_json,
    print_table,
    timeout_option,
    warn,
)

if TYPE_CHECKING:
    from minibroker.client.admin import AdminClient, ProducerNameDescription
    from minibroker.client.errors import MinibrokerError

COMMANDS = {
    "list": ("minibroker.commands.producer:list_names", "List the names of producers."),
    "delete": ("minibroker.commands.producer:delete", "Forget names of producers that no process uses any more."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def producer() -> None:
    """List and delete the names of producers.

    A process takes a name by Producer(producer_name=..), and fences the one that had it before. The cluster keeps a
    thousand names.
    """


@click.command("list")
@bootstrap_option
@timeout_option(30)
@json_option
def list_names(bootstrap_servers: str, timeout_s: float, as_json: bool) -> int:
    """List the names of producers.

    With the producer id and the epoch of the process that started last under each, and since when it has them.
    """
    from minibroker.admin_call import ask_admin

    async def work(admin: "AdminClient", timeout_ms: float) -> "list[ProducerNameDescription]":
        return await admin.list_producer_names(timeout_ms=timeout_ms)

    names = ask_admin(bootstrap_servers, timeout_s, work, "producer list")
    if as_json:
        for each in names:
            print_json(_as_dict(each))
        return EXIT_FINE
    header = ("NAME", "PRODUCER ID", "EPOCH", "SINCE")
    print_table(
        header, [(each.name, each.producer_id, each.producer_epoch, _moment(each.changed_ms)) for each in names]
    )
    for each in names:
        if each.error is not None:
            warn(
                f"{each.name!r} cannot be read, and no process can start under it ({each.error});"
                f" `minibroker producer delete {shlex.quote(each.name)}` removes it"
            )
    return EXIT_FINE


def _as_dict(name: "ProducerNameDescription") -> dict[str, Any]:
    return {
        "producer_name": name.name,
        "producer_id": name.producer_id,
        "producer_epoch": name.producer_epoch,
        "changed_ms": name.changed_ms,
        "error": name.error,
    }


def _moment(changed_ms: int | None) -> str | None:
    if changed_ms is None:
        return None
    try:
        return datetime.fromtimestamp(changed_ms / 1000).isoformat(" ", "seconds")
    except (OverflowError, ValueError, OSError):  # the clock of the broker that wrote it was wrong
        return f"{changed_ms} ms"


@click.command()
@bootstrap_option
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--if-exists", is_flag=True, help="Succeed if a name does not exist.")
@timeout_option(30)
@json_option
def delete(bootstrap_servers: str, names: tuple[str, ...], if_exists: bool, timeout_s: float, as_json: bool) -> int:
    """Forget names of producers that no process uses any more.

    End the processes first: one that runs under a deleted name writes on, no later start fences it, and it ends when it
    needs its next epoch.
    """
    from minibroker.admin_call import ask_admin

    async def work(admin: "AdminClient", timeout_ms: float) -> "dict[str, MinibrokerError | None]":
        if not if_exists:
            _require(names, [each.name for each in await admin.list_producer_names(timeout_ms=timeout_ms)])
        return {**await admin.delete_producer_names(names, timeout_ms=timeout_ms)}

    results = ask_admin(bootstrap_servers, timeout_s, work, "producer delete")
    _report(results, if_exists, as_json)
    return EXIT_FINE


def _require(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise CommandFailed if some of the names do not exist: then none is deleted."""
    from minibroker.unknown_names import sentence

    unknown = [name for name in names if name not in known]
    if unknown:
        cure = "`minibroker producer list` prints all names"
        raise CommandFailed(f"no producer has the name {sentence(unknown, known)} {cure}")


def _report(results: "dict[str, MinibrokerError | None]", if_exists: bool, as_json: bool) -> None:
    """Print what was done; raises CommandFailed for the rest."""
    from minibroker.client.errors import UnknownProducerName

    problems, deleted = [], []
    for name, error in results.items():
        missing = isinstance(error, UnknownProducerName)
        if error is not None and not (missing and if_exists):
            problems.append(getattr(error, "broker_message", None) or str(error))
            continue
        if not missing:
            deleted.append(name)
        if as_json:
            print_json({"producer_name": name, "deleted": not missing})
        else:
            click.echo(f"there was no {name}" if missing else f"deleted {name}")
    if deleted:
        note("a process that still runs under a deleted name writes on, and no later start fences it: end it now")
    if problems:
        raise CommandFailed("; ".join(problems))
