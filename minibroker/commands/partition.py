"""`minibroker partition elect`: elections that may lose records, after the loss was shown."""

from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    EXIT_FOUND_WRONG,
    CommandFailed,
    LazyGroup,
    bootstrap_option,
    json_option,
    print_json,
    run_async,
    timeout_option,
)
from minibroker.protocol.counted import counted
from minibroker.protocol.printable_text import printable

if TYPE_CHECKING:
    from minibroker.protocol.wire.messages import ElectionPreview, ElectLeadersRequest, ElectLeadersTopic

COMMANDS = {
    "elect": (
        "minibroker.commands.partition:elect",
        "Show leaderless partitions, and what each replica holds.",
    ),
}

NOT_REGISTERED = "is not registered"
"""The controller's words of a replica whose broker is down."""


@click.group(cls=LazyGroup, lazy=COMMANDS)
def partition() -> None:
    """Elect leaders where an election may lose records."""


@click.command()
@bootstrap_option
@click.argument("names", nargs=-1, metavar="[TOPIC-PARTITION]...")
@click.option("--accept-loss", is_flag=True, help="Elect the replica that lost least, after a question.")
@click.option("--leader", type=click.IntRange(0, 2**31 - 1), help="Elect this broker instead.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@timeout_option(30)
@json_option
def elect(
    bootstrap_servers: str,
    names: tuple[str, ...],
    accept_loss: bool,
    leader: int | None,
    yes: bool,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Show leaderless partitions, and what each replica holds.

    With --accept-loss one replica becomes leader and the only member of the ISR: records that only other members of the
    ISR hold are lost. If anything has changed since it was shown, no leader is elected. Exit code 10 if partitions are
    without a leader at the end.
    """
    from minibroker.protocol.wire.messages import ElectLeadersRequest, confirmation_of

    topics = _topics(names)
    if accept_loss and topics is None and not yes:
        raise click.UsageError("name the partitions to elect for, or give --yes for all that have no leader")
    chosen = -1 if leader is None else leader
    timeout_ms = round(timeout_s * 1000)
    question = ElectLeadersRequest(topics=topics, leader=chosen, timeout_ms=timeout_ms)
    previews = run_async(_ask(bootstrap_servers, question, timeout_s), timeout_s + 5, "partition elect")
    _refuse_unknown(previews)
    if not as_json or (accept_loss and not yes):
        for each in previews:
            _describe(each, accept_loss, leader)
    able = [each for each in previews if not each.error_code]
    if accept_loss and able and not yes and not _accepts(len(able)):
        click.echo("no leader is elected: the loss was not accepted (--yes accepts it without a question)", err=True)
        accept_loss = False
    if accept_loss and able:
        confirmed = [confirmation_of(each) for each in able]
        order = ElectLeadersRequest(confirmed=confirmed, leader=chosen, timeout_ms=timeout_ms)
        elected = run_async(_ask(bootstrap_servers, order, timeout_s), timeout_s + 5, "partition elect")
        previews = [*(each for each in previews if each.error_code), *elected]
        able = []
        for each in elected if not as_json else ():
            _print_election(each)
    if as_json:
        for each in previews:
            _print_json(each, accept_loss)
    failed = [each for each in previews if each.error_code and not _is_led(each)]
    return EXIT_FOUND_WRONG if failed or able else EXIT_FINE


def _refuse_unknown(previews: "list[ElectionPreview]") -> None:
    """Raise CommandFailed for partitions that were named and do not exist."""
    from minibroker.protocol.errors import ErrorCode

    unknown = [each for each in previews if each.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if unknown:
        texts = "; ".join(str(each.error_message) for each in unknown)
        raise CommandFailed(f"{texts}: `minibroker topic describe` shows all topics and partitions")


def _accepts(partitions: int) -> bool:
    """No input means no; Ctrl-C interrupts."""
    try:
        return click.confirm(
            f"Elect leaders of {counted(partitions, 'partition')}, with the loss named above?", err=True
        )
    except click.Abort as error:
        click.echo(err=True)  # the question's line has no end yet
        if isinstance(error.__context__, EOFError):
            return False
        raise


def _topics(names: tuple[str, ...]) -> "list[ElectLeadersTopic] | None":
    from minibroker.protocol.files.checkpoints import parse_partition_directory_name
    from minibroker.protocol.wire.messages import ElectLeadersTopic

    found: dict[str, list[int]] = {}
    for name in names:
        parsed = parse_partition_directory_name(name)
        if parsed is None:
            raise click.BadParameter(f"'{name}' is not TOPIC-PARTITION, such as orders-0")
        found.setdefault(parsed.topic, []).append(parsed.partition)
    topics = [ElectLeadersTopic(topic_name=topic, partitions=numbers) for topic, numbers in found.items()]
    return topics or None


async def _ask(servers: str, request: "ElectLeadersRequest", timeout_s: float) -> "list[ElectionPreview]":
    """The controller's answer."""
    from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
    from minibroker.waiting_line import waiting_line

    try:
        async with (
            BrokerQueries("minibroker-partition") as queries,
            waiting_line("waiting for an answer"),
        ):
            previews = await queries.elections(servers, request, timeout_s)
    except NoAnswer as error:
        raise CommandFailed(str(error)) from None
    for each in previews:
        _refuse_impossible(each)
    return previews


def _refuse_impossible(each: "ElectionPreview") -> None:
    """Raise CommandFailed where a broker is chosen that is no candidate, or none without an error: what that would lose
    cannot be told."""
    is_candidate = any(found.broker_id == each.chosen for found in each.candidates)
    if not is_candidate and (each.chosen >= 0 or not each.error_code):
        raise CommandFailed(
            f"the controller's answer about {each.topic_name}-{each.partition_index} chooses broker {each.chosen},"
            " which is none of its candidates: run the same version here and on all brokers, or see its log"
        )


def _describe(each: "ElectionPreview", accepts_loss: bool, leader: int | None) -> None:
    """Print the replicas, and what an election would lose. `leader`: the only broker that may be elected."""
    name = f"{each.topic_name}-{each.partition_index}"
    if not each.reason:
        click.echo(printable(each.error_message or ""))
        return
    click.echo(printable(f"{name}: no leader since epoch {each.leader_epoch}, last ISR {each.isr}: {each.reason}"))
    for candidate in each.candidates:
        place = "in the ISR" if candidate.is_in_sync else "not in the ISR"
        place += "" if candidate.is_on_its_directory else ", on another log directory"
        holds = f"holds {candidate.log_start_offset} to {candidate.log_end_offset}, last epoch {candidate.last_epoch}"
        click.echo(printable(f"  broker {candidate.broker_id} ({place}): {candidate.problem or holds}"))
    if each.error_code:
        click.echo(printable(f"  {_why_none(each, leader)}"))
        return
    click.echo(f"  {'will elect' if accepts_loss else 'could elect'} broker {each.chosen}; {_loss(each)}")
    down = [found.broker_id for found in each.candidates if found.is_in_sync and found.problem == NOT_REGISTERED]
    if down:
        click.echo(f"  start {_named(down)} first, and less may be lost {_command(down)}")


def _named(down: list[int]) -> str:
    return f"broker{'s' if down[1:] else ''} {', '.join(map(str, down))}"


def _command(down: list[int]) -> str:
    """That starts them on this machine."""
    them = "them" if down[1:] else "it"
    return f"(`minibroker cluster start {' '.join(map(str, down))}`, if `cluster up` started {them})"


def _why_none(each: "ElectionPreview", leader: int | None) -> str:
    able = [found.broker_id for found in each.candidates if found.problem is None]
    if able:
        why = next((found.problem for found in each.candidates if found.broker_id == leader), "has no replica of it")
        return f"broker {leader} cannot be elected now: it {why}; {able} can (--leader)"
    damaged = [found.broker_id for found in each.candidates if "damaged log" in (found.problem or "")]
    down = [found.broker_id for found in each.candidates if found.problem == NOT_REGISTERED]
    if not damaged:
        return "no replica can be elected now" + (f"; start {_named(down)} {_command(down)}" if down else "")
    name = f"{each.topic_name}-{each.partition_index}"
    return (
        "no replica can be elected now; stop a broker with a damaged log:"
        f" `minibroker log repair LOG_DIR --cut {name}` keeps the sound part of its log"
    )


def _loss(each: "ElectionPreview") -> str:
    """What an election of the chosen broker loses."""
    end = next(found.log_end_offset for found in each.candidates if found.broker_id == each.chosen)
    others = [found for found in each.candidates if found.is_in_sync and found.broker_id != each.chosen]
    known = [f"{counted(found.log_end_offset - end, 'record')} of broker {found.broker_id}" for found in others]
    known = [text for text, found in zip(known, others, strict=True) if found.log_end_offset > end]
    unknown = [found.broker_id for found in others if found.problem is not None or not found.is_on_its_directory]
    parts = [f"this loses {', '.join(known)}"] if known else []
    parts += (
        [f"records from offset {end} on that brokers {unknown} hold may be lost, acknowledged or not"]
        if unknown
        else []
    )
    return "; ".join(parts) or f"acknowledged records from offset {end} on, if any, are lost"


def _print_election(each: "ElectionPreview") -> None:
    name = f"{each.topic_name}-{each.partition_index}"
    text = each.error_message if each.error_code else f"{name}: broker {each.chosen} is elected"
    click.echo(printable(text or ""))


def _print_json(each: "ElectionPreview", accepts_loss: bool) -> None:
    import msgspec

    name = f"{each.topic_name}-{each.partition_index}"
    facts = {"partition": name, "elected": accepts_loss and not each.error_code}
    if each.chosen >= 0:
        facts["loss"] = _loss(each)
    print_json(facts | msgspec.to_builtins(each))


def _is_led(each: "ElectionPreview") -> bool:
    from minibroker.protocol.errors import ErrorCode

    return each.error_code == ErrorCode.ELECTION_NOT_NEEDED
