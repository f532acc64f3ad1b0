"""Replays the recorded runs, and searches seeds anew where a recorded one catches its mutant no longer.

Owns: which runs show that a mutant is caught, the bounds of a search, and the verdict. A mutant is caught when a checker
outside the mutated modules finds a violation in its run, and the same run without the mutant is clean.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from tests.mutants.mutant import Mutant
from tests.mutants.one_run import RunResult, SerializedFinding
from tests.mutants.recorded import MutantRecord, RecordedRun, load_records, save_records
from tests.mutants.workers import PROCESSES, ChildFailed, child_results

SEEDS_ANEW_MAX = 40
SECONDS_ANEW_MAX = 60.0
"""Bounds of the search for one mutant in a replay. They hold at the end of a run, so one run may exceed the time."""
PASSES = ((1, 10), (11, 50), (51, 200))
"""Seeds (first, last) of `search`. Each uncaught mutant gets one range before any gets the next: easy ones cost little."""
SEARCH_SECONDS_MAX = 55 * 60.0
FINDING_CHARS = 160

Progress = Callable[[str], None]


class ReplayedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one mutant."""

    run: str
    caught_by: list[SerializedFinding]
    unpatched_findings: list[SerializedFinding]
    seconds: float
    virtual_seconds: float
    failure: str | None = None

    @property
    def is_caught(self) -> bool:
        return bool(self.caught_by) and not self.unpatched_findings and self.failure is None

    def caught(self, tries: int = 1) -> RecordedRun:
        """As it is recorded."""
        first = self.caught_by[0]
        return RecordedRun(
            run=self.run,
            invariant=first.invariant,
            finding=first.text[:FINDING_CHARS],
            seconds=round(self.seconds, 1),
            tries=tries,
        )


class Outcome(StrEnum):
    RECORD = "caught by its record"
    ANEW = "caught anew"
    """Only by a seed that is not recorded."""
    NOT = "not caught"


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of one mutant."""

    name: str
    title: str
    outcome: Outcome
    recorded: list[ReplayedRun]
    """What `caught.json` names, and the mutant's own directed run."""
    anew: ReplayedRun | None = None
    """Found by a search."""

    @property
    def stale(self) -> list[str]:
        """Recorded runs that catch it no longer."""
        return [each.run for each in self.recorded if not each.is_caught]

    @property
    def runs(self) -> list[ReplayedRun]:
        return self.recorded if self.anew is None else [*self.recorded, self.anew]


def verdict_of(mutant: Mutant, recorded: list[ReplayedRun], anew: ReplayedRun | None) -> Verdict:
    """The one place where a mutant counts as caught."""
    outcome = Outcome.NOT
    if any(each.is_caught for each in recorded):
        outcome = Outcome.RECORD
    elif anew is not None and anew.is_caught:
        outcome = Outcome.ANEW
    return Verdict(name=mutant.name, title=mutant.title, outcome=outcome, recorded=recorded, anew=anew)


