"""The report of one run as data: report.json.

Owns: its fields, and what is added up from history and events. Pure. Leaves to others: the verdict, the page.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

import minibroker
from minibroker.audit.reports.report import AuditReport
from minibroker.chaos.history.anomalies import Judgement
from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.promise import Anomaly
from minibroker.chaos.plan.drawing import Plan
from minibroker.chaos.report.cluster_note import ClusterNote
from minibroker.chaos.report.timeline import (
    AFTER_S,
    FaultEffect,
    LedPeriod,
    Operation,
    full_isr_after,
    gaps_of,
    leaderships,
    operations_of,
)
from minibroker.chaos.run.chaos_run import ChaosRun, DoneFault
from minibroker.chaos.run.options import BROKERS, ChaosOptions
from minibroker.chaos.run.recorder import Recorder
from minibroker.chaos.run.verdict import Verdict, judge
from minibroker.observation.event_stream import BrokerEvent

AUDIT_FINDINGS_MAX = 20


class AuditOutcomeNote(Struct, frozen=True, kw_only=True):
    """What the audit of the disks said."""

    summary: str
    success: bool
    engine: str
    acknowledged: int
    in_place: int
    findings: tuple[str, ...]


class ChaosReport(Struct, frozen=True, kw_only=True):
    """The whole result; this is the JSON."""

    verdict: Verdict
    seed: int
    backend: str
    acks: str
    rate: float
    settings: dict[str, str]
    lie: str | None
    command: str
    versions: dict[str, str]
    plan: Plan
    phases: dict[str, float]
    was_interrupted: bool
    counts: dict[str, int]
    errors: dict[str, int]
    read: dict[str, int]
    faults: tuple[DoneFault, ...]
    effects: tuple[FaultEffect | None, ...]
    """Of each fault; None if it was left out."""
    anomalies: tuple[Anomaly, ...]
    """A few of each kind and partition."""
    anomaly_counts: dict[str, int]
    lag_s: float
    audit: AuditOutcomeNote
    troubles: tuple[str, ...]
    events: tuple[ClusterNote, ...]


def make_report(
    options: ChaosOptions,
    *,
    started_ms: int,
    run: ChaosRun,
    recorder: Recorder,
    events: Iterable[BrokerEvent],
    audit: AuditReport | str,
    judged: Judgement,
    lie: str | None = None,
) -> ChaosReport:
    """Add everything up."""
    history = recorder.log.events
    notes = tuple(_note(event, started_ms) for event in events)
    counts = _counts(history, notes)
    read = _read(history, [str(each) for each in run.load.partitions])
    audited = _audited(audit, options.audit_engine)
    verdict = judge(
        anomalies=judged.counts,
        audit_problems=audited.findings,
        why_no_audit=audit if isinstance(audit, str) else None,
        why_no_load=run.why_no_load,
        troubles=run.troubles,
        elections=counts["elections"],
        acknowledged=counts["ok"],
        read=read,
    )
    return ChaosReport(
        verdict=verdict,
        seed=options.plan.seed,
        backend=options.backend,
        acks=options.acks,
        rate=options.rate,
        settings=options.settings,
        lie=lie,
        command=options.command,
        versions={"minibroker": minibroker.__version__, "python": platform.python_version()},
        plan=options.plan,
        phases=run.phases,
        was_interrupted=run.was_interrupted,
        counts=counts,
        errors=dict(sorted(recorder.errors.items())),
        read=read,
        faults=tuple(run.faults),
        effects=tuple(effects_of(run.faults, operations_of(history), leaderships(notes))),
        anomalies=judged.anomalies,
        anomaly_counts=dict(judged.counts),
        lag_s=round(judged.lag_s, 3),
        audit=audited,
        troubles=tuple(run.troubles),
        events=notes,
    )


def effects_of(
    faults: Sequence[DoneFault], operations: Sequence[Operation], states: dict[str, list[LedPeriod]]
) -> list[FaultEffect | None]:
    """One for each fault."""
    effects: list[FaultEffect | None] = []
    for number, fault in enumerate(faults):
        if fault.began_s is None or fault.ended_s is None:
            effects.append(None)
            continue
        later = [each.began_s for each in faults[number + 1 :] if each.began_s is not None]
        next_s = next((began_s for began_s in later if began_s > fault.ended_s), float("inf"))
        gap_s, gap_key = gaps_of(operations, fault.began_s, min(fault.ended_s + AFTER_S, next_s))
        since_s = fault.undone_from_s or fault.ended_s
        full_s = full_isr_after(states, since_s, next_s, BROKERS)
        effects.append(FaultEffect(gap_s, gap_key, None if full_s is None else full_s - since_s))
    return effects


def _note(event: BrokerEvent, started_ms: int) -> ClusterNote:
    fields = {name: value for name, value in event.fields.items() if name not in ("time", "at_ms", "level", "text")}
    topic, partition = fields.get("topic"), fields.get("partition")
    where = None if topic is None or partition is None else f"{topic}-{partition}"
    at_s = round((event.at_ms - started_ms) / 1000, 3)
    return ClusterNote(at_s, event.reported_by, str(fields["event"]), str(event.fields.get("text", "")), where, fields)


def _counts(history: Sequence[HistoryEvent], notes: Sequence[ClusterNote]) -> dict[str, int]:
    sends = Counter(event.type for event in history if event.f == "send")
    changes = [note for note in notes if note.event == "leadership_changed" and note.at_s >= 0]
    return {
        "operations": sum(1 for event in history if event.type == "invoke"),
        "sends": sends["invoke"],
        "ok": sends["ok"],
        "fail": sends["fail"],
        "info": sends["info"],
        "polls": sum(1 for event in history if event.f == "poll" and event.type == "ok" and event.polled),
        "records_read": sum(len(event.polled) for event in history),
        "elections": sum(1 for note in changes if note.fields.get("is_election")),
        "truncations": sum(1 for note in notes if note.event == "replica_truncated" and note.at_s >= 0),
        "controllers": sum(1 for note in notes if note.event == "controller_elected" and note.at_s >= 0),
    }


def _read(history: Sequence[HistoryEvent], keys: Sequence[str]) -> dict[str, int]:
    found = Counter(record.key for event in history for record in event.polled)
    return {key: found[key] for key in keys}


def _audited(audit: AuditReport | str, engine: str) -> AuditOutcomeNote:
    if isinstance(audit, str):
        return AuditOutcomeNote(summary=audit, success=False, engine=engine, acknowledged=0, in_place=0, findings=())
    findings = [
        f"{each.kind} {each.topic}-{each.partition}: {each.message}"
        for each in audit.findings
        if each.severity == "error"
    ]
    if not audit.success and not findings:
        findings = [audit.summary]
    return AuditOutcomeNote(
        summary=audit.summary,
        success=audit.success,
        engine=audit.meta.engine,
        acknowledged=audit.statistics.acked_records,
        in_place=audit.statistics.acked_in_place,
        findings=tuple(findings[:AUDIT_FINDINGS_MAX]),
    )


def encode(report: ChaosReport) -> bytes:
    return msgspec.json.format(msgspec.json.encode(report), indent=1)
