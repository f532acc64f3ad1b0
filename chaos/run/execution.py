"""A whole run: cluster, load and faults, audit, checker, verdict, and what is left in its directory.

Owns: the order of these steps and the files: history.jsonl, report.json, report.html, audit/, disks/.
"""

import contextlib
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from minibroker.audit.errors import AuditError
from minibroker.audit.reports.report import AuditReport
from minibroker.chaos.history.anomalies import judge_history
from minibroker.chaos.history.client_history import to_json_lines
from minibroker.chaos.history.lies import LIE_BY_NAME
from minibroker.chaos.history.promise import LAST_READER, Promise
from minibroker.chaos.report.document import ChaosReport, encode, make_report
from minibroker.chaos.report.page import html_page
from minibroker.chaos.run.chaos_run import ChaosRun
from minibroker.chaos.run.disk_lie import plant_on_disks
from minibroker.chaos.run.opening import DISKS, open_cluster
from minibroker.chaos.run.options import ChaosOptions
from minibroker.chaos.run.recorder import Recorder
from minibroker.observation.event_stream import BrokerEvent

HISTORY_FILE, JSON_FILE, HTML_FILE, AUDIT = "history.jsonl", "report.json", "report.html", "audit"
LOG_FILE = "run.log"
BUGS_MAX = 5
"""Named in the report; the log has all."""


@contextlib.contextmanager
def _log_to(file: Path) -> Iterator[None]:
    """What clients, and simulated brokers, log goes there and not to the terminal."""
    logger, handler = logging.getLogger("minibroker"), logging.FileHandler(file)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.propagate = propagates


async def execute(options: ChaosOptions, tell: Callable[[str], None]) -> ChaosReport:
    """Run it, and write everything."""
    options.out.mkdir(parents=True, exist_ok=True)
    tell("starting the cluster")
    with _log_to(options.out / LOG_FILE):
        return await _execute(options, tell)


async def _execute(options: ChaosOptions, tell: Callable[[str], None]) -> ChaosReport:
    async with open_cluster(options) as cluster:
        started_ms = cluster.runtime.clock.now_ms()
        clock = cluster.runtime.clock
        began_ns = clock.monotonic_ns()
        with (options.out / HISTORY_FILE).open("wb") as file:
            recorder = Recorder(lambda: (clock.monotonic_ns() - began_ns) / 1e9, file)
            run = ChaosRun(cluster, options, recorder)
            await run.run(tell)
        events: list[BrokerEvent] = await cluster.reported_events()
        lie = None
        if options.lie is not None and options.lie_in == "disks":
            tell("stopping the brokers, to plant the lie")
            lie = await plant_on_disks(cluster, options.lie, random.Random(options.plan.seed))
        tell("auditing the disks")
        try:
            audit: AuditReport | str = await cluster.audit(
                recorder.acknowledged,
                engine=options.audit_engine,
                output=options.out / AUDIT,
                files=options.out / DISKS,
            )
        except AuditError as error:
            audit = str(error)
        tell("stopping the cluster")
        run.troubles += cluster.take_bugs()[:BUGS_MAX]
    if options.lie is not None and options.lie_in == "history":
        lie = _lie(options, recorder)
    tell("checking the history")
    promise = Promise(in_order=frozenset(run.load.in_order), knows_all_sends=True, last_reader=LAST_READER)
    judged = judge_history(lambda: recorder.log.events, promise)
    report = make_report(
        options,
        started_ms=started_ms,
        run=run,
        recorder=recorder,
        events=events,
        audit=audit,
        judged=judged,
        lie=lie,
    )
    (options.out / JSON_FILE).write_bytes(encode(report))
    (options.out / HTML_FILE).write_text(html_page(report, recorder.log.events), encoding="utf-8")
    return report


def _lie(options: ChaosOptions, recorder: Recorder) -> str:
    """Plant it in what is judged, and in the file. Raises NoPlace."""
    assert options.lie is not None
    planted = LIE_BY_NAME[options.lie].plant(recorder.log.events, random.Random(options.plan.seed))
    recorder.log.events = planted.events
    (options.out / HISTORY_FILE).write_bytes(to_json_lines(planted.events))
    return f"{options.lie}: {planted.text}"


def remove_disks(out: Path) -> None:
    """Of a run that was cleared."""
    shutil.rmtree(out / DISKS, ignore_errors=True)
