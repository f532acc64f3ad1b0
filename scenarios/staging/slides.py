"""How a scenario is printed: headings, one slide for each step, the verdict; on a terminal, to a file, and as JSON.

Owns: the text around the table. In plain text a star follows each new cell; in colour new cells are highlighted.
"""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import click

from minibroker.scenarios.staging.played_variant import PlayedVariant
from minibroker.scenarios.staging.rows import HEADER, ReplicaRow
from minibroker.scenarios.staging.scenario import HIGH_WATERMARK, Scenario, TruncationRule, Variant
from minibroker.scenarios.staging.stage import ScenarioStep

WIDTH = 110
INDENT = "   "
START_COLUMN = HEADER.index("START")
NUMBERS = frozenset({"EPOCH", "START", "LEO", "HW"})
NEW = " *"
LEGEND = (
    "LEO: log end offset, the offset of the next record. HW: high watermark, the first offset that a consumer may not"
    " read. Remote LEO: a follower's LEO as the leader knows it, ? before its first fetch. ISR: the in-sync replicas,"
    " which must all hold a record before it is committed. Epoch file: each leader epoch of the log, and the offset at"
    " which it begins."
)
NEW_IN_TEXT, NEW_IN_COLOUR = "A star: new.", "Highlighted: new."
RULE_IN_WORDS = {
    "leader-epoch": "a follower asks where its last epoch ended, and truncates there",
    "high-watermark": "a follower truncates at its HW, as before Kafka 0.11: teaching only",
}


def heading(
    scenario: Scenario, variant: Variant, rule: TruncationRule, width: int = WIDTH, *, in_colour: bool = False
) -> list[str]:
    """The lines above the slides of a variant."""
    setup = variant.setup
    replicas = " ".join(setup.replicas)
    others = [broker for broker in setup.brokers if broker not in setup.replicas]
    lines = [f"{scenario.name}: {scenario.title}"]
    if variant.title:
        lines.append(f"Variant '{variant.name}': {variant.title}")
    lines.append(f"truncation rule {rule.value}: {RULE_IN_WORDS[rule.value]}")
    lines.append(
        f"replicas on {replicas} (broker 1 is A); "
        + (f"{' '.join(others)} holds none; " if others else "")
        + f"min.insync.replicas={setup.min_insync_replicas}"
        + "".join(f"; {name}={value}" for name, value in {**setup.settings, **setup.configs}.items())
    )
    if variant.patched:
        lines.append(f"Changed for this variant alone: {variant.patched}")
    lines.append(f"{LEGEND} {NEW_IN_COLOUR if in_colour else NEW_IN_TEXT}")
    return [line for text in lines for line in textwrap.wrap(text, width)]


def slide(step: ScenarioStep, width: int = WIDTH) -> list[str]:
    """One step as plain text."""
    first, rest = f"{step.number}. ", INDENT
    lines = textwrap.wrap(step.sentence, width, initial_indent=first, subsequent_indent=rest)
    for note in step.notes:
        lines += textwrap.wrap(note, width, initial_indent=f"{INDENT}- ", subsequent_indent=f"{INDENT}  ")
    return [*lines, "", *(INDENT + line for line in _table(step)), *_reference(step), ""]


def _reference(step: ScenarioStep) -> list[str]:
    return [f"{INDENT}ZooKeeper: {step.reference}"] if step.reference else []


def _table(step: ScenarioStep) -> list[str]:
    columns = shown_columns(step.rows)
    changed = set(step.changed)
    body = [
        [
            (cell or "-") + (NEW if (row.broker, column) in changed else "")
            for column, cell in enumerate(row.cells())
            if column in columns
        ]
        for row in step.rows
    ]
    lines = [[HEADER[column] for column in columns], *body]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def shown_columns(rows: Sequence[ReplicaRow]) -> list[int]:
    """The start column is left out where every log starts at 0."""
    trimmed = any(row.log_start_offset for row in rows)
    return [column for column in range(len(HEADER)) if column != START_COLUMN or trimmed]


def ending(played: PlayedVariant, width: int = WIDTH) -> list[str]:
    """The audit's verdict and the lesson."""
    verdict = played.verdict
    text = [
        f"audit of the disks: {verdict.outcome}" + (f" ({', '.join(verdict.findings)})" if verdict.findings else "")
    ]
    text += [f"  {sentence}" for sentence in verdict.sentences]
    if played.ending is not None:
        text.append(f"lesson: {played.ending.lesson}")
    text.append("as scripted" if played.problem is None else f"NOT as scripted: {played.problem}")
    return [line for each in text for line in textwrap.wrap(each, width, subsequent_indent="    ")]


