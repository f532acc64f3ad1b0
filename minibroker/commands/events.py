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
    run_async,
)

if TYPE_CHECKING:
    from minibroker.observation.event_stream import BrokerEvent

SHOWN_FIRST = 20


@click.command()
@bootstrap_option
@click.option("-k", "--kind", "kinds", multiple=True, help="Only events of this kind, e.g. isr_changed.")
@click.option("-t", "--topic", "topics", multiple=True, help="Only events of this topic.")
@click.option("--broker", "brokers", type=int, multiple=True, help="Only events of or about this broker.")
@click.option(
    "--last", type=click.IntRange(min=0), default=SHOWN_FIRST, show_default=True, help="Begin with this many."
)
@click.option("--once", is_flag=True, help="Print the events that brokers keep, and exit.")
@json_option
def events(
    bootstrap_servers: str,
    kinds: tuple[str, ...],
    topics: tuple[str, ...],
    brokers: tuple[int, ...],
    last: int,
    once: bool,
    as_json: bool,
) -> int:
    """Follow the events of all brokers until Ctrl-C.

    docs/EVENTS.md lists the kinds and their fields. Each broker keeps its last 2,000 events or
    a megabyte of them, since its start.
    """
    from minibroker.protocol.cluster_events import EVENTS

    unknown = sorted({*kinds} - {*EVENTS})
    if unknown:
        raise WrongUsage(f"no event has the name {unknown[0]}; there are: {', '.join(sorted(EVENTS))}")
    run_async(_show(bootstrap_servers, (kinds, topics, brokers), last, once, as_json))
    return EXIT_FINE


async def _show(
    servers: str, wanted: tuple[tuple[str, ...], tuple[str, ...], tuple[int, ...]], last: int, once: bool, as_json: bool
) -> None:
    from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
    from minibroker.observation.event_stream import EventStream

    async with BrokerQueries() as queries:
        stream = EventStream(queries, servers)
        try:
            kept = [event for event in await stream.poll() if event.concerns(*wanted)]
        except NoAnswer as error:
            raise CommandFailed(str(error)) from None
        for event in kept if once else kept[len(kept) - min(last, len(kept)) :]:
            _print(event, as_json)
        if once:
            return
        async for event in stream.follow():
            if event.concerns(*wanted):
                _print(event, as_json)


def _print(event: "BrokerEvent", as_json: bool) -> None:
    from datetime import datetime

    if as_json:
        print_json({"at_ms": event.at_ms, "reported_by": event.reported_by, **event.fields})
        return
    at = datetime.fromtimestamp(event.at_ms / 1000).strftime("%H:%M:%S.%f")[:-3]
    click.echo(f"{at}  broker {event.reported_by}  {event.fields['text']}")
