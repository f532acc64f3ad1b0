"""The shortest paths to convict each mutant, as the small model found them, are replayed.

Each file of testdata/ is one path, written by `make explore WRITE=1`. On the unchanged code nothing breaks, and the
tables are the stored ones; with the mutant of its name, the invariant that the file names breaks.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.simulation.model.counterexample import play
from tests.simulation.model.convictions import BOUNDS_OF

ROOT = Path(__file__).resolve().parents[3]
STORIES = sorted((Path(__file__).parent / "testdata").glob("*.txt"))


def test_every_mutant_has_its_story() -> None:
    assert {path.stem for path in STORIES} == set(BOUNDS_OF)


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_nothing_breaks_without_the_mutant(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    played = "\n\n".join(f"{commands}\n----\n{out}" for commands, out in play(text)) + "\n"
    assert played == text


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_mutant_breaks_the_invariant_that_its_story_names(path: Path) -> None:
    words = ["-m", "tests.simulation.model.one_search", "play", path.stem, str(path)]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    named = re.search(r"^# (I\d+|hardening rule \d+): ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert named is not None
    assert f" breaks {named[1]}: " in done.stdout
