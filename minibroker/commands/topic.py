"""`minibroker topic ..`: create, list, describe, delete and alter topics."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    LazyGroup,
    ProgressLine,
    bootstrap_option,
    human_bytes,
    is_whole_number,
    json_option,
    named_values,
    note,
    print_json,
    print_table,
    timeout_option,
    topics_option,
    warn,
)
from minibroker.protocol.printable_text import printable
from minibroker.unread_output import read_or_not

if TYPE_CHECKING:
    from minibroker.client.admin import AdminClient, BrokerReplicas, TopicDescription
    from minibroker.client.errors import MinibrokerError
    from minibroker.protocol.ids import BrokerId

T = TypeVar("T")

COMMANDS = {
    "create": ("minibroker.commands.topic:create", "Create a topic."),
    "list": ("minibroker.commands.topic:list_topics", "List all topics."),
    "describe": ("minibroker.commands.topic:describe", "Print leaders, epochs, replicas, in-sync replicas, settings."),
    "delete": ("minibroker.commands.topic:delete", "Delete topics and their records."),
    "alter": ("minibroker.commands.topic:alter", "Change settings of a topic."),
}

DELETION_ROUND_MS = 3_000
"""How long to wait before asking what a deletion waits for: it takes tenths of a second if every broker runs."""


DELETION_MARK = "marked for deletion"
RISKY_SETTINGS = {"min.insync.replicas", "unclean.leader.election.enable"}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


def _ask(servers: str, timeout_s: float, work: "Callable[[AdminClient, float], Awaitable[T]]") -> T:
    from minibroker.admin_call import ask_admin

    return ask_admin(servers, timeout_s, work, "topic")


async def _topic_deletions(admin: "AdminClient") -> dict[str, str]:
    from minibroker.client.topics import topic_deletions

    return await topic_deletions(admin._cluster)


async def _warn_of_deletions(admin: "AdminClient", names: tuple[str, ...]) -> dict[str, str]:
    from minibroker.opened_client import warn_of_deletions

    return await warn_of_deletions(admin._cluster, names or None)


async def _require_topics(
    admin: "AdminClient", names: tuple[str, ...], timeout_ms: float, *, or_deletions: bool = False
) -> None:
    from minibroker.opened_client import require_topics

    await require_topics(admin._cluster, names, timeout_ms, or_deletions=or_deletions)


@click.command()
@bootstrap_option
@topics_option(one=True)
@click.option("--partitions", type=click.IntRange(1), help="[default: num.partitions of the brokers]")
@click.option("--replication-factor", type=click.IntRange(1), help="[default: default.replication.factor]")
@click.option("--config", "--set", "configs", metavar="KEY=VALUE", multiple=True)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic exists already.")
@timeout_option(30)
@json_option
def create(
    bootstrap_servers: str,
    topics: tuple[str],
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

    (name,) = topics
    settings = named_values(configs, "--config")

    async def work(admin: "AdminClient", timeout_ms: float) -> tuple[dict[str, Any], list[str]]:
        try:
            done = await admin.create_topic(name, partitions, replication_factor, settings, timeout_ms=timeout_ms)
        except TopicAlreadyExists:
            if not if_not_exists or name in await _topic_deletions(admin):
                raise
            return {"topic": name, "created": False}, []
        described = (await admin.describe_topics([name], timeout_ms=timeout_ms))[name]
        values = {entry.name: entry.value for entry in (await admin.describe_configs(topic=name)).values()}
        replicas = described.replication_factor
        facts = {"topic": name, "created": True, "topic_id": done.topic_id, "partitions": len(described.partitions)}
        return facts | {"replication_factor": replicas}, _risks(name, replicas, values)

    facts, risks = _ask(bootstrap_servers, timeout_s, work)
    if as_json:
        print_json(facts | {"warnings": risks})
    elif facts["created"]:
        count, factor = facts["partitions"], facts["replication_factor"]
        parts = "1 partition" if count == 1 else f"{count} partitions"
        click.echo(f"created {name}: {parts}, replication factor {factor}")
    else:
        click.echo(f"{name} exists")
    for risk in risks if not as_json else ():
        warn(risk)
    return EXIT_FINE


def _risks(name: str, replicas: int, values: Mapping[str, str | None]) -> list[str]:
    """Reasons why an acknowledged record might not survive a single fault."""
    risks = []
    text = values.get("min.insync.replicas") or ""
    least = int(text) if is_whole_number(text) else 1
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
@topics_option(required=False)
@click.option("-l", "--long", "is_long", is_flag=True, help="Also partitions, replication factor, records and size.")
@timeout_option(30)
@json_option
def list_topics(bootstrap_servers: str, topics: tuple[str, ...], is_long: bool, timeout_s: float, as_json: bool) -> int:
    """List all topics.

    Or those that are named. RECORDS counts those that the leaders hold below their high watermarks, SIZE is that of the
    leaders' logs; '-' if a leader does not answer.
    """

    async def work(admin: "AdminClient", timeout_ms: float) -> list[dict[str, Any]]:
        if topics:
            await _require_topics(admin, topics, timeout_ms)
        if not is_long:
            names = topics or await admin.list_topics(timeout_ms=timeout_ms)
            marked = await _warn_of_deletions(admin, topics)
            return [{"topic": name, "marked_for_deletion": name in marked} for name in names]
        found = await admin.describe_topics(topics or None, timeout_ms=timeout_ms)
        replicas = await admin.describe_replica_state(timeout_ms=min(timeout_ms, 5_000))
        marked = await _warn_of_deletions(admin, topics)
        return [_summary(found[name], replicas) | {"marked_for_deletion": name in marked} for name in sorted(found)]

    rows = _ask(bootstrap_servers, timeout_s, work)
    if as_json:
        for row in rows:
            print_json(row)
    elif is_long:
        _print_summaries(rows)
    else:
        for row in rows:
            click.echo(printable(row["topic"]))
    return EXIT_FINE


def _print_summaries(rows: list[dict[str, Any]]) -> None:
    keys = ("topic", "partitions", "replication_factor", "records")
    cells = [
        (
            *(row[key] for key in keys),
            None if row["size_bytes"] is None else human_bytes(row["size_bytes"]),
            DELETION_MARK if row["marked_for_deletion"] else "",
        )
        for row in rows
    ]
    print_table(("TOPIC", "PARTITIONS", "RF", "RECORDS", "SIZE", ""), cells)


def _summary(topic: "TopicDescription", replicas: "Mapping[BrokerId, BrokerReplicas]") -> dict[str, Any]:
    from minibroker.protocol.ids import TopicPartition

    logs = []
    for partition in topic.partitions:
        leader = None if partition.leader is None else replicas.get(partition.leader)
        log = None if leader is None else leader.replicas.get(TopicPartition(topic.name, partition.partition))
        if log is not None and log.high_watermark >= 0:
            logs.append(log)
    is_known = len(logs) == len(topic.partitions)
    return {
        "topic": topic.name,
        "partitions": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "records": sum(log.high_watermark - log.log_start_offset for log in logs) if is_known else None,
        "size_bytes": sum(log.size_bytes for log in logs) if is_known else None,
    }


@click.command()
@bootstrap_option
@topics_option(required=False)
@click.option("--under-replicated", is_flag=True, help="Only partitions that lack replicas; exit code 10 if any.")
@timeout_option(30)
@json_option
@read_or_not()
def describe(
    bootstrap_servers: str, topics: tuple[str, ...], under_replicated: bool, timeout_s: float, as_json: bool
) -> int:
    """Print leaders, epochs, replicas, in-sync replicas, settings."""

    async def work(admin: "AdminClient", timeout_ms: float) -> "list[tuple[TopicDescription, dict[str, str], bool]]":
        await _require_topics(admin, topics, timeout_ms)
        found = await admin.describe_topics(topics or None, timeout_ms=timeout_ms)
        marked = await _warn_of_deletions(admin, topics)
        described = []
        for name in sorted(found):
            entries = (await admin.describe_configs(topic=name, timeout_ms=timeout_ms)).values()
            own = {entry.name: entry.value or "" for entry in entries if entry.source == "dynamic-topic"}
            described.append((found[name], own, name in marked))
        return described

    wrong = False
    for description, settings, is_marked in _ask(bootstrap_servers, timeout_s, work):
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
                | {"marked_for_deletion": is_marked, "partitions": rows}
            )
            continue
        texts = ", ".join(f"{key}={value}" for key, value in sorted(settings.items())) or "the brokers' defaults"
        texts += f"; {DELETION_MARK}" if is_marked else ""
        click.secho(printable(f"{description.name} (id {description.topic_id}; {texts})"), bold=True)
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
@topics_option()
@click.option("--if-exists", is_flag=True, help="Succeed if a topic does not exist.")
@timeout_option(30)
@json_option
def delete(bootstrap_servers: str, topics: tuple[str, ...], if_exists: bool, timeout_s: float, as_json: bool) -> int:
    """Delete topics and their records.

    Returns when no broker has them any more. If a broker that is down has replicas of a topic, the topic is only marked
    for deletion, with a warning and exit code 0: it is deleted once that broker runs again.
    """
    from minibroker.client.errors import UnknownTopicOrPartition
    from minibroker.protocol.errors import ErrorCode

    async def work(admin: "AdminClient", timeout_ms: float) -> "dict[str, MinibrokerError | None]":
        if not if_exists and len(topics) > 1:  # all of them, or none is deleted
            await _require_topics(admin, topics, timeout_ms, or_deletions=True)
        is_asked.append(True)
        results = await _delete(admin, topics, timeout_ms)
        if not if_exists and isinstance(results[topics[0]], UnknownTopicOrPartition):
            await _require_topics(admin, topics, timeout_ms, or_deletions=True)  # its error names a similar topic
        return results

    problems, is_asked = [], list[bool]()
    try:
        results = _ask(bootstrap_servers, timeout_s, work)
    except KeyboardInterrupt:
        ProgressLine.erase()
        note(
            "interrupted: the deletion may go on without this command, `minibroker topic list` shows what is left"
            if is_asked
            else "interrupted: no deletion was requested"
        )
        raise
    for name, error in results.items():
        missing = isinstance(error, UnknownTopicOrPartition)
        if error is not None and error.code is ErrorCode.REPLICA_NOT_AVAILABLE:
            warn(_reason(error))
            if as_json:
                print_json({"topic": name, "deleted": False, "marked_for_deletion": True})
        elif error is not None and not (missing and if_exists):
            problems.append(_reason(error))
        elif as_json:
            print_json({"topic": name, "deleted": not missing})
        else:
            click.echo(f"there was no {name}" if missing else f"deleted {name}")
    if problems:
        raise CommandFailed("; ".join(problems))
    return EXIT_FINE


async def _delete(
    admin: "AdminClient", names: tuple[str, ...], timeout_ms: float
) -> "dict[str, MinibrokerError | None]":
    """Each topic's error. A deletion that waits is requested again and again, to learn whether it waits for a broker
    that is down, which would last longer than anyone waits, and to tell the user early why it waits."""
    import asyncio

    from minibroker.client.errors import UnknownTopicOrPartition
    from minibroker.protocol.errors import ErrorCode

    results: dict[str, MinibrokerError | None] = {}
    waiting, left_ms, loop = [*names], timeout_ms, asyncio.get_running_loop()
    while waiting:
        round_ms, started = min(float(DELETION_ROUND_MS), left_ms), loop.time()
        answers = await admin.delete_topics(waiting, timeout_ms=left_ms, answer_ms=round_ms)
        is_first = left_ms == timeout_ms
        left_ms = max(0.0, left_ms - max(round_ms, (loop.time() - started) * 1000))
        for name, error in answers.items():
            is_gone = isinstance(error, UnknownTopicOrPartition) and not is_first
            results[name] = None if is_gone else error
        slow = {name: error for name, error in answers.items() if error and error.code is ErrorCode.REQUEST_TIMED_OUT}
        waiting = [*slow] if left_ms else []
        if is_first and waiting:
            for error in slow.values():
                warn(_reason(error))
    return results


def _reason(error: "MinibrokerError") -> str:
    """What the controller said, or else the error."""
    return getattr(error, "broker_message", None) or str(error)


@click.command()
@bootstrap_option
@topics_option(one=True)
@click.option("--config", "--set", "configs", metavar="KEY=VALUE", multiple=True, help="Set it.")
@click.option("--unset", "unset", metavar="KEY", multiple=True, help="Go back to the brokers' default.")
@timeout_option(30)
@json_option
def alter(
    bootstrap_servers: str,
    topics: tuple[str],
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    timeout_s: float,
    as_json: bool,
) -> int:
    """Change settings of a topic.

    Warns if an acknowledged record might not survive the loss of one broker any more.
    """
    (name,) = topics
    values = named_values(configs, "--config")
    if both := ", ".join(key for key in values if key in unset):
        raise click.UsageError(f"{both}: give --config or --unset, not both")
    changes: dict[str, str | None] = {**values, **dict.fromkeys(unset)}
    if not changes:
        raise click.UsageError("nothing to change: give --config KEY=VALUE or --unset KEY")

    async def work(admin: "AdminClient", timeout_ms: float) -> tuple[dict[str, str | None], list[str]]:
        await _require_topics(admin, topics, timeout_ms)
        await admin.alter_configs(changes, topic=name, timeout_ms=timeout_ms)
        if not unset and not RISKY_SETTINGS & changes.keys():
            return {}, []
        entries = (await admin.describe_configs(topic=name, timeout_ms=timeout_ms)).values()
        defaults = {entry.name: entry.value for entry in entries if entry.source != "dynamic-topic"}
        # a broker that is late tells the former values of what was changed
        known = {entry.name: entry.value for entry in entries if entry.name not in changes}
        known |= {key: defaults[key] for key in unset if key in defaults} | values
        if not RISKY_SETTINGS & changes.keys() or not known.keys() >= RISKY_SETTINGS:
            return defaults, []
        replicas = (await admin.describe_topics([name], timeout_ms=timeout_ms))[name].replication_factor
        return defaults, _risks(name, replicas, known) if replicas > 1 else []

    defaults, risks = _ask(bootstrap_servers, timeout_s, work)
    if as_json:
        print_json({"topic": name, "changed": changes, "warnings": risks})
    else:
        texts = [f"{key}={value}" for key, value in values.items()]
        texts += [f"{key} back to the default{_after_space(defaults.get(key))}" for key in dict.fromkeys(unset)]
        click.echo(f"altered {name}: {', '.join(texts)}")
        for risk in risks:
            warn(risk)
    return EXIT_FINE


def _after_space(value: str | None) -> str:
    return "" if value is None else f" {value}"
