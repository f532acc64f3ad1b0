"""`minibroker consume`: a topic's records on stdout."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    bootstrap_option,
    require_reader,
    run_async,
    timeout_option,
)

if TYPE_CHECKING:
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.client.consumer.records import Record
    from minibroker.records.record_reader import RecordReader
    from minibroker.records.starting_point import StartingPoint


@click.command()
@bootstrap_option
@click.option("-t", "--topic", "topics", required=True, multiple=True, metavar="TOPIC", help="Exactly one.")
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="[default: all]")
@click.option("-o", "--offset", default="beginning", show_default=True, metavar="beginning|end|N|-N|@TIME")
@click.option("-c", "--count", type=click.IntRange(1), help="End after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end offsets of the moment when the command began.")
@click.option("-f", "--format", "format_text", help="%t %p %o %e %k %K %s %S %T %h %R %% \\n \\t \\xNN")
@click.option("-J", "--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--skip-undecodable", is_flag=True, help="Skip batches that cannot be decoded, with a warning.")
@timeout_option(30, "Give up when a partition has given no answer, or only errors, for this many seconds.")
def consume(
    bootstrap_servers: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    offset: str,
    count: int | None,
    exit_at_end: bool,
    format_text: str | None,
    as_json: bool,
    skip_undecodable: bool,
    timeout_s: float,
) -> int:
    """Print a topic's records.

    Values are printed byte for byte, each followed by a newline. Without -e or -c it waits for more until Ctrl-C.
    @TIME is milliseconds since 1970 or ISO-8601; -N starts N records before the end of each partition.
    """
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.opened_client import FIRST_ANSWER_MS
    from minibroker.records.starting_point import BadStartingPoint, parse_start

    if len(topics) > 1:
        raise click.BadParameter(f"{', '.join(topics)}: one topic at a time", param_hint="-t")
    topic = topics[0]
    try:
        point = parse_start(offset)
    except BadStartingPoint as error:
        raise click.BadParameter(str(error), param_hint="-o") from None
    show = _printer(format_text, as_json)
    timeout_ms = max(1, round(timeout_s * 1000))

    def open_consumer() -> "Consumer":
        return Consumer(
            bootstrap_servers=bootstrap_servers,
            client_id="minibroker-consume",
            bootstrap_timeout_ms=min(FIRST_ANSWER_MS, timeout_ms),
            auto_offset_reset="none",
            on_undecodable="skip" if skip_undecodable else "raise",
        )

    run_async(
        _consume(open_consumer, bootstrap_servers, topic, partitions, point, count, exit_at_end, show, timeout_ms),
        fast_loop=True,
    )
    return EXIT_FINE


def _printer(format_text: str | None, as_json: bool) -> "Callable[[Record], bytes] | None":
    """How a record is printed; None for the fast way, a value and a newline."""
    if as_json:
        from minibroker.records.record_format import json_line

        return json_line
    if format_text is None:
        return None
    from minibroker.records.record_format import BadFormat, compile_format

    try:
        return compile_format(format_text)
    except BadFormat as error:
        raise click.BadParameter(str(error), param_hint="-f") from None


async def _consume(
    open_consumer: "Callable[[], Consumer]",
    servers: str,
    topic: str,
    partitions: tuple[int, ...],
    point: "StartingPoint",
    count: int | None,
    exit_at_end: bool,
    show: "Callable[[Record], bytes] | None",
    timeout_ms: int,
) -> None:
    from minibroker.client.errors import MinibrokerError
    from minibroker.opened_client import opened, require_topics
    from minibroker.records.record_reader import RecordReader

    consumer = open_consumer()
    try:
        async with opened(consumer, servers):
            await require_topics(consumer._cluster, [topic], timeout_ms)
            reader = RecordReader(consumer, topic, partitions, point, timeout_ms)
            await reader.start()
            await (
                _print_values(reader, count, exit_at_end) if show is None else _print(reader, count, exit_at_end, show)
            )
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None


async def _print_values(reader: "RecordReader", count: int | None, exit_at_end: bool) -> None:
    write, flush = _output()
    left = count
    async for batches in reader.batches(exit_at_end):
        if not batches:
            require_reader()
        for batch in batches:
            values = batch.values if left is None else batch.values[:left]
            write(_joined(values))
            if left is not None:
                left -= len(values)
                if left <= 0:
                    flush()
                    return
        flush()


def _joined(values: "Any") -> bytes:
    try:
        return b"\n".join(values) + b"\n"
    except TypeError:  # a null value: an empty line
        return b"".join((value or b"") + b"\n" for value in values)


async def _print(
    reader: "RecordReader", count: int | None, exit_at_end: bool, show: "Callable[[Record], bytes]"
) -> None:
    write, flush = _output()
    left = count
    async for records in reader.records(exit_at_end):
        if not records:
            require_reader()
        some = records if left is None else records[:left]
        write(b"".join(map(show, some)))
        flush()
        if left is not None:
            left -= len(some)
            if left <= 0:
                return


def _output() -> "tuple[Callable[[bytes], object], Callable[[], None]]":
    return sys.stdout.buffer.write, sys.stdout.buffer.flush