class Replay:
    """One session of children, `processes` at a time; unpatched runs are shared between mutants."""

    def __init__(self, progress: Progress, processes: int = PROCESSES) -> None:
        self._free = asyncio.Semaphore(processes)
        """Held by a mutant from its first run to its verdict, so that mutants are done in order."""
        self._progress = progress
        self._unpatched: dict[str, asyncio.Task[RunResult]] = {}
        self.not_clean: dict[str, str] = {}
        """run: the first finding without a mutant. Such a run catches nothing, and shows a bug of the code or a checker."""

    async def replay(
        self, mutants: Sequence[Mutant], on_verdict: Callable[[Verdict], None], seeds: bool = True
    ) -> None:
        """Every recorded run of these mutants, and every directed one. Without `seeds`, the directed ones alone."""
        records = load_records() if seeds else {}

        async def one(number: int, mutant: Mutant) -> None:
            async with self._free:
                record = records.get(mutant.name, MutantRecord())
                done: list[ReplayedRun] = []
                for run in _runs_to_replay(mutant, record):
                    self._progress(f"{number} of {len(mutants)}: {mutant.name} {run}")
                    done.append(await self._replay_run(mutant, run))
                anew = await self._search_anew(mutant, done) if seeds else None
                on_verdict(verdict_of(mutant, done, anew))

        async with asyncio.TaskGroup() as group:
            for number, mutant in enumerate(mutants, start=1):
                group.create_task(one(number, mutant))

    async def search(self, mutants: Sequence[Mutant], on_verdict: Callable[[Verdict], None]) -> None:
        """Random seeds for every mutant, in passes, until all are caught or the time is over."""
        deadline = time.monotonic() + SEARCH_SECONDS_MAX
        left = list(mutants)

        async def one(mutant: Mutant, first: int, last: int) -> None:
            async with self._free:
                found = await self._search_seeds(mutant, range(first, last + 1), deadline)
                if found is not None and found.is_caught:
                    left.remove(mutant)
                    on_verdict(verdict_of(mutant, [], found))

        for first, last in PASSES:
            async with asyncio.TaskGroup() as group:
                for mutant in left:
                    group.create_task(one(mutant, first, last))
        for mutant in left:
            on_verdict(verdict_of(mutant, [], None))

    async def _search_anew(self, mutant: Mutant, done: list[ReplayedRun]) -> ReplayedRun | None:
        """None if no seed is missing."""
        has_stale_seed = any(is_seed(each.run) and not each.is_caught for each in done)
        if not has_stale_seed and any(each.is_caught for each in done):
            return None
        deadline = time.monotonic() + SECONDS_ANEW_MAX
        return await self._search_seeds(mutant, range(1, SEEDS_ANEW_MAX + 1), deadline)

    async def _search_seeds(self, mutant: Mutant, seeds: Iterable[int], deadline: float) -> ReplayedRun | None:
        """The first of these seeds that catches it; None if none did in time."""
        runs = [f"seed:{seed}" for seed in seeds]
        while runs and time.monotonic() < deadline:
            catching: RunResult | None = None
            try:
                async with contextlib.aclosing(child_results(mutant.name, runs, stops=True)) as results:
                    async for result in results:
                        runs.remove(result.run)
                        self._progress(f"{mutant.name}: searching, {result.run}")
                        if result.catching_findings(mutant.modules):
                            catching = result
                        if time.monotonic() > deadline:
                            break
            except ChildFailed as error:
                return _failed(runs[0], str(error))
            if catching is not None and (found := await self._compared(mutant, catching)).is_caught:
                return found
        return None

    async def _replay_run(self, mutant: Mutant, run: str) -> ReplayedRun:
        try:
            async with contextlib.aclosing(child_results(mutant.name, [run])) as results:
                found = [result async for result in results]
            return await self._compared(mutant, found[0])
        except ChildFailed as error:
            return _failed(run, str(error))

    async def _compared(self, mutant: Mutant, result: RunResult) -> ReplayedRun:
        unpatched = await self._unpatched_result(result.run)
        if unpatched.findings:
            self.not_clean[result.run] = unpatched.findings[0].text
        return ReplayedRun(
            run=result.run,
            caught_by=result.catching_findings(mutant.modules),
            unpatched_findings=unpatched.findings,
            seconds=result.seconds,
            virtual_seconds=result.virtual_seconds,
        )

    async def _unpatched_result(self, run: str) -> RunResult:
        if run not in self._unpatched:
            self._unpatched[run] = asyncio.ensure_future(_run_unpatched(run))
        return await asyncio.shield(self._unpatched[run])


async def _run_unpatched(run: str) -> RunResult:
    async with contextlib.aclosing(child_results(None, [run])) as results:
        async for result in results:
            return result
    raise ChildFailed(f"unpatched {run}: no result")


def is_seed(run: str) -> bool:
    return run.startswith("seed:")


def _runs_to_replay(mutant: Mutant, record: MutantRecord) -> list[str]:
    runs = [] if record.seed is None else [record.seed.run]
    if mutant.schedule is not None:
        runs.append(mutant.schedule.run)
    return runs


def write_records(verdicts: Iterable[Verdict]) -> None:
    """Record the runs that caught these mutants, and remove those that catch them no longer. A run that catches as
    before stays as it is, times included."""
    records = load_records()
    for verdict in verdicts:
        before = records.get(verdict.name, MutantRecord())
        records[verdict.name] = MutantRecord(
            seed=_renewed(before.seed, [each for each in verdict.runs if is_seed(each.run)]),
            schedule=_renewed(before.schedule, [each for each in verdict.recorded if not is_seed(each.run)])
            if verdict.recorded
            else before.schedule,
        )
    save_records(records)


def _renewed(before: RecordedRun | None, runs: list[ReplayedRun]) -> RecordedRun | None:
    found = next((each for each in runs if each.is_caught), None)
    if found is None:
        return None
    is_same_run = before is not None and before.run == found.run
    if is_same_run and before is not None and before.finding == found.caught_by[0].text[:FINDING_CHARS]:
        return before
    tries = before.tries if is_same_run and before is not None else 1
    if is_seed(found.run) and not is_same_run:
        tries = int(found.run.removeprefix("seed:"))
    return found.caught(tries)


def _failed(run: str, why: str) -> ReplayedRun:
    return ReplayedRun(
        run=run,
        caught_by=[],
        unpatched_findings=[],
        seconds=0.0,
        virtual_seconds=0.0,
        failure=why,
    )
