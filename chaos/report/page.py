"""The report of a run as one HTML page without external scripts, fonts or pictures. Pure.

Owns: what a reader sees first (the verdict, and what convicts), the tables, the words. Leaves to others: the pictures.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape

from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.promise import Anomaly
from minibroker.chaos.report.cluster_note import ClusterNote
from minibroker.chaos.report.document import ChaosReport
from minibroker.chaos.report.pictures import (
    BROKER_COLOURS,
    OUTCOME_COLOURS,
    OUTCOME_WORDS,
    TimeAxis,
    offsets_picture,
    time_picture,
)
from minibroker.chaos.report.timeline import leaderships, operations_of, seconds_of
from minibroker.chaos.run.options import BROKERS

LOSSES = ("lost-write", "unseen")
VALUE = re.compile(r"'([^']+)'")
EVIDENCE_MAX = 12
OPERATIONS_MAX = 6
EVENTS_NEAR_S = 5.0
EVENTS_MAX = 8
TELLING_EVENTS = ("leadership_changed", "replica_truncated", "replica_role_changed", "isr_changed", "replica_damaged")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1b1f24;
  background: #fff }
h1 { font-size: 1.4rem; margin-bottom: .3rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
.verdict { padding: .8rem 1rem; border-radius: .4rem } .verdict b { font-size: 1.1rem }
.cleared { background: #dafbe1 } .convicted { background: #ffebe9 } .nothing { background: #fff8c5 }
.verdict ul { margin: .4rem 0 0; padding-left: 1.2rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .92rem }
th, td { text-align: left; padding: .25rem .6rem; border-bottom: 1px solid #d8dee4; vertical-align: top }
td.number, th.number { text-align: right } tr.out td { color: #6e7781 }
code, pre { font: 12.5px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; white-space: pre-wrap }
pre { background: #f6f8fa; padding: .6rem .8rem; border-radius: .4rem; margin: .3rem 0 1rem }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0 }
dt { color: #57606a } dd { margin: 0 } .note { color: #57606a; margin: .2rem 0 .6rem }
svg { width: 100%; font: 11px system-ui, sans-serif; display: block; overflow: visible } svg text { fill: #1b1f24 }
svg text.tick { fill: #57606a } svg text.name { font-weight: 600 } .grid { stroke: #eaeef2 } .axis { stroke: #8c959f }
.band { fill: #cf222e; opacity: .07 } .bar { fill: #cf222e; opacity: .22 } .label { font-size: 10.5px }
.rate { fill: #2a7de1; opacity: .35 } .p50 { stroke: #1b1f24; fill: none; stroke-width: 1.4 }
.p99 { stroke: #d1495b; fill: none; stroke-width: 1.2 } .cut { fill: #1b1f24 }
.read { stroke: #8c959f; fill: none; stroke-width: 1; stroke-dasharray: 4 3 }
.legend span { margin-right: 1.1rem; white-space: nowrap }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; vertical-align: -.1rem;
  margin-right: .3rem }
details { margin: .4rem 0 } summary { cursor: pointer }
"""


def html_page(report: ChaosReport, history: Sequence[HistoryEvent]) -> str:
    """The whole page."""
    operations = operations_of(history)
    axis = TimeAxis(report.phases.get("end", 0.0))
    states = leaderships(report.events)
    lost = _lost_values(report.anomalies)
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Chaos, seed {report.seed}: {escape(report.verdict.outcome)}</title>",
        f"<style>{STYLE}</style></head><body>",
        f"<h1>Chaos on {escape(report.backend)}, seed {report.seed}</h1>",
        _verdict(report),
        _facts(report),
        _evidence(report, history),
        "<h2>What happened when</h2>",
        _time_legend(),
        time_picture(axis, report.faults, seconds_of(operations, axis.end_s), states, report.events),
        "<h2>Faults</h2>",
        _faults(report),
        "<h2>Every send, by partition</h2>",
        _dots_legend(),
    ]
    for key in sorted(report.read):
        own = [each for each in operations if each.key == key]
        parts.append(offsets_picture(axis, key, own, lost, _reads(history, key)))
    parts += [_counts(report), _elections(report), "</body></html>"]
    return "\n".join(parts)


