"""One search, or one story, in a process of its own: a mutant lives and dies with it.

`python -m tests.simulation.model.one_search search SCENERY MUTANT DEPTH SECONDS` prints lines of JSON: `{"progress":
coverage}` now and then, at the end `{"found": coverage}`. `... play MUTANT FILE` prints a story as it really goes.
MUTANT `-` is the code as it is.
"""

import gc
import json
import sys
import time

import msgspec

from tests.mutants.patching import apply
from tests.simulation.model.convictions import mutant_called

UNPATCHED = "-"
PROGRESS_SECONDS = 0.5


def run_search(scenery_name: str, depth: int, seconds: float) -> None:
    """Depth 0: to the end of the bounds."""
    from minibroker.simulation.model.bounds import find_bounds
    from minibroker.simulation.model.search import SearchCoverage, search

    told = time.monotonic()

    def watch(coverage: SearchCoverage) -> bool:
        nonlocal told
        now = time.monotonic()
        if now - told >= PROGRESS_SECONDS:
            told = now
            print(json.dumps({"progress": msgspec.to_builtins(coverage)}), flush=True)
        return time.process_time() < seconds

    gc.disable()  # nothing that a search makes is ever a cycle, and to look through a million states takes long
    coverage = search(find_bounds(scenery_name), watch, depth or None)
    found = {**msgspec.to_builtins(coverage), "seconds": round(time.process_time(), 2)}
    print(json.dumps({"found": found}), flush=True)


def run_story(path: str) -> None:
    from minibroker.simulation.model.story import play

    with open(path, encoding="utf-8") as file:
        for commands, out in play(file.read()):
            print(f"{commands}\n----\n{out}\n")


def main(what: str, *words: str) -> None:
    mutant = words[1] if what == "search" else words[0]
    if mutant != UNPATCHED:
        apply(mutant_called(mutant))
    if what == "search":
        run_search(words[0], int(words[2]), float(words[3]))
    else:
        run_story(words[1])


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit(130)
