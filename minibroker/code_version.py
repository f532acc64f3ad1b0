"""Which code runs: its commit where git knows one, and a digest of its sources, which does without git.

Owns: both names, and the seeds that belong to a commit. A clone without history has its newest commit; an archive or an
installed package has none.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

GIT_SECONDS_MAX = 10
"""For a question that takes milliseconds; a repository on a hanging disk is none."""
FOLDERS = (
    "minibroker",
    "broker",
    "client",
    "controller",
    "protocol",
    "runtime",
    "audit",
    "simulation",
    "chaos/history",
)
"""What a simulated run consists of. Documents and tests may change, and a run stays the same."""
FIRST_OF_ALL = 1_000_000_000
SEEDS_PER_COMMIT = 10_000


def _package() -> Path:
    return Path(__file__).parent


def commit_of(folder: Path | None = None) -> str | None:
    """The commit that is checked out in the project's folder, in full; None without git or outside of a checkout."""
    root = (_package().parent if folder is None else folder).resolve()
    found = _git(root, "rev-parse", "--show-toplevel", "HEAD")
    if found is None:
        return None
    top, _, commit = found.partition("\n")
    return commit if Path(top).resolve() == root else None  # else it is that of a project that we are installed in


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", str(folder), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def code_digest() -> str:
    """SHA-256 of all sources of a simulated run, in hexadecimal. It tells changes apart that are not committed."""
    digest = hashlib.sha256()
    for path, file in sorted(_sources()):
        content = file.read_bytes()
        digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, Path]]:
    for folder in FOLDERS:
        root = _package() if folder == "minibroker" else (_package() / folder).resolve()
        yield from ((f"{folder}/{file.relative_to(root).as_posix()}", file) for file in root.rglob("*.py"))


def fresh_seed(name: str) -> int:
    """The first of the seeds that belong to a commit, or to a digest: no other commit has them, by all likelihood, and
    everyone who has this commit runs the same."""
    return FIRST_OF_ALL + int(name[:6], 16) * SEEDS_PER_COMMIT
