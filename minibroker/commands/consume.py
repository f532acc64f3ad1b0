"""`minibroker consume`: records of topics on stdout."""

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from minibroker.command_line import (
    EXIT_FINE,
    CommandFailed,
    bootstrap_option,
    human_bytes,
    require_reader,
    run_async,
    timeout_option,
    topics_option,
    warn,
)

if TYPE_CHECKING:
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.client.consumer.records import Record
    from minibroker.records.record_reader import RecordReader


@click.command()
@bootstrap_option
@topics_option()
@click.option("-p", "--partition", "partitions", type=click.IntRange(0), multiple=True, help="[default: all]")
@click.option(
    "-o",
    "--offset",
    default="beginning",
    show_default=True,
    metavar="FROM[:TO]",
    help="Each is beginning, end, N, -N or @TIME. With TO it ends before that offset, at the latest as -e does.",
)
@click.option("-c", "--count", type=click.IntRange(1), help="End after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="Stop at the end offsets of the moment when the command began.")
@click.option("-f", "--format", "format_text", help="%t %p %o %e %k %K %s %S %T %h %R %% \\n \\t \\xNN")
@click.option("-J", "--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option("--json-values", is_flag=True, help="Like -J; keys and values that are JSON objects or arrays stay such.")
@click.option("--base64", "in_base64", is_flag=True, help="Like -J, with all keys, values and headers in base64.")
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
    json_values: bool,
    in_base64: bool,
    skip_undecodable: bool,
    timeout_s: float,
) -> int:
    """Print the records of topics.

    Values are printed byte for byte, each followed by a newline. Without -e, -c or TO it waits for more until Ctrl-C.
    @TIME is milliseconds since 1970 or ISO-8601; -N is N records before the end of each partition.
    """
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.opened_client import FIRST_ANSWER_MS
    from minibroker.records.record_reader import RecordReader
    from minibroker.records.starting_point import BadStartingPoint, parse_range

    try:
        begin, end = parse_range(offset)
    except BadStartingPoint as error:
        raise click.BadParameter(str(error), param_hint="-o") from None
    show = _printer(format_text, as_json, json_values, in_base64)
    timeout_ms = max(1, round(timeout_s * 1000))

    def open_consumer() -> "Consumer":
        return Consumer(
            bootstrap_servers=bootstrap_servers,
            client_id="minibroker-consume",
            bootstrap_timeout_ms=min(FIRST_ANSWER_MS, timeout_ms),
            auto_offset_reset="none",
            on_undecodable="skip" if skip_undecodable else "raise",
        )

    def open_reader(consumer: "Consumer") -> "RecordReader":
        return RecordReader(consumer, topics, partitions, begin, timeout_ms, end=end, until_end=exit_at_end)

    run_async(
        _consume(open_consumer(), bootstrap_servers, topics, open_reader, count, show, timeout_ms), fast_loop=True
    )
    return EXIT_FINE


def _printer(
    format_text: str | None, as_json: bool, json_values: bool, in_base64: bool
) -> "Callable[[Record], bytes] | None":
    """How a record is printed; None for the fast way, a value and a newline."""
    given = {"-f": format_text is not None, "-J": as_json, "--json-values": json_values, "--base64": in_base64}
    forms = [option for option, is_given in given.items() if is_given]
    if forms[2:] or (forms[1:] and ("-f" in forms or "-J" not in forms)):  # -J beside its own variants says the same
        raise click.UsageError(f"{' and '.join(forms)} exclude each other: give one")
    if as_json or json_values or in_base64:
        from minibroker.records import record_format

        return (
            record_format.json_values_line
            if json_values
            else record_format.base64_line
            if in_base64
            else record_format.json_line
        )
    if format_text is None:
        return None
    from minibroker.records.record_format import BadFormat, compile_format

    try:
        return compile_format(format_text)
    except BadFormat as error:
        raise click.BadParameter(str(error), param_hint="-f") from None


async def _consume(
    consumer: "Consumer",
    servers: str,
    topics: tuple[str, ...],
    open_reader: "Callable[[Consumer], RecordReader]",
    count: int | None,
    show: "Callable[[Record], bytes] | None",
    timeout_ms: int,
) -> None:
    from minibroker.client.errors import MinibrokerError, OffsetOutOfRange, TopicMadeAgain
    from minibroker.opened_client import opened, require_topics, warn_of_deletions

    try:
        async with opened(consumer, servers):
            await require_topics(consumer._cluster, topics, timeout_ms)
            await warn_of_deletions(consumer._cluster, topics)
            reader = open_reader(consumer)
            await reader.start()
            for partition, end in reader.beyond.items():
                warn(f"{partition} ends at {end}, so nothing is read from it")
            with _Progress() as progress:
                if show is None:
                    await _print_values(reader, count, progress)
                else:
                    await _print(reader, count, show, progress)
    except OffsetOutOfRange as error:
        raise CommandFailed(
            f"the next record of {error.topic_partition} is gone (deleted by retention, or lost with its leader): run"
            " the command again"
        ) from None
    except TopicMadeAgain as error:
        raise CommandFailed(
            f"the topic of {error.topic_partition} was deleted and created again: position {error.position} belonged to"
            " the deleted topic; run the command again, with -o beginning for the new topic's first record"
        ) from None
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None


class _Progress:
    """Counts what is printed, and shows it if that goes into a file."""

    def __init__(self) -> None:
        from minibroker.file_progress import FileProgress

        self._line = FileProgress()
        self._began = time.monotonic()
        self._records = self._bytes = 0

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def add(self, records: int, size: int) -> None:
        self._records += records
        self._bytes += size
        if self._line.due():
            seconds = time.monotonic() - self._began
            rate = human_bytes(self._bytes / seconds)
            self._line.show(f"{self._records} records, {human_bytes(self._bytes)}, {rate}/s, {seconds:.0f} s")


async def _print_values(reader: "RecordReader", count: int | None, progress: _Progress) -> None:
    write, flush = _output()
    left = count
    async for batches in reader.batches():
        if not batches:
            require_reader()
        for batch in batches:
            values = batch.values if left is None else batch.values[:left]
            content = _joined(values)
            write(content)
            progress.add(len(values), len(content))
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
    reader: "RecordReader", count: int | None, show: "Callable[[Record], bytes]", progress: _Progress
) -> None:
    write, flush = _output()
    left = count
    async for records in reader.records():
        if not records:
            require_reader()
        some = records if left is None else records[:left]
        content = b"".join(map(show, some))
        write(content)
        progress.add(len(some), len(content))
        flush()
        if left is not None:
            left -= len(some)
            if left <= 0:
                return


def _output() -> "tuple[Callable[[bytes], object], Callable[[], None]]":
    return sys.stdout.buffer.write, sys.stdout.buffer.flush
