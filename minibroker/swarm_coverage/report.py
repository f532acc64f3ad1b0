"""What a swarm entered of what there is, and what it never entered.

Owns: the names of all that should be entered, the percentages, and whether something is missing without a reason.
Leaves to others: the counting (`simulation/swarm/reached`, `line_trace`), and the list of reasons (`excused`).
"""

from collections.abc import Iterable, Mapping, Set
from fnmatch import fnmatchcase
from typing import Any

import msgspec

import minibroker
from minibroker.swarm_coverage.excused import EXCUSED, Excuse
from minibroker.swarm_coverage.source_lines import FOLDERS, SourceFile, SourceFunction, read_sources

FUNCTION, CALL = "function", "call"
USED_BY_SYNTAX = (
    "__init__",
    "__aenter__",
    "__aexit__",
    "__aiter__",
    "__anext__",
    "__await__",
    "__getitem__",
    "__len__",
)
"""Public methods whose name says otherwise."""


class FolderLines(msgspec.Struct, frozen=True, kw_only=True):
    """Of a folder, or of all."""

    folder: str
    lines: int
    run: int
    excused: int
    """Lines that did not run, of functions with an excuse."""

    @property
    def percent(self) -> float:
        return 100 * self.run / max(1, self.lines)

    @property
    def percent_of_possible(self) -> float:
        """Without the excused ones."""
        return 100 * self.run / max(1, self.lines - self.excused)


class CoverageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of a whole swarm."""

    folders: tuple[FolderLines, ...]
    """Empty: no line was traced."""
    never_entered: tuple[str, ...]
    """Without an excuse, as in `API FETCH` or `function broker/broker.py:Broker.serve`."""
    excused: dict[str, str]
    """What was never entered, with its reason."""
    waiting: tuple[str, ...]
    """Those of the excused that a load or a fault could enter, if there were one."""
    needless: tuple[str, ...]
    """Entries of the list of excuses that were entered: the list can do without them."""
    reached: dict[str, int]
    """How often events, APIs and settings came."""

    @property
    def total(self) -> FolderLines:
        lines, run, excused = (
            sum(getattr(each, what) for each in self.folders) for what in ("lines", "run", "excused")
        )
        return FolderLines(folder="all", lines=lines, run=run, excused=excused)

    @property
    def grouped(self) -> dict[str, list[str]]:
        """What was never entered, by kind, functions by their file."""
        groups: dict[str, list[str]] = {}
        for name in self.never_entered:
            kind, _, rest = name.partition(" ") if name.startswith((FUNCTION, CALL)) else name.rpartition(" ")
            if kind == FUNCTION:
                kind, _, rest = rest.partition(":")
            groups.setdefault(kind, []).append(rest)
        return groups

    def as_json(self) -> dict[str, Any]:
        shown = [*self.folders, self.total] if self.folders else []
        return {
            "lines": {each.folder: {"lines": each.lines, "run": each.run, "excused": each.excused} for each in shown},
            "never_entered": list(self.never_entered),
            "excused": self.excused,
            "waiting": list(self.waiting),
            "needless_excuses": list(self.needless),
            "reached": self.reached,
        }


def report(
    catalogue: Iterable[str],
    reached: Mapping[str, int],
    lines: Mapping[str, Set[int]] | None,
    sources: Iterable[SourceFile] | None = None,
    excuses: Iterable[Excuse] = EXCUSED,
) -> CoverageReport:
    """`lines`: those that ran, by path; None: they were not traced, so functions and calls are not judged."""
    catalogue, excuses = [*catalogue], [*excuses]
    files = [] if lines is None else [*(read_sources() if sources is None else sources)]
    never = [name for name in catalogue if not reached.get(name)]
    never_run: dict[str, SourceFunction] = {}
    for file in files:
        ran = (lines or {}).get(file.path, frozenset())
        never_run |= {name_of(file, each): each for each in file.functions if not each.lines & ran}
    found = {name: each for name in (*never, *never_run) if (each := excuse_of(name, excuses)) is not None}
    entered = {name for name in catalogue if reached.get(name)}
    entered |= {name_of(file, each) for file in files for each in file.functions} - {*never_run}
    excused_lines = {path: 0 for path in FOLDERS}
    for file in files:
        of_file = [never_run[name].lines for each in file.functions if (name := name_of(file, each)) in found]
        excused_lines[file.path.partition("/")[0]] += len(frozenset().union(*of_file) & file.lines)
    return CoverageReport(
        folders=tuple(_folder(folder, files, lines or {}, excused_lines[folder]) for folder in FOLDERS if files),
        never_entered=tuple(name for name in (*never, *never_run) if name not in found),
        excused={name: each.reason for name, each in found.items()},
        waiting=tuple(name for name, each in found.items() if each.is_open),
        needless=tuple(like for each in excuses if not each.is_rare for like in each.names if like in entered),
        reached={name: count for name, count in sorted(reached.items()) if count},
    )


def _folder(folder: str, files: Iterable[SourceFile], lines: Mapping[str, Set[int]], excused: int) -> FolderLines:
    own = [file for file in files if file.path.startswith(f"{folder}/")]
    run = sum(len(file.lines & lines.get(file.path, frozenset())) for file in own)
    return FolderLines(folder=folder, lines=sum(len(file.lines) for file in own), run=run, excused=excused)


def name_of(file: SourceFile, function: SourceFunction) -> str:
    """`call Producer.send` where users call it, else `function path:name`."""
    owner, dot, method = function.name.partition(".")
    is_public = not method.startswith("_") or method in USED_BY_SYNTAX
    if file.path.startswith("client/") and dot and owner in minibroker.__all__ and "." not in method and is_public:
        return f"{CALL} {function.name}"
    return f"{FUNCTION} {file.path}:{function.name}"


def excuse_of(name: str, excuses: Iterable[Excuse]) -> Excuse | None:
    """Why a swarm need not enter it; None if there is no reason."""
    return next((each for each in excuses if any(fnmatchcase(name, like) for like in each.names)), None)
