"""Mutants of a tiny module in real child processes: one that its test kills, one that survives, one that never ends."""

import asyncio
from pathlib import Path

import pytest

from tests.mutants.patching import source_path
from tests.mutation_score import scoring
from tests.mutation_score.measuring import KillerReach
from tests.mutation_score.population import mutated_source, sites
from tests.mutation_score.scoring import try_on
from tests.mutation_score.trial import TrialResult

MODULE = "protocol.tiny"
"""No file has this name: the import hook alone provides the module."""
SOURCE = """\
def larger(one, other):
    while not one >= 0:
        one += 1
    return one if one > other else other
"""
TEST = """\
from minibroker.protocol.tiny import larger

def test_larger():
    assert larger(1, 2) == 2
    assert larger(-2, -3) == 0
"""


@pytest.fixture
def killer(tmp_path: Path) -> KillerReach:
    path = tmp_path / "test_tiny.py"
    path.write_text(TEST)
    return KillerReach(killer=f"{path}::test_larger", file=str(path))


def mutant(line: str) -> str:
    """The mutated source that contains this line."""
    texts = [mutated_source(SOURCE, *each) for site in sites(MODULE, SOURCE) for each in site.mutations]
    [found] = [text for text in texts if text is not None and line in text.splitlines()]
    return found


def tried(source: str, *killers: KillerReach, module: str = MODULE) -> TrialResult:
    return asyncio.run(try_on(module, source, killers))


def test_a_change_that_a_test_notices_is_killed_by_it(killer: KillerReach) -> None:
    result = tried(mutant("    return one if one < other else other"), killer)
    assert result.killer is not None and result.killer.endswith("test_tiny.py::test_larger")
    assert "test_tiny.py:4: AssertionError" in result.text


def test_a_change_that_no_test_can_notice_survives(killer: KillerReach) -> None:
    assert tried(mutant("    return one if one >= other else other"), killer) == TrialResult(killer=None)


def test_a_mutant_that_never_ends_is_killed_when_its_time_is_over(
    killer: KillerReach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "CPU_SECONDS_START", 3)
    assert tried(SOURCE.replace("one += 1", "one -= 1"), killer).killer == "crash"


def test_a_module_that_does_not_load_is_killed(killer: KillerReach) -> None:
    result = tried("from minibroker.protocol import missing_name\n", killer)
    assert result.killer is not None and "missing_name" in result.text


def test_the_code_as_it_is_survives_tests_and_a_seed() -> None:
    module, file = "broker.replication.isr", "tests/broker/replication/test_proposals.py"
    text = source_path(module).read_text(encoding="utf-8")
    killers = (KillerReach(killer=file, file=file), KillerReach(killer="seed:1", file="seed", cpu_seconds=3.0))
    assert tried(text, *killers, module=module) == TrialResult(killer=None)


def test_code_that_reads_its_own_source_survives_and_sees_a_change() -> None:
    module, file = "protocol.wire.client_messages", "tests/docs/test_wire_tables.py"
    text, killer = source_path(module).read_text(encoding="utf-8"), KillerReach(killer=file, file=file, cpu_seconds=3.0)
    assert tried(text, killer, module=module) == TrialResult(killer=None)
    changed = text.replace("error_code: I16 = 0\n    partition_index", "error_code: I16 = -1\n    partition_index")
    assert tried(changed, killer, module=module).killer is not None


def test_a_seed_of_the_swarm_kills_a_broken_replica() -> None:
    module = "broker.replication.high_watermark"
    text = source_path(module).read_text(encoding="utf-8")
    broken = text.replace("end < candidate", "end > candidate")
    assert broken != text
    seed = KillerReach(killer="seed:1", file="seed", cpu_seconds=3.0)
    assert tried(broken, seed, module=module).killer == "seed:1"
