"""Tries drawn mutants: first on tests, all of them; then the survivors on seeds of the swarm."""

import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec

from tests.mutants.patching import ROOT
from tests.mutants.workers import ChildFailed, child_lines
from tests.mutation_score.measuring import KillerReach
from tests.mutation_score.population import module_paths
from tests.mutation_score.processes import in_parallel
from tests.mutation_score.reach import KEPT, KILLER_FOLDERS, SEEDS, Reach, code_digest, digest_of, measured_reach
from tests.mutation_score.results import Result, Results, Stage
from tests.mutation_score.sample import DrawnMutant, source_of
from tests.mutation_score.survivors import Survivor, SurvivorClass
from tests.mutation_score.trial import Trial, TrialResult

CPU_SECONDS_START = 20
CPU_SECONDS_FACTOR = 4
"""The measured times include the line trace, which triples them: a mutant may take some twelve times as long."""
SECONDS_START, SECONDS_FACTOR = 600.0, 10.0
"""The real time may be shared with other programs: it only ends what waits for ever. On a machine with a load of 20, a
trial of 2 CPU seconds took 145 s, which was once too much."""
SECONDS_PER_TEST_MIN = 120.0


class Scoring:
    """One sample, tried on the tests below some paths; on all tests if there is no path."""

    def __init__(
        self, mutants: Sequence[DrawnMutant], survivors: dict[str, Survivor], tests_below: Sequence[str] = ()
    ) -> None:
        self.mutants = mutants
        self._survivors = survivors
        self._modules = {module: digest_of([path]) for module, path in module_paths(ROOT).items()}
        code = code_digest()
        tests = digest_of(path for folder in KILLER_FOLDERS for path in (ROOT / "tests" / folder).rglob("*.py"))
        self._tests_below = tuple(tests_below)
        self._worlds: dict[Stage, str] = {"tests": "-".join([code, tests, *self._tests_below]), "seeds": code}
        self.results = Results(KEPT / "results.jsonl", self._worlds)
        self.failed_killers: list[KillerReach] = []

    def result(self, mutant: DrawnMutant) -> Result | None:
        """The last one: of the seeds if these were tried."""
        tests = self._find(mutant, "tests")
        return tests if tests is None or tests.killer is not None else self._find(mutant, "seeds") or tests

    def _find(self, mutant: DrawnMutant, stage: Stage) -> Result | None:
        return self.results.find(mutant.name, stage, self._modules[mutant.module])

    async def run(
        self, processes: int, with_seeds: bool, progress: Callable[[str], None], on_result: Callable[[Result], None]
    ) -> None:
        """All that is left to do."""
        reach = Reach(await measured_reach(processes, progress, with_seeds, self._tests_below))
        self.failed_killers = reach.failed
        stages: tuple[Stage, ...] = ("tests", "seeds") if with_seeds else ("tests",)
        for stage in stages:
            left = [each for each in self.mutants if self._is_left(each, stage)]
            left.sort(key=lambda each: each.name)  # a run that is stopped has tried a part of every folder

            async def one(number: int, mutant: DrawnMutant, stage: Stage = stage, total: int = len(left)) -> None:
                progress(f"{stage}: {number} of {total}: {mutant.place}")
                killers = reach.tests(mutant) if stage == "tests" else reach.seeds(mutant)
                result = await self._tried(mutant, stage, killers)
                self.results.add(result)
                on_result(result)

            await in_parallel(processes, [one(number, mutant) for number, mutant in enumerate(left, start=1)])

    def _is_left(self, mutant: DrawnMutant, stage: Stage) -> bool:
        if self._find(mutant, stage) is not None:
            return False
        if stage == "tests":
            return True
        sorted_as = self._survivors.get(mutant.name)
        tests = self._find(mutant, "tests")
        is_equivalent = sorted_as is not None and sorted_as.sorted_as is SurvivorClass.EQUIVALENT
        return not is_equivalent and (tests is None or tests.killer is None)

    async def _tried(self, mutant: DrawnMutant, stage: Stage, killers: Sequence[KillerReach]) -> Result:
        started = time.monotonic()
        found = await try_on(mutant.module, source_of(ROOT, mutant), killers) if killers else TrialResult(killer=None)
        return Result(
            name=mutant.name,
            stage=stage,
            module_digest=self._modules[mutant.module],
            world_digest=self._worlds[stage],
            killer=found.killer,
            text=found.text,
            killers=len(killers),
            seconds=round(time.monotonic() - started, 1),
            place=f"{mutant.place} {mutant.site.function}",
            change=f"{mutant.before} -> {mutant.after}",
        )


async def try_on(module: str, source: str, killers: Sequence[KillerReach]) -> TrialResult:
    """Let these killers have a go at a module's changed text, in a child process."""
    trial = Trial(
        module=module,
        source=source,
        tests=tuple(each.killer for each in killers if each.killer not in SEEDS),
        seeds=tuple(each.killer for each in killers if each.killer in SEEDS),
        cpu_seconds_max=CPU_SECONDS_START + round(CPU_SECONDS_FACTOR * sum(each.cpu_seconds for each in killers)),
        seconds_per_test_max=SECONDS_PER_TEST_MIN + SECONDS_FACTOR * max(each.seconds for each in killers),
    )
    seconds_max = SECONDS_START + SECONDS_FACTOR * sum(each.seconds for each in killers)
    given = msgspec.json.encode(trial)
    try:
        arguments = ("-m", "tests.mutation_score.trial")
        async with contextlib.aclosing(child_lines(*arguments, given=given, seconds_max=seconds_max)) as lines:
            async for line in lines:
                return msgspec.json.decode(line, type=TrialResult)
    except TimeoutError:
        return TrialResult(killer="timeout", text=f"after {seconds_max:.0f} s")
    except ChildFailed as error:
        if error.exit_code >= 0:  # not the mutant: the child itself
            raise
        return TrialResult(killer="crash", text=str(error)[-300:])  # by a signal; SIGKILL: the CPU time is over
    return TrialResult(killer="crash", text="the process ended without an answer")
