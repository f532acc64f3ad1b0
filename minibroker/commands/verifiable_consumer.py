"""`minibroker verifiable-consumer`: reports records read, one JSON event per line, like Kafka's tool of that name."""

from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    bootstrap_option,
    json_option,
    require_reader,
    run_async,
    timeout_option,
    topics_option,
)
from minibroker.records.verifiable_output import print_event

if TYPE_CHECKING:
    from minibroker.client.consumer.records import Record
    from minibroker.records.starting_point import StartingPoint


@click.command()
@bootstrap_option
@topics_option(one=True)
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="[default: all]")
@click.option("-o", "--offset", default="beginning", show_default=True, metavar="beginning|end|N|-N|@TIME")
@click.option("-n", "--max-messages", type=int, default=-1, help="[default: until Ctrl-C]")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end offsets of the moment when the command began.")
@click.option("--verbose", is_flag=True, help="Also print one record_data event per record.")
@timeout_option(30, "Give up when a partition has given no answer, or only errors, for this many seconds.")
@json_option
def verifiable_consumer(
    bootstrap_servers: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    offset: str,
    max_messages: int,
    exit_at_end: bool,
    verbose: bool,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Read records; one JSON event per line.

    Events: startup_complete, partitions_assigned, records_consumed, record_data (--verbose), shutdown_complete. The
    output is always JSON. Ctrl-C ends it cleanly.
    """
    from minibroker.records.starting_point import BadStartingPoint, parse_start

    try:
        point = parse_start(offset)
    except BadStartingPoint as error:
        raise click.BadParameter(str(error), param_hint="-o") from None
    try:
        work = _consume(bootstrap_servers, topics[0], partitions, point, max_messages, exit_at_end, verbose, timeout_s)
        run_async(work, fast_loop=True)
    except KeyboardInterrupt:
        pass  # the normal end of an endless run
    print_event("shutdown_complete")
    return EXIT_FINE


async def _consume(
    servers: str,
    topic: str,
    partitions: tuple[int, ...],
    point: "StartingPoint",
    max_messages: int,
    exit_at_end: bool,
    verbose: bool,
    timeout_s: float,
) -> None:
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.client.errors import MinibrokerError
    from minibroker.opened_client import opened
    from minibroker.records.record_reader import RecordReader

    timeout_ms = max(1, round(timeout_s * 1000))
    consumer = Consumer(
        bootstrap_servers=servers,
        client_id="minibroker-verifiable-consumer",
        bootstrap_timeout_ms=min(10_000, timeout_ms),
        auto_offset_reset="none",
    )
    left = max_messages if max_messages >= 0 else None
    try:
        async with opened(consumer, servers):
            reader = RecordReader(consumer, [topic], partitions, point, timeout_ms, until_end=exit_at_end)
            await reader.start()
            print_event("startup_complete")
            assigned = [{"topic": name, "partition": index} for name, index in reader.partitions]
            print_event("partitions_assigned", partitions=assigned)
            if left == 0:
                return
            async for records in reader.records():
                if not records:
                    require_reader()
                    continue
                some = records if left is None else records[:left]
                _print_records(some, verbose)
                if left is not None:
                    left -= len(some)
                    if left <= 0:
                        return
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None


def _print_records(records: "list[Record]", verbose: bool) -> None:
    """Print consecutive records of one partition."""
    first, last = records[0], records[-1]
    place = {"topic": first.topic, "partition": first.partition}
    summary = place | {"count": len(records), "minOffset": first.offset, "maxOffset": last.offset}
    print_event("records_consumed", count=len(records), partitions=[summary])
    for record in records if verbose else ():
        texts = {"key": _text(record.key), "value": _text(record.value)}
        print_event("record_data", **place, offset=record.offset, **texts)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="surrogateescape")
