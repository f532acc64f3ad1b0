"""`minibroker produce`: the lines of a file or of stdin as records.

Owns: the options, the numbers of lines in messages, and what is said at the end. Leaves to others: lines
(`records/line_source`), JSON (`records/json_records`), and what became of each record (`records/record_sender`).
"""

import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_COULD_NOT,
    EXIT_FINE,
    EXIT_INTERRUPTED,
    PROGRESS_EVERY_S,
    CommandFailed,
    ProgressLine,
    bootstrap_option,
    human_bytes,
    json_option,
    note,
    print_error,
    print_json,
    run_async,
    timeout_option,
)
from minibroker.long_names import require_utf8

if TYPE_CHECKING:
    from minibroker.client.producer.producer import Producer
    from minibroker.records.produce_outputs import OffsetLines, ReportFile
    from minibroker.records.record_sender import RecordSender, Tally

BATCH_BYTES = 256 * 1024
"""Large for throughput; batches of a slow pipe are sent after 5 ms anyway."""

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""The producer's own limit."""

RequireTopic = Callable[[str], Awaitable[None]]
Headers = tuple[tuple[str, bytes | None], ...]


@click.command()
@bootstrap_option
@click.option("-t", "--topic", "topics", multiple=True, metavar="TOPIC", help="Or TOPIC alone before FILE.")
@click.option("-p", "--partition", type=click.IntRange(0), help="[default: by key, else batch by batch]")
@click.option(
    "--input",
    "input_format",
    type=click.Choice(["lines", "jsonl"]),
    default="lines",
    show_default=True,
    help="jsonl: each line is an object with value, key, headers, partition, timestamp, or what `consume -J` prints."
    " Without -t it also names its topic.",
)
@click.option("-K", "--key-delimiter", metavar="DELIM", help="Each line is KEY DELIM VALUE; \\t and \\xNN are escapes.")
@click.option("-k", "--key", help="One key for all records.")
@click.option("-Z", "--empty-is-null", is_flag=True, help="An empty value is a null value (a tombstone).")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header of every record.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@click.option(
    "--report",
    "report_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="List the acknowledged records there.",
)
@click.option("--offsets", "show_offsets", is_flag=True, help="Print topic, partition and offset of each record.")
@click.option(
    "--max-request-size",
    metavar="BYTES",
    type=click.IntRange(1_024, MAX_REQUEST_BYTES),
    default=1_048_576,
    show_default=True,
    help="Largest record that is sent; the topic's max.message.bytes is a limit of its own.",
)
@timeout_option(120, "Time for each record to be acknowledged.")
@json_option
@click.argument("words", nargs=-1, metavar="[TOPIC] [FILE|-]")
def produce(
    bootstrap_servers: str,
    topics: tuple[str, ...],
    partition: int | None,
    input_format: str,
    key_delimiter: str | None,
    key: str | None,
    empty_is_null: bool,
    headers: tuple[str, ...],
    acks: str,
    report_file: str | None,
    show_offsets: bool,
    max_request_size: int,
    timeout_s: float,
    as_json: bool,
    words: tuple[str, ...],
) -> int:
    """Write the lines of a file or of stdin to a topic, or JSON objects to several.

    A record is the bytes between newlines; empty lines and carriage returns are kept. --report lists topic, partition,
    offset and CRC-32C of every acknowledged record, for `minibroker audit --acked`. Exit code 1 unless every record was
    acknowledged.
    """
    if input_format == "jsonl" and (key_delimiter is not None or key is not None or headers or empty_is_null):
        raise click.UsageError("-K, -k, -H and -Z are for --input lines: an object names its own key and headers")
    topic, file = _topic_and_file(topics, words, names_its_own=input_format == "jsonl")
    if topic is None and report_file is not None:
        raise click.UsageError("--report lists the records of one topic: give -t TOPIC")
    options = _Options()
    options.servers, options.topic, options.partition, options.acks = bootstrap_servers, topic, partition, acks
    options.is_json = input_format == "jsonl"
    options.delimiter = _delimiter(key_delimiter)
    options.key = _bytes(key) if key is not None else None
    options.headers = _headers(headers)
    options.empty_is_null = empty_is_null
    options.show_offset = _offset_lines(as_json) if show_offsets else None
    options.max_request_size = max_request_size
    options.timeout_ms = max(1, round(timeout_s * 1000))
    descriptor = _open(file, may_be_topic=topic is None)
    options.report = _open_report(report_file)
    if os.isatty(descriptor):
        note("each line is a record; Ctrl-D ends the input")
    started = time.monotonic()
    account = _Account()
    interrupted = False
    failure: CommandFailed | None = None
    try:
        run_async(_produce(descriptor, options, account), fast_loop=True)
    except KeyboardInterrupt:
        interrupted = True
        ProgressLine.erase()  # the ^C that the terminal shows
    except CommandFailed as error:
        failure = error
    finally:
        tally = account.closed(options.report)
        if descriptor != 0:
            os.close(descriptor)
    problem = options.output_problem
    if problem is not None and not interrupted:
        failure = failure or CommandFailed(problem)
    code = EXIT_INTERRUPTED if interrupted else EXIT_FINE
    if tally is not None:
        tally.has_stopped = tally.has_stopped and not interrupted  # the user knows
        code = _conclude(tally, time.monotonic() - started, as_json, failure, interrupted=interrupted)
    if failure is not None:
        raise failure
    if problem is not None:
        print_error(problem, code, as_json)
    return code


