"""No module imports itself through others, and no block hides that it would.

Imports count wherever they stand, also under `if TYPE_CHECKING` and inside functions. No module of a cycle can be read,
tested or replaced alone. The remedies: a small Protocol beside its consumer, a value moved to the module that owns it,
a callback or a narrower argument in place of a parent.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch

from tests.tidy.source import SourceFile

SLOW_LIBRARIES = {"pandas", "pyspark"}
"""They take longer to load than most of our commands run, so only the code that uses them loads them."""
# file -> why it imports late
LATE_IMPORTS = {
    "minibroker/commands/*.py": "a command loads only what it uses; `minibroker --help` loads none of it",
    "minibroker/__init__.py": "`import minibroker` loads no module before one of its names is used",
    "client/default_runtime.py": "`import minibroker` registers the default runtime here",
    "minibroker/testing/*.py": "pytest loads the plugin at each start, and a test against processes no simulator",
    "audit/reports/terminal.py": "an audit that prints JSON does not load rich",
    "tests/mutants/one_run.py": "a mutant is planted before the modules that it changes are loaded",
    "tests/mutation_score/trial.py": "as tests/mutants/one_run.py; and pytest loads a plugin of ours",
}
WHY_TYPE_CHECKING = (
    "TYPE_CHECKING hides what this file needs: import it without, or break the cycle (tests/tidy/cycles.py says how); "
    f"only {', '.join(sorted(SLOW_LIBRARIES))} and the files of LATE_IMPORTS may be imported so"
)


def check_type_checking(file: SourceFile) -> list[str]:
    if any(fnmatch(file.path, pattern) for pattern in LATE_IMPORTS):
        return []
    problems = []
    for block in _type_checking_blocks(file):
        imported = SourceFile(file.path, "\n".join(ast.unparse(statement) for statement in block.body)).imports
        if not imported or any(item.module.split(".")[0] not in SLOW_LIBRARIES for item in imported):
            problems.append(f"{file.path}:{block.lineno}: {WHY_TYPE_CHECKING}")
    return problems


def _type_checking_blocks(file: SourceFile) -> Iterator[ast.If]:
    for node in file.nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield node


def check_cycles(files: Iterable[SourceFile]) -> list[str]:
    """One line for each cycle, until breaking each at one of its imports leaves none."""
    by_module = {file.module: file for file in files}
    graph = {module: imported_modules(file, by_module.keys()) for module, file in by_module.items()}
    problems = []
    while (cycle := _one_cycle(graph)) is not None:
        steps = [(importer, imported, graph[importer][imported]) for importer, imported in itertools.pairwise(cycle)]
        path = "".join(f"\n    {by_module[importer].path}:{line}: imports {name}" for importer, name, line in steps)
        problems.append(f"import cycle of {len(steps)} modules:{path}")
        importer, imported, _ = steps[-1]
        del graph[importer][imported]
    return problems


def _one_cycle(graph: dict[str, dict[str, int]]) -> list[str] | None:
    """Its modules from importer to imported; the first one is repeated at the end."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle[::-1]
    return None


def imported_modules(file: SourceFile, modules: Iterable[str]) -> dict[str, int]:
    """Modules of the project that it imports, each with a line. The packages around an imported module do not count:
    what their `__init__.py` imports, it offers to users of the package."""
    found: dict[str, int] = {}
    for item in file.imports:
        name = item.module if item.module in modules else item.module.rpartition(".")[0]
        if name in modules and name != file.module:
            found.setdefault(name, item.line)
    return found