def _verdict(report: ChaosReport) -> str:
    verdict = report.verdict
    style = verdict.outcome.split()[0]
    text = {
        "cleared": "Cleared: clients saw nothing that contradicts the promise, and the disks agree.",
        "convicted": "Convicted: the promise was broken.",
        "nothing was tested": "Nothing was tested: the run does not count.",
    }[verdict.outcome]
    reasons = "".join(f"<li>{escape(each)}</li>" for each in verdict.reasons)
    return f'<div class="verdict {style}"><b>{text}</b>{f"<ul>{reasons}</ul>" if reasons else ""}</div>'


def _facts(report: ChaosReport) -> str:
    counts = report.counts
    settings = " ".join(f"{name}={value}" for name, value in report.settings.items()) or "defaults"
    rows = [
        ("load", f"{report.rate:g} records per second, acks={report.acks}, settings: {settings}"),
        ("sends", f"{counts['sends']}: {counts['ok']} acknowledged, {counts['fail']} failed, {counts['info']} unknown"),
        ("reads", f"{counts['records_read']} records in {counts['polls']} polls"),
        (
            "cluster",
            f"{counts['elections']} elections, {counts['truncations']} truncations, "
            f"{counts['controllers']} new controllers",
        ),
        ("audit", report.audit.summary),
        ("readers behind", f"{report.lag_s:.3f} s at worst"),
        ("versions", ", ".join(f"{name} {text}" for name, text in report.versions.items())),
    ]
    if report.lie is not None:
        rows.append(("planted lie", report.lie))
    if report.was_interrupted:
        rows.append(("interrupted", "the faults were ended by Ctrl-C"))
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
    return f"<dl>{listed}<dt>repeat</dt><dd><code>{escape(report.command)}</code></dd></dl>"


# ---------------------------------------------------------------------------------------------------------- convicting
def _lost_values(anomalies: Iterable[Anomaly]) -> set[tuple[str, str]]:
    return {
        (each.key, value) for each in anomalies if each.name in LOSSES for value in VALUE.findall(" ".join(each.facts))
    }


def _evidence(report: ChaosReport, history: Sequence[HistoryEvent]) -> str:
    if not report.anomalies and not report.audit.findings and not report.troubles:
        return ""
    parts = ["<h2>What convicts it</h2>"]
    counts = ", ".join(f"{name} {count}" for name, count in report.anomaly_counts.items())
    parts += [f'<p class="note">Anomalies in the history: {escape(counts)}.</p>'] if counts else []
    for anomaly in report.anomalies[:EVIDENCE_MAX]:
        lines = [*anomaly.facts, *_operations_about(anomaly, history), *_events_about(anomaly, history, report.events)]
        listed = "\n".join(map(escape, lines))
        where = f"{escape(anomaly.key)}: {escape(anomaly.text)}"
        parts.append(f"<div><b>{escape(anomaly.name)}</b> in {where}</div><pre>{listed}</pre>")
    if report.audit.findings:
        listed = "\n".join(map(escape, report.audit.findings))
        parts.append(f"<div><b>on the disks</b>, by the audit:</div><pre>{listed}</pre>")
    if report.troubles:
        parts.append(f"<div><b>the run</b>:</div><pre>{escape(chr(10).join(report.troubles))}</pre>")
    return "".join(parts)


def _values(anomaly: Anomaly) -> set[str]:
    """That it names."""
    return {*VALUE.findall(" ".join((anomaly.text, *anomaly.facts)))}


def _about(anomaly: Anomaly, history: Sequence[HistoryEvent]) -> list[HistoryEvent]:
    named = {(anomaly.key, value) for value in _values(anomaly)}
    return [
        event
        for event in history
        if any((each.key, each.value) in named for each in event.sent)
        or any((each.key, each.value) in named for each in event.polled)
    ]


def _operations_about(anomaly: Anomaly, history: Sequence[HistoryEvent]) -> list[str]:
    values = _values(anomaly)
    lines = []
    for event in _about(anomaly, history)[:OPERATIONS_MAX]:
        places = [(each.value, each.offset) for each in event.sent]
        places += [(each.value, each.offset) for each in event.polled]
        what = [value + ("" if at is None else f" at {at}") for value, at in places if value in values]
        place = f"line {event.index + 1}, {event.time_ns / 1e9:.3f} s"
        error = f": {event.error}" if event.error else ""
        lines.append(f"{place}: {event.process} {event.f} {event.type} {', '.join(what)}{error}")
    return lines


