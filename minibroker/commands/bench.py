"""`minibroker bench`: throughput and latency of a cluster on this machine, alone or next to a real Kafka."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from minibroker.command_line import (
    EXIT_FINE,
    SECONDS_MAX,
    CommandFailed,
    LazyGroup,
    Seconds,
    WrongUsage,
    bootstrap_option,
    json_option,
    note,
    print_json,
    print_table,
    run_async,
    warn,
)
from minibroker.commands.bench_rate import RATE_MAX, RECORD_BYTES_MAX, SECONDS, write_steadily
from minibroker.existing_path import ExistingPath

if TYPE_CHECKING:
    from minibroker.bench.case import Case
    from minibroker.bench.document import Document

ALTERNATIONS = 7
QUICK_ALTERNATIONS, QUICK_VOLUME = 2, 0.1
DOCUMENT_BYTES_MAX = 256 * 1024 * 1024
JSON_FILE, SVG_FILE = "bench.json", "bench.svg"
COMMANDS = {
    "list": ("minibroker.commands.bench:list_cases", "List the cases, and about how long each takes."),
    "profile": (
        "minibroker.bench.profile.command:profile",
        "Where the microseconds of a produce and of a fetch go, system calls included.",
    ),
    "report": ("minibroker.commands.bench:report", "Tables, chart and page from the JSON of earlier runs."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS, invoke_without_command=True)
@click.option(
    "--peer",
    "peers",
    type=click.Choice(["minibroker", "kafka"]),
    multiple=True,
    help="Measure minibroker alone (the default), or with `--peer kafka` a real Kafka in turn with it.",
)
@click.option("--cases", metavar="NAME,...", help="Only these; `produce-*` selects a prefix, `*` all.")
@click.option(
    "--alternations", type=click.IntRange(1), metavar="N", help=f"Rounds per case.  [default: {ALTERNATIONS}]"
)
@click.option(
    "--quick", is_flag=True, help="Little load, two rounds, no warm-up: a test of the benchmark, not for figures."
)
@click.option("--heap", default="1g", show_default=True, metavar="SIZE", help="-Xmx of a Kafka broker.")
@click.option(
    "--out", type=click.Path(file_okay=False), metavar="FOLDER", help=f"Write {JSON_FILE} and {SVG_FILE} there."
)
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Files of the clusters.  [default: temporary]",
)
@click.option(
    "--rate",
    type=click.IntRange(1, RATE_MAX),
    metavar="R",
    help="Instead of that, write R records per second to topic -t of a running cluster, and report the longest gap.",
)
@click.option("-t", "--topic", metavar="TOPIC", help="With --rate: an existing topic.")
@click.option(
    "--seconds", type=Seconds(0.1, SECONDS_MAX), default=SECONDS, show_default=True, help="With --rate: how long."
)
@click.option(
    "--size", "record_bytes", type=click.IntRange(0, RECORD_BYTES_MAX), default=100, show_default=True, metavar="BYTES"
)
@bootstrap_option
@json_option
@click.pass_context
def bench(
    context: click.Context,
    peers: tuple[str, ...],
    cases: str | None,
    alternations: int | None,
    quick: bool,
    heap: str,
    out: str | None,
    data_dir: str | None,
    rate: int | None,
    topic: str | None,
    seconds: float,
    record_bytes: int,
    bootstrap_servers: str,
    as_json: bool,
) -> int:
    """Measure a cluster on this machine, alone or next to a real Kafka.

    Starts clusters of three brokers on free ports, runs each case several times on each of them in turn, and stops
    them. Long cases (failover, start, recovery, audit, memory) run only if --cases names them.

    With --rate it measures a cluster that you break meanwhile, e.g. with `minibroker cluster kill leader:TOPIC-0`: how
    long acknowledgements stopped.
    """
    if context.invoked_subcommand is not None:
        return EXIT_FINE
    if rate is not None or topic is not None:
        if rate is None or topic is None or cases is not None or peers:
            raise WrongUsage("--rate writes to a running cluster: give it with -t TOPIC, without --cases and --peer")
        return write_steadily(bootstrap_servers, topic, rate, seconds, record_bytes, as_json=as_json)
    chosen = _chosen(cases)
    named = ("minibroker", "kafka") if "kafka" in peers else ("minibroker",)
    chosen = [case for case in chosen if set(case.peers) & set(named)]
    if not chosen:
        raise WrongUsage("these cases are only for Kafka: give --peer kafka")
    from minibroker.bench.peers.peer import PeerFailed
    from minibroker.bench.session import BenchOptions, run
    from minibroker.step_line import StepLine

    options = BenchOptions(
        cases=chosen,
        peers=named,
        alternations=alternations or (QUICK_ALTERNATIONS if quick else ALTERNATIONS),
        volume=QUICK_VOLUME if quick else 1.0,
        warm=not quick,
        heap=heap,
        data_directory=None if data_dir is None else Path(data_dir),
    )
    kept: list[Document] = []

    def keep(found: "Document") -> None:
        kept[:] = [found]
        if out is not None:
            write(found, Path(out))

    try:
        with StepLine() as steps:
            run_async(run(options, steps.tell, keep))
    except PeerFailed as error:
        raise CommandFailed(str(error)) from None
    finally:
        if kept:  # also after an interrupt
            show(kept[0], as_json)
            if out is not None:
                note(f"written: {Path(out) / JSON_FILE} and {Path(out) / SVG_FILE}")
    return EXIT_FINE


def _chosen(cases: str | None) -> "list[Case]":
    from minibroker.bench.cases.catalogue import NoSuchCase, choose

    names = [name.strip() for name in (cases or "").split(",") if name.strip()]
    if cases is not None and not names:
        raise WrongUsage("--cases names none: give NAME,.., or leave the option out for all that run by default")
    try:
        return choose(names)
    except NoSuchCase as error:
        raise WrongUsage(str(error)) from None


@click.command("list")
@json_option
def list_cases(as_json: bool) -> int:
    """List the cases, and about how long each takes.

    On a small idle machine; two minutes of warm-up come on top.
    """
    from minibroker.bench.cases.catalogue import BY_DEFAULT, CASES

    if as_json:
        for case in CASES:
            facts = {"name": case.name, "title": case.title, "unit": case.unit, "peers": list(case.peers)}
            print_json(facts | {"by_default": case in BY_DEFAULT, "about_minutes": case.about_minutes(2, ALTERNATIONS)})
        return EXIT_FINE
    rows = [
        (
            case.name,
            case in BY_DEFAULT,
            case.peers,
            " / ".join(f"{case.about_minutes(peers, ALTERNATIONS):.1f}" for peers in (1, 2)),
            f"{case.title}, {case.unit}",
        )
        for case in CASES
    ]
    print_table(("NAME", "BY DEFAULT", "PEERS", "MINUTES ALONE / WITH KAFKA", "CASE"), rows)
    return EXIT_FINE


@click.command()
@click.argument("files", nargs=-1, required=True, type=ExistingPath(dir_okay=False))
@click.option(
    "--write", "page", type=ExistingPath(dir_okay=False), metavar="PAGE", help="Update the tables of this page."
)
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a chart of the ratios."
)
@json_option
def report(files: tuple[str, ...], page: str | None, svg: str | None, as_json: bool) -> int:
    """Tables, chart and page from the JSON of earlier runs.

    Several files must be parts of one run on one machine and commit: other cases, or more rounds of the same ones.
    """
    from minibroker.audit.reading.regular_files import read_regular
    from minibroker.bench.chart import render
    from minibroker.bench.document import BadDocument, decode, merge
    from minibroker.bench.page import NoTableMarkers, with_tables

    documents = []
    for name in files:
        try:
            documents.append(decode(read_regular(name, DOCUMENT_BYTES_MAX)))
        except BadDocument as error:
            raise CommandFailed(f"{name}: {error}") from None
    try:
        document = merge(documents)
        if page is not None:
            text = read_regular(page, DOCUMENT_BYTES_MAX).decode()
            Path(page).write_text(with_tables(text, document), encoding="utf-8")
    except BadDocument as error:
        raise CommandFailed(f"{error}: report them separately") from None
    except NoTableMarkers as error:
        raise WrongUsage(f"{page}: {error}") from None
    except UnicodeDecodeError:
        raise CommandFailed(f"{page} is not UTF-8: name a page in Markdown") from None
    if svg is not None:
        Path(svg).write_text(render(document), encoding="utf-8")
    show(document, as_json)
    return EXIT_FINE


def show(document: "Document", as_json: bool) -> None:
    """The document itself on stdout, or its tables."""
    from minibroker.bench.report import (
        COST_HEADER,
        GOAL_HEADER,
        HEADER,
        cost_rows,
        details,
        failures,
        goal_rows,
        rows_of,
    )

    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(document))
        return
    print_table(HEADER, [row.cells() for row in rows_of(document)])
    click.echo()
    print_table(GOAL_HEADER, goal_rows(document))
    costs = cost_rows(document)
    if costs:
        click.echo("\nCPU s per GB, and the largest broker's peak memory:")
        print_table(COST_HEADER, costs)
    for line in details(document):
        click.echo(line)
    for remark in failures(document):
        warn(remark)


def write(document: "Document", folder: Path) -> None:
    """The document and its chart."""
    from minibroker.bench.chart import render
    from minibroker.bench.document import encode

    folder.mkdir(parents=True, exist_ok=True)
    (folder / JSON_FILE).write_bytes(encode(document))
    (folder / SVG_FILE).write_text(render(document), encoding="utf-8")
