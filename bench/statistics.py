"""Medians, spread, and confidence bounds of ratios. Pure.

A run plays each case several times on both peers in turn. Neighbouring rounds ran under the same conditions and are
compared with each other: one ratio per alternation. The bounds are those of the median of these ratios, by bootstrap:
alternations are drawn again with replacement, many times, with a fixed seed, so that one document always gives the same
bounds.
"""

import random
import statistics
from collections.abc import Mapping, Sequence

import msgspec

RESAMPLES = 10_000
SEED = 20_260
CONFIDENCE = 0.95
"""One-sided: in 95 of 100 such runs the median is above `lower` (and in 95 below `upper`)."""


class Summary(msgspec.Struct, frozen=True):
    """Statistics of some rounds."""

    count: int
    median: float
    lowest: float
    highest: float
    lower: float
    """One-sided 95 % bound of the median from below."""
    upper: float
    """The same from above."""


def summarise(values: Sequence[float]) -> Summary:
    """At least one value."""
    assert values
    lower, upper = bootstrap_bounds(values)
    return Summary(len(values), statistics.median(values), min(values), max(values), lower, upper)


def ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """One per alternation, by its number; what only one peer has is left out, as is a zero on theirs."""
    return [ours[number] / theirs[number] for number in sorted(ours) if theirs.get(number)]


def bootstrap_bounds(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """(lower, upper): each holds separately with this confidence. A single value is both of its bounds."""
    generator = random.Random(SEED)
    medians = sorted(statistics.median(generator.choices(values, k=len(values))) for _ in range(RESAMPLES))
    at = int(RESAMPLES * (1 - confidence))
    return medians[at], medians[-1 - at]


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed (nearest rank). `ordered` ascends and is not
    empty."""
    assert ordered
    rank = -(-len(ordered) * share // 1)  # the ceiling
    return ordered[min(len(ordered), max(1, int(rank))) - 1]