def _events_about(anomaly: Anomaly, history: Sequence[HistoryEvent], notes: Sequence[ClusterNote]) -> list[str]:
    about = _about(anomaly, history)
    if not about:
        return []
    moment = about[0].time_ns / 1e9
    near = [
        note
        for note in notes
        if note.partition == anomaly.key
        and note.event in TELLING_EVENTS
        and moment - 1 <= note.at_s <= moment + EVENTS_NEAR_S
    ]
    return [f"broker {note.broker}, {note.at_s:.3f} s: {note.text}" for note in near[:EVENTS_MAX]]


# -------------------------------------------------------------------------------------------------------------- tables
def _faults(report: ChaosReport) -> str:
    head = (
        '<table><tr><th class="number">planned</th><th class="number">began</th><th class="number">lasted</th>'
        "<th>fault</th><th>target then</th>"
        '<th class="number">longest gap without an acknowledgement</th><th class="number">full ISR after</th></tr>'
    )
    rows = []
    for fault, effect in zip(report.faults, report.effects, strict=True):
        planned = fault.planned
        target = f"{planned.target}" + (f": broker {', '.join(map(str, fault.brokers))}" if fault.brokers else "")
        if effect is None or fault.began_s is None or fault.ended_s is None:
            why = escape(fault.left_out or "the run ended before")
            rows.append(
                f'<tr class="out"><td class="number">{planned.at_s:.1f} s</td><td></td><td></td>'
                f"<td>{planned.kind}</td><td>{escape(target)}</td><td colspan=2>left out: {why}</td></tr>"
            )
            continue
        where = "" if effect.gap_key is None else f" ({escape(effect.gap_key)})"
        full = "next fault came first" if effect.full_isr_s is None else f"{effect.full_isr_s:.1f} s"
        rows.append(
            f'<tr><td class="number">{planned.at_s:.1f} s</td><td class="number">{fault.began_s:.1f} s</td>'
            f'<td class="number">{fault.ended_s - fault.began_s:.1f} s</td><td>{planned.kind}</td>'
            f'<td>{escape(target)}</td><td class="number">{effect.gap_s:.2f} s{where}</td>'
            f'<td class="number">{full}</td></tr>'
        )
    return head + "".join(rows) + "</table>"


def _counts(report: ChaosReport) -> str:
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{count}</td></tr>' for name, count in report.errors.items()
    )
    empty = '<tr><td colspan="2">none</td></tr>'
    head = '<tr><th>error</th><th class="number">times</th></tr>'
    return f"<h2>Errors that clients saw</h2><table>{head}{rows or empty}</table>"


def _elections(report: ChaosReport) -> str:
    wanted = ("leadership_changed", "replica_truncated", "controller_elected")
    lines = [f"{note.at_s:8.3f} s  broker {note.broker}  {note.text}" for note in report.events if note.event in wanted]
    listed = escape("\n".join(lines))
    title = f"{len(lines)} elections, changes of leaders, truncations and new controllers"
    return f"<details><summary>{title}</summary><pre>{listed}</pre></details>"


def _reads(history: Iterable[HistoryEvent], key: str) -> list[tuple[float, int]]:
    """How far readers had come, whenever that rose."""
    highest, found = -1, []
    for event in history:
        top = max((each.offset for each in event.polled if each.key == key), default=-1)
        if top > highest:
            highest = top
            found.append((event.time_ns / 1e9, top))
    return found


def _time_legend() -> str:
    spans = [f'<span><i style="background:{BROKER_COLOURS[n]}"></i>broker {n + 1} leads</span>' for n in range(BROKERS)]
    return (
        f'<p class="note legend">{"".join(spans)}<span><i style="background:#cf222e55"></i>fault</span>'
        "<span>▾ a replica is truncated</span><span>black line: p50, red line: p99</span></p>"
        '<p class="note">The height of a leader\'s bar is the number of in-sync replicas. Point at anything for its'
        " facts.</p>"
    )


def _dots_legend() -> str:
    spans = [
        f'<span><i style="background:{OUTCOME_COLOURS[name]}"></i>{OUTCOME_WORDS[name]}</span>'
        for name in OUTCOME_WORDS
    ]
    return f'<p class="note legend">{"".join(spans)}<span>dashed: how far readers were</span></p>'