# --------------------------------------------------------------------------------------------------------------- JSON
def variant_as_json(scenario: Scenario, variant: Variant, rule: TruncationRule) -> dict[str, Any]:
    return {
        "event": "variant",
        "scenario": scenario.name,
        "variant": variant.name,
        "title": scenario.title,
        "truncation": rule.value,
    }


def step_as_json(step: ScenarioStep) -> dict[str, Any]:
    return {
        "event": "step",
        "number": step.number,
        "at_seconds": step.at_seconds,
        "sentence": step.sentence,
        "notes": list(step.notes),
        "zookeeper": step.reference,
        "replicas": [_row_as_json(row) for row in step.rows],
        "changed": [[broker, HEADER[column].lower()] for broker, column in step.changed],
    }


def _row_as_json(row: ReplicaRow) -> dict[str, Any]:
    return {
        "broker": row.broker,
        "role": row.role,
        "leader_epoch": row.leader_epoch,
        "log_start_offset": row.log_start_offset,
        "log_end_offset": row.log_end_offset,
        "high_watermark": row.high_watermark,
        "remote_ends": row.remote_ends,
        "isr": list(row.isr),
        "pending_isr": list(row.pending_isr),
        "epoch_file": [list(entry) for entry in row.epoch_file],
        "records": list(row.records),
    }


def ending_as_json(played: PlayedVariant) -> dict[str, Any]:
    return {
        "event": "verdict",
        "audit": played.verdict.outcome,
        "findings": list(played.verdict.findings),
        "sentences": list(played.verdict.sentences),
        "lesson": None if played.ending is None else played.ending.lesson,
        "reached_its_end": played.reached_its_end,
        "problem": played.problem,
        "trace_hash": played.trace_hash,
    }


# ----------------------------------------------------------------------------------------------------------- terminal
def plain_lines(scenario: Scenario, variant: Variant, rule: TruncationRule, played: PlayedVariant) -> Iterator[str]:
    """A whole variant, for a file or a page."""
    yield from heading(scenario, variant, rule)
    yield ""
    for step in played.steps:
        yield from slide(step)
    yield from ending(played)


def print_heading(scenario: Scenario, variant: Variant, rule: TruncationRule, *, in_colour: bool) -> None:
    first, *rest = heading(scenario, variant, rule, _width(), in_colour=in_colour)
    click.secho(first, bold=True)
    for line in rest:
        wrong = rule is HIGH_WATERMARK and line.startswith("truncation rule")
        click.secho(line, fg="yellow" if wrong else None, dim=not wrong)
    click.echo()


def _width() -> int:
    """A terminal would break lines within words."""
    return min(WIDTH, shutil.get_terminal_size((WIDTH, 0)).columns)


def print_slide(step: ScenarioStep, *, in_colour: bool) -> None:
    """New cells are highlighted in colour, else marked with a star."""
    if not in_colour:
        click.echo("\n".join(slide(step, _width())))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, columns, changed = Console(highlight=False), shown_columns(step.rows), set(step.changed)
    console.print(Text(f"{step.number}. {step.sentence}", style="bold cyan"))
    for note in step.notes:
        console.print(Text(f"{INDENT}- {note}", style="dim"))
    table = Table(box=None, pad_edge=True, padding=(0, 1, 0, 1))
    for column in columns:
        table.add_column(HEADER[column], justify="right" if HEADER[column] in NUMBERS else "left")
    for row in step.rows:
        style = "dim" if row.role == "dead" else "green" if row.role.startswith("leader") else ""
        cells = [
            Text(cell or "-", style="bold black on yellow" if (row.broker, column) in changed else style)
            for column, cell in enumerate(row.cells())
            if column in columns
        ]
        table.add_row(*cells)
    console.print(table)
    for line in _reference(step):
        console.print(Text(line, style="dim"))
    console.print()


def print_ending(played: PlayedVariant) -> None:
    for line in ending(played, _width()):
        if line.startswith("audit"):
            click.secho(line, fg="green" if not played.verdict.findings else "red")
        elif line.startswith("lesson"):
            click.secho(line, bold=True)
        else:
            click.secho(line, fg="red" if line.startswith("NOT") else None)
    click.echo()
