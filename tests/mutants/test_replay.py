"""A few mutants of each kind are caught again, and harmless patches are not reported; `make mutants` replays them all."""

import asyncio
import contextlib

import pytest

from tests.mutants.catalogue import HARMLESS, find_mutant
from tests.mutants.mutant import Mutant
from tests.mutants.one_run import RunResult
from tests.mutants.replay import Outcome, Replay, Verdict
from tests.mutants.workers import child_results

REPLAYED = ("B01", "B08a", "B08b", "B14", "B15", "B18a", "B18b", "B20a", "B20b", "D55b")
"""Cheap ones: directed runs of a cluster or of the core, and a test. The meaning of a random seed changes with the code."""
SEEDS = ("seed:1", "seed:2")


def replay(names: tuple[str, ...]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    session = Replay(lambda _: None)
    asyncio.run(session.replay([find_mutant(name) for name in names], verdicts.append, seeds=False))
    return verdicts


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_recorded_mutants_are_caught_and_runs_without_them_are_clean() -> None:
    verdicts = replay(REPLAYED)
    assert {verdict.name for verdict in verdicts} == set(REPLAYED)
    assert [verdict for verdict in verdicts if verdict.outcome is not Outcome.RECORD] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("patch", HARMLESS, ids=lambda patch: patch.name)
def test_a_harmless_patch_causes_no_finding(patch: Mutant) -> None:
    async def run() -> list[RunResult]:
        async with contextlib.aclosing(child_results(patch.name, SEEDS)) as results:
            return [result async for result in results]

    found = asyncio.run(run())
    assert [result.run for result in found] == list(SEEDS)
    assert [each.text for result in found for each in result.findings] == []
