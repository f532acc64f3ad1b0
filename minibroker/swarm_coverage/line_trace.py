"""The lines that run in this process, at next to no cost (docs/decisions/0030).

Owns: the one place that uses slipcover, which puts probes into the code of a module as it is imported, and takes those
out again that were hit. Leaves to others: which lines there are, and what to do about those that never ran.
"""

import importlib.util
import sys
from pathlib import Path
from types import FunctionType, ModuleType

from minibroker.swarm_coverage.source_lines import FOLDERS, folder_path, read_source


def is_available() -> bool:
    """Whether slipcover is installed; it is one of the packages for development."""
    return importlib.util.find_spec("slipcover") is not None


class LineTrace:
    """Of this process, from now to its end. Make it before the folders are imported."""

    def __init__(self) -> None:
        import slipcover

        self._roots = {folder: folder_path(folder) for folder in FOLDERS}
        self._slipcover = slipcover.Slipcover()
        self._told: dict[str, set[int]] = {}
        matcher = slipcover.FileMatcher(sources=[str(root) for root in self._roots.values()])
        for module in [*sys.modules.values()]:
            if matcher.matches(getattr(module, "__file__", None)):
                self._trace_imported(module)
        slipcover.ImportManager(self._slipcover, matcher).__enter__()

    def _trace_imported(self, module: ModuleType) -> None:
        """A module that was imported before: its functions can still be traced, and the rest has run."""
        file = str(module.__file__)
        source = read_source(self._path(file), Path(file).read_text())
        self._slipcover.all_seen[file] |= source.lines.difference(*(each.lines for each in source.functions))
        for each in vars(module).values():
            if isinstance(each, FunctionType) and each.__module__ == module.__name__:
                self._slipcover.instrument(each)

    def new_lines(self) -> dict[str, list[int]]:
        """The lines that ran since the last call, by path as in `broker/broker.py`."""
        found: dict[str, list[int]] = {}
        for seen in (self._slipcover.all_seen, self._slipcover.newly_seen):
            for file, lines in [*seen.items()]:
                told = self._told.setdefault(file, set())
                fresh = {*lines} - told
                if fresh:
                    told |= fresh
                    found.setdefault(self._path(file), []).extend(sorted(fresh))
        return found

    def _path(self, file: str) -> str:
        path = Path(file).resolve()
        folder = next(folder for folder, root in self._roots.items() if path.is_relative_to(root))
        return f"{folder}/{path.relative_to(self._roots[folder]).as_posix()}"
