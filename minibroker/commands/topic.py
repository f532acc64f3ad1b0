"""`minibroker topic ..`: create, list, describe, delete and alter topics."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    LazyGroup,
    bootstrap_option,
    json_option,
    print_json,
    print_table,
    run_async,
    timeout_option,
    warn,
)

if TYPE_CHECKING:
    from minibroker.client.admin import AdminClient, TopicDescription

T = TypeVar("T")

COMMANDS = {
    "create": ("minibroker.commands.topic:create", "Create a topic."),
    "list": ("minibroker.commands.topic:list_topics", "Print the names of all topics."),
    "describe": ("minibroker.commands.topic:describe", "Print leaders, epochs, replicas, in-sync replicas, settings."),
    "delete": ("minibroker.commands.topic:delete", "Delete a topic and its records."),
    "alter": ("minibroker.commands.topic:alter", "Change settings of a topic."),
}

topic_option = click.option("-t", "--topic", "name", required=True, metavar="TOPIC")


@click.group(cls=LazyGroup, lazy=COMMANDS)
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


def _ask(servers: str, timeout_s: float, work: "Callable[[AdminClient, float], Awaitable[T]]") -> T:
    """Run `work(admin, timeout_ms)`; every error of the client becomes a CommandFailed."""
    from minibroker.client.admin import AdminClient
    from minibroker.client.errors import MinibrokerError
    from minibroker.opened_client import opened

    async def ask() -> T:
        timeout_ms = max(1, round(timeout_s * 1000))
        try:
            client = AdminClient(servers, bootstrap_timeout_ms=min(10_000, timeout_ms))
            async with opened(client, servers) as admin:
                return await work(admin, timeout_ms)
        except MinibrokerError as error:
            raise CommandFailed(str(error)) from None

    return run_async(ask(), timeout_s + 10, "topic")


def _parse_configs(configs: tuple[str, ...]) -> dict[str, str]:
    for config in configs:
        if "=" not in config:
            raise click.BadParameter(f"'{config}' is not KEY=VALUE", param_hint="--config")
    return dict(config.split("=", 1) for config in configs)


@click.command()
@bootstrap_option
@topic_option
@click.option("--partitions", type=click.IntRange(1), help="[default: num.partitions of the brokers]")
@click.option("--replication-factor", type=click.IntRange(1), help="[default: default.replication.factor]")
@click.option("--config", "configs", metavar="KEY=VALUE", multiple=True)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@timeout_option(30)
@json_option
def create(
    bootstrap_servers: str,
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Create a topic.

    Returns when every broker knows a leader for each partition. Warns if an acknowledged record might not survive the
    loss of one broker.
    """
    from minibroker.client.errors import TopicAlreadyExists

    settings = _parse_configs(configs)

    async def work(admin: "AdminClient", timeout_ms: float) -> tuple[dict[str, Any], list[str]]:
        try:
            done = await admin.create_topic(name, partitions, replication_factor, settings, timeout_ms=timeout_ms)
        except TopicAlreadyExists:
            if not if_not_exists:
                raise
            return {"topic": name, "created": False}, []
        described = (await admin.describe_topics([name], timeout_ms=timeout_ms))[name]
        values = {entry.name: entry.value for entry in (await admin.describe_configs(topic=name)).values()}
        replicas = len(described.partitions[0].replicas)
        facts = {"topic": name, "created": True, "topic_id": done.topic_id, "partitions": len(described.partitions)}
        return facts | {"replication_factor": replicas}, _risks(name, replicas, values)

    facts, risks = _ask(bootstrap_servers, timeout_s, work)
    if as_json:
        print_json(facts | {"warnings": risks})
    elif facts["created"]:
        count, factor = facts["partitions"], facts["replication_factor"]
        click.echo(f"created {name}: {count} partitions, replication factor {factor}")
    else:
        click.echo(f"{name} exists")
    for risk in risks if not as_json else ():
        warn(risk)
    return EXIT_FINE


def _risks(name: str, replicas: int, values: Mapping[str, str | None]) -> list[str]:
    """Reasons why an acknowledged record might not survive a single fault."""
    risks = []
    least = int(values.get("min.insync.replicas") or 1)
    if replicas < 2:
        risks.append(f"{name} has one replica: records that its broker loses are lost; use --replication-factor 3")
    elif least < 2:
        risks.append(
            f"{name} has min.insync.replicas={least}: an acknowledged record may be on the leader only;"
            " use --config min.insync.replicas=2"
        )
    elif least >= replicas:
        risks.append(
            f"{name} needs all {replicas} replicas in sync (min.insync.replicas={least}): no broker may be down"
        )
    if values.get("unclean.leader.election.enable") == "true":
        risks.append(f"{name} allows unclean elections: acknowledged records may be lost")
    return risks


