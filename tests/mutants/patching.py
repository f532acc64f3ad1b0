"""Applies a mutant: modules are patched as they are imported.

Owns: the import hook and the rule that an edit's text occurs exactly once in its module. Nothing is ever undone: a
mutant lasts as long as its process.
"""

import difflib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType, ModuleType

from tests.mutants.mutant import Edit, Mutant

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = "minibroker."


class DoesNotApply(AssertionError):
    """The code has changed: the mutant must be revised."""


def source_path(module: str) -> Path:
    return ROOT / (module.replace(".", "/") + ".py")


def patched_sources(mutant: Mutant) -> dict[str, tuple[str, str]]:
    """module: (source, patched source); a later edit of a module sees what the earlier ones left."""
    found: dict[str, tuple[str, str]] = {}
    for edit in mutant.edits:
        if edit.module not in found:
            text = source_path(edit.module).read_text(encoding="utf-8")
            found[edit.module] = (text, text)
        original, patched = found[edit.module]
        found[edit.module] = (original, _replace_once(mutant, edit, patched))
    return found


def _replace_once(mutant: Mutant, edit: Edit, text: str) -> str:
    count = text.count(edit.before)
    if count != 1:
        raise DoesNotApply(f"{mutant.name}: its text occurs {count} times in {edit.module}, not once:\n{edit.before}")
    if edit.before == edit.after:
        raise DoesNotApply(f"{mutant.name}: an edit of {edit.module} changes nothing")
    return text.replace(edit.before, edit.after)


def compile_mutant(mutant: Mutant) -> dict[str, CodeType]:
    """By full module name."""
    return {
        PACKAGE + module: compile(patched, str(source_path(module)), "exec")
        for module, (_, patched) in patched_sources(mutant).items()
    }


def unified_diff(mutant: Mutant) -> str:
    """For readers."""
    lines: list[str] = []
    for module, (original, patched) in patched_sources(mutant).items():
        name = module.replace(".", "/") + ".py"
        lines += difflib.unified_diff(
            original.splitlines(keepends=True), patched.splitlines(keepends=True), f"a/{name}", f"b/{name}"
        )
    return "".join(lines)


class _PatchedLoader(importlib.abc.Loader):
    def __init__(self, code: CodeType) -> None:
        self._code = code

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(self._code, module.__dict__)


class PatchingFinder(importlib.abc.MetaPathFinder):
    """Loads the mutated modules, and no others."""

    def __init__(self, codes: Mapping[str, CodeType]) -> None:
        self._codes = codes

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        code = self._codes.get(fullname)
        if code is None:
            return None
        spec = importlib.machinery.ModuleSpec(fullname, _PatchedLoader(code), origin=code.co_filename)
        spec.has_location = True  # a module without __file__ has no source for `inspect`
        return spec


def apply(mutant: Mutant) -> None:
    """Call it before anything of the project is imported."""
    apply_codes(compile_mutant(mutant), mutant.name)


def apply_codes(codes: Mapping[str, CodeType], name: str) -> None:
    """By full module name. Call it before one of them is imported."""
    if early := sorted(codes.keys() & sys.modules.keys()):
        raise DoesNotApply(f"{name}: {early} are loaded already")
    sys.meta_path.insert(0, PatchingFinder(codes))
