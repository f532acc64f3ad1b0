"""The mutants still fit the code, and the page shows what is recorded."""

from collections import Counter

import pytest

from tests.mutants.catalogue import CANNOT_APPLY, HARMLESS, MUTANTS
from tests.mutants.mutant import Edit, Mutant, UnitTest
from tests.mutants.patching import ROOT, DoesNotApply, compile_mutant, patched_sources
from tests.mutants.recorded import load_records
from tests.mutants.table import PAGE, page_with_table

CANNOT_APPLY_MAX = 6


@pytest.mark.parametrize("mutant", [*MUTANTS, *HARMLESS], ids=lambda mutant: mutant.name)
def test_each_edit_applies_exactly_once_and_compiles(mutant: Mutant) -> None:
    assert mutant.edits
    assert compile_mutant(mutant)


def test_an_edit_whose_text_is_missing_or_ambiguous_is_refused() -> None:
    for before in ("this text occurs nowhere", "return"):
        edit = Edit("broker.replication.isr", before, "pass")
        mutant = Mutant(name="X", title="", origin="", rule="", breaks=(), edits=(edit,))
        with pytest.raises(DoesNotApply, match="not once"):
            patched_sources(mutant)


def test_names_are_unique() -> None:
    names = Counter([*(each.name for each in (*MUTANTS, *HARMLESS)), *(each.name for each in CANNOT_APPLY)])
    assert [name for name, count in names.items() if count > 1] == []


def test_each_mutant_has_a_directed_run_because_seeds_change_their_meaning() -> None:
    assert [mutant.name for mutant in MUTANTS if mutant.schedule is None] == []


def test_the_tests_that_catch_mutants_exist() -> None:
    for mutant in MUTANTS:
        if isinstance(mutant.schedule, UnitTest):
            path, function = mutant.schedule.name.split("::")
            assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), mutant.name


def test_the_record_names_only_mutants_that_exist() -> None:
    assert set(load_records()) <= {mutant.name for mutant in MUTANTS}


def test_few_mutants_cannot_apply() -> None:
    assert len(CANNOT_APPLY) <= CANNOT_APPLY_MAX


def test_the_page_shows_the_recorded_table_of_mutants() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_table(), "run `python -m tests.mutants table`"