@click.command("list")
@bootstrap_option
@timeout_option(30)
@json_option
def list_topics(bootstrap_servers: str, timeout_s: float, as_json: bool) -> int:
    """Print the names of all topics."""

    async def work(admin: "AdminClient", timeout_ms: float) -> list[str]:
        return await admin.list_topics(timeout_ms=timeout_ms)

    for name in _ask(bootstrap_servers, timeout_s, work):
        print_json({"topic": name}) if as_json else click.echo(name)
    return EXIT_FINE


@click.command()
@bootstrap_option
@click.option("-t", "--topic", "names", multiple=True, metavar="TOPIC", help="[default: all]")
@click.option("--under-replicated", is_flag=True, help="Only partitions that lack replicas; exit code 10 if any.")
@timeout_option(30)
@json_option
def describe(
    bootstrap_servers: str, names: tuple[str, ...], under_replicated: bool, timeout_s: float, as_json: bool
) -> int:
    """Print leaders, epochs, replicas, in-sync replicas, settings."""

    async def work(admin: "AdminClient", timeout_ms: float) -> "list[tuple[TopicDescription, dict[str, str]]]":
        found = await admin.describe_topics(names or None, timeout_ms=timeout_ms)
        described = []
        for name in sorted(found):
            entries = (await admin.describe_configs(topic=name, timeout_ms=timeout_ms)).values()
            own = {entry.name: entry.value or "" for entry in entries if entry.source == "dynamic-topic"}
            described.append((found[name], own))
        return described

    wrong = False
    for description, settings in _ask(bootstrap_servers, timeout_s, work):
        partitions = [
            partition
            for partition in description.partitions
            if not under_replicated or set(partition.isr) < set(partition.replicas) or partition.leader is None
        ]
        wrong |= under_replicated and bool(partitions)
        if under_replicated and not partitions:
            continue
        if as_json:
            rows = [{**_as_dict(partition), "topic": description.name} for partition in partitions]
            print_json(
                {"topic": description.name, "topic_id": description.topic_id, "configs": settings}
                | {"partitions": rows}
            )
            continue
        texts = ", ".join(f"{key}={value}" for key, value in sorted(settings.items())) or "the brokers' defaults"
        click.secho(f"{description.name} (id {description.topic_id}; {texts})", bold=True)
        rows_shown = [
            (partition.partition, partition.leader, partition.leader_epoch, partition.replicas, partition.isr)
            for partition in partitions
        ]
        print_table(("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR"), rows_shown)
    return EXIT_FOUND_WRONG if wrong else EXIT_FINE


def _as_dict(partition: Any) -> dict[str, Any]:
    return {
        "partition": partition.partition,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
    }


@click.command()
@bootstrap_option
@topic_option
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
@timeout_option(30)
@json_option
def delete(bootstrap_servers: str, name: str, if_exists: bool, timeout_s: float, as_json: bool) -> int:
    """Delete a topic and its records."""
    from minibroker.client.errors import UnknownTopicOrPartition

    async def work(admin: "AdminClient", timeout_ms: float) -> bool:
        try:
            await admin.delete_topic(name, timeout_ms=timeout_ms)
        except UnknownTopicOrPartition:
            if not if_exists:
                raise
            return False
        return True

    deleted = _ask(bootstrap_servers, timeout_s, work)
    if as_json:
        print_json({"topic": name, "deleted": deleted})
    else:
        click.echo(f"deleted {name}" if deleted else f"there was no {name}")
    return EXIT_FINE


@click.command()
@bootstrap_option
@topic_option
@click.option("--config", "configs", metavar="KEY=VALUE", multiple=True, help="Set it.")
@click.option("--unset", "unset", metavar="KEY", multiple=True, help="Go back to the brokers' default.")
@timeout_option(30)
@json_option
def alter(
    bootstrap_servers: str,
    name: str,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    timeout_s: float,
    as_json: bool,
) -> int:
    """Change settings of a topic."""
    changes: dict[str, str | None] = {**_parse_configs(configs), **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("nothing to change: give --config KEY=VALUE or --unset KEY")

    async def work(admin: "AdminClient", timeout_ms: float) -> None:
        await admin.alter_configs(changes, topic=name, timeout_ms=timeout_ms)

    _ask(bootstrap_servers, timeout_s, work)
    if as_json:
        print_json({"topic": name, "changed": changes})
    else:
        click.echo(f"altered {name}: " + ", ".join(f"{key}={value}" for key, value in changes.items()))
    return EXIT_FINE
