"""Markdown: links that resolve, and names that exist."""

from __future__ import annotations

import re
from pathlib import Path

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`]*`")
FILE = re.compile(r"[\w./-]*\w\.(?:py|md)")
IDENTIFIER = re.compile(r"(?=\w*_|[a-z.]*[a-z][A-Z])[A-Za-z_]\w*(\.\w+)*")
"""With an underscore or in camel case; a single lower-case word may be prose."""


def check_links(page: Path, root: Path) -> list[str]:
    """Relative links must lead to files, and their #fragments to headings, as a repository's web page shows them."""
    text = FENCE.sub("", page.read_text())
    problems = []
    for match in LINK.finditer(CODE.sub(lambda code: "x" * len(code.group()), text)):
        target = match.group(1) or match.group(2)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        where = f"{page.relative_to(root)}: link {target}"
        if not linked.exists():
            problems.append(f"{where}: no such file")
        elif not linked.is_relative_to(root):
            problems.append(f"{where}: leads out of the project")
        elif fragment and linked.suffix == ".md" and fragment not in anchors(linked.read_text()):
            problems.append(f"{where}: {linked.name} has no such heading")
    return problems


def check_files(page: Path, root: Path, files: frozenset[str]) -> list[str]:
    """A file that a page names in backticks, by its path or the end of it, exists. The end of the paths of several
    files of the product is one of them only if the page names that one by its path, too."""
    names = {code for code in re.findall(r"`([^`\n]*)`", FENCE.sub("", page.read_text())) if FILE.fullmatch(code)}
    problems = []
    for name in sorted(names):
        found = sorted(file for file in files if f"/{file}".endswith(f"/{name}"))
        meant = {file for file in found if file.endswith(".py") and not file.startswith("tests/")}
        if not found:
            problems.append(f"{page.relative_to(root)}: `{name}`: no such file")
        elif name not in meant and len(meant) > 1 and len(meant & names) != 1:
            problems.append(f"{page.relative_to(root)}: `{name}`: which of {', '.join(sorted(meant))}?")
    return problems


def check_identifiers(page: Path, root: Path, words: frozenset[str]) -> list[str]:
    """What a page names in backticks exists: a name of the program (`words` are all words of its files) or a file.
    Names of metrics are checked by the table that code makes of them."""
    text = FENCE.sub("", page.read_text())
    metrics = tuple(code for code in re.findall(r"`([^`]*)`", text) if code.startswith("minibroker_"))
    problems = []
    for name in sorted({code.removesuffix("()") for code in re.findall(r"`([^`\n]*)`", text)}):
        if not IDENTIFIER.fullmatch(name) or name.lower().startswith("minibroker_"):
            continue
        missing = [part for part in name.split(".") if not {part, _class_name(part)} & words]
        if missing and not any(metric.endswith(name) for metric in metrics):
            problems.append(f"{page.relative_to(root)}: `{name}`: nothing has the name {missing[0]}")
    return problems


def _class_name(snake_case: str) -> str:
    """The class of an event's name."""
    return "".join(part.capitalize() for part in snake_case.split("_"))


def anchors(text: str) -> set[str]:
    return {_anchor(heading) for heading in HEADING.findall(FENCE.sub("", text))}


def _anchor(heading: str) -> str:
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
