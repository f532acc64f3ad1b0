"""Finds the commands in the pages and runs them as a reader would, block after block, in one shell."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from minibroker.harness.container_engine import compose_command, own_names, remove_project

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("fast", "slow", "docker", "manual")
SHELLS = ("sh", "bash", "shell", "console")
FENCE = re.compile(r"^(?P<mark>`{3,}|~{3,})(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = {"fast": 100, "slow": 900, "docker": 1200}


@dataclass(frozen=True)
class Block:
    page: Path
    line: int  # of the first command
    kind: str
    in_root: bool
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    return sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, text: str) -> list[Block]:
    """All shell blocks of a page; a missing or unknown tag gives the kind ''."""
    found = []
    for match in FENCE.finditer(text):
        words = match["info"].split()
        if not words or words[0] not in SHELLS:
            continue
        kind = next((word for word in words[1:] if word in KINDS), "")
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Block(page, line, kind, "root" in words[1:], match["body"]))
    return found


def of_kind(found: list[Block], kind: str) -> list[Block]:
    """A page's blocks of this kind, and the fast ones in front of them, which may write files that they need."""
    last = max((index for index, block in enumerate(found) if block.kind == kind), default=-1)
    return [block for block in found[: last + 1] if block.kind in ("fast", kind)]


def run(todo: list[Block], scratch: Path) -> str | None:
    """Run the blocks of one page in one shell. Returns the problem, or None."""
    kind = todo[-1].kind
    script = ["set -euo pipefail"]
    for block in todo:
        folder = ROOT if block.in_root else scratch
        script += [f"cd {shlex.quote(str(folder))}", f"echo '##### {block.where}' >&2", block.text]
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}
    if kind == "docker":
        environment |= own_names(f"minibroker-docs-{os.getpid()}", compose_command())
    output = scratch.parent / f"{scratch.name}.output"
    with output.open("wb") as sink:
        shell = subprocess.Popen(
            ["bash", "-c", "\n".join(script)],
            cwd=scratch,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
        )
        try:
            code = shell.wait(SECONDS_MAX[kind])
            verdict = f"ended with exit code {code}" if code else None
        except subprocess.TimeoutExpired:
            verdict = f"did not end within {SECONDS_MAX[kind]} s"
        finally:
            _stop(shell, scratch, environment)
            if kind == "docker":
                compose = [*compose_command(), "-f", str(ROOT / "docker-compose.yml")]
                remove_project(compose, environment, grace_s=10)
    return f"{verdict}; the last lines, from the block named last:\n{_tail(output)}" if verdict else None


def _stop(shell: subprocess.Popen[bytes], scratch: Path, environment: dict[str, str]) -> None:
    """Stop what a page left running: its shell's processes, and a cluster in the scratch folder."""
    if shell.poll() is None:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    for data in scratch.glob("minibroker-data"):
        down = [sys.executable, "-m", "minibroker", "cluster", "down", "--wipe", "--data-dir", str(data)]
        subprocess.run(down, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=60)


def _tail(output: Path) -> str:
    return "\n".join(output.read_text(errors="replace").splitlines()[-60:])
