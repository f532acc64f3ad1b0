"""All cases, in the order in which they run."""

from collections.abc import Sequence

from minibroker.bench.case import Case
from minibroker.bench.cases import audit, bare, consume, failover, latency, memory, partitions, produce, recovery, start
from minibroker.protocol.similar_names import suggestion

BY_DEFAULT: tuple[Case, ...] = (
    *produce.CASES,
    *bare.CASES,
    *latency.CASES,
    *consume.CASES,
    *partitions.CASES,
)
"""They share warm clusters, and take under half an hour together with Kafka."""
BY_NAME: tuple[Case, ...] = (
    *failover.CASES,
    *start.CASES,
    *recovery.CASES,
    *audit.CASES,
    *memory.CASES,
)
"""Each takes minutes on clusters of its own: they run only when named."""
CASES = (*BY_DEFAULT, *BY_NAME)


class NoSuchCase(Exception):
    """No case has this name; the message names a similar one, or else all."""


def choose(names: Sequence[str]) -> list[Case]:
    """The cases with these names, in their usual order; `produce-*` matches all that begin so. BY_DEFAULT without
    names.

    Raises NoSuchCase.
    """
    found = set() if names else {case.name for case in BY_DEFAULT}
    unknown = []
    for name in names:
        matching = [case.name for case in CASES if _matches(case.name, name)]
        if not matching:
            unknown.append(name)
        found.update(matching)
    if unknown:
        known = [case.name for case in CASES]
        near = [f"'{name}'; {meant}" for name in unknown if (meant := suggestion(name, known))]
        if len(near) == len(unknown):
            raise NoSuchCase(f"there is no case {', '.join(near)} `minibroker bench list` prints all")
        quoted = ", ".join(f"'{name}'" for name in unknown)
        raise NoSuchCase(f"there is no case {quoted}: there are {', '.join(known)}")
    return [case for case in CASES if case.name in found]


def _matches(name: str, wanted: str) -> bool:
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted
