"""Which killers reach which lines, kept in a file; and the killers to try on a mutant, fastest first.

Owns: the kept file's validity. A measurement holds as long as the code, and the test's own file, stay as they are.
"""

import ast
import contextlib
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from tests.mutants.patching import ROOT
from tests.mutants.workers import child_lines
from tests.mutation_score.measuring import KillerReach
from tests.mutation_score.population import FOLDERS, Site, module_paths
from tests.mutation_score.processes import in_parallel
from tests.mutation_score.sample import KEPT_FOLDER, DrawnMutant, stratum

KEPT = ROOT / KEPT_FOLDER
SEEDS = tuple(f"{kind}:{number}" for number in range(1, 16) for kind in ("seed", "disks"))
KILLER_FOLDERS = (*FOLDERS, "simulation")
"""Of `tests/`."""
OTHER_KILLERS = ("tests/docs/test_wire_tables.py",)
"""Tried on all of `protocol/`: it compares the numbers and defaults of the wire with docs/FORMATS.md."""
NO_KILLERS = ("test_swarm.py", "test_speed.py", "test_determinism.py")
"""The first runs seeds, which are killers themselves; the others concern the simulator."""
RUN_FOLDERS = (*FOLDERS, "runtime", "simulation")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
FILES_PER_CHILD = 3
SECONDS_PER_CHILD_MAX = 1_800.0
TESTS_CPU_SECONDS_MAX = 30.0
"""Of the tests that are tried on a mutant, as measured with the line trace; the slowest are left out beyond it."""
NAMING_CPU_SECONDS_MAX = 10.0
"""Of those among them that are tried because their file names what the mutant is in."""


class KeptReach(msgspec.Struct, frozen=True):
    """A line of the kept file: all killers of one file, or of one seed."""

    file: str
    digest: str
    killers: list[KillerReach]


def digest_of(paths: Iterable[Path]) -> str:
    """Of these files' contents."""
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return total.hexdigest()[:16]


def code_digest() -> str:
    return digest_of(path for folder in RUN_FOLDERS for path in (ROOT / folder).rglob("*.py"))


def helpers_digest() -> str:
    """Of what tests use besides the code."""
    return digest_of(
        path for folder in KILLER_FOLDERS for path in _python_files(folder) if not path.name.startswith("test_")
    )


def _python_files(folder: str) -> Iterable[Path]:
    return (ROOT / "tests" / folder).rglob("*.py")


def _digests() -> dict[str, str]:
    """Of every test file and every seed."""
    code, helpers = code_digest(), helpers_digest()
    files = [path for folder in KILLER_FOLDERS for path in _python_files(folder) if path.name.startswith("test_")]
    files = [path for path in files if path.name not in NO_KILLERS] + [ROOT / name for name in OTHER_KILLERS]
    digests = {path.relative_to(ROOT).as_posix(): f"{code}-{helpers}-{digest_of([path])}" for path in sorted(files)}
    return {**digests, **dict.fromkeys(SEEDS, code)}


async def measured_reach(
    processes: int, progress: Callable[[str], None], with_seeds: bool, tests_below: Sequence[str] = ()
) -> list[KillerReach]:
    """From the kept file, and measured anew where that does not hold. `tests_below`: paths that hold the only tests to
    measure; all of them if there is none."""
    KEPT.mkdir(exist_ok=True)
    kept_file, digests = KEPT / "reach.jsonl", _digests()
    wanted = [
        name
        for name in digests
        if (with_seeds if name in SEEDS else not tests_below or name.startswith(tuple(tests_below)))
    ]
    found: dict[str, KeptReach] = {}
    if kept_file.exists():
        for line in kept_file.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):  # the end of a run that was stopped
                each = msgspec.json.decode(line, type=KeptReach)
                if digests.get(each.file) == each.digest:
                    found[each.file] = each
    kept_file.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in found.values()))
    missing = [name for name in wanted if name not in found]
    tests, seeds = [name for name in missing if name not in SEEDS], [name for name in missing if name in SEEDS]
    batches = [tests[at : at + FILES_PER_CHILD] for at in range(0, len(tests), FILES_PER_CHILD)]
    batches += [[seed] for seed in seeds]

    async def measure(number: int, names: list[str]) -> None:
        progress(f"measuring the lines of tests and seeds, {number} of {len(batches)}: {names[0]}")
        for each in await _measure(names, digests):
            found[each.file] = each
            with kept_file.open("ab") as kept:
                kept.write(msgspec.json.encode(each) + b"\n")

    await in_parallel(processes, [measure(number, names) for number, names in enumerate(batches, start=1)])
    return [killer for name in wanted for killer in found[name].killers]


async def _measure(names: Sequence[str], digests: dict[str, str]) -> list[KeptReach]:
    by_file: dict[str, list[KillerReach]] = {name: [] for name in names}
    arguments = ("-m", "tests.mutation_score.measuring", *names)
    async with contextlib.aclosing(child_lines(*arguments, seconds_max=SECONDS_PER_CHILD_MAX)) as lines:
        async for line in lines:
            killer = msgspec.json.decode(line, type=KillerReach)
            by_file[killer.killer if killer.killer in SEEDS else killer.file].append(killer)
    return [KeptReach(name, digests[name], killers) for name, killers in by_file.items()]


