"""What a mutant is. Imports nothing of the project: a mutant is applied before the modules that it patches are loaded."""

import msgspec

SCRIPT_FAILED = "script"
"""The directed run's own script failed: this catches no mutant, but the run is not clean either."""


class Edit(msgspec.Struct, frozen=True):
    """One replacement in a module's source. `before` occurs exactly once there."""

    module: str
    """Without the package's name: `broker.replication.isr`."""
    before: str
    after: str


class Schedule(msgspec.Struct, frozen=True):
    """A directed run: `theme:function` is `tests/mutants/schedules/theme.py`, function."""

    name: str

    @property
    def run(self) -> str:
        return f"schedule:{self.name}"


class Search(msgspec.Struct, frozen=True):
    """Every order of events of a small model (`simulation/model/bounds.py`), breadth first, down to `depth`."""

    bounds: str
    depth: int

    @property
    def run(self) -> str:
        return f"model:{self.bounds}@{self.depth}"


class CoreSchedule(msgspec.Struct, frozen=True):
    """A directed run of one replica's pure core: a function of `tests/mutants/schedules/core.py`."""

    name: str

    @property
    def run(self) -> str:
        return f"core:{self.name}"


class UnitTest(msgspec.Struct, frozen=True):
    """A test of `tests/`, by its pytest node id: the lowest level, and the most stable."""

    name: str

    @property
    def run(self) -> str:
        return f"test:{self.name}"


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """One planted bug."""

    name: str
    title: str
    origin: str
    """JIRA, KIP, or how the hazard was found."""
    rule: str
    """What the correct code does, in one sentence."""
    breaks: tuple[str, ...]
    edits: tuple[Edit, ...]
    schedule: Schedule | Search | CoreSchedule | UnitTest | None = None

    @property
    def modules(self) -> frozenset[str]:
        return frozenset(edit.module for edit in self.edits)


class CannotApply(msgspec.Struct, frozen=True, kw_only=True):
    """A known bug that this design rules out."""

    name: str
    title: str
    origin: str
    reason: str