def _topic_and_file(topics: tuple[str, ...], words: tuple[str, ...], *, names_its_own: bool) -> tuple[str | None, str]:
    """TOPIC comes before FILE unless -t names it. A word alone is FILE if JSON objects may name their topics (None)."""
    chosen = [*dict.fromkeys(topics)]
    rest = [*words]
    if not chosen and (not names_its_own or len(rest) == 2):
        chosen, rest = rest[:1], rest[1:]
        if not chosen:
            raise click.UsageError("which topic? Give -t TOPIC")
    if len(chosen) > 1:
        cure = "give one, or the field `topic` of each object of --input jsonl"
        raise click.BadParameter(f"{', '.join(chosen)}: {cure}", param_hint="-t")
    for topic in chosen:
        require_utf8(topic, "-t")
    if len(rest) > 1:
        raise click.UsageError(f"{', '.join(rest)}: give one FILE")
    return (chosen[0] if chosen else None), (rest[0] if rest else "-")


class _Account:
    """Counts the records, even if Ctrl-C or an error ends the run: the report lists all acknowledged ones."""

    def __init__(self) -> None:
        self.sender: RecordSender | None = None

    def closed(self, report: "ReportFile | None") -> "Tally | None":
        """The counts; None if nothing was sent. The report gets its end."""
        if self.sender is not None:
            self.sender.collect()
            self.sender.end_report()
        if report is not None:
            report.close()
        return None if self.sender is None else self.sender.tally


class _Options:
    """What the user asked for."""

    servers: str
    topic: str | None
    """None: each record names its own."""
    acks: str
    partition: int | None
    is_json: bool
    delimiter: bytes | None
    key: bytes | None
    headers: Headers
    empty_is_null: bool
    show_offset: "OffsetLines | None" = None
    report: "ReportFile | None" = None
    max_request_size: int
    timeout_ms: int

    @property
    def output_problem(self) -> str | None:
        """Why an output beside the records has failed."""
        problems = [output.problem for output in (self.report, self.show_offset) if output is not None]
        return next(filter(None, problems), None)


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
    for name, equals, _ in pairs:
        if not equals:
            cure = f"give {name}= for an empty value, or a null one with --input jsonl"
            raise click.BadParameter(f"'{name}' is not NAME=VALUE: {cure}", param_hint="-H")
    return tuple((name, _bytes(value)) for name, _, value in pairs)


def _bytes(argument: str) -> bytes:
    """As they were on the command line: keys and values need not be text."""
    return argument.encode(errors="surrogateescape")


def _open(file: str, *, may_be_topic: bool) -> int:
    if file == "-":
        return sys.stdin.fileno()
    if os.path.isdir(file):
        raise CommandFailed(f"{file} is a directory: name a file, or - for stdin")
    try:
        return os.open(file, os.O_RDONLY)
    except OSError as error:
        cure = f"; a topic is named with -t {file}" if may_be_topic else ""
        raise CommandFailed(f"{file} cannot be read: {error.strerror}{cure}") from None


def _open_report(file: str | None) -> "ReportFile | None":
    from minibroker.records.produce_outputs import opened_report

    try:
        return opened_report(file) if file is not None else None
    except BlockingIOError:
        raise CommandFailed(f"{file} is being written by another command: name another file for --report") from None
    except FileExistsError:
        raise CommandFailed(f"{file} has content already: name another file for --report, or remove this one") from None
    except OSError as error:
        raise CommandFailed(f"{file} cannot be written: {error.strerror}") from None