class Reach:
    """Answers which killers reach a mutant."""

    def __init__(self, killers: Sequence[KillerReach]) -> None:
        self.failed = [each for each in killers if not each.passed]
        """On the code as it is: they can convict no mutant."""
        passed = sorted((each for each in killers if each.passed), key=lambda each: each.cpu_seconds)
        self._tests = [each for each in passed if each.killer not in SEEDS]
        self._seeds = [each for each in passed if each.killer in SEEDS]
        self._lines = {module: path.read_text("utf-8").splitlines() for module, path in module_paths(ROOT).items()}

    def tests(self, mutant: DrawnMutant) -> list[KillerReach]:
        """Those of the module's own folder first, and the fastest first of each, within TESTS_CPU_SECONDS_MAX."""
        folder = f"tests/{stratum(mutant.module).replace('.', '/')}/"
        naming = _within(NAMING_CPU_SECONDS_MAX, self._naming(mutant.site, folder))
        tried_first = {each.killer for each in naming}
        others = [each for each in self._reaching(self._tests, mutant) if each.killer not in tried_first]
        others.sort(key=lambda each: not each.file.startswith(folder))
        chosen = _within(TESTS_CPU_SECONDS_MAX, [*naming, *others])
        if mutant.module.startswith("protocol."):
            chosen += [each for each in self._tests if each.file in OTHER_KILLERS and each not in chosen]
        return chosen

    def seeds(self, mutant: DrawnMutant) -> list[KillerReach]:
        """Fastest first."""
        return self._reaching(self._seeds, mutant)

    def _naming(self, site: Site, folder: str) -> list[KillerReach]:
        """The tests of files that name the class or the constant that is made at import. They may read its values and
        run no line that does: all defaults of a call, all fields of a table."""
        names = [site.owner] if site.owner else [name for name in site.names if name[:1].isupper()]
        if not names:
            return []
        named = re.compile(rf"\b(?:{'|'.join(names)})\b")
        files = {each.file for each in self._tests if each.file.startswith(folder)}
        naming = {name for name in files if named.search((ROOT / name).read_text("utf-8"))}
        return [each for each in self._tests if each.file in naming]

    def _reaching(self, killers: Sequence[KillerReach], mutant: DrawnMutant) -> list[KillerReach]:
        """If none executes the line: those that enter its function. On Python 3.11 the line trace misses what a
        coroutine executes between an error that an inner `await` raised and its next pause. If none does that either:
        those that use what it makes at import, such as a table."""
        site = mutant.site
        return (
            _of_lines(killers, self._masks(mutant))
            or _of_lines(killers, self._function_mask(site))
            or (_of_lines(killers, self._uses([site.function])) if site.function.isidentifier() else [])
        )

    def _function_mask(self, site: Site) -> dict[str, int]:
        if not site.function:
            return {}
        tree = ast.parse("\n".join(self._lines.get(site.module, [])))
        place: ast.AST = tree
        for name in site.function.replace(".<locals>", "").split("."):
            found = [each for each in ast.walk(place) if isinstance(each, DEFINITIONS) and each.name == name]
            if not found:
                return {}
            place = found[0]
        assert isinstance(place, DEFINITIONS)
        return {site.module: _mask(range(place.body[0].lineno, (place.end_lineno or place.lineno) + 1))}

    def _masks(self, mutant: DrawnMutant) -> dict[str, int]:
        """module: the lines that notice this mutant, a bit each. What runs at import is noticed by its own body and by
        the lines that use the name which it defines, or a name that is defined by that one."""
        site = mutant.site
        masks = {site.module: _mask(range(site.first_line, site.last_line + 1))}
        if site.names:
            for module, uses in self._uses(site.names).items():
                masks[module] = masks.get(module, 0) | uses
        return masks

    def _uses(self, names: Sequence[str]) -> dict[str, int]:
        used = re.compile(rf"\b({'|'.join(self._users(names))})\b")
        return {
            module: _mask(number for number, line in enumerate(lines, start=1) if used.search(line))
            for module, lines in self._lines.items()
        }

    def _users(self, names: Sequence[str]) -> set[str]:
        """These names, and those that assignments define from them at import, such as a decoder of a message."""
        found, new = set(names), set(names)
        while new:
            uses = re.compile(rf"^(\w+)(?:: [^=]*)? = .*\b(?:{'|'.join(sorted(new))})\b")
            defined = {match[1] for lines in self._lines.values() for line in lines if (match := uses.match(line))}
            new = defined - found
            found |= new
        return found


def _within(cpu_seconds_max: float, killers: Iterable[KillerReach]) -> list[KillerReach]:
    """The first ones that take no longer together."""
    chosen, cpu_seconds = list[KillerReach](), 0.0
    for each in killers:
        cpu_seconds += each.cpu_seconds
        if cpu_seconds > cpu_seconds_max:
            break
        chosen.append(each)
    return chosen


def _of_lines(killers: Sequence[KillerReach], masks: dict[str, int]) -> list[KillerReach]:
    return [each for each in killers if any(int(each.lines.get(m, "0"), 16) & mask for m, mask in masks.items())]


def _mask(lines: Iterable[int]) -> int:
    mask = 0
    for line in lines:
        mask |= 1 << line
    return mask
