"""`minibroker zookeeper ..`: what `cluster up` needs to start a ZooKeeper."""

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    LazyGroup,
    json_option,
    note,
    print_json,
)

COMMANDS = {
    "install": ("minibroker.commands.zookeeper:install", "Fetch ZooKeeper's jars once."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def zookeeper() -> None:
    """Install the ZooKeeper that `cluster up` starts."""


@click.command()
@click.option(
    "--mirror",
    metavar="URL",
    help="Fetch from this Maven repository (http://, https:// or file://) instead of running mvn.",
)
@json_option
def install(mirror: str | None, as_json: bool) -> int:
    """Fetch ZooKeeper's jars once.

    Eight jars, 7 MB, by their Maven coordinates. Each is compared with a SHA-256 checksum that minibroker contains.
    They are kept in ~/.cache/minibroker; MINIBROKER_CACHE_DIR names another folder. Without --mirror, mvn
    fetches them; without mvn, they come from Maven Central. Not needed where PySpark is installed, which contains the
    same jars.
    """
    from minibroker.local_cluster.zookeeper_jars import JARS, CannotFetch, install_jars
    from minibroker.step_line import StepLine

    try:
        with StepLine() as steps:
            directory = install_jars(mirror, steps.tell if steps.is_shown else note)
    except CannotFetch as error:
        raise CommandFailed(str(error)) from None
    if as_json:
        print_json({"directory": str(directory), "version": JARS[0].version})
    else:
        click.echo(f"ZooKeeper {JARS[0].version} is in {directory}; its checksums are right")
    return EXIT_FINE
