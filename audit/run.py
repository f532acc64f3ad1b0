"""Running an audit: the one function behind `minibroker audit`, `make demo` and spark-submit."""

import os
import platform
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TypeAlias

import msgspec

from minibroker.audit.checks.expectation import ExpectedPartition, SourcedState
from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, finding, has_errors
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.acked_file import AckedList, check_list, open_acked
from minibroker.audit.reading.discovery import Inventory, discover, refuse_unreportable
from minibroker.audit.reading.replica import ReplicaFacts
from minibroker.audit.reports.html_page import html_page
from minibroker.audit.reports.report import AuditReport, Meta, forget_report, make_report, write_report
from minibroker.audit.reports.timings import Stopwatch

SPARK, LOCAL = "spark", "local"
ENGINES = (SPARK, LOCAL)
CHECKPOINT_SECONDS = 6.0
"""A running broker writes the high watermark of each replica every 5 s; until then nothing shows what of a new topic is
committed."""
STATE_SECONDS = 1.0
"""A controller writes the state of a new topic's partitions within milliseconds of the topic, but not with it. Brokers
make the logs behind that, each about a hundred per second."""
ATTEMPTS_MAX = 3
"""For partitions that look wrong and change while they are read; a live cluster soon keeps still for long enough."""

PartitionChecker: TypeAlias = Callable[[Inventory], list[PartitionResult]]