def _offset_lines(as_json: bool) -> "OffsetLines":
    from minibroker.records.produce_outputs import OffsetLines

    return OffsetLines(as_json=as_json)


async def _produce(descriptor: int, options: _Options, account: "_Account") -> None:
    from minibroker.client.errors import MinibrokerError
    from minibroker.client.producer.producer import Producer
    from minibroker.opened_client import FIRST_ANSWER_MS, opened, require_topics_that_stay
    from minibroker.records.record_sender import RecordSender

    producer = Producer(
        bootstrap_servers=options.servers,
        client_id="minibroker-produce",
        acks="all" if options.acks == "all" else 0 if options.acks == "0" else 1,
        delivery_timeout_ms=options.timeout_ms,
        max_block_ms=options.timeout_ms,
        max_request_size=options.max_request_size,
        batch_size=BATCH_BYTES,
        linger_ms=min(5, options.timeout_ms),
        bootstrap_timeout_ms=min(FIRST_ANSWER_MS, options.timeout_ms),
    )
    try:
        async with opened(producer, options.servers):
            if options.topic is not None:
                await require_topics_that_stay(producer._cluster, [options.topic], options.timeout_ms)
            account.sender = RecordSender(
                producer, options.topic, report=options.report, acks=options.acks, on_acknowledged=options.show_offset
            )
            problem: Exception | None = None
            require = partial(_require, producer, options.timeout_ms)
            is_quiet = os.isatty(descriptor) or options.show_offset is not None  # a progress line would be in between
            async with _progress(account.sender, is_quiet):
                try:
                    await _send_all(account.sender, descriptor, options, require)
                except (CommandFailed, MinibrokerError) as error:
                    problem = error
                await account.sender.finish()
            if problem is not None:
                raise problem
    except MinibrokerError as error:
        raise CommandFailed(str(error)) from None


async def _require(producer: "Producer", timeout_ms: float, topic: str) -> None:
    from minibroker.opened_client import require_topics_that_stay

    await require_topics_that_stay(producer._cluster, [topic], timeout_ms)


@asynccontextmanager
async def _progress(sender: "RecordSender", is_quiet: bool) -> AsyncIterator[None]:
    """Show it on a terminal during the block, also while the last acknowledgements are waited for."""
    import asyncio

    showing = asyncio.create_task(_show_progress(sender, is_quiet))
    try:
        yield
    finally:
        showing.cancel()
        if not is_quiet:
            ProgressLine.erase()


async def _show_progress(sender: "RecordSender", is_quiet: bool) -> None:
    import asyncio

    started, progress, tally = time.monotonic(), ProgressLine(), sender.tally
    while progress.enabled and not is_quiet:
        await asyncio.sleep(PROGRESS_EVERY_S)
        if not tally.sent or not progress.due():
            continue
        sender.collect()
        rate = tally.acknowledged_bytes / (time.monotonic() - started)
        done = f"{tally.acknowledged} of {tally.sent} records acknowledged, {human_bytes(tally.acknowledged_bytes)}"
        progress.show(f"{done}, {human_bytes(rate)}/s, {time.monotonic() - started:.0f} s")


async def _send_all(sender: "RecordSender", descriptor: int, options: _Options, require: RequireTopic) -> None:
    """Send every line, until the input ends or a record fails. Raises CommandFailed with the number of a line that
    cannot be sent; the lines before it were sent. `require` raises it for a topic that does not exist. Also raised
    when an output beside the records has failed."""
    from minibroker.client.errors import RecordTooLarge
    from minibroker.records.line_source import read_lines

    topics: set[str] = set()
    sender.tally.has_stopped = True  # unless the end is reached
    async for lines in _named_if_too_long(read_lines(descriptor), sender):
        if options.is_json or options.show_offset is not None:
            await _send_each(sender, lines, options, require, topics)
        else:
            try:
                keys, values = _columns(lines, options)
                await sender.send_many(values, keys, options.partition, options.headers)
            except RecordTooLarge:  # none of these lines was sent
                await _send_each(sender, lines, options, require, topics)
        if options.show_offset is not None:
            await sender.finish()
        if sender.tally.first_failure is not None:
            return
        if options.output_problem is not None:
            raise CommandFailed(options.output_problem)
    sender.tally.has_stopped = False


