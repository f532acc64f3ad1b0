"""Draws mutants: a part of every folder, by a seed.

A site's place in the draw is a hash of the seed and of its own text, not of its line. So most of a sample stays the
same while the code around it changes. Each site counts once, however many operators can change it: otherwise a
comparison would count seven times as much as a forgotten call.
"""

import difflib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.mutation_score.population import Site, module_paths, mutated_source, sites

KEPT_FOLDER = ".mutation-score"
"""What is measured, drawn and found; git ignores it."""
STRATA = ("broker.log", "broker.replication", "broker", "client", "controller", "protocol")
"""A module belongs to the first that holds it."""


class DrawnMutant(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one module."""

    name: str
    """A hash of module, function and change: the same while these are the same. Of lines that read the same in one
    function, each has a name of its own."""
    site: Site
    operator: str
    occurrence: int
    before: str
    """The changed lines, without indentation."""
    after: str

    @property
    def module(self) -> str:
        return self.site.module

    @property
    def place(self) -> str:
        """For people: `broker/log/recovery.py:120`."""
        return f"{self.module.replace('.', '/')}.py:{self.site.start[0]}"


def stratum(module: str) -> str:
    return next(each for each in STRATA if module.startswith(each + "."))


def is_below(module: str, folders: Sequence[str]) -> bool:
    """Whether one of `folders`, `broker.log` or a module, holds this module. No folders are all."""
    return not folders or any(f"{module}.".startswith(f"{folder}.") for folder in folders)


def draw(
    root: Path,
    size: int,
    seed: int,
    folders: Sequence[str] = (),
    operators: Sequence[str] = (),
    *,
    handlers_only: bool = False,
) -> list[DrawnMutant]:
    """`size` mutants, or all there are, by these operators from these folders: of each folder, its share of the sites.

    No operators are all of them. `handlers_only`: only in bodies of `except` and `finally`.
    """
    paths = {module: path for module, path in module_paths(root).items() if is_below(module, folders)}
    sources = {module: path.read_text(encoding="utf-8") for module, path in paths.items()}
    found: dict[str, list[tuple[bytes, Site]]] = defaultdict(list)
    for module, source in sources.items():
        for key, site in _keyed(module, source, seed):
            chosen = tuple(each for each in site.mutations if not operators or each[0] in operators)
            if chosen and (site.in_handler or not handlers_only):
                found[stratum(module)].append((key, msgspec.structs.replace(site, mutations=chosen)))
    drawn: list[DrawnMutant] = []
    for name, count in _shares({name: len(each) for name, each in found.items()}, size).items():
        mutants = _mutants(sources, sorted(found[name], key=lambda each: each[0]))
        drawn += [mutant for _, mutant in zip(range(count), mutants, strict=False)]
    return drawn


def kept_draw(
    root: Path,
    size: int,
    seed: int,
    folders: Sequence[str] = (),
    operators: Sequence[str] = (),
    *,
    handlers_only: bool = False,
) -> list[DrawnMutant]:
    """The same, drawn once for each state of the code: that takes half a minute."""
    texts = [path.read_bytes() for path in module_paths(root).values()]
    chosen = [name.encode() for name in (*folders, *operators, *["handlers"] * handlers_only)]
    digest = hashlib.sha256(b"".join([*texts, *chosen])).hexdigest()[:16]
    kept = root / KEPT_FOLDER / f"sample-{size}-{seed}-{digest}.json"
    if not kept.exists():
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(msgspec.json.encode(draw(root, size, seed, folders, operators, handlers_only=handlers_only)))
    return msgspec.json.decode(kept.read_bytes(), type=list[DrawnMutant])


def source_of(root: Path, mutant: DrawnMutant) -> str:
    """The mutated module's text."""
    text = mutated_source(module_paths(root)[mutant.module].read_text("utf-8"), mutant.operator, mutant.occurrence)
    assert text is not None, mutant
    return text


def _keyed(module: str, source: str, seed: int) -> Iterator[tuple[bytes, Site]]:
    lines, seen = source.splitlines(), Counter[str]()
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for site in sites(module, source):
        number, line = site.start[0], lines[site.start[0] - 1].strip()
        text = f"{module} {site.function} {line} {site.mutations[0][0]}"
        seen[text] += 1
        numbers = alike[site.function, line]
        if number not in numbers:
            numbers.append(number)
        site = msgspec.structs.replace(site, repetition=numbers.index(number))
        yield hashlib.sha256(f"{seed} {seen[text]} {text}".encode()).digest(), site


def _shares(sizes: Mapping[str, int], size: int) -> dict[str, int]:
    """By largest remainder."""
    size = min(size, sum(sizes.values()))
    exact = {name: size * count / sum(sizes.values()) for name, count in sizes.items()}
    shares = {name: int(share) for name, share in exact.items()}
    for name in sorted(exact, key=lambda each: shares[each] - exact[each])[: size - sum(shares.values())]:
        shares[name] += 1
    return shares


def _mutants(sources: Mapping[str, str], keyed: Iterable[tuple[bytes, Site]]) -> Iterator[DrawnMutant]:
    """One a site; the site's hash chooses the operator. A site where no operator leaves another program is passed."""
    for key, site in keyed:
        source, count = sources[site.module], len(site.mutations)
        for turn in range(count):
            operator, occurrence = site.mutations[(key[0] + turn) % count]
            text = mutated_source(source, operator, occurrence)
            if text is not None:
                yield _drawn(site, operator, occurrence, source, text)
                break


def _drawn(site: Site, operator: str, occurrence: int, source: str, text: str) -> DrawnMutant:
    changes = [line for line in difflib.ndiff(source.splitlines(), text.splitlines()) if line[:2] in ("- ", "+ ")]
    before, after = (" ".join(line[2:].strip() for line in changes if line[0] == sign) for sign in "-+")
    where = f"{site.module} {site.function}" + (f" {site.repetition}" if site.repetition else "")
    return DrawnMutant(
        name=hashlib.sha256(f"{where} {before} {after}".encode()).hexdigest()[:10],
        site=site,
        operator=operator,
        occurrence=occurrence,
        before=before,
        after=after,
    )
