"""The table of mutants in docs/SIMULATION.md: generated from the catalogue and `caught.json`."""

from tests.mutants.catalogue import CANNOT_APPLY, LATER, MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.patching import ROOT
from tests.mutants.recorded import MutantRecord, RecordedRun, load_records

PAGE = ROOT / "docs" / "SIMULATION.md"
BEGIN, END = "<!-- mutants:begin -->\n", "<!-- mutants:end -->\n"
HEAD = "| mutant | origin | rule that it breaks | caught by | invariant | time to catch |\n|---|---|---|---|---|---|\n"


def render_table() -> str:
    """Without the two marker lines."""
    records = load_records()
    rows = [_row(mutant, records.get(mutant.name, MutantRecord())) for mutant in MUTANTS]
    by_seed = sum(record.seed is not None for record in records.values())
    lines = [f"{len(MUTANTS)} mutants, {by_seed} of them caught by random seeds.\n", HEAD, *rows]
    if CANNOT_APPLY:
        lines.append("\nCannot apply, because the design excludes them:\n\n")
        lines += [f"- **{each.name}** {each.title} ({each.origin}): {each.reason}\n" for each in CANNOT_APPLY]
    lines.append("\nNot planted, because the feature that they break does not exist yet:\n\n")
    lines += [f"- **{each.name}** {each.title} ({each.origin}): {each.reason}\n" for each in LATER]
    return "\n" + lines[0] + "\n" + "".join(lines[1:]) + "\n"


def _row(mutant: Mutant, record: MutantRecord) -> str:
    ways = [each for each in (record.seed, record.schedule) if each is not None]
    shown = "; ".join(_way(each) for each in ways) or "not caught"
    broken = ", ".join(dict.fromkeys(each.invariant for each in ways))
    times = "; ".join(_time(each) for each in ways)
    cells = (f"**{mutant.name}** {mutant.title}", mutant.origin, mutant.rule, shown, broken, times)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _way(caught: RecordedRun) -> str:
    kind, _, name = caught.run.partition(":")
    return f"seed {name}" if kind == "seed" else f"`{name}`"


def _time(caught: RecordedRun) -> str:
    if caught.run.startswith("seed:"):
        return f"{caught.tries} {'run' if caught.tries == 1 else 'runs'} ({caught.seconds:.1f} s the last)"
    return f"{caught.seconds:.1f} s"


def page_with_table() -> str:
    """The whole page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return before + BEGIN + render_table() + END + after


def write_table() -> None:
    PAGE.write_text(page_with_table(), encoding="utf-8")
