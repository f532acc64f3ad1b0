"""`minibroker produce`: the lines of a file or of stdin as records."""

import os
import sys
import time
from typing import TYPE_CHECKING, BinaryIO

import click

from minibroker.command_line import (
    EXIT_COULD_NOT,
    EXIT_FINE,
    EXIT_INTERRUPTED,
    CommandFailed,
    ProgressLine,
    bootstrap_option,
    human_bytes,
    json_option,
    note,
    print_json,
    run_async,
    timeout_option,
)

if TYPE_CHECKING:
    from minibroker.records.record_sender import RecordSender, Tally

BATCH_BYTES = 256 * 1024
"""Large for throughput; batches of a slow pipe are sent after 5 ms anyway."""

Headers = tuple[tuple[str, bytes | None], ...]


@click.command()
@bootstrap_option
@click.option("-t", "--topic", required=True)
@click.option("-p", "--partition", type=click.IntRange(0), help="[default: by key, else batch by batch]")
@click.option("-K", "--key-delimiter", metavar="DELIM", help="Each line is KEY DELIM VALUE; \\t and \\xNN are escapes.")
@click.option("-k", "--key", help="One key for all records.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="List the acknowledged records there.",
)
@timeout_option(120, "Time for each record to be acknowledged.")
@json_option
@click.argument("file", default="-", metavar="[FILE|-]")
def produce(
    bootstrap_servers: str,
    topic: str,
    partition: int | None,
    key_delimiter: str | None,
    key: str | None,
    headers: tuple[str, ...],
    acks: str,
    report_file: str | None,
    timeout_s: float,
    as_json: bool,
    file: str,
) -> int:
    """Write the lines of a file or of stdin to a topic.

    A record is the bytes between newlines; empty lines and carriage returns are kept. --report lists topic, partition,
    offset and CRC-32C of every acknowledged record, for `minibroker audit --acked`. Exit code 1 unless every record was
    acknowledged.
    """
    options = _Options(
        partition, _delimiter(key_delimiter), _bytes(key) if key is not None else None, _headers(headers)
    )
    descriptor = _open(file)
    report = _open_report(report_file)
    started = time.monotonic()
    account = _Account()
    interrupted = False
    try:
        work = _produce(bootstrap_servers, topic, descriptor, options, acks, report, timeout_s, account)
        run_async(work, fast_loop=True)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        tally = account.closed()
        if report is not None:
            report.close()
        if descriptor != 0:
            os.close(descriptor)
    code = EXIT_FINE if tally is None else _conclude(tally, time.monotonic() - started, as_json)
    return EXIT_INTERRUPTED if interrupted else code


class _Account:
    """Counts the records, even if Ctrl-C or an error ends the run: the report lists all acknowledged ones."""

    def __init__(self) -> None:
        self.sender: RecordSender | None = None

    def closed(self) -> "Tally | None":
        """The counts; None if nothing was sent."""
        if self.sender is None:
            return None
        self.sender.collect()
        self.sender.end_report()
        return self.sender.tally


class _Options:
    """Options that apply to every record."""

    def __init__(self, partition: int | None, delimiter: bytes | None, key: bytes | None, headers: Headers) -> None:
        self.partition = partition
        self.delimiter = delimiter
        self.key = key
        self.headers = headers


def _delimiter(text: str | None) -> bytes | None:
    from minibroker.records.record_format import BadFormat, parse_delimiter

    try:
        delimiter = parse_delimiter(text) if text is not None else None
    except BadFormat as error:
        raise click.BadParameter(str(error), param_hint="-K") from None
    if delimiter == b"" or (delimiter is not None and b"\n" in delimiter):
        raise click.BadParameter("must not be empty or contain a newline", param_hint="-K")
    return delimiter


def _headers(texts: tuple[str, ...]) -> Headers:
    pairs = [text.partition("=") for text in texts]
    return tuple((name, _bytes(value) if equals else None) for name, equals, value in pairs)


def _bytes(argument: str) -> bytes:
    """As they were on the command line: keys and values need not be text."""
    return argument.encode(errors="surrogateescape")


def _open(file: str) -> int:
    if file == "-":
        return sys.stdin.fileno()
    if os.path.isdir(file):
        raise CommandFailed(f"{file} is a directory: name a file, or - for stdin")
    try:
        return os.open(file, os.O_RDONLY)
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from None


def _open_report(file: str | None) -> BinaryIO | None:
    try:
        return open(file, "wb", 1 << 20) if file is not None else None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}") from None


async def _produce(
    servers: str,
    topic: str,
    descriptor: int,
    options: _Options,
    acks: str,
    report: BinaryIO | None,
    timeout_s: float,
    account: "_Account",
) -> None:
    from minibroker.client.errors import MinibrokerError
    from minibroker.client.producer.producer import Producer
    from minibroker.opened_client import FIRST_ANSWER_MS, opened, require_topics
    from minibroker.records.record_sender import RecordSender

    timeout_ms = max(1, round(timeout_s * 1000))
    producer = Producer(
        servers,
        client_id="minibroker-produce",
        acks="all" if acks == "all" else 0 if acks == "0" else 1,
        delivery_timeout_ms=timeout_ms,
        max_block_ms=timeout_ms,
        batch_size=BATCH_BYTES,
        linger_ms=min(5, timeout_ms),
        bootstrap_timeout_ms=min(FIRST_ANSWER_MS, timeout_ms),
    )
    try:
        async with opened(producer, servers):
            await require_topics(producer._cluster, [topic], timeout_ms)
            account.sender = RecordSender(producer, topic, report=report, acks=acks)
            await _send_all(account.sender, descriptor, options)
            await account.sender.finish()
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None


async def _send_all(sender: "RecordSender", descriptor: int, options: _Options) -> None:
    """Send every line, until the input ends or a record fails."""
    from minibroker.records.line_source import read_lines, split_key

    progress = ProgressLine()
    started = time.monotonic()
    tally = sender.tally
    delimiter = options.delimiter
    async for values in read_lines(descriptor):
        keys: list[bytes | None] | None = None
        if delimiter is not None:
            pairs = [split_key(line, delimiter) for line in values]
            keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        elif options.key is not None:
            keys = [options.key] * len(values)
        await sender.send_many(values, keys, options.partition, options.headers)
        if progress.due():
            sender.collect()
            rate = tally.acknowledged_bytes / (time.monotonic() - started)
            done = f"{tally.acknowledged} of {tally.sent} records acknowledged, {human_bytes(tally.acknowledged_bytes)}"
            progress.show(f"{done}, {human_bytes(rate)}/s")
        if tally.first_failure is not None:
            break
    progress.clear()


def _conclude(tally: "Tally", seconds: float, as_json: bool) -> int:
    count, size = tally.acknowledged, tally.acknowledged_bytes
    if as_json:
        failure = None if tally.first_failure is None else str(tally.first_failure)
        facts = {"records": count, "bytes": size, "seconds": round(seconds, 3), "not_acknowledged": tally.in_doubt}
        print_json(facts | ({"error": failure} if failure else {}))
    else:
        rate = f"{count / seconds:.0f} records/s, {human_bytes(size / seconds)}/s"
        note(f"{count} records, {size} bytes acknowledged in {seconds:.2f} s ({rate})")
    if tally.in_doubt:
        why = f": {tally.first_failure}" if tally.first_failure is not None else ""
        click.echo(f"error: {tally.in_doubt} of {tally.sent} records were not acknowledged{why}", err=True)
        return EXIT_COULD_NOT
    return EXIT_FINE
