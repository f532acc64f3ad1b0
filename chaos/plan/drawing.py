"""The plan of a run: which fault begins when, drawn from a seed. Pure.

Owns: the form of a plan, its JSON, and the drawing (swarm testing: a run draws first which kinds it uses, how many
faults may last at the same time, and how long the pauses are). A plan names roles, not brokers: which broker leads then
depends on the run.
"""

import random
from collections.abc import Iterable
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from minibroker.chaos.plan.fault_kinds import BY_NAME, KINDS, Backend, FaultKind, Target
from minibroker.protocol.similar_names import suggestion

FIRST_AT_S = 2.0
"""The load runs undisturbed before."""
MEAN_GAPS_S = (1.0, 2.0, 4.0)
FAULT_S = (0.5, 6.0)
"""Longer than a session (3 s) or shorter."""
KINDS_MIN = 3
SEQUENCE_PROBABILITY = 0.175
"""Of each sequence, for the next fault: one takes up to half a minute on containers."""
PARTITIONS = 4
DURATION_S_MAX = 86_400

Time_s: TypeAlias = Annotated[float, Meta(ge=0, le=DURATION_S_MAX)]
Chosen: TypeAlias = tuple[FaultKind, Target | None]
"""A kind, with its target unless the seed draws it."""


class BadPlan(ValueError):
    """One sentence with the cure."""


class PlannedFault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of a plan."""

    at_s: Time_s
    kind: str
    target: Target
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS)] = 0
    """Whose leader or follower."""
    for_s: Time_s = 3.0


class Plan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All faults of a run, by time."""

    seed: int
    duration_s: Annotated[float, Meta(gt=0, le=DURATION_S_MAX)]
    overlap_max: Annotated[int, Meta(ge=1)] = 1
    """So many faults may last at the same time."""
    faults: tuple[PlannedFault, ...] = ()


def draw_plan(seed: int, duration_s: float, backend: Backend, only: Iterable[Chosen] = ()) -> Plan:
    """`only`: use all of these, each with this target if one is given; without, the seed draws which kinds."""
    rng = random.Random(f"chaos {seed}")
    chosen: list[Chosen] = list(only)
    if not chosen:
        chosen += [(kind, None) for kind in _draw_kinds(rng, backend)]
    overlap_max = rng.choice((1, 1, 2))
    gap_s = rng.choice(MEAN_GAPS_S)
    faults = []
    at_s = FIRST_AT_S
    while at_s < duration_s - FAULT_S[0]:
        kind, target = _choose(rng, chosen)
        faults.append(
            PlannedFault(
                at_s=round(at_s, 2),
                kind=kind.name,
                target=rng.choice(kind.targets) if target is None else target,
                partition=rng.randrange(PARTITIONS),
                for_s=round(min(rng.uniform(*FAULT_S), duration_s - at_s), 2),
            )
        )
        at_s += rng.uniform(0.3, 1.7) * gap_s
        if overlap_max == 1:
            at_s = max(at_s, faults[-1].at_s + faults[-1].for_s + rng.uniform(0.0, gap_s))
    return Plan(seed=seed, duration_s=duration_s, overlap_max=overlap_max, faults=tuple(faults))


def _choose(rng: random.Random, chosen: list[Chosen]) -> Chosen:
    """Sequences come more often than their number."""
    sequences = [each for each in chosen if each[0].is_sequence]
    others = [each for each in chosen if not each[0].is_sequence]
    wants_sequence = rng.random() < SEQUENCE_PROBABILITY * len(sequences)
    return rng.choice(sequences if sequences and (wants_sequence or not others) else others)


def _draw_kinds(rng: random.Random, backend: Backend) -> list[FaultKind]:
    possible = [kind for kind in KINDS if backend in kind.backends]
    drawn = [kind for kind in possible if kind.is_sequence or rng.random() < 0.5]
    rest = [kind for kind in possible if kind not in drawn]
    return drawn + rng.sample(rest, max(0, KINDS_MIN - len(drawn)))


def parse_faults(names: str) -> list[Chosen]:
    """`kill,pause:leader`: kinds, with a target or without. Raises BadPlan."""
    found, unknown = [], []
    for each in filter(None, (part.strip() for part in names.split(","))):
        name, colon, target = each.partition(":")
        kind = BY_NAME.get(name)
        if kind is None:
            meant = suggestion(name, BY_NAME)
            unknown.append(f"{name!r}{f' ({meant})' if meant else ''}")
            continue
        wanted = next((known for known in kind.targets if known == target), None)
        if colon and wanted is None:
            raise BadPlan(f"{name} has no target {target!r}: give {' or '.join(kind.targets)}")
        found.append((kind, wanted))
    if unknown:
        raise BadPlan(f"there is no fault {', '.join(unknown)}: `minibroker chaos faults` lists them")
    if not found:
        raise BadPlan("no fault is named: give some, such as kill,pause:leader, or leave --faults out")
    return found


def parse_plan(content: bytes, backend: Backend) -> Plan:
    """A plan as `minibroker chaos plan` prints it. Raises BadPlan."""
    try:
        plan = msgspec.json.decode(content, type=Plan)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPlan(f"this is no plan ({error}): `minibroker chaos plan --seed 1 --json` prints one") from None
    for number, fault in enumerate(plan.faults, start=1):
        kind = BY_NAME.get(fault.kind)
        if kind is None:
            raise BadPlan(f"fault {number}: there is no {fault.kind!r}: `minibroker chaos faults` lists them")
        if fault.target not in kind.targets:
            raise BadPlan(f"fault {number}: {kind.name} has no target {fault.target!r}: {', '.join(kind.targets)}")
        check_backend(kind, backend)
        if max(fault.at_s, fault.for_s) > plan.duration_s:
            raise BadPlan(f"fault {number}: it begins or lasts longer than the run ({plan.duration_s:g} s): correct it")
    return msgspec.structs.replace(plan, faults=tuple(sorted(plan.faults, key=lambda fault: fault.at_s)))


def check_backend(kind: FaultKind, backend: Backend) -> None:
    """Raises BadPlan."""
    if backend not in kind.backends:
        able = " or ".join(kind.backends)
        raise BadPlan(f"{kind.name} is not possible on {backend}: use --backend {able}, or leave it out")
