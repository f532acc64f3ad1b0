"""`minibroker events`: the events of all brokers, as they are reported."""

from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    WrongUsage,
    bootstrap_option,
    json_option,
    print_json,
    require_reader,
    run_async,
    suggestion,
    topics_option,
    warn,
)

if TYPE_CHECKING:
    from minibroker.observation.broker_queries import BrokerQueries
    from minibroker.observation.event_stream import BrokerEvent, EventStream

Filters = tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]]
"""Kinds, topics, brokers."""
SHOWN_FIRST = 20


@click.command()
@bootstrap_option
@click.option("-k", "--kind", "kinds", multiple=True, help="Only events of this kind, e.g. isr_changed.")
@topics_option(required=False)
@click.option(
    "--broker", "brokers", type=int, multiple=True, help="Only events that this broker reported, or that name it."
)
@click.option(
    "--last",
    type=click.IntRange(min=0),
    show_default=f"{SHOWN_FIRST}; with --once all",
    help="Begin with this many of the stored events.",
)
@click.option("--once", is_flag=True, help="Print the events that brokers keep, and exit.")
@json_option
def events(
    bootstrap_servers: str,
    kinds: tuple[str, ...],
    topics: tuple[str, ...],
    brokers: tuple[int, ...],
    last: int | None,
    once: bool,
    as_json: bool,
) -> int:
    """Follow the events of all brokers until Ctrl-C.

    docs/EVENTS.md lists the kinds and their fields, and says what names a broker. Each broker keeps its last 2,000
    events or a megabyte of them, since its start.
    """
    from minibroker.protocol.events.cluster_events import EVENTS
    from minibroker.unknown_names import quoted

    unknown = sorted({*kinds} - {*EVENTS})
    if unknown:
        known = sorted(EVENTS)
        all_known = "" if all(suggestion(each, known) for each in unknown) else f"; there are: {', '.join(known)}"
        raise WrongUsage(f"no event has the name {quoted(unknown, known)}{all_known}")
    run_async(_show(bootstrap_servers, (kinds, topics, brokers), last, once, as_json))
    return EXIT_FINE


async def _show(servers: str, wanted: Filters, last: int | None, once: bool, as_json: bool) -> None:
    from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
    from minibroker.observation.event_stream import EventStream
    from minibroker.waiting_line import waiting_line

    async with BrokerQueries() as queries:
        stream, warned = EventStream(queries, servers), set[int]()
        try:
            async with waiting_line("waiting for the brokers' answers"):
                reported = await stream.poll()
        except NoAnswer as error:
            raise CommandFailed(str(error)) from None
        _warn_of_silence(stream, warned, must_hear_one=True)
        unknown = await _unknown(queries, servers, wanted, stream.brokers, reported)
        if unknown and once:
            raise CommandFailed("; ".join(unknown))
        for text in unknown:
            warn(text)
        kept = [event for event in reported if event.concerns(*wanted)]
        count = last if last is not None else len(kept) if once else SHOWN_FIRST
        for event in kept[max(0, len(kept) - count) :]:
            _print(event, as_json)
        if once:
            return
        async for events in stream.follow():
            require_reader()
            _warn_of_silence(stream, warned)
            for text in stream.take_missed().values():
                warn(text)
            for event in events:
                if event.concerns(*wanted):
                    _print(event, as_json)


def _warn_of_silence(stream: "EventStream", warned: set[int], must_hear_one: bool = False) -> None:
    """Say once of each broker that it reports nothing; again if it reported something in the meantime."""
    silent = {broker: f"broker {broker} does not answer: {why}" for broker, why in stream.silent.items()}
    mute = {broker: f"broker {broker} reports no events: {why}" for broker, why in stream.refusals.items()}
    problems = {**mute, **silent}
    if must_hear_one and stream.brokers and problems.keys() >= {*stream.brokers}:
        raise CommandFailed("; ".join(problems[broker] for broker in sorted(problems)))
    for broker in sorted(problems.keys() - warned):
        warn(problems[broker])
    warned.clear()
    warned.update(problems)


async def _unknown(
    queries: "BrokerQueries", servers: str, wanted: Filters, found: list[int], reported: "list[BrokerEvent]"
) -> list[str]:
    """What is asked for and exists neither now nor in a kept event: it may be misspelt, or come later."""
    from minibroker.observation.broker_queries import NoAnswer
    from minibroker.unknown_names import unknown_topics

    _, topics, brokers = wanted
    named = {event.fields.get("topic") for event in reported if isinstance(event.fields.get("topic"), str)}
    told = {broker for event in reported for broker in event.about}
    texts = [
        f"no broker {each} is known; there are: {', '.join(map(str, found))}"
        for each in brokers
        if each not in told and each not in found
    ]
    if {*topics} - named:
        try:
            named |= {topic.name for topic in (await queries.metadata(servers)).topics}
        except NoAnswer:
            return texts
    missing = [each for each in topics if each not in named]
    return [*texts, *([unknown_topics(missing, sorted(map(str, named)))] if missing else [])]


def _print(event: "BrokerEvent", as_json: bool) -> None:
    from datetime import datetime

    from minibroker.runtime.adapters.json_lines import moment_fields

    if as_json:
        print_json({**event.fields, **moment_fields(event.at_ms), "reported_by": event.reported_by})
        return
    at = datetime.fromtimestamp(event.at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    click.echo(f"{at}  broker {event.reported_by}  {event.fields['text']}")
