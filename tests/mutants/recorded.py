"""Which run catches which mutant: the file `caught.json`, written by a search and by `replay --record`, read by a replay
and for the table in docs/SIMULATION.md.
"""

from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("caught.json")


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run that catches one mutant."""

    run: str
    """`seed:17`, or as the mutant names its directed run."""
    invariant: str
    finding: str
    seconds: float
    """Real time of that run, on one core."""
    tries: int = 1
    """For a seed: how many seeds the search had tried, this one included."""


class MutantRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The runs that catch one mutant."""

    seed: RecordedRun | None = None
    schedule: RecordedRun | None = None


def load_records() -> dict[str, MutantRecord]:
    """By the mutant's name."""
    return msgspec.json.decode(FILE.read_bytes(), type=dict[str, MutantRecord]) if FILE.exists() else {}


def save_records(records: dict[str, MutantRecord]) -> None:
    """Sorted, one field a line, so that a search makes a readable diff."""
    ordered = {name: records[name] for name in sorted(records)}
    FILE.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=1) + b"\n")