async def _named_if_too_long(source: AsyncIterator[list[bytes]], sender: "RecordSender") -> AsyncIterator[list[bytes]]:
    """The lines; raises CommandFailed with the number of one that would fill the memory."""
    from minibroker.records.line_source import LineTooLong

    try:
        async for lines in source:
            yield lines
    except LineTooLong as error:
        raise CommandFailed(f"line {sender.tally.sent + 1} {error}") from None


def _columns(lines: list[bytes], options: _Options) -> "tuple[list[bytes | None] | None, list[bytes | None]]":
    """Keys (None if there are none) and values of some lines."""
    from minibroker.records.line_source import split_key

    keys: list[bytes | None] | None = None
    values: list[bytes | None] = [*lines]
    if options.delimiter is not None:
        pairs = [split_key(line, options.delimiter) for line in lines]
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    elif options.key is not None:
        keys = [options.key] * len(lines)
    return keys, [value or None for value in values] if options.empty_is_null else values


async def _send_each(
    sender: "RecordSender", lines: list[bytes], options: _Options, require: RequireTopic, topics: set[str]
) -> None:
    """Send some lines one by one. `topics` are those that were named before."""
    from minibroker.client.errors import MinibrokerError, RecordTooLarge
    from minibroker.records.json_records import BadRecord, InputRecord, parse_json_record

    for line in lines:
        try:
            if options.is_json:
                record = parse_json_record(line)
            else:
                keys, values = _columns([line], options)
                record = InputRecord(values[0], keys[0] if keys else None, options.headers)
            partition = record.partition if options.partition is None else options.partition
            topic = options.topic or record.topic
            if topic is None:
                raise BadRecord("names no topic (give -t TOPIC)")
            if options.topic is None and topic not in topics:
                await require(topic)
                topics.add(topic)
            await sender.send(
                record.value, record.key, partition, record.headers, timestamp_ms=record.timestamp_ms, topic=topic
            )
        except CommandFailed as error:
            raise CommandFailed(f"line {sender.tally.sent + 1}: {error}") from None
        except BadRecord as error:
            raise CommandFailed(f"line {sender.tally.sent + 1} {error}: correct it, or leave out --input") from None
        except MinibrokerError as error:
            cure = " [raise --max-request-size, and the topic's max.message.bytes]"
            text = f"line {sender.tally.sent + 1}: {error}{cure if isinstance(error, RecordTooLarge) else ''}"
            raise CommandFailed(text) from None


def _conclude(
    tally: "Tally",
    seconds: float,
    as_json: bool,
    failure: CommandFailed | None = None,
    *,
    interrupted: bool = False,
) -> int:
    """Say what was written, and return the exit code. `failure` ended the sending, and is reported elsewhere."""
    from minibroker.client.errors import records

    count, size = tally.acknowledged, tally.acknowledged_bytes
    first = failure or tally.first_failure
    rate = f"{count / seconds:.0f} records/s, {human_bytes(size / seconds)}/s"
    summary = f"{records(count)}, {size} {'byte' if size == 1 else 'bytes'} acknowledged in {seconds:.2f} s ({rate})"
    summary += f"\nlines from line {tally.sent + 1} on were not sent" if tally.has_stopped else ""
    if as_json:
        facts = {"records": count, "bytes": size, "seconds": round(seconds, 3), "not_acknowledged": tally.in_doubt}
        facts |= {"not_sent_from_line": tally.sent + 1} if tally.has_stopped else {}
        try:
            print_json(facts | ({"error": str(first)} if first else {}))
        except OSError as error:  # it must not hide what became of the records
            note(summary)
            if not (isinstance(error, BrokenPipeError) or failure or tally.in_doubt):
                raise
    else:
        note(summary)
    if not tally.in_doubt:
        return EXIT_INTERRUPTED if interrupted else EXIT_FINE
    which = records(tally.in_doubt) if tally.in_doubt == tally.sent else f"{tally.in_doubt} of {records(tally.sent)}"
    verb = "was" if tally.in_doubt == 1 else "were"
    line = f"; the first is line {tally.first_failed}" if tally.first_failed is not None else ""
    why = f": {tally.first_failure}" if tally.first_failure is not None else ""
    code = EXIT_INTERRUPTED if interrupted else EXIT_COULD_NOT
    print_error(f"{which} {verb} not acknowledged{line}{why}", code, as_json)
    return code
