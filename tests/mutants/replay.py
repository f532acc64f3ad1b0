"""Replays the recorded runs, and searches for new ones.

Owns: which runs show that a mutant is caught, and the result. A mutant is caught when a checker outside the mutated
modules finds a violation in its run, and the same run without the mutant is clean.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec

from tests.mutants.mutant import Mutant
from tests.mutants.one_run import RunResult, SerializedFinding
from tests.mutants.recorded import MutantRecord, RecordedRun, load_records, save_records
from tests.mutants.workers import PROCESSES, ChildFailed, Workers

SEEDS_PER_MUTANT_MAX = 200
PASSES = ((1, 10), (11, 50), (51, SEEDS_PER_MUTANT_MAX))
"""Ranges of seeds (first, last). Every uncaught mutant gets one range before any gets the next: easy ones cost little."""
SEARCH_SECONDS_MAX = 55 * 60.0
FINDING_CHARS = 160

Progress = Callable[[str], None]


class ReplayedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one mutant."""

    name: str
    title: str
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


class Replay:
    """One session of children; unpatched runs are shared between mutants."""

    def __init__(self, progress: Progress, processes: int = PROCESSES) -> None:
        self._workers = Workers(processes)
        self._unpatched_workers = Workers(1)
        """Separate, so that a task waiting for an unpatched run does not queue behind all mutants."""
        self._progress = progress
        self._unpatched: dict[str, asyncio.Task[RunResult]] = {}
        self._done = 0

    async def replay(self, mutants: Sequence[Mutant], record: bool, seeds: bool = True) -> list[ReplayedRun]:
        """Every recorded run of these mutants, and every schedule. Without `seeds`, the schedules alone."""
        records = load_records()
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self._replay_one(mutant, run))
                for mutant in mutants
                for run in _runs_to_replay(
                    mutant, records.get(mutant.name, MutantRecord()) if seeds else MutantRecord()
                )
            ]
        verdicts = [task.result() for task in tasks]
        if record:
            for verdict in verdicts:
                _keep(records, verdict)
            save_records(records)
        return verdicts

    async def search(self, mutants: Sequence[Mutant]) -> list[ReplayedRun]:
        """Random seeds for every mutant, in passes, until all are caught or the time is over; saved as found."""
        deadline = time.monotonic() + SEARCH_SECONDS_MAX
        found: dict[str, ReplayedRun] = {}
        records, names = load_records(), {mutant.name for mutant in mutants}
        for name in records.keys() & names:  # the runs of other mutants stay recorded
            records[name] = msgspec.structs.replace(records[name], seed=None)
        for first, last in PASSES:

            async def one(mutant: Mutant, first: int = first, last: int = last) -> None:
                verdict = await self._search_one(mutant, first, last, deadline)
                if verdict is not None:
                    found[mutant.name] = verdict
                    _keep(records, verdict, tries=int(verdict.run.removeprefix("seed:")))
                    save_records(records)

            async with asyncio.TaskGroup() as group:
                for mutant in mutants:
                    if mutant.name not in found and time.monotonic() < deadline:
                        group.create_task(one(mutant))
        return [found[mutant.name] for mutant in mutants if mutant.name in found]

    async def _search_one(self, mutant: Mutant, first: int, last: int, deadline: float) -> ReplayedRun | None:
        runs = [f"seed:{seed}" for seed in range(first, last + 1)]
        while runs:
            catching: RunResult | None = None
            try:
                async with contextlib.aclosing(self._workers.results(mutant.name, runs, stops=True)) as results:
                    async for result in results:
                        runs.remove(result.run)
                        self._progress(f"{mutant.name} {result.run}")
                        if result.catching_findings(mutant.modules):
                            catching = result
                        if time.monotonic() > deadline:
                            runs.clear()
                            break
            except ChildFailed as error:
                return _failed(mutant, runs[0], str(error))
            if catching is None:
                continue
            verdict = await self._compared(mutant, catching)
            if verdict.is_caught:
                return verdict
        return None

    async def _replay_one(self, mutant: Mutant, run: str) -> ReplayedRun:
        try:
            async with contextlib.aclosing(self._workers.results(mutant.name, [run])) as results:
                found = [result async for result in results]
            return await self._compared(mutant, found[0])
        except ChildFailed as error:
            return _failed(mutant, run, str(error))

    async def _compared(self, mutant: Mutant, result: RunResult) -> ReplayedRun:
        unpatched = await self._unpatched_result(result.run)
        self._done += 1
        self._progress(f"{self._done} replayed, {mutant.name} {result.run}")
        return ReplayedRun(
            name=mutant.name,
            title=mutant.title,
            run=result.run,
            caught_by=result.catching_findings(mutant.modules),
            unpatched_findings=unpatched.findings,
            seconds=result.seconds,
            virtual_seconds=result.virtual_seconds,
        )

    async def _unpatched_result(self, run: str) -> RunResult:
        if run not in self._unpatched:
            self._unpatched[run] = asyncio.ensure_future(self._run_unpatched(run))
        return await asyncio.shield(self._unpatched[run])

    async def _run_unpatched(self, run: str) -> RunResult:
        async with contextlib.aclosing(self._unpatched_workers.results(None, [run])) as results:
            async for result in results:
                return result
        raise ChildFailed(f"unpatched {run}: no result")


def _runs_to_replay(mutant: Mutant, record: MutantRecord) -> list[str]:
    runs = [] if record.seed is None else [record.seed.run]
    if mutant.schedule is not None:
        runs.append(mutant.schedule.run)
    return runs


def _keep(records: dict[str, MutantRecord], verdict: ReplayedRun, tries: int = 1) -> None:
    if not verdict.is_caught:
        return
    before = records.get(verdict.name, MutantRecord())
    if verdict.run.startswith("seed:"):
        tries = before.seed.tries if before.seed is not None and before.seed.run == verdict.run else tries
        records[verdict.name] = msgspec.structs.replace(before, seed=verdict.caught(tries))
    else:
        records[verdict.name] = msgspec.structs.replace(before, schedule=verdict.caught())


def _failed(mutant: Mutant, run: str, why: str) -> ReplayedRun:
    return ReplayedRun(
        name=mutant.name,
        title=mutant.title,
        run=run,
        caught_by=[],
        unpatched_findings=[],
        seconds=0.0,
        virtual_seconds=0.0,
        failure=why,
    )
