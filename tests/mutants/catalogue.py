"""All mutants by theme, and the bugs that cannot be planted."""

from tests.mutants import (
    damage,
    deposed,
    disk_errors,
    elections,
    failure_detection,
    fencing,
    harmless,
    high_watermark,
    in_sync_replicas,
    interrupted,
    loads,
    log_starts,
    lookups,
    producer,
    promises,
    reading,
    restarts,
    sequences,
    stale_facts,
    storage,
    strict,
    truncation,
    witness,
)
from tests.mutants.mutant import CannotApply, Mutant

THEMES = (
    truncation,
    fencing,
    high_watermark,
    in_sync_replicas,
    deposed,
    storage,
    producer,
    strict,
    failure_detection,
    elections,
    sequences,
    disk_errors,
    reading,
    damage,
    log_starts,
    lookups,
    restarts,
    interrupted,
    stale_facts,
    witness,
    promises,
    loads,
)

MUTANTS: tuple[Mutant, ...] = tuple(
    sorted((mutant for theme in THEMES for mutant in theme.MUTANTS), key=lambda each: (len(each.name) < 3, each.name))
)
CANNOT_APPLY: tuple[CannotApply, ...] = tuple(each for theme in THEMES for each in theme.CANNOT_APPLY)
LATER: tuple[CannotApply, ...] = strict.LATER
"""Bugs in features that do not exist yet."""
HARMLESS: tuple[Mutant, ...] = harmless.PATCHES


def find_mutant(name: str) -> Mutant:
    """Also a harmless patch. Raises KeyError."""
    for mutant in (*MUTANTS, *HARMLESS):
        if mutant.name == name:
            return mutant
    raise KeyError(name)
