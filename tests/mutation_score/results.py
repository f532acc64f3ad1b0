"""The results so far, a line of JSON each, so that a run goes on where the last one ended.

Owns: how long a result holds. A killed mutant stays killed until its module changes, because tests rarely get worse; a
survivor holds for the same code and the same tests only.
"""

import contextlib
from pathlib import Path
from typing import Literal

import msgspec

Stage = Literal["tests", "seeds"]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One mutant against all tests that reach it, or against all seeds that do."""

    name: str
    """As `DrawnMutant.name`."""
    stage: Stage
    module_digest: str
    world_digest: str
    """Of the code, and of the tests in the first stage."""
    killer: str | None
    """A test, a seed, or `import`, `timeout`, `crash`; None if it survived."""
    text: str = ""
    killers: int
    """How many were to be tried; 0: none executes the line."""
    seconds: float = 0.0
    place: str
    change: str


class Results:
    """In memory and in the file."""

    def __init__(self, path: Path, world_digests: dict[Stage, str]) -> None:
        self._path, self._worlds = path, world_digests
        self._found: dict[tuple[str, Stage], Result] = {}
        if path.exists():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(msgspec.DecodeError):  # the end of a run that was stopped
                    each = msgspec.json.decode(line, type=Result)
                    self._found[each.name, each.stage] = each

    def add(self, result: Result) -> None:
        self._found[result.name, result.stage] = result
        self._path.parent.mkdir(exist_ok=True)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(result) + b"\n")

    def find(self, name: str, stage: Stage, module_digest: str) -> Result | None:
        """None if it was not tried, or if what was found holds no longer."""
        found = self._found.get((name, stage))
        if found is None or found.module_digest != module_digest:
            return None
        return found if found.killer is not None or found.world_digest == self._worlds[stage] else None
