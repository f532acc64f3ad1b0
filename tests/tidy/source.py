"""The project's own files, parsed once, with what every rule needs."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PACKAGES = (
    "audit",
    "bench",
    "broker",
    "chaos",
    "client",
    "controller",
    "protocol",
    "runtime",
    "scenarios",
    "simulation",
)  # linked into minibroker/
CODE_FOLDERS = ("minibroker", *PACKAGES, "tests")


@dataclass(frozen=True)
class Import:
    line: int
    module: str  # absolute: `from . import x` is resolved


@dataclass(frozen=True)
class SourceFile:
    path: str  # relative to the project, with slashes: broker/log/segments/segment.py
    text: str

    @functools.cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the tree. Each rule looks at all of them, and most of a walk is finding the next one."""
        return tuple(ast.walk(self.tree))

    @property
    def folder(self) -> str:
        return self.path.split("/")[0]

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]

    @property
    def package(self) -> str:
        """The package that relative imports start from."""
        inside = self.path.rsplit("/", 1)[0].replace("/", ".")
        return inside if self.folder in ("minibroker", "tests") else f"minibroker.{inside}"

    @property
    def module(self) -> str:
        """The name that it is imported by: minibroker.broker.log for broker/log/__init__.py."""
        return self.package if self.name == "__init__.py" else f"{self.package}.{self.name.removesuffix('.py')}"

    @functools.cached_property
    def imports(self) -> list[Import]:
        """Each imported module, wherever the statement is; `from a import b` counts as a and as a.b."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [Import(node.lineno, alias.name) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                if node.level:
                    base = self.package.split(".")[: len(self.package.split(".")) - node.level + 1]
                    module = ".".join([*base, module] if module else base)
                found += [Import(node.lineno, f"{module}.{alias.name}") for alias in node.names]
        return found


def project_files(*folders: str) -> list[SourceFile]:
    return [file for file in _all_files() if file.folder in (folders or CODE_FOLDERS)]


@functools.cache
def _all_files() -> tuple[SourceFile, ...]:
    return tuple(
        SourceFile(path.relative_to(ROOT).as_posix(), path.read_text())
        for folder in CODE_FOLDERS
        for path in sorted(_python_files(ROOT / folder))
    )


def forget_files() -> None:
    """Give the memory of all trees back."""
    _all_files.cache_clear()


def _python_files(folder: Path) -> Iterator[Path]:
    """All Python files of a folder, without its links: minibroker/broker would repeat broker/."""
    if not folder.is_dir():
        return
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink() or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            yield from _python_files(entry)
        elif entry.suffix == ".py":
            yield entry


def text_files() -> Iterator[Path]:
    """Every text file of the project: code, documents, configuration."""
    suffixes = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".lock", ".cfg", ".sh", ".html", ".json", ""}
    top = [*CODE_FOLDERS, "docs", "docker", "requirements", ".ci"]
    files = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]  # git's own, in a work tree
    pending = [ROOT / name for name in top] + files
    while pending:
        path = pending.pop()
        if path.is_symlink() or path.name == "__pycache__":
            continue
        if path.is_dir():
            pending += path.iterdir()
        elif path.suffix in suffixes and path.is_file():
            yield path
