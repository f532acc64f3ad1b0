"""The tables of docs/PERFORMANCE.md: generated from a document, never written by hand. Pure."""

from collections.abc import Iterable, Sequence

from minibroker.bench.document import Document
from minibroker.bench.report import (
    COST_HEADER,
    GOAL_HEADER,
    HEADER,
    cost_rows,
    failures,
    goal_rows,
    rows_of,
)

BEGIN, END = "<!-- bench:begin -->\n", "<!-- bench:end -->\n"


class NoTableMarkers(Exception):
    """The page has no place for the tables."""


def with_tables(page: str, document: Document) -> str:
    """The page with new tables between its two markers. Raises NoTableMarkers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoTableMarkers(f"the page has no lines {BEGIN.strip()} and {END.strip()}")
    return before + BEGIN + tables(document) + END + after


def tables(document: Document) -> str:
    machine = document.machine
    parts = [
        f"\nMeasured {document.started[:10]} at commit `{document.commit}` on {machine.processor},"
        f" {machine.cores} cores, {machine.memory_gb:g} GB, {machine.file_system}, Linux {machine.kernel},"
        f" Python {machine.python}.\n",
        _table(HEADER, [row.cells() for row in rows_of(document)]),
        "Goals: a ratio is judged by its 95 % bound.\n",
        _table(GOAL_HEADER, goal_rows(document)),
        "CPU seconds for a GB of payload (all brokers and ZooKeeper; the load generators), and the largest broker's"
        " peak memory, in medians.\n",
        _table(COST_HEADER, cost_rows(document)),
    ]
    remarks = failures(document)
    if remarks:
        parts.append("Remarks of the run:\n\n" + "".join(f"- {remark}\n" for remark in remarks))
    parts.append("Configuration:\n\n" + "".join(_configuration(document)))
    return "\n".join(parts) + "\n"


def _configuration(document: Document) -> Iterable[str]:
    for peer, settings in document.configuration.items():
        yield f"- {peer}: " + ", ".join(f"`{name}={value}`" for name, value in settings.items()) + "\n"
    if document.options:
        yield "- the run: " + ", ".join(f"`{name}={value}`" for name, value in document.options.items()) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
