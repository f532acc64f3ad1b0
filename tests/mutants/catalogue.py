"""All mutants, by theme, and what cannot be planted."""

from tests.mutants import harmless, high_watermark, truncation
from tests.mutants.mutant import CannotApply, Mutant

MUTANTS: tuple[Mutant, ...] = (*truncation.MUTANTS, *high_watermark.MUTANTS)
CANNOT_APPLY: tuple[CannotApply, ...] = (*truncation.CANNOT_APPLY, *high_watermark.CANNOT_APPLY)
HARMLESS: tuple[Mutant, ...] = harmless.PATCHES


def find_mutant(name: str) -> Mutant:
    """Also a harmless patch. Raises KeyError."""
    for mutant in (*MUTANTS, *HARMLESS):
        if mutant.name == name:
            return mutant
    raise KeyError(name)
