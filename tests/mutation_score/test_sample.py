"""The draw: repeatable, in proportion, and steady while the code moves."""

from pathlib import Path

import pytest

from tests.mutation_score.sample import STRATA, draw, source_of, stratum

TEXT = "def f{0}(a):\n    if a > {0}:\n        g(a)\n    return a + {0}\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small project: twice as much code in `client` as in each other folder."""
    for name in STRATA:
        folder = tmp_path / name.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        numbers = range(3, 15) if name == "client" else range(3, 9)
        (folder / "code.py").write_text("".join(TEXT.format(number) for number in numbers))
    return tmp_path


def test_a_seed_draws_the_same_mutants_again_and_another_seed_others(root: Path) -> None:
    first = [mutant.name for mutant in draw(root, 20, seed=1)]
    assert first == [mutant.name for mutant in draw(root, 20, seed=1)]
    assert set(first) != {mutant.name for mutant in draw(root, 20, seed=2)}


def test_each_folder_has_its_share(root: Path) -> None:
    drawn = [stratum(mutant.module) for mutant in draw(root, 14, seed=1)]
    assert {name: drawn.count(name) for name in STRATA} == {name: 4 if name == "client" else 2 for name in STRATA}


def test_a_larger_sample_contains_the_smaller_one(root: Path) -> None:
    small, large = ({mutant.name for mutant in draw(root, size, seed=1)} for size in (14, 28))
    assert small < large


def test_code_that_moves_keeps_its_mutants(root: Path) -> None:
    before = [mutant.name for mutant in draw(root, 14, seed=1)]
    path = root / "client" / "code.py"
    path.write_text("\n\n" + path.read_text())
    assert [mutant.name for mutant in draw(root, 14, seed=1)] == before


def test_a_mutant_says_what_it_changes(root: Path) -> None:
    for mutant in draw(root, 14, seed=1):
        lines = (root / mutant.place.partition(":")[0]).read_text().splitlines()
        assert mutant.before == lines[mutant.site.start[0] - 1].strip() != mutant.after
        assert mutant.after in source_of(root, mutant)


def test_a_folder_or_a_module_can_be_drawn_from_alone(root: Path) -> None:
    (root / "broker" / "logger.py").write_text("def f(a):\n    return a + 1\n")
    assert {mutant.module for mutant in draw(root, 1_000, seed=1, folders=["broker.log"])} == {"broker.log.code"}
    drawn = {mutant.module for mutant in draw(root, 1_000, seed=1, folders=["client.code", "broker.logger"])}
    assert drawn == {"client.code", "broker.logger"}


def test_one_kind_of_mutation_can_be_drawn_alone(root: Path) -> None:
    drawn = draw(root, 1_000, seed=1, operators=["RemoveCall"])
    assert {mutant.operator for mutant in drawn} == {"RemoveCall"}
    assert {mutant.module for mutant in drawn} == {f"{name}.code" for name in STRATA}


def test_handlers_can_be_drawn_alone(root: Path) -> None:
    (root / "broker" / "handler.py").write_text("def f(a):\n    try:\n        g(a)\n    except E:\n        h(a)\n")
    [mutant] = draw(root, 1_000, seed=1, operators=["RemoveCall"], handlers_only=True)
    assert (mutant.before, mutant.after) == ("h(a)", "pass")


def test_lines_that_read_the_same_have_names_of_their_own(root: Path) -> None:
    (root / "broker" / "twice.py").write_text("def f(a):\n    g(a)\n    if a:\n        g(a)\n    g(a) or a\n")
    calls = draw(root, 1_000, seed=1, folders=["broker.twice"], operators=["RemoveCall"])
    assert [(mutant.before, mutant.after) for mutant in calls] == [("g(a)", "pass")] * 2
    assert calls[0].name != calls[1].name
