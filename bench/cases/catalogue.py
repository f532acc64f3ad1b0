"""All cases, in the order in which they are played."""

from collections.abc import Sequence

from minibroker.bench.case import Case
from minibroker.bench.cases import audit, bare, consume, failover, latency, memory, partitions, produce, recovery, start

BY_DEFAULT: tuple[Case, ...] = (
    *produce.CASES,
    *bare.CASES,
    *latency.CASES,
    *consume.CASES,
    *partitions.CASES,
)
"""They share warm clusters, and take under half an hour beside Kafka."""
BY_NAME: tuple[Case, ...] = (
    *failover.CASES,
    *start.CASES,
    *recovery.CASES,
    *audit.CASES,
    *memory.CASES,
)
"""Each takes minutes on clusters of its own: they are played when they are named."""
CASES = (*BY_DEFAULT, *BY_NAME)


class NoSuchCase(Exception):
    """A name that is no case's; the message lists what there is."""


def choose(names: Sequence[str]) -> list[Case]:
    """The cases of these names, in their order of play; `produce-*` names all that begin so. BY_DEFAULT without.

    Raises NoSuchCase.
    """
    found = set() if names else {case.name for case in BY_DEFAULT}
    for name in names:
        matching = [case.name for case in CASES if _matches(case.name, name)]
        if not matching:
            raise NoSuchCase(f"there is no case '{name}': {', '.join(case.name for case in CASES)}")
        found.update(matching)
    return [case for case in CASES if case.name in found]


def _matches(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
