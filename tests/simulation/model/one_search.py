"""One search, or one counterexample, in a process of its own: a mutant ends with its process.

`python -m tests.simulation.model.one_search search BOUNDS MUTANT DEPTH SECONDS` prints lines of JSON: `{"progress":
coverage}` at intervals, at the end `{"found": coverage}`. `... play MUTANT FILE` prints a counterexample with its
actual results. MUTANT `-` is the unchanged code.
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


def run_search(bounds_name: str, depth: int, seconds: float) -> None:
    """Depth 0: the whole search space."""
    from minibroker.simulation.model.bounds import find_bounds
    from minibroker.simulation.model.search import SearchCoverage, search

    printed_at = time.monotonic()

    def watch(coverage: SearchCoverage) -> bool:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at >= PROGRESS_SECONDS:
            printed_at = now
            print(json.dumps({"progress": msgspec.to_builtins(coverage)}), flush=True)
        return time.process_time() < seconds

    gc.disable()  # a search makes no reference cycles, and collecting over a million states takes long
    coverage = search(find_bounds(bounds_name), watch, depth or None)
    found = {**msgspec.to_builtins(coverage), "seconds": round(time.process_time(), 2)}
    print(json.dumps({"found": found}), flush=True)


def run_story(path: str) -> None:
    from minibroker.simulation.model.counterexample import play

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
