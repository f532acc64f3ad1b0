"""The report: the score by folder, and the survivors."""

import math
from collections.abc import Iterable, Mapping

import msgspec

from tests.mutation_score.results import Result
from tests.mutation_score.sample import STRATA, DrawnMutant, stratum
from tests.mutation_score.survivors import Survivor

GOAL, STRICT_GOAL = 0.90, 0.97
STRICT = ("broker.log.", "broker.replication.", "controller.", "client.producer.accumulator", "client.consumer.cursor")
STRICT_ROW = "where promises are kept"


class FolderScore(msgspec.Struct, kw_only=True):
    """Counts of mutants."""

    folder: str
    goal: float = GOAL
    tried: int = 0
    by_tests: int = 0
    by_seeds: int = 0
    by_time: int = 0
    """Killed by a timeout or a crash of the process."""
    equivalent: int = 0
    harmless: int = 0
    harmful: int = 0
    unsorted: int = 0

    @property
    def killed(self) -> int:
        return self.by_tests + self.by_seeds + self.by_time

    @property
    def score(self) -> float | None:
        """The killed part of those that are not equivalent; None if there are none."""
        count = self.tried - self.equivalent
        return self.killed / count if count else None

    def add(self, result: Result, survivor: Survivor | None) -> None:
        self.tried += 1
        if result.killer in ("timeout", "crash"):
            self.by_time += 1
        elif result.killer is not None and result.stage == "seeds":
            self.by_seeds += 1
        elif result.killer is not None:
            self.by_tests += 1
        elif survivor is None:
            self.unsorted += 1
        else:
            name = survivor.sorted_as.value
            setattr(self, name, getattr(self, name) + 1)


def scores(tried: Iterable[tuple[DrawnMutant, Result]], survivors: Mapping[str, Survivor]) -> list[FolderScore]:
    """One a folder, then all, then the modules with the stricter goal."""
    folders = {name: FolderScore(folder=name.replace(".", "/")) for name in STRATA}
    total, strict = FolderScore(folder="all"), FolderScore(folder=STRICT_ROW, goal=STRICT_GOAL)
    for mutant, result in tried:
        rows = [folders[stratum(mutant.module)], total]
        if f"{mutant.module}.".startswith(STRICT):
            rows.append(strict)
        for row in rows:
            row.add(result, survivors.get(mutant.name))
    return [*folders.values(), total, strict]


def scores_text(rows: Iterable[FolderScore]) -> str:
    """The error is that of a sample: two standard deviations."""
    lines = [
        f"{'folder':24} {'tried':>5} {'tests':>6} {'seeds':>6} {'time':>5} "
        f"{'equivalent':>11} {'harmless':>9} {'harmful':>8} {'unsorted':>9}  score"
    ]
    for row in rows:
        lines.append(
            f"{row.folder:24} {row.tried:5} {row.by_tests:6} {row.by_seeds:6} {row.by_time:5} "
            f"{row.equivalent:11} {row.harmless:9} {row.harmful:8} {row.unsorted:9}  {_score_text(row)}"
        )
    return "\n".join(lines)


def _score_text(row: FolderScore) -> str:
    if row.score is None:
        return "-"
    error = 2 * math.sqrt(row.score * (1 - row.score) / (row.tried - row.equivalent))
    return f"{row.score:.0%} ± {error:.0%}" + (" below the goal" if row.score < row.goal else "")


def survivor_text(mutant: DrawnMutant, result: Result, survivor: Survivor | None) -> str:
    """One line and the change."""
    reached = "" if result.killers else ", executed by none of its killers"
    sorted_as = "unsorted" if survivor is None else f"{survivor.sorted_as}: {survivor.reason}"
    return (
        f"{mutant.name} {mutant.place} {mutant.site.function} [{mutant.operator}{reached}] {sorted_as}\n"
        f"    - {mutant.before}\n    + {mutant.after}"
    )
