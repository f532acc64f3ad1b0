"""The table of losses in docs/AUDIT.md, from tests.audit.losses: `python -m tests.docs.loss_table` renews it."""

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from minibroker.audit.checks.findings import Severity
from minibroker.audit.reports.report import AuditOutcome, describe
from tests.audit.losses.catalogue import LAWFUL, LOSSES, Row, scene_of
from tests.audit.losses.scene import Audited, KnownSources, audit

PAGE = Path(__file__).parents[2] / "docs" / "AUDIT.md"
BEGIN = "<!-- made by python -m tests.docs.loss_table: begin -->\n"
END = "<!-- end of the table of losses -->\n"
ROOT = "minibroker-data"
COLUMNS = tuple(known for known in KnownSources if known is not KnownSources.ALL)


class Line(NamedTuple):
    """One row of the table."""

    what: str
    on: tuple[int, ...]
    cells: tuple[str, ...]
    sentence: str
    """What the audit prints for the first number of replicas in `on`."""


def cell(audited: Audited, lawful: bool) -> str:
    """The audit's result in a word or two."""
    if audited.report is None:
        return "cannot run"
    report = audited.report
    if report.outcome is AuditOutcome.INCONSISTENT:
        return f"`{report.findings[0].kind}`"
    if report.outcome is AuditOutcome.CONSISTENT:
        if lawful:
            return "consistent"
        return f"note `{report.findings[0].kind}`" if report.findings else "not seen"
    return str(report.outcome)


def sentence(audited: Audited, root: Path) -> str:
    """The first sentence that the audit prints."""
    if audited.report is None:
        printed = audited.refusal or ""
    elif any(item.severity is Severity.ERROR for item in audited.report.findings):
        printed = describe(audited.report.findings[0])
    else:
        printed = audited.report.summary
    return printed.replace(str(root.resolve()), ROOT).replace(str(root), ROOT).replace("|", "\\|")


def lines(rows: Sequence[Row], root: Path) -> list[Line]:
    return [_line(row, root / str(number)) for number, row in enumerate(rows)]


def _line(row: Row, root: Path) -> Line:
    sentences = []
    columns: dict[KnownSources, dict[int, str]] = {known: {} for known in COLUMNS}
    for count in row.on:
        at = root / str(count)
        scene = scene_of(row, count, at)
        for known in COLUMNS:
            columns[known][count] = cell(audit(scene, known), row.lawful)
        sentences.append(sentence(audit(scene, KnownSources.ALL), at))
    return Line(row.what, row.on, tuple(map(_joined, columns.values())), sentences[0])


def _joined(cells: dict[int, str]) -> str:
    """One cell for one, two and three replicas; equal results are joined."""
    groups = {result: [str(count) for count in cells if cells[count] == result] for result in cells.values()}
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{', '.join(counts)}: {result}" for result, counts in groups.items())


def table(made: Iterable[Line], first: str) -> str:
    head = [first, "replicas", *COLUMNS, "printed first, when all of it is known"]
    text = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    above = ""
    for line in made:
        on = ", ".join(map(str, line.on))
        sentence = "as above" if line.sentence == above else line.sentence
        above = line.sentence
        text.append(f"| {' | '.join([line.what, on, *line.cells, sentence])} |")
    return "\n".join(text) + "\n"


def render() -> str:
    with tempfile.TemporaryDirectory() as root:
        losses = table(lines(LOSSES, Path(root) / "losses"), "done to replicas")
        lawful = table(lines(LAWFUL, Path(root) / "lawful"), "lawful")
    return f"{losses}\nThe same for what is no loss:\n\n{lawful}"


def page_with_table() -> str:
    """The whole page with the table as the code has it now."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, marker, after = rest.partition(END)
    assert marker, f"{PAGE} has no markers for the table of losses"
    return f"{before}{BEGIN}\n{render()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(), encoding="utf-8")