def run_audit(
    directories: Iterable[str],
    engine: str = SPARK,
    acked: str | None = None,
    output: str | None = None,
    *,
    records: bool = False,
    allow_unproven: bool = False,
    zookeeper: str | None = None,
    master: str | None = None,
    ship_package: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> AuditReport:
    """Audit the replicas in these directories, and write the report files to `output` if it is given.

    `acked` names a list of acknowledged records; `records` decodes every record even without such a list. `master` is
    Spark's (default: spark-submit's, $SPARK_MASTER, local[*]); `ship_package` gives this package to its workers.
    `zookeeper` (HOST:PORT) is asked what should be present. With `allow_unproven` only a finding makes the exit code
    10. Raises AuditError when the audit could not run (exit code 1); otherwise the report's `exit_code` is 0 or 10.
    """
    given = tuple(os.fspath(directory) for directory in directories)
    if engine not in ENGINES:
        raise AuditError(f"engine {engine!r} is unknown: use 'spark' or 'local'")
    if not given:
        raise AuditError("no directory was given: name a cluster's data directory or brokers' log directories")
    if output is not None:
        forget_report(output)
    for name in (*given, *([acked] if acked is not None else [])):
        refuse_unreportable(name)
    started, clock = datetime.now(UTC), time.monotonic()
    progress("looking for replicas")
    stopwatch = Stopwatch()
    # Before the logs: what a running producer adds to its list later is in no log that was listed.
    listed = open_acked(acked) if acked is not None else None
    inventory = discover(given, _zookeeper_state(zookeeper))
    list_findings = check_list(listed) if listed is not None else []
    stopwatch.add(discover=time.monotonic() - clock)
    progress(f"{len(inventory.replicas)} replicas, {inventory.total_bytes / 1e6:.0f} MB")
    with _engine(engine, listed, records or acked is not None, master, ship_package, progress, stopwatch) as check:
        inventory, results = _settled(check, inventory, given, zookeeper, progress)
    meta = Meta(
        run_id=uuid.uuid4().hex,
        started=started.isoformat(timespec="seconds"),
        engine=engine,
        directories=given,
        acked=acked,
        allow_unproven=allow_unproven,
        versions=_versions(engine),
    )
    brokers = len({log.broker for log in inventory.log_directories})
    report = make_report(
        results,
        [*findings_of_directories(inventory), *list_findings],
        brokers,
        time.monotonic() - clock,
        stopwatch.timings(),
        meta,
    )
    if output is not None:
        try:
            for sentence in write_report(report, output, html_page):
                progress(sentence)
        except OSError as error:
            forget_report(output)  # one of its files may be whole, and another cut
            raise AuditError(f"the report cannot be written to {output}: {error.strerror}") from error
    return report


def _settled(
    check: PartitionChecker,
    inventory: Inventory,
    given: tuple[str, ...],
    zookeeper: str | None,
    progress: Callable[[str], None],
) -> tuple[Inventory, list[PartitionResult]]:
    """The results, and again those of partitions that changed while they were read: brokers may be running."""
    results = check(inventory)
    if zookeeper is not None and _lack_high_watermarks(results):
        progress(f"waiting {CHECKPOINT_SECONDS:.0f} s until brokers have noted how far new topics are committed")
        time.sleep(CHECKPOINT_SECONDS)
    attempts = 1
    while attempts < ATTEMPTS_MAX:
        missing = _missing_replicas(results) if zookeeper is not None else set()
        if missing:
            progress(f"waiting {STATE_SECONDS:.0f} s: brokers may be making the logs of new topics")
            time.sleep(STATE_SECONDS)
        fresh = _changed_partitions(results, inventory, given, zookeeper)
        if fresh.expected:
            progress("looking again at partitions that changed while they were read")
            inventory, results = _replaced(inventory, fresh, results, check(fresh))
        elif not missing:
            break
        # Brokers need seconds for the logs of a large topic: while fewer and fewer are missing, they make them.
        attempts += len(_missing_replicas(results)) >= len(missing)
    _refuse_unseen(results)
    return inventory, results


def _missing_replicas(results: list[PartitionResult]) -> set[tuple[str, int | None]]:
    """Partition and broker of each."""
    return {
        (f"{result.topic}-{result.partition}", item.broker)
        for result in results
        for item in result.findings
        if item.kind is Kind.MISSING_REPLICA
    }


def _vanished_files(result: PartitionResult) -> list[str]:
    return [item.file for item in result.findings if item.kind is Kind.CHANGED_WHILE_READ and item.file is not None]


def _refuse_unseen(results: list[PartitionResult]) -> None:
    """Raise AuditError if a file is here that was not there for its reader: an executor may see another disk."""
    for file in (file for result in results for file in _vanished_files(result) if os.path.lexists(file)):
        raise AuditError(
            f"{file} is here, and was not there for the process that read it: on a cluster every executor must see the"
            " same paths"
        )


@contextmanager
def _engine(
    engine: str,
    listed: AckedList | None,
    with_values: bool,
    master: str | None,
    ship_package: bool,
    progress: Callable[[str], None],
    stopwatch: Stopwatch,
) -> Iterator[PartitionChecker]:
    acked, end = (listed.path, listed.end) if listed is not None else (None, None)
    if engine == LOCAL:
        yield lambda inventory: compare_locally(
            inventory, acked, with_values=with_values, acked_end=end, progress=progress, stopwatch=stopwatch
        )
        return
    # Lazy imports: the local engine needs neither Spark nor pyarrow.
    from minibroker.audit.spark.spark_context import spark_context, warm_up

    progress("starting Spark")
    began = time.monotonic()
    with spark_context(master, ship_package=ship_package) as context:
        from minibroker.audit.spark.spark_job import compare_on_spark

        warm_up(context)
        stopwatch.add(start=time.monotonic() - began)
        yield lambda inventory: compare_on_spark(
            context,
            inventory,
            acked,
            with_values=with_values,
            acked_end=end,
            progress=progress,
            stopwatch=stopwatch,
        )
        began = time.monotonic()
    stopwatch.add(stop=time.monotonic() - began)


def _zookeeper_state(zookeeper: str | None) -> tuple[SourcedState, ...]:
    """The present state from ZooKeeper. It is read before the logs: what was committed then must be in them."""
    if zookeeper is None:
        return ()
    # Lazy import: kazoo is needed only with ZooKeeper.
    from minibroker.audit.reading.zookeeper_source import read_cluster_from_zookeeper

    state = read_cluster_from_zookeeper(zookeeper)
    for _ in range(ATTEMPTS_MAX - 1):
        if all(partition.isr for partition in state.partitions.values()):
            break
        time.sleep(STATE_SECONDS)  # a topic is being made
        state = read_cluster_from_zookeeper(zookeeper)
    return (SourcedState(source=f"ZooKeeper at {zookeeper}", state=state, stopped=False),)


def _lack_high_watermarks(results: list[PartitionResult]) -> bool:
    """Some replicas could not be compared because a running broker has not recorded yet what of them is committed:
    nothing at all, or only what retention has deleted since."""
    return any(
        any(item.kind is Kind.UNPROVEN for item in result.findings)
        and any(
            not each.cleanly_stopped and (each.high_watermark or 0) <= each.log_start_offset for each in result.replicas
        )
        for result in results
    )


def _changed_partitions(
    results: list[PartitionResult], inventory: Inventory, given: tuple[str, ...], zookeeper: str | None
) -> Inventory:
    """Partitions that look wrong and have changed since, for brokers run or are started: the audit may have read them
    amid a truncation, or ZooKeeper before a deletion or a change of the ISR, and the files behind it. And all of which
    a file was gone when it was to be read: what is there now says whether it may be."""
    suspected = {f"{result.topic}-{result.partition}" for result in results if has_errors(result.findings)}
    vanished = {f"{result.topic}-{result.partition}" for result in results if _vanished_files(result)}
    if not suspected | vanished:
        return msgspec.structs.replace(inventory, replicas=(), expected={})
    fresh = discover(given, _zookeeper_state(zookeeper))
    before, now = _by_name(inventory), _by_name(fresh)
    changed = vanished | {
        name
        for name in suspected
        if before.get(name) != now.get(name) or inventory.expected.get(name) != fresh.expected.get(name)
    }
    chosen = tuple(facts for facts in fresh.replicas if f"{facts.topic}-{facts.partition}" in changed)
    expected = {name: fresh.expected.get(name, ExpectedPartition()) for name in changed}
    return msgspec.structs.replace(fresh, replicas=chosen, expected=expected)


def _by_name(inventory: Inventory) -> dict[str, list[ReplicaFacts]]:
    named: dict[str, list[ReplicaFacts]] = {}
    for facts in inventory.replicas:
        named.setdefault(f"{facts.topic}-{facts.partition}", []).append(facts)
    return named


def _replaced(
    inventory: Inventory, fresh: Inventory, results: list[PartitionResult], rechecked: list[PartitionResult]
) -> tuple[Inventory, list[PartitionResult]]:
    # The list of acknowledged records names others, too, whose replicas were not read again.
    newer = {
        (each.topic, each.partition): each for each in rechecked if f"{each.topic}-{each.partition}" in fresh.expected
    }
    kept = tuple(facts for facts in inventory.replicas if f"{facts.topic}-{facts.partition}" not in fresh.expected)
    merged = msgspec.structs.replace(
        inventory,
        replicas=kept + fresh.replicas,
        expected=inventory.expected | fresh.expected,
        findings=fresh.findings,
        damage=fresh.damage,
    )
    rechecked_results = [newer.get((result.topic, result.partition), result) for result in results]
    # Deleted since: nothing is there, and no source expects it.
    return merged, [each for each in rechecked_results if each.replicas or each.findings or each.acked_records]


def findings_of_directories(inventory: Inventory) -> list[Finding]:
    damaged = [
        finding(Kind.CHECKPOINT_DAMAGE, item.reason, broker=item.broker, file=item.file) for item in inventory.damage
    ]
    return [*inventory.findings, *damaged]


def _versions(engine: str) -> dict[str, str]:
    names = ("minibroker", "pyspark", "pyarrow") if engine == SPARK else ("minibroker",)
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
